// The demo page, built, served under a sub-path without cross-origin isolation, used as a visitor would.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { load } from '../../dist/node.js';
import { root, shippedModel } from '../../scripts/run.mjs';
import { folderOf } from '../support/fixtures.mjs';
import { random } from '../support/tiny.mjs';
import { checkColours, openDemo, picture, readPicture, walk } from './demo.mjs';
import { readFolder, serveHub } from './servers.mjs';

const pinyin = join(root, 'examples/models/pinyin');
const scratch = mkdtempSync(join(tmpdir(), 'wasmformer-page-'));
const chatTemplate =
  '{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}';

const slow = random(8);

/** A model that is told what to do in words before the text, as T5 is. */
function told() {
  const files = readFolder(folderOf('tasks/marian'));
  const config = { ...JSON.parse(files['config.json']), task_specific_params: {} };
  for (const to of ['de', 'fr']) config.task_specific_params[`translation_en_to_${to}`] = { prefix: `the ${to}: ` };
  return { ...files, 'config.json': Buffer.from(JSON.stringify(config)) };
}

/** The same bytes, 32 KB every 50 ms. */
const trickle = (bytes) => ({
  size: bytes.length,
  async write(begin, end, response) {
    for (let at = begin; at < end && !response.destroyed; at += 32_768) {
      response.write(bytes.subarray(at, Math.min(end, at + 32_768)));
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    response.end();
  },
});

let demo;
let hub;
before(async () => {
  demo = await openDemo();
  hub = await serveHub({
    'someone/talker': { files: random(3, { chatTemplate }) },
    'someone/private': { files: random(4), token: 'hf_secret' },
    'someone/translator': { files: readFolder(folderOf('tasks/marian')) },
    'someone/told': { files: told() },
    'someone/reader': { files: { ...readFolder(folderOf('tasks/bert-moods')), ...readFolder(folderOf('tasks/wordpiece')) } },
    'someone/slow': { files: { ...slow, 'model.safetensors': trickle(slow['model.safetensors']) } },
  });
});
after(async () => {
  await demo?.close();
  await hub?.close();
  rmSync(scratch, { recursive: true, force: true });
});

/** Starts a generation by keyboard; on return it has started, and may be over: 200 tokens take a fifth of a second. */
async function startByKeyboard(page) {
  await page.evaluate(() => {
    const stop = document.querySelector('#stop');
    globalThis.started = new Promise((resolve) => {
      new MutationObserver(() => {
        if (stop.getAttribute('aria-disabled') === 'false') resolve();
      }).observe(stop, { attributes: true });
    });
  });
  await page.keyboard.press('Control+Enter');
  await page.evaluate(() => globalThis.started);
}

const ready = (page) => page.waitForSelector('#generate[aria-disabled=false]');
const visit = (...args) => demo.visit(...args);
const status = (page) => page.textContent('#status');

/** Presses Generate, waits for the end, and returns what was written. */
async function generate(page, { tokens = 60, seed } = {}) {
  await page.fill('#max-tokens', String(tokens));
  if (seed !== undefined) {
    await page.uncheck('#new-seed');
    await page.fill('#seed', String(seed));
  }
  await page.$eval('#speed', (speed) => speed.replaceChildren());
  await page.click('#generate');
  await page.waitForFunction(() => document.querySelector('#speed').textContent.includes('seed'));
  await ready(page);
  return page.textContent('#output');
}

test('generates with the model that came with it; the same seed gives the same text, another another', async () => {
  await visit(async (page) => {
    assert.equal(await page.evaluate(() => crossOriginIsolated), false);
    const first = await generate(page, { seed: 7, tokens: 120 });
    assert.match(first, /^It was a dark night, and the whale./);
    assert.match(await status(page), /It stopped at the limit you set/);
    assert.match(await page.textContent('#speed'), /^120 tokens, [\d,.]+ a second, seed 7$/);
    assert.equal(await generate(page, { seed: 7, tokens: 120 }), first);
    assert.notEqual(await generate(page, { seed: 8, tokens: 120 }), first);
    await page.fill('#temperature', '0');
    const greedy = await generate(page, { seed: 1, tokens: 40 });
    assert.equal(await generate(page, { seed: 2, tokens: 40 }), greedy, 'at temperature 0 the seed does not matter');
    assert.match(await page.textContent('#about'), /Parameters.*Memory in all.*Arithmetic.*relaxed/s);
  });
});

test('a running text stops by button and by Escape, and can be gone on with', async () => {
  await visit(async (page) => {
    for (const stop of [() => page.click('#stop'), () => page.keyboard.press('Escape')]) {
      await page.fill('#max-tokens', '100000');
      await page.click('#generate');
      await page.waitForFunction(() => document.querySelector('#output .new')?.textContent.length > 20);
      await stop();
      await ready(page);
      assert.match(await status(page), /You stopped it/);
    }
    const before = await page.textContent('#output');
    await page.fill('#max-tokens', '30');
    await page.click('#continue');
    await ready(page);
    const after = await page.textContent('#output');
    assert.ok(after.startsWith(before) && after.length > before.length);
  });
});

test('the look inside: the attention that the library gives, drawn, chosen by slider, layer and head', async () => {
  const lm = await load(shippedModel());
  await visit(async (page) => {
    const text = await generate(page, { seed: 3, tokens: 150 });
    await page.waitForSelector('#views:not([hidden])');
    const inputIds = [(await lm.tokenize(text)).slice(0, 128)];
    const [{ attentions }] = await lm.forward({ inputIds }, { attentions: { layers: [0, 1], heads: [0, 2] } });
    const check = async (layer, head) => {
      const found = await readPicture(page, '#map');
      assert.equal(found.cells.length, (128 * 129) / 2, 'no token looks at a later one');
      assert.ok(found.cells.every(({ row, column }) => column <= row));
      checkColours(found, (row, column) => attentions[layer].data[(head * 128 + row) * 128 + column]);
      return found;
    };
    await check(0, 0);
    // Layers and heads are counted as in the library, from 0.
    await page.selectOption('#layer', { label: '1' });
    await page.waitForFunction(() => document.querySelector('#map title').textContent === 'Layer 1, head 0');
    await check(1, 0);
    await page.selectOption('#head', { label: '2' });
    await page.waitForFunction(() => document.querySelector('#map title').textContent === 'Layer 1, head 2');
    await check(1, 1);
    await page.focus('#token');
    await page.keyboard.press('Home');
    assert.match(await page.textContent('#sentence'), /^Token 1, .* takes 100 % from itself\.$/);
    await page.keyboard.press('ArrowRight');
    assert.match(await page.getAttribute('#token', 'aria-valuetext'), /^Token 2, /);
    assert.equal(await page.getAttribute('#map .row-mark', 'y'), '1');

    // The pointer chooses the row it is over.
    const { x, y, width, height } = await (await page.$('#map g path:nth-child(30)')).boundingBox();
    await page.mouse.move(x + width / 2, y + height / 2);
    assert.match(await page.textContent('#sentence'), /^Token 8, /);
    await page.click('#tokens span:nth-child(5)');
    assert.match(await page.textContent('#sentence'), /^Token 5, /);
  }).finally(() => lm.dispose());
});

/** Which labels of a picture are in view, by strip, and how much of the picture is not. */
function inView(page, selector) {
  return page.$eval(selector, (frame) => {
    const outer = frame.getBoundingClientRect();
    const seen = (className) =>
      [...frame.querySelectorAll(`.pinned.${className} > text`)].filter((label) => {
        const { left, right, top, bottom } = label.getBoundingClientRect();
        return left >= outer.left && right <= outer.right && top >= outer.top && bottom <= outer.bottom;
      }).length;
    const mark = frame.querySelector('.row-mark')?.getBoundingClientRect();
    return {
      title: seen('title'),
      columns: seen('top:not(.side)'),
      rows: seen('side:not(.top)'),
      row: mark !== undefined && mark.top >= outer.top && mark.bottom <= outer.bottom,
      hidden: [frame.scrollWidth - frame.clientWidth, frame.scrollHeight - frame.clientHeight],
      scrolled: [frame.scrollLeft, frame.scrollTop],
      size: [frame.clientWidth, frame.clientHeight],
      font: Number(frame.querySelector('svg').getAttribute('font-size')),
    };
  });
}

for (const width of [1280, 360]) {
  test(`pictures of attention open where there is something to see, and keep their labels in view: ${width} pixels`, async () => {
    await visit(
      async (page) => {
        await generate(page, { seed: 3, tokens: 150 });
        await page.waitForSelector('#views:not([hidden])');
        const first = await inView(page, '#map');
        assert.deepEqual(first.scrolled, [0, 0]);
        const token = Number(await page.inputValue('#token'));
        assert.ok(token >= 8 && token < 64, `opens at token ${token}`);
        const check = ({ title, columns, rows, row, font }) => {
          assert.ok(title === 1 && columns >= 8 && rows >= 8 && row, JSON.stringify({ title, columns, rows, row }));
          assert.ok(font >= 10, `labels of ${font} pixels`);
        };
        check(first);
        await page.focus('#token');
        await page.keyboard.press('End');
        const last = await inView(page, '#map');
        assert.ok(last.scrolled.every((by) => by > 100));
        check(last);

        await openTranslate(page);
        for (const [text, most] of [
          ['走了', 3],
          ['银行行长也说，孩子们都长大了。', 16],
          ['我们都喜欢音乐，也很快乐。'.repeat(5).replaceAll('。', '，').slice(0, -7), 61],
        ]) {
          await translate(page, text);
          const found = await inView(page, '#stack-map');
          const shownRows = await page.$$eval('#stack-map .pinned.side:not(.top) > text', (all) => all.length);
          assert.ok(shownRows <= most && shownRows >= most - 4, `${shownRows} rows`);
          assert.equal(found.hidden[1], 0, 'the whole height is in view');
          assert.ok(found.font >= 10);
          const room = await page.$eval('#stack-view', (view) => view.clientWidth);
          if (width === 1280 && most < 40) assert.equal(found.hidden[0], 0, 'and the whole width');
          if (most === 15) assert.ok(found.size[0] > room / 2, `${found.size[0]} of ${room} pixels are used`);
        }
        assert.match(await page.textContent('#translate-speed'), /^\d+ tokens in (\d{1,3} ms|\d+\.\d seconds)$/);
        await page.$eval('#stack-map', (frame) => frame.scrollTo(1e4, 0));
        const { title, rows, scrolled } = await inView(page, '#stack-map');
        assert.ok(scrolled[0] > 0 && title === 1 && rows > 50, 'labels of the rows stay while one scrolls sideways');
      },
      { viewport: { width, height: 740 } },
    );
  });
}

/** Opens the tab to translate in, and waits until its text has been translated and looked into. */
async function openTranslate(page) {
  await page.click('#translate');
  await page.waitForSelector('#beams li');
  await page.waitForSelector('#stack-view:not([hidden])');
}

/** Presses Translate and waits for the end. */
async function translate(page, text) {
  await page.uncheck('#as-you-type');
  await page.fill('#source-text', text);
  await page.evaluate(() => {
    document.querySelector('#translate-speed').replaceChildren();
    document.querySelector('#beams').replaceChildren();
  });
  await page.click('#run-translate');
  await page.waitForFunction(() => document.querySelector('#translate-speed').textContent.includes('token'));
  await page.waitForSelector('#stop-translate[aria-disabled=true]');
  return page.textContent('#translation');
}

const pairs = (page) => page.$$eval('#pairs ruby', (all) => all.map((ruby) => [ruby.firstChild.textContent, ruby.lastChild.textContent]));
const beams = (page) => page.$$eval('#beams li', (all) => all.map((item) => item.textContent));

test('translates with the second model that came with it, under a sub-path: pinyin over characters, beams, links', async () => {
  await visit(async (page) => {
    assert.equal(await page.evaluate(() => crossOriginIsolated), false);
    await openTranslate(page);
    assert.equal(await page.textContent('#model-name'), 'Chinese to pinyin');
    assert.match(
      await page.textContent('#translate-about'),
      /transformer.*Encoder3 layers, 4 headsDecoder1 layer, 4 heads.*8,397 tokens read, 1,569 written.*Memory in all/s,
    );
    assert.equal(await page.textContent('#translation'), 'yín háng háng zhǎng yě shuō ， hái zi men dōu zhǎng dà le 。');
    assert.equal(
      (await pairs(page)).join(' '),
      '银,yín 行,háng 行,háng 长,zhǎng 也,yě 说,shuō 孩,hái 子,zi 们,men 都,dōu 长,zhǎng 大,dà 了,le',
    );
    const bare = await page.$eval('#pairs', (all) => {
      const copy = all.cloneNode(true);
      for (const reading of copy.querySelectorAll('rt')) reading.remove();
      return copy.textContent;
    });
    assert.equal(bare, await page.inputValue('#source-text'), 'the text itself is whole');
    const four = await beams(page);
    assert.equal(four.length, 4);
    assert.ok(four[0].startsWith(await page.textContent('#translation')), four[0]);
    const scores = four.map((beam) => Number(/\u2212?[\d.]+$/.exec(beam)[0].replace('\u2212', '-')));
    assert.deepEqual(
      scores,
      scores.toSorted((a, b) => b - a),
    );

    await page.focus('#beam-count');
    await page.keyboard.press('End');
    assert.equal(await page.textContent('#beam-count-value'), '8');
    await page.waitForFunction(() => document.querySelectorAll('#beams li').length === 8);
    await page.keyboard.press('Home');
    await page.waitForSelector('#beams-section', { state: 'hidden' });

    // Sentences, of which one at a time is looked into; blank lines stay.
    assert.equal(await translate(page, '你好。\n\n我们走了。'), 'nǐ hǎo 。\n\nwǒ men zǒu le 。');
    assert.deepEqual(await page.$$eval('#part option', (all) => all.map((one) => one.textContent)), ['你好。', '我们走了。']);
    assert.match(await page.textContent('#stack-status'), /^4 tokens of the text/);
    await page.selectOption('#part', { value: '1' });
    await page.waitForFunction(() => document.querySelector('#stack-status').textContent.startsWith('6 tokens of the text'));
    await page.fill('#source-text', ' ');
    await page.click('#run-translate');
    assert.match(await page.textContent('#translate-status'), /Write a text first/);
    assert.equal(await page.textContent('#translation'), '');
    const blank = await page.$eval(
      '#translate-inside',
      (card) => card.getBoundingClientRect().bottom - card.querySelector('#stack-status').getBoundingClientRect().bottom,
    );
    assert.ok(blank < 40, `${blank} pixels of the card are blank`);

    // Back to writing, whose model is still there.
    await page.click('#write');
    assert.equal(await page.textContent('#model-name'), 'Moby-Dick, letter by letter');
    await generate(page, { tokens: 10 });
    await page.goto(`${demo.url}#translate`);
    await page.reload();
    await page.waitForSelector('#beams li');
  });
});

test('the drawn cells follow the weights: cross-attention, encoder, decoder, each layer and head', async () => {
  const mt = await load(pinyin);
  await visit(async (page) => {
    await openTranslate(page);
    const text = await page.inputValue('#source-text');
    const whole = await mt.translate(text, { numBeams: 4, attentions: true });
    const source = whole.sourceTokens;
    const written = whole.targetTokens.map((token) => token.trim());
    for (const [stack, all, ys, xs] of [
      ['cross', whole.crossAttentions, written.slice(1), source],
      ['encoder', whole.encoderAttentions, source, source],
      ['decoder', whole.decoderAttentions, written, written],
    ]) {
      await page.selectOption('#stack', stack);
      assert.equal(await page.$$eval('#stack-layer option', (options) => options.length), all.length);
      for (const [layer, { data, shape }] of all.entries()) {
        const [heads, , columns] = shape;
        await page.selectOption('#stack-layer', { value: String(layer) });
        for (let head = -1; head < heads; ++head) {
          await page.selectOption('#stack-head', { value: String(head) });
          const drawn = await readPicture(page, '#stack-map');
          assert.equal(drawn.title, `Layer ${layer}, ${head < 0 ? 'mean of heads' : `head ${head}`}`);
          const one = (h, row, column) => data[(h * shape[1] + row) * columns + column];
          const weightOf = (row, column) =>
            head < 0
              ? Array.from({ length: heads }, (_, h) => one(h, row, column)).reduce((a, b) => a + b) / heads
              : one(head, row, column);
          const expected = ys.length * (stack === 'decoder' ? (xs.length + 1) / 2 : xs.length);
          assert.equal(drawn.cells.length, expected, stack);
          checkColours(drawn, weightOf);
          for (const { row, column, tip } of drawn.cells) {
            const [, label, number] = /^(.*): ([-\d.e]+)$/s.exec(tip);
            assert.equal(label, `${ys[row]} ← ${xs[column]}`);
            assert.ok(Math.abs(Number(number) - weightOf(row, column)) <= 0.006 * weightOf(row, column) + 1e-9, tip);
          }
        }
      }
    }
  }).finally(() => mt.dispose());
});

test('translates while one types; what was running gives way to what was typed last', async () => {
  await visit(async (page) => {
    await openTranslate(page);
    await page.evaluate(() => {
      globalThis.shown = [];
      const translation = document.querySelector('#translation');
      new MutationObserver(() => shown.push(translation.textContent)).observe(translation, { childList: true });
    });
    await page.focus('#source-text');
    await page.keyboard.press('Control+A');
    for (const character of '我们都喜欢音乐，也很快乐。') {
      await page.keyboard.insertText(character);
      await page.waitForTimeout(character === '，' ? 300 : 30);
    }
    await page.waitForFunction(() => document.querySelector('#translation').textContent.endsWith('kuài lè 。'));
    await page.waitForSelector('#stop-translate[aria-disabled=true]');
    assert.equal(await page.textContent('#translation'), 'wǒ men dōu xǐ huan yīn yuè ， yě hěn kuài lè 。');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'source-text', 'the focus stays');
    const seen = await page.evaluate(() => shown.filter(Boolean));
    assert.ok(seen.length <= 4, `not for every character: ${seen}`);

    // A long text is stopped by button and by Escape; the next goes on.
    await page.uncheck('#as-you-type');
    for (const stop of [() => page.click('#stop-translate'), () => page.keyboard.press('Escape')]) {
      await page.fill('#source-text', '我们都喜欢音乐，也很快乐。'.repeat(400));
      await page.click('#run-translate');
      await page.waitForSelector('#stop-translate[aria-disabled=false]');
      await stop();
      await page.waitForSelector('#stop-translate[aria-disabled=true]');
      assert.match(await page.textContent('#translate-status'), /You stopped it/);
      const old = await page.$$eval('#pairs, #beams, #stack-view', (all) => all.filter((one) => one.checkVisibility()).map(({ id }) => id));
      assert.deepEqual(old, [], 'what belonged to another text is gone');
    }
    assert.equal(await translate(page, '你好'), 'nǐ hǎo');

    // Of a long text each sentence is looked into when it is chosen; it can be put away while that goes on.
    await translate(page, '我们都喜欢音乐，也很快乐。'.repeat(20) + '他走了。');
    assert.equal(await page.$$eval('#part option', (all) => all.length), 21);
    await page.selectOption('#part', { value: '20' });
    await page.waitForFunction(() => document.querySelector('#stack-status').textContent.startsWith('5 tokens of the text'));
    await page.waitForSelector('#stop-translate[aria-disabled=true]');
    assert.match((await beams(page))[0], /^tā zǒu le 。/);
    await page.selectOption('#part', { value: '3' });
    assert.equal(await translate(page, '你好'), 'nǐ hǎo');
    assert.match((await beams(page))[0], /^nǐ hǎo/);
  });
});

test('tabs and the tab to translate in, by keyboard', async () => {
  await visit(async (page) => {
    const state = () =>
      page.$$eval('[role=tab]', (tabs) =>
        tabs.map((tab) => {
          const panel = document.getElementById(tab.getAttribute('aria-controls'));
          const [selected, labelled] = [tab.getAttribute('aria-selected'), panel.getAttribute('aria-labelledby')];
          return `${tab.id} ${selected} ${tab.tabIndex} ${panel.getAttribute('role')} ${panel.checkVisibility()} ${labelled === tab.id}`;
        }),
      );
    const focused = () => page.evaluate(() => document.activeElement.id);
    const [write, other, train] = ['write', 'translate', 'train'].map((open, _, all) =>
      all.map((tab) => (tab === open ? `${tab} true 0 tabpanel true true` : `${tab} false -1 tabpanel false true`)),
    );
    assert.deepEqual(await state(), write);
    await page.focus('#write');
    for (const [key, wanted, tab] of [
      ['ArrowRight', other, 'translate'],
      ['ArrowRight', train, 'train'],
      ['ArrowRight', write, 'write'],
      ['ArrowLeft', train, 'train'],
      ['Home', write, 'write'],
      ['End', train, 'train'],
      ['ArrowLeft', other, 'translate'],
    ]) {
      await page.keyboard.press(key);
      assert.deepEqual([await state(), await focused()], [wanted, tab], key);
    }
    await page.waitForSelector('#beams li');
    await page.waitForSelector('#stack-view:not([hidden])');
    const seen = await walk(page);
    for (const id of ['translate', 'choose', 'source-text', 'run-translate', 'stop-translate', 'translation', 'copy-translation']) {
      assert.ok(seen.includes(id), `${id} is not reached: ${seen}`);
    }
    for (const id of ['beam-count', 'as-you-type', 'SUMMARY', 'stack', 'stack-layer', 'stack-head', 'stack-map']) {
      assert.ok(seen.includes(id), `${id} is not reached: ${seen}`);
    }
    assert.ok(!seen.includes('prompt'), 'the other panel is out of the way');
    await page.focus('.skip');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.activeElement.id === 'source-text');
    await page.uncheck('#as-you-type');
    await page.focus('#source-text');
    await page.keyboard.press('Control+A');
    await page.keyboard.insertText('音乐');
    await page.keyboard.press('Control+Enter');
    await page.waitForFunction(() => document.querySelector('#translation').textContent === 'yīn yuè');
    assert.equal(await focused(), 'source-text');

    // What is drawn while another tab is open fits when one comes back.
    await page.waitForSelector('#stop-translate[aria-disabled=true]');
    await page.fill('#source-text', '我们都喜欢音乐');
    await page.evaluate(() => {
      document.querySelector('#run-translate').click();
      document.querySelector('#write').click();
    });
    await page.waitForFunction(() => document.querySelector('#stack-status').textContent.startsWith('8 tokens of the text'));
    await page.click('#translate');
    const { hidden, title, font } = await inView(page, '#stack-map');
    assert.ok(hidden[0] === 0 && title === 1 && font >= 10, JSON.stringify({ hidden, title, font }));
  });
});

test('models from a Hub to translate and summarise with; what a tab cannot use is said before it is downloaded', async () => {
  await visit(async (page) => {
    const ask = async (id) => {
      await page.click('#choose');
      await page.fill('#hub-id', id);
      if (!(await page.isVisible('#hub-endpoint'))) await page.click('#hub summary');
      await page.fill('#hub-endpoint', hub.url);
      await page.keyboard.press('Enter');
      await page.waitForSelector('#choose:not([hidden])');
    };
    const weights = (id) =>
      hub.requests.filter(({ path, range }) => path.includes(`${id}/resolve`) && path.endsWith('safetensors') && range === undefined);
    await ask('someone/translator');
    assert.match(await page.textContent('#problem'), /another kind.*Open the tab Translate/s);
    await ask('someone/reader');
    assert.match(await page.textContent('#problem'), /It reads texts and does not continue them/);
    assert.equal(await page.textContent('#model-name'), 'Moby-Dick, letter by letter');

    await openTranslate(page);
    assert.equal(await page.isVisible('#problem'), false);
    await ask('someone/talker');
    assert.match(await page.textContent('#problem'), /neither translates nor summarises.*Open the tab Write/s);
    await picture(page, 'translate-refused', false);
    await page.click('#problem button');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'source-text');
    assert.equal(await page.textContent('#model-name'), 'Chinese to pinyin');
    for (const id of ['someone/talker', 'someone/reader']) assert.deepEqual(weights(id), [], `no weights of ${id} were asked for`);

    await ask('someone/translator');
    assert.equal(await page.textContent('#model-name'), 'someone/translator');
    const mt = await load(folderOf('tasks/marian'));
    try {
      const text = 'the cat sat. a dog ran.';
      const wanted = await mt.translate(text, { numBeams: 4, alignment: true });
      assert.equal(await translate(page, text), wanted.text);
      assert.equal(await page.textContent('#pairs').then((all) => all.includes('cat')), true);
      await page.waitForSelector('#stack-view:not([hidden])');
      assert.equal(await page.$$eval('#part option', (all) => all.length), wanted.segments.length);
      await page.check('input[name=task][value=summarize]', { force: true });
      assert.equal(await page.textContent('#run-translate'), 'Summarise');
      assert.equal(await translate(page, text), (await mt.summarize(text, { numBeams: 4, window: true })).text);
      assert.equal(await page.isVisible('#pairs'), false);
    } finally {
      await mt.dispose();
    }
    assert.deepEqual(await page.$$eval('#target-language option', (all) => all.map(({ value }) => value)), ['', ...mt.tokenizer.languages]);
    await ask('someone/told');
    assert.equal(await page.$eval('#target-language', (list) => list.textContent), 'defr');
    assert.equal(await page.textContent('#model-name'), 'someone/told');
    const other = await load(told());
    try {
      await page.selectOption('#target-language', 'fr');
      const to = { sourceLanguage: 'en', targetLanguage: 'fr', numBeams: 4 };
      const wanted = await other.translate('the cat sat.', to);
      assert.equal(await translate(page, 'the cat sat.'), wanted.text);
      assert.deepEqual(await beams(page), [`${wanted.text} ${wanted.score.toFixed(3).replace('-', '\u2212')}`]);
      assert.match(await page.textContent('#beams-line'), /Only the winner/);
    } finally {
      await other.dispose();
    }
    await page.click('#choose');
    assert.equal(await page.textContent('#shipped-name'), 'Chinese to pinyin');
    await page.click('#shipped');
    await page.waitForFunction(() => document.querySelector('#model-name').textContent === 'Chinese to pinyin');
    assert.equal(await page.isVisible('#task'), false);
    assert.equal(await page.isVisible('#languages'), false);
    assert.equal(await translate(page, '你好'), 'nǐ hǎo');
  });
});

test('wholly by keyboard', async () => {
  await visit(async (page) => {
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
    await page.keyboard.press('Enter');
    await page.evaluate(() => new Promise(requestAnimationFrame));
    await page.keyboard.press('Tab');
    const seen = await walk(page);
    for (const id of [
      'generate',
      'stop',
      'output',
      'temperature',
      'top-p',
      'top-k',
      'max-tokens',
      'seed',
      'new-seed',
      'SUMMARY',
      'layer',
      'head',
      'token',
    ]) {
      assert.ok(seen.includes(id), `${id} is not reached: ${seen}`);
    }
    await page.focus('#prompt');
    await page.keyboard.press('Control+A');
    await page.keyboard.type('Call me');
    await startByKeyboard(page);
    await page.keyboard.press('Escape');
    await ready(page);
    assert.match(await page.textContent('#output'), /^Call me/);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt', 'the focus stays');

    await page.focus('#choose');
    await page.keyboard.press('Enter');
    assert.ok(await page.$('#sources[open]'));
    const inDialog = await walk(page);
    for (const id of ['close-sources', 'hub-id', 'SUMMARY', 'BUTTON', 'folder', 'files', 'shipped']) {
      assert.ok(inDialog.includes(id), `${id} is not reached: ${inDialog}`);
    }
    await page.keyboard.press('Escape');
    assert.equal(await page.$('#sources[open]'), null);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'choose', 'the focus comes back');
  });
});

test('screen readers are told of states, not of tokens', async () => {
  await visit(async (page) => {
    await page.evaluate(() => {
      globalThis.said = [];
      for (const region of document.querySelectorAll('[role=status], [role=alert], [aria-live]')) {
        new MutationObserver(() => said.push(region.textContent)).observe(region, { childList: true, characterData: true, subtree: true });
      }
    });
    await generate(page, { tokens: 200, seed: 1 });
    await page.waitForSelector('#views:not([hidden])');
    const said = await page.evaluate(() => globalThis.said.filter(Boolean));
    assert.ok(said.length >= 2 && said.length <= 6, said.join(' | '));
    assert.match(said.join(' | '), /Generating….*It stopped at the limit/);
  });
});

test('a model from a Hub: progress, chat, and what is kept', async () => {
  await visit(async (page) => {
    await page.click('#choose');
    await page.fill('#hub-id', 'someone/talker');
    await page.click('#hub summary');
    await page.fill('#hub-endpoint', hub.url);
    await picture(page, 'choose', false);
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
    assert.equal(await page.textContent('#model-name'), 'someone/talker');
    assert.equal(await page.isVisible('#problem'), false);
    await page.check('input[name=mode][value=chat]', { force: true });
    await page.fill('#max-tokens', '24');
    for (const message of ['Hello there', 'And again']) {
      await page.fill('#prompt', message);
      await page.keyboard.press('Enter');
      await page.waitForFunction((text) => document.querySelector('#output').textContent.includes(text), message);
      await ready(page);
    }
    assert.equal(await page.$$eval('.turn', (turns) => turns.length), 4);
    assert.match(await status(page), /stopped at the limit|ended the text/);
    await page.waitForSelector('#views:not([hidden])');
    assert.match(await page.textContent('#tokens'), /^\[user\] Hello there/);
    await picture(page, 'chat');
    await page.click('#fresh');
    assert.equal(await page.textContent('#output'), '');
    await page.click('#choose');
    await page.waitForSelector('#kept li');
    assert.match(await page.textContent('#kept'), /someone\/talker/);
    await page.click('#kept button');
    await page.waitForSelector('#kept-none:not([hidden])');
    await page.click('#shipped');
    await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
    assert.equal(await page.isVisible('#mode'), false);
    await generate(page, { tokens: 10 });
  });
});

test('a slow download shows its progress, can be cancelled, and goes on where it stopped', async () => {
  await visit(async (page) => {
    const start = async () => {
      await page.focus('#choose');
      await page.keyboard.press('Enter');
      await page.fill('#hub-id', 'someone/slow');
      if (!(await page.isVisible('#hub-endpoint'))) await page.click('#hub summary');
      await page.fill('#hub-endpoint', hub.url);
      await page.keyboard.press('Enter');
    };
    await start();
    await page.waitForFunction(() => document.querySelector('#load-progress').value > 0.2);
    assert.match(await page.textContent('#model-line'), /^model\.safetensors: [\d.]+ (KB|MB) of 1\.8 MB/);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'cancel-load', 'the focus is on what can be done');
    await picture(page, 'loading', false);
    await page.keyboard.press('Enter');
    await page.waitForSelector('#choose:not([hidden])');
    assert.equal(await page.textContent('#model-name'), 'Moby-Dick, letter by letter');
    assert.equal(await page.textContent('#load-status'), 'Loading was cancelled.');
    assert.equal(await page.isVisible('#problem'), false);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'choose');
    await generate(page, { tokens: 10 });

    const before = hub.requests.length;
    await start();
    await page.waitForFunction(() => document.querySelector('#load-status').textContent.startsWith('someone/slow is ready'));
    const ranges = hub.requests
      .slice(before)
      .filter(({ path }) => path.endsWith('model.safetensors'))
      .map(({ range }) => Number(/^bytes=(\d+)/.exec(range)?.[1] ?? 0));
    assert.ok(Math.max(...ranges) > 300_000, `asked for ${ranges}`);
    assert.equal(await page.isVisible('#problem'), false);
  });
});

test('what the Hub does not have, or does not give, is said in words; the model before goes on working', async () => {
  const fromHub = (problem) => problem.includes(hub.url);
  await visit(
    async (page) => {
      const ask = async (id, { token = '', revision = 'main' } = {}) => {
        await page.click('#choose');
        await page.fill('#hub-id', id);
        if (!(await page.isVisible('#hub-endpoint'))) await page.click('#hub summary');
        await page.fill('#hub-endpoint', hub.url);
        await page.fill('#hub-revision', revision);
        await page.fill('#hub-token', token);
        await page.keyboard.press('Enter');
        await page.waitForSelector('#choose:not([hidden])');
      };
      await ask('nobody/nothing');
      assert.match(await page.textContent('#problem'), /The Hub did not let us in\..*nobody\/nothing/s);
      await picture(page, 'error', false);
      await ask('someone/talker', { revision: 'nowhere' });
      assert.match(await page.textContent('#problem'), /There is no such model, or a file of it is missing\..*someone\/talker/s);
      await ask('someone/private');
      assert.match(await page.textContent('#problem'), /an access token may help/);
      await generate(page, { tokens: 10 });
      assert.equal(await page.isVisible('#problem'), false);
      await ask('someone/private', { token: 'hf_secret' });
      await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
      assert.equal(await page.textContent('#model-name'), 'someone/private');
    },
    { expected: fromHub },
  );
});

/** Gives files or a folder to an input of the dialog, and waits for the model. */
async function choose(page, selector, paths) {
  await page.click('#choose');
  await page.setInputFiles(selector, paths);
  await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
}

test('a folder of this computer, chosen and dropped; one without a tokenizer works with ids', async () => {
  const folder = join(scratch, 'tiny-model');
  mkdirSync(folder);
  for (const [name, bytes] of Object.entries(random(5))) writeFileSync(join(folder, name), bytes);
  await visit(async (page, context) => {
    await choose(page, '#folder', folder);
    assert.equal(await page.textContent('#model-name'), 'tiny-model');
    await page.fill('#prompt', 'Hello');
    assert.match(await generate(page, { tokens: 8 }), /^Hello/);

    await choose(page, '#folder', folderOf('llama'));
    assert.match(await page.textContent('#prompt-label'), /Token ids/);
    await page.fill('#prompt', '5 6 7');
    assert.match(await generate(page, { tokens: 8 }), /^5 6 7( \d+){1,8}$/);
    await page.waitForSelector('#views:not([hidden])');

    const session = await context.newCDPSession(page);
    const data = { items: [], files: [folder], dragOperationsMask: 1 };
    for (const type of ['dragEnter', 'dragOver']) await session.send('Input.dispatchDragEvent', { type, x: 300, y: 300, data });
    await page.waitForSelector('#drop.over');
    await session.send('Input.dispatchDragEvent', { type: 'drop', x: 300, y: 300, data });
    await page.waitForFunction(() => document.querySelector('#model-name').textContent === 'tiny-model');
    await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
    assert.equal(await page.isVisible('#drop'), false);
    await page.fill('#prompt', 'Hello');
    await generate(page, { tokens: 8 });

    await page.click('#choose');
    await page.setInputFiles('#files', {
      name: 'config.json',
      mimeType: 'application/json',
      buffer: Buffer.from('{"model_type": "mamba"}'),
    });
    await page.waitForSelector('#problem:not([hidden])');
    await page.click('#problem button');
    assert.equal(await page.isVisible('#problem'), false);
    await generate(page, { tokens: 8 });
  });
});

test('works without a network once it is there', async () => {
  await visit(async (page, context) => {
    await context.setOffline(true);
    assert.match(await generate(page, { tokens: 40 }), /whale./);
    await page.waitForSelector('#views:not([hidden])');
    await context.setOffline(false);
    await openTranslate(page);
    await context.setOffline(true);
    assert.equal(await translate(page, '我们走了'), 'wǒ men zǒu le');
    assert.equal((await pairs(page)).length, 4);
    await page.click('#write');
    await page.click('#translate');
    assert.equal(await page.isVisible('#problem'), false);
  });
});

test('light, dark and chosen colours; a telephone, a tablet, a screen; nothing jumps', async () => {
  for (const [name, options] of Object.entries({
    'light-1280': { colorScheme: 'light' },
    'dark-1280': { colorScheme: 'dark' },
    'light-360': { colorScheme: 'light', viewport: { width: 360, height: 740 } },
    'dark-360': { colorScheme: 'dark', viewport: { width: 360, height: 740 }, reducedMotion: 'reduce' },
    'light-768': { colorScheme: 'light', viewport: { width: 768, height: 1024 } },
  })) {
    await visit(async (page) => {
      const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      const system = await paper();
      await page.check('input[name=theme][value=dark]', { force: true });
      const dark = await paper();
      await page.check('input[name=theme][value=light]', { force: true });
      const light = await paper();
      assert.notEqual(dark, light);
      assert.equal(system, options.colorScheme === 'dark' ? dark : light);
      await page.reload();
      await ready(page);
      assert.equal(await paper(), light, 'the choice is remembered');
      await page.check('input[name=theme][value=auto]', { force: true });
      assert.equal(await paper(), system);

      await page.fill('#max-tokens', '200');
      await page.evaluate(() => {
        globalThis.shift = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.shift += entry.value;
        }).observe({ type: 'layout-shift', buffered: false });
      });
      await page.focus('#prompt');
      await startByKeyboard(page);
      await ready(page);
      assert.ok((await page.evaluate(() => globalThis.shift)) < 0.01, 'what was in view stays where it was');
      await page.waitForSelector('#views:not([hidden])');
      await picture(page, name);
      // Whatever can be pressed is large enough for a finger.
      const checkSizes = async () => {
        if (options.viewport?.width !== 360) return;
        const small = await page.$$eval('button, select, input:not([type=radio], [type=checkbox], [type=file])', (all) =>
          all.filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 28).map((one) => one.id),
        );
        assert.deepEqual(small, []);
      };
      await checkSizes();
      await openTranslate(page);
      await picture(page, `translate-${name}`);
      await checkSizes();
    }, options);
  }
});
