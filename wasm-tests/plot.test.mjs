// plotAttention: what stands where, in which colour, and that any text makes well-formed XML.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { plotAttention, WasmformerError } from '../dist/node.js';

/** Reads XML of elements, attributes and text strictly; returns the root as { name, attributes, children }. */
function parseXml(text) {
  assert.ok(text.isWellFormed(), 'no lone surrogates');
  assert.doesNotMatch(text, /[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/u, 'only characters that XML allows');
  const entity = (raw) =>
    raw.replace(/&(?:#(\d+);)?/g, (_, code) => {
      assert.ok(code, `a bare & in ${raw}`);
      return String.fromCodePoint(Number(code));
    });
  const stack = [{ name: null, children: [] }];
  const pattern = /<\/(\w+)>|<(\w+)((?:\s+[\w:-]+="[^"<]*")*)\s*(\/?)>|([^<]+)/gy;
  while (pattern.lastIndex < text.length) {
    const at = pattern.lastIndex;
    const match = pattern.exec(text);
    assert.ok(match, `not well-formed at ${at}: ${text.slice(at, at + 60)}`);
    const [, close, open, attributes, empty, characters] = match;
    if (close) assert.equal(stack.pop().name, close);
    else if (open) {
      const list = [...attributes.matchAll(/([\w:-]+)="([^"]*)"/g)].map(([, key, value]) => [key, entity(value)]);
      assert.equal(new Set(list.map(([key]) => key)).size, list.length, 'an attribute twice');
      const element = { name: open, attributes: Object.fromEntries(list), children: [] };
      stack.at(-1).children.push(element);
      if (!empty) stack.push(element);
    } else stack.at(-1).children.push(entity(characters));
  }
  assert.equal(stack.length, 1);
  assert.equal(stack[0].children.length, 1);
  return stack[0].children[0];
}

const textOf = (element) => element.children.filter((child) => typeof child === 'string').join('');
const all = (element, name) =>
  element.children.flatMap((child) => (typeof child === 'string' ? [] : [...(child.name === name ? [child] : []), ...all(child, name)]));
/** The groups of cells: one a head, the legend last. */
const groups = (svg) =>
  all(svg, 'g').map((group) =>
    all(group, 'path').map((path) => {
      const [, x, y] = /^M(\d+) (\d+)h1v1H\1z$/.exec(path.attributes.d);
      return { x: Number(x), y: Number(y), fill: path.attributes.fill, tip: all(path, 'title').map(textOf)[0] };
    }),
  );
const labels = (svg) => all(svg, 'text').map((text) => ({ text: textOf(text), ...text.attributes }));

test('source on x, target on y', () => {
  const weights = [
    [0, 0.25, 1],
    [0.5, 0.5, 0],
  ];
  const svg = parseXml(plotAttention(weights, ['the', 'black', 'cat'], ['le', 'chat'], { title: 'Cross-attention' }));
  assert.equal(svg.name, 'svg');
  assert.equal(svg.attributes.xmlns, 'http://www.w3.org/2000/svg');
  assert.equal(svg.attributes.role, 'img');
  assert.equal(textOf(all(svg, 'title')[0]), 'Cross-attention');
  assert.match(textOf(all(svg, 'desc')[0]), /2 target tokens \(rows\) over 3 source tokens \(columns\)/);
  const [cells] = groups(svg);
  const at = Object.fromEntries(cells.map((cell) => [`${cell.x},${cell.y}`, cell]));
  assert.equal(cells.length, 6);
  assert.equal(at['0,0'].fill, '#440154');
  assert.equal(at['2,0'].fill, '#fde725');
  assert.equal(at['2,1'].fill, '#440154');
  assert.equal(at['1,0'].tip, 'le ← black: 0.25');
  assert.equal(at['0,1'].fill, at['1,1'].fill);
  const xs = ['the', 'black', 'cat'].map((word) => labels(svg).find(({ text }) => text === word));
  const ys = ['le', 'chat'].map((word) => labels(svg).find(({ text }) => text === word));
  assert.ok(Number(xs[0].x) < Number(xs[1].x) && Number(xs[1].x) < Number(xs[2].x));
  assert.ok(xs.every(({ y }) => y === xs[0].y));
  assert.ok(Number(ys[0].y) < Number(ys[1].y));
  assert.ok(ys.every((label) => label.x === ys[0].x && label['text-anchor'] === 'end'));
});

test('viridis', () => {
  // Of matplotlib's 256 colours, those at i / 15.
  const expected = '440154 481a6c 472f7d 414487 39568c 31688e 2a788e 23888e 1f988b 22a884 35b779 54c568 7ad151 a5db36 d2e21b fde725'.split(
    ' ',
  );
  const weights = [expected.map((_, i) => i / 15)];
  const [cells] = groups(parseXml(plotAttention(weights, expected, ['all'])));
  for (const [i, { fill }] of cells.entries()) {
    for (let c = 0; c < 3; ++c) {
      const [actual, wanted] = [fill.slice(1), expected[i]].map((text) => Number.parseInt(text.slice(2 * c, 2 * c + 2), 16));
      assert.ok(Math.abs(actual - wanted) <= 6, `${i}: ${fill}, not #${expected[i]}`);
    }
  }
  assert.equal(cells[0].fill, '#440154');
  assert.equal(cells[15].fill, '#fde725');
  // Beyond the ends there is no other colour, `max` moves the bright one, and NaN has none.
  const [odd] = groups(parseXml(plotAttention([[-1, 2, Number.NaN, 0.2]], ['a', 'b', 'c', 'd'], ['e'])));
  assert.deepEqual(odd.map(({ x, fill }) => `${x} ${fill}`).slice(0, 2), ['0 #440154', '1 #fde725']);
  assert.equal(odd.length, 3);
  const [scaled] = groups(parseXml(plotAttention([[0.2]], ['a'], ['b'], { max: 0.2 })));
  assert.equal(scaled[0].fill, '#fde725');
});

test('the legend runs from 0 to max', () => {
  const svg = parseXml(plotAttention([[0.1]], ['a'], ['b'], { max: 0.5 }));
  const legend = groups(svg).at(-1);
  assert.equal(legend[0].fill, '#440154');
  assert.equal(legend.at(-1).fill, '#fde725');
  assert.deepEqual(
    labels(svg)
      .map(({ text }) => text)
      .slice(-2),
    ['0', '0.5'],
  );
});

test('any text is escaped and can be seen', () => {
  const shown = {
    '<b>&"\'': '<b>&"\'',
    ' ': '␣',
    ' the': '␣the',
    '\n': '\\n',
    '\0\t\x7f': '\\u0000\\t\\u007f',
    '\u00a0\u200b\ufeff\u2028': '\\u00a0\\u200b\\ufeff\\u2028',
    '\u202eabc': '\\u202eabc',
    '\u200d': '\\u200d',
    'क\u094d\u200dष': 'क\u094d\u200dष',
    '\u0301': '◌\u0301',
    '\ud800': '\\ud800',
    '\uffff': '\\uffff',
    '': '∅',
    '👩‍👩‍👧': '👩‍👩‍👧',
    شكرا: 'شكرا',
    ']]>': ']]>',
  };
  const tokens = Object.keys(shown);
  const svg = parseXml(plotAttention([tokens.map(() => 0)], tokens, ['"&<>'], { title: '<title> & "more"\n' }));
  assert.deepEqual(
    labels(svg)
      .map(({ text }) => text)
      .slice(1, tokens.length + 2),
    [...Object.values(shown), '"&<>'],
  );
  assert.equal(textOf(all(svg, 'title')[0]), '<title> & "more"\\n');
  assert.equal(all(svg, 'text')[0].attributes['unicode-bidi'], 'plaintext');
});

test('a long label is cut between characters, and whole in its tooltip', () => {
  const long = '👩‍👩‍👧'.repeat(30);
  const svg = parseXml(plotAttention([[1]], [long], ['a']));
  const [label] = all(svg, 'text');
  assert.equal(textOf(label), `${'👩‍👩‍👧'.repeat(23)}…`);
  assert.equal(textOf(all(label, 'title')[0]), long);
});

test('several heads stand side by side, each with its title', () => {
  const weights = { data: Float32Array.from({ length: 24 }, (_, i) => i / 23), shape: [4, 2, 3] };
  const svg = parseXml(plotAttention(weights, ['a', 'b', 'c'], ['d', 'e']));
  const places = all(svg, 'g').map(({ attributes }) => /translate\(([\d.]+) ([\d.]+)\)/.exec(attributes.transform).slice(1).map(Number));
  assert.equal(places.length, 5);
  assert.ok(places[0][0] < places[1][0] && places[0][1] === places[1][1]);
  assert.ok(places[2][0] === places[0][0] && places[2][1] > places[0][1]);
  for (const name of ['head 0', 'head 1', 'head 2', 'head 3'])
    assert.ok(
      labels(svg).some(({ text }) => text === name),
      name,
    );
  assert.equal(groups(svg)[3].at(-1).fill, '#fde725');
  const row = parseXml(plotAttention(weights, ['a', 'b', 'c'], ['d', 'e'], { columns: 4, titles: ['p', 'q', 'r', 's'] }));
  assert.ok(labels(row).some(({ text }) => text === 's'));
  assert.ok(Number(row.attributes.width) > Number(svg.attributes.width));
});

test('a large matrix has no tooltips', () => {
  const tokens = Array.from({ length: 65 }, (_, i) => `${i}`);
  const [cells] = groups(parseXml(plotAttention({ data: new Float32Array(65 * 65), shape: [65, 65] }, tokens, tokens)));
  assert.equal(cells.length, 65 * 65);
  assert.ok(cells.every(({ tip }) => tip === undefined));
});

const refused = [
  [() => plotAttention([[1, 0]], ['a'], ['b']), 'source: expected an array of 2'],
  [() => plotAttention([[1, 0]], ['a', 'b'], ['c', 'd']), 'target: expected an array of 1'],
  [() => plotAttention([[1, 0]], 'ab', ['c']), 'source: expected an array of 2'],
  [() => plotAttention([1, 0], ['a', 'b'], ['c']), 'weights: expected (T, S) or (H, T, S), got (2)'],
  [() => plotAttention({ data: [1], shape: [1, 2] }, ['a', 'b'], ['c']), 'weights: expected 2 numbers'],
  [() => plotAttention([[]], [], ['c']), 'weights: expected 0 numbers, at least one'],
  [() => plotAttention(null, ['a'], ['b']), 'weights: expected a tensor'],
  [() => plotAttention([[1]], ['a'], ['b'], { cell: 0 }), 'cell: expected a number above 0, got 0'],
  [() => plotAttention([[1]], ['a'], ['b'], { max: Number.NaN }), 'max: expected a number above 0, got NaN'],
  [() => plotAttention([[1]], ['a'], ['b'], { columns: -1 }), 'columns: expected a number above 0, got -1'],
  [() => plotAttention([[1]], ['a'], ['b'], { titles: ['p', 'q'] }), 'titles: expected an array of 1'],
  [() => plotAttention([[1]], ['a'], ['b'], { colour: 'red' }), "unknown option 'colour'"],
];
for (const [call, message] of refused) {
  test(`refused: ${message}`, () => {
    assert.throws(call, (error) => {
      assert.ok(error instanceof WasmformerError && error.code === 'invalid-argument', String(error));
      assert.ok(error.message.startsWith('[plotAttention] ') && error.message.includes(message), error.message);
      return true;
    });
  });
}

test('an engine without Intl.Segmenter draws too', (t) => {
  const { Segmenter } = Intl;
  t.after(() => {
    Intl.Segmenter = Segmenter;
  });
  const long = 'abcdefghijklmnopqrstuvwxyz';
  const whole = plotAttention([[1]], [long], ['b']);
  delete Intl.Segmenter;
  assert.equal(plotAttention([[1]], [long], ['b']), whole);
});
