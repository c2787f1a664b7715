// Vocabularies of `trainTokenizer`: those that the tokenizers library learns from the same texts, and what they do to texts.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { create, trainTokenizer } from '../dist/node.js';
import { files } from './support/bundle.mjs';
import { readJson } from './support/fixtures.mjs';
import { numbers } from './support/tiny.mjs';

const { corpora, cases } = readJson('tokenizer-training', 'expected.json');
const hard = [
  '',
  ' ',
  '\t\n\r\n  x',
  'naïve e\u0301 😀👩‍👩‍👧',
  '你好，世界',
  '__proto__ constructor',
  '\u0000\u0085\ufeff',
  ' lead',
  'x'.repeat(5000),
];

/** Token strings by id. */
function tokensOf({ json }) {
  const tokens = [];
  for (const [token, id] of Object.entries(JSON.parse(json).model.vocab)) tokens[id] = token;
  return tokens;
}

for (const { corpus, type, vocabSize, minFrequency, tokens, merges } of cases) {
  test(`${type} of ${corpus}, ${vocabSize} tokens, of pairs seen ${minFrequency} times: as Python learns it`, async () => {
    const made = await trainTokenizer(corpora[corpus], { type, vocabSize, minFrequency });
    const found = tokensOf(made);
    assert.deepEqual(type === 'bpe' ? found.slice(257) : found, tokens);
    assert.deepEqual(
      (JSON.parse(made.json).model.merges ?? []).map((merge) => merge.join(' ')),
      merges,
    );
    assert.equal(made.vocabSize, found.length);
  });
}

test('bytes and byte pairs give every text back', async () => {
  for (const type of ['byte', 'bpe']) {
    const { tokenizer } = await trainTokenizer(corpora.english, { type, vocabSize: 400 });
    const all = [...hard, ...corpora.scripts];
    const sequences = await tokenizer.encode(all);
    assert.deepEqual(await tokenizer.decode(sequences), all);
    if (type === 'byte') assert.deepEqual(await tokenizer.encode('aé'), [65, 128, 103], 'in the order of GPT-2’s alphabet');
  }
});

test('characters: those of the texts, in the order of their code points, and one token for all others', async () => {
  const made = await trainTokenizer(['ba\u{1f600}', 'ab\n'], { type: 'char' });
  assert.deepEqual(tokensOf(made), ['<pad>', '<unk>', '<s>', '</s>', '\n', 'a', 'b', '\u{1f600}']);
  const { tokenizer } = made;
  assert.deepEqual(await tokenizer.encode('a\u{1f600}cd\nb</s>'), [5, 7, 1, 1, 4, 6, 3]);
  assert.equal(await tokenizer.decode([5, 7, 1, 4, 6, 3]), 'a\u{1f600}\nb');
  assert.equal(await tokenizer.decode([5, 1], { skipSpecialTokens: false }), 'a<unk>');
  const { bos, eos, pad, unk } = tokenizer.specials;
  assert.deepEqual([bos, eos, pad, unk], [2, 3, 0, 1]);
  const often = await trainTokenizer(['aab', 'bc'], { type: 'char', minFrequency: 2, specialTokens: ['<unk>', '<|user|>'] });
  assert.deepEqual(tokensOf(often), ['<unk>', '<|user|>', 'a', 'b']);
  assert.deepEqual(await often.tokenizer.encode('b<|user|>c'), [3, 1, 0]);
});

test('word pieces stand between [CLS] and [SEP]; the end of a text is marked where asked', async () => {
  const { tokenizer } = await trainTokenizer(corpora.english, { type: 'wordpiece', vocabSize: 300 });
  const ids = await tokenizer.encode('The WHALE');
  assert.deepEqual([ids[0], ids.at(-1)], [2, 3]);
  assert.equal(await tokenizer.decode(ids), 'the whale');
  assert.deepEqual(await tokenizer.encode('The whale', { addSpecialTokens: false }), ids.slice(1, -1));
  const ends = await trainTokenizer(['ab'], { type: 'char', addEosToken: true });
  assert.deepEqual(await ends.tokenizer.encode(['ab', '']), [[4, 5, 3], [3]]);
});

test('texts come from iterables and asynchronous ones', async () => {
  const texts = corpora.code;
  const { json } = await trainTokenizer(texts, { type: 'bpe', vocabSize: 400 });
  const several = async function* () {
    yield* texts;
  };
  // The order of lines and the way they arrive change nothing.
  assert.equal((await trainTokenizer([...texts].reverse(), { type: 'bpe', vocabSize: 400 })).json, json);
  assert.equal((await trainTokenizer(several(), { type: 'bpe', vocabSize: 400 })).json, json);
  const reason = new Error('no more');
  // biome-ignore lint/correctness/useYield: it throws first
  const broken = async function* () {
    throw reason;
  };
  await assert.rejects(trainTokenizer(broken(), { type: 'bpe' }), reason);
});

test('a model takes the tokenizer', async () => {
  const { tokenizer, vocabSize } = await trainTokenizer(['to be or not to be'], { type: 'char' });
  const config = { model_type: 'gpt2', vocab_size: vocabSize, n_embd: 8, n_layer: 1, n_head: 1, n_positions: 16 };
  const model = await create(config, { tokenizer });
  try {
    assert.deepEqual(await model.tokenize('to be'), await tokenizer.encode('to be'));
    assert.equal(await model.decode(await model.tokenize('not')), 'not');
    assert.equal(model.tokenizer.specials.eos, tokenizer.specials.eos);
  } finally {
    await model.dispose();
  }
});

test('what will not do is refused by name', async () => {
  for (const [texts, options, message] of [
    ['abc', { type: 'bpe' }, /texts: expected an array, iterable or async iterable of strings/],
    [null, { type: 'byte' }, /texts: expected an array/],
    [{ [Symbol.iterator]: 5 }, { type: 'char' }, /texts: expected an array/],
    [{ [Symbol.iterator]: () => ({}) }, { type: 'char' }, /iterator: expected one with a function next/],
    [{ [Symbol.iterator]: () => ({ next: () => 5 }) }, { type: 'char' }, /texts\[0\]: expected a string, got undefined/],
    [[], { type: 'bpe' }, /texts: expected at least one character/],
    [[''], { type: 'char' }, /texts: expected at least one character/],
    [[' \n'], { type: 'wordpiece' }, /texts: expected at least one word/],
    [['a', 3], { type: 'char' }, /texts\[1\]: expected a string, got 3/],
    [['a'], undefined, /type: expected "char", "byte", "bpe", "wordpiece", got undefined/],
    [['a'], { type: 'unigram' }, /type: expected/],
    [['a'], { type: 'bpe', vocabSize: NaN }, /vocabSize: expected an integer from 1 to 2147483647, got NaN/],
    [['a'], { type: 'bpe', vocabSize: 256 }, /vocabSize: expected at least 257, for 1 special tokens and 256 bytes, got 256/],
    [['a'], { type: 'byte', vocabSize: 2 }, /vocabSize: expected at least 257/],
    [['abc'], { type: 'char', vocabSize: 6 }, /vocabSize: expected at least 7, .*; minFrequency leaves out rare ones, got 6/],
    [['abc'], { type: 'wordpiece', vocabSize: 9 }, /vocabSize: expected at least 10, .* got 9/],
    [['a'], { type: 'bpe', minFrequency: -1 }, /minFrequency/],
    [['a'], { type: 'bpe', specialTokens: ['x', 'x'] }, /specialTokens: expected an array of different strings/],
    [['a'], { type: 'bpe', specialTokens: [''] }, /specialTokens/],
    [['a'], { type: 'char', specialTokens: ['<s>'] }, /specialTokens: expected one of <unk>, \[UNK\] among them/],
    [['a'], { type: 'bpe', specialTokens: [], addEosToken: true }, /specialTokens: expected one of <\/s>/],
    [['a'], { type: 'wordpiece', specialTokens: ['[UNK]', '</s>'], addEosToken: true }, /addEosToken: expected false/],
    [['a'], { type: 'bpe', vocabsize: 300 }, /unknown option 'vocabsize': the nearest known is 'vocabSize'/],
  ]) {
    await assert.rejects(trainTokenizer(texts, options), { code: 'invalid-argument', message });
  }
});

test('an abort ends the counting and the learning, with the signal’s reason', async () => {
  const reason = new Error('enough');
  const endless = function* () {
    for (let i = 0; ; ++i) yield `word${i} `.repeat(1000);
  };
  for (const source of [endless(), [Array.from({ length: 200_000 }, (_, i) => (i * 7919).toString(36)).join(' ')]]) {
    const controller = new AbortController();
    setTimeout(() => controller.abort(reason), 50);
    await assert.rejects(trainTokenizer(source, { type: 'bpe', vocabSize: 50_000, signal: controller.signal }), reason);
  }
  await assert.rejects(trainTokenizer(['a'], { type: 'byte', signal: AbortSignal.abort(reason) }), reason);
  // Texts that do not come, that never end and are nothing, and a thread that would wait for them.
  const closed = [];
  const nothing = function* () {
    try {
      for (;;) yield '';
    } finally {
      closed.push('empty');
    }
  };
  const waiting = { [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}), return: () => closed.push('waiting') }) };
  for (const source of [nothing(), waiting]) {
    const controller = new AbortController();
    setTimeout(() => controller.abort(reason), 50);
    await assert.rejects(trainTokenizer(source, { type: 'char', signal: controller.signal }), reason);
  }
  assert.deepEqual(closed, ['empty', 'waiting']);
  // The worker is free for others.
  assert.equal((await trainTokenizer(['a'], { type: 'char' })).vocabSize, 5);
});

test('a long text is encoded in steps, with the ids and places it has as a whole', async () => {
  const { openTokenizerOf } = await files();
  const open = (parsed, more = []) => {
    const added_tokens = [...parsed.added_tokens, ...more];
    return openTokenizerOf({ 'tokenizer.json': new TextEncoder().encode(JSON.stringify({ ...parsed, added_tokens })) }, null, {}, {});
  };
  const flags = { lstrip: false, rstrip: false, normalized: false, single_word: false, special: false };
  const draw = numbers(7);
  const parts =
    " |  |\n|\r\n|\t|a|b|A|é|e\u0301|\u0301|12|3|!|'s|'ll|[|]|[MASK]|</s>|<|你好|😀|\ud800|\u00a0|\u0085|\ufeff|\0|\u200d|\u3000".split(
      '|',
    );
  const text = Array.from({ length: 60_000 }, () => parts[Math.floor(Math.abs(draw()) * parts.length)]).join('');
  for (const type of ['char', 'bpe', 'wordpiece', 'digits']) {
    const { json } = await trainTokenizer([text.slice(0, 20_000), ...corpora.english], {
      type: type === 'digits' ? 'bpe' : type,
      vocabSize: 600,
      specialTokens: ['[UNK]', '[CLS]', '[SEP]', '[MASK]', '</s>'],
    });
    const parsed = JSON.parse(json);
    if (type === 'digits')
      parsed.pre_tokenizer = { type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: true }, parsed.pre_tokenizer] };
    // A token with a space in it, which the text does not have, forbids to cut at spaces.
    const whole = await open(parsed, [{ id: parsed.added_tokens.length + 10_000, content: 'no such', ...flags }]);
    const tokenizer = await open(parsed);
    assert.deepEqual(tokenizer.encodeFully(text), whole.encodeFully(text), type);
    const counts = [tokenizer, whole].map((one) => {
      const steps = one.encodeSteps(text);
      for (let count = 0; ; ++count) {
        const { value, done } = steps.next();
        if (!done) continue;
        assert.equal(value.length, tokenizer.encode(text).length);
        return count;
      }
    });
    assert.ok(counts[0] > counts[1] + 3, `${type}: ${counts} steps`);
  }
});
