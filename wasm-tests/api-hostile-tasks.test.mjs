// What nobody should pass to beams, tasks, encoders, bare operations and plots, and files nobody should write: refused by name, quickly,
// and the model goes on.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { create, load, ops, plotAttention } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { folderOf } from './support/fixtures.mjs';

/** The files of folders, those of the first where two have one. */
function filesOf(...folders) {
  const files = {};
  for (const folder of folders)
    for (const file of readdirSync(folder))
      if (!file.startsWith('expected')) files[file] ??= new Uint8Array(readFileSync(join(folder, file)));
  return files;
}
const tasks = (...names) => filesOf(...names.map((name) => join(folderOf('tasks'), name)));
const text = (value) => new TextEncoder().encode(value);
const json = (value) => text(JSON.stringify(value));
const read = (files, file) => JSON.parse(new TextDecoder().decode(files[file]));
const changed = (files, file, change) => ({ ...files, [file]: json({ ...read(files, file), ...change }) });

async function withModel(files, run) {
  const lm = await load(files, { worker: false });
  try {
    return await run(lm);
  } finally {
    await lm.dispose();
  }
}

const boom = () => {
  throw new Error('boom');
};
const trap = new Proxy({}, { get: boom, ownKeys: boom });

const source = { inputIds: [5, 6, 7, 0] };
let mt;
before(async () => {
  mt = await load(tasks('marian'), { worker: false });
});
after(() => mt.dispose());

describe('beams', () => {
  const generate = (options, prompt = source) => mt.generate(prompt, { maxNewTokens: 6, ...options }).result;
  const refused = (options, message, prompt) =>
    assert.rejects(async () => generate(options, prompt), code('invalid-argument', message), JSON.stringify(options));

  test('numbers that cannot be', async () => {
    for (const numBeams of [0, -1, 1e9, NaN, 1.5, '4', true, [2]])
      await refused({ numBeams }, /numBeams: expected an integer from 1 to 65536/);
    for (const lengthPenalty of [NaN, Infinity, '1'])
      await refused({ numBeams: 2, lengthPenalty }, /lengthPenalty: expected a finite number/);
    for (const earlyStopping of ['x', 1, 'Never'])
      await refused({ numBeams: 2, earlyStopping }, /earlyStopping: expected true, false, "never"/);
    for (const numReturnSequences of [0, NaN, 4, 1e9]) await refused({ numBeams: 3, numReturnSequences }, /numReturnSequences/);
    for (const value of [1e300, 1e-300]) {
      await refused(
        { encoderRepetitionPenalty: value },
        /encoderRepetitionPenalty: expected a number above 0, from 1\.2e-38 to 3\.4e38, got/,
      );
    }
    for (const name of ['forcedBosTokenId', 'forcedEosTokenId', 'decoderStartTokenId'])
      for (const value of [-1, NaN, '5', 167]) await refused({ numBeams: 2, [name]: value }, new RegExp(name));
  });

  test('prefixes of the decoder', async () => {
    for (const decoderInputIds of [[], [[]], [[5], []], 'ab', 5, null, [[5], 6]]) {
      await refused({ decoderInputIds }, /decoderInputIds: expected token ids, .*none of them empty|token id/, [source, source]);
    }
    await refused({ decoderInputIds: [[5], [6], [7]] }, /decoderInputIds: expected one, or one for each of 2 prompts, got 3/, [
      source,
      source,
    ]);
    await refused({ decoderInputIds: [167] }, /decoderInputIds: expected token ids from 0 to 166, got 167/);
    await assert.rejects(
      mt.generate(source, { numBeams: 3, maxLength: 4, decoderInputIds: [5, 6, 7, 8] }).result,
      code('invalid-argument', /maxLength: expected more than the 5 tokens of prompt 0, got 4/),
    );
  });

  test('nothing left to say, and no end', async () => {
    const all = Array.from({ length: 167 }, (_, id) => id);
    for (const doSample of [true, false]) await refused({ numBeams: 3, doSample, suppressTokens: all }, /no token is left to choose from/);
    // As in Hugging Face a bad word never is the end token.
    const { tokenIds } = await generate({ numBeams: 3, badWordsIds: all.map((id) => [id]) });
    assert.deepEqual(tokenIds, [0]);
    const late = await mt.generate(source, { numBeams: 3, minLength: 50, maxLength: 5, forcedEosTokenId: null }).result;
    assert.equal(late.tokenIds.length, 4);
  });

  test('many, broken off at any moment: the same results and the same memory afterwards', async () => {
    const options = { numBeams: 3, numReturnSequences: 2, doSample: true, seed: 5, maxNewTokens: 12 };
    const wanted = await mt.generate('The whale swam.', options).result;
    await Promise.all(Array.from({ length: 4 }, () => mt.generate([source, source], { numBeams: 4, maxNewTokens: 40 }).result));
    const { cache, total } = await mt.memory();
    for (let i = 0; i < 40; ++i) {
      const controller = new AbortController();
      const reason = new Error(`${i}`);
      const { signal } = controller;
      const calls = Promise.allSettled([
        mt.generate([source, source], { numBeams: 4, maxNewTokens: 40, signal }).result,
        mt.translate('The whale swam. He saw it.', { maxNewTokens: 8, alignment: true, attentions: true, signal }),
        mt.summarize('The whale swam.', { maxNewTokens: 8, signal }),
        mt.logitLens({ ...source, inputIds: [source.inputIds], decoderInputIds: [[0, 5]] }, { topK: 2, signal }),
      ]);
      setTimeout(() => controller.abort(reason), i / 4);
      const [generated, ...others] = await calls;
      for (const one of generated.value) assert.match(one.finishReason, /stop|length|aborted/);
      for (const other of others) assert.ok(other.status === 'fulfilled' || other.reason === reason, other.reason?.stack);
    }
    assert.deepEqual(await mt.generate('The whale swam.', options).result, wanted);
    const after = await mt.memory();
    assert.ok(after.cache <= 1.25 * cache && after.total === total, `${cache} bytes of cache became ${after.cache}`);
    await withModel(tasks('marian'), async (other) => assert.deepEqual(await other.generate('The whale swam.', options).result, wanted));
  });
});

describe('looking inside', () => {
  test('indices and counts that are not there', async () => {
    const input = { inputIds: [[5, 6]], decoderInputIds: [[0, 5]] };
    const refused = (call, message) => assert.rejects(async () => call(), code('invalid-argument', message));
    await refused(() => mt.forward(input, { attentions: { layers: [7] } }), /attentions.layers: expected indices below 3, got 7/);
    await refused(() => mt.forward(input, { trace: { layers: [1e9] } }), /trace.layers: expected indices, whole numbers from 0/);
    await refused(() => mt.forward(input, { attentions: { heads: [-1] } }), /heads/);
    for (const topK of [0, -1, NaN, 168]) await refused(() => mt.logitLens(input, { topK }), /topK/);
    for (const name of [undefined, null, 5, Symbol('s'), trap]) await refused(() => mt.parameter(name), /name: expected a string/);
    await refused(() => mt.parameter('x'.repeat(1e6)), /name: expected one of parameters/);
    await refused(() => mt.translate('a', { alignment: { layer: 3 } }), /alignment.layer: expected a whole number below 3, got 3/);
    await refused(() => mt.translate('a', { alignment: { head: 2 } }), /alignment.head: expected a whole number below 2, got 2/);
    for (const layer of ['x', -1, 1.5, 99]) {
      await withModel(changed(tasks('marian'), 'config.json', { alignment_layer: layer }), (lm) =>
        refused(() => lm.translate('a', { alignment: true }), /alignment.layer/),
      );
    }
  });

  test('texts without a visible token: everything asked for is there, zeros in its shape', async () => {
    const asked = { attentions: true, hiddenStates: true, trace: true };
    const zeros = ({ data }) => data.every((value) => value === 0);
    await withModel(tasks('bert', 'wordpiece'), async (lm) => {
      const { layers, heads, hiddenSize } = lm.info();
      for (const [ids, mask, T] of [
        [[5, 6], [0, 0], 2],
        [[], [], 0],
      ]) {
        const [{ lastHiddenState, pooled, hiddenStates, attentions, trace }] = await lm.forward(
          { inputIds: [ids], attentionMask: [mask] },
          asked,
        );
        assert.deepEqual(
          hiddenStates.map(({ shape }) => shape),
          Array.from({ length: layers + 1 }, () => [T, hiddenSize]),
        );
        assert.deepEqual(
          attentions.map(({ shape }) => shape),
          Array.from({ length: layers }, () => [heads, T, T]),
        );
        for (const tensor of [lastHiddenState, pooled, ...hiddenStates, ...attentions]) assert.ok(zeros(tensor));
        assert.ok(trace['layers.0.attention.scores'].data.every((value) => value === -Infinity));
        assert.deepEqual(trace['layers.0.attention.query'].shape, [heads, T, hiddenSize / heads]);
      }
    });
    const input = { inputIds: [[5, 6]], decoderInputIds: [[0, 5]], decoderAttentionMask: [[0, 0]] };
    const [{ crossAttentions, decoderAttentions, decoderHiddenStates }] = await mt.forward(input, asked);
    assert.deepEqual(
      [crossAttentions, decoderAttentions].map((list) => list.map(({ shape }) => shape)),
      [3, 3].map((layers) => Array.from({ length: layers }, () => [2, 2, 2])),
    );
    for (const tensor of [...crossAttentions, ...decoderAttentions, ...decoderHiddenStates]) assert.ok(zeros(tensor));
    const [lens] = await mt.logitLens(input, { topK: 2 });
    assert.deepEqual(
      lens.map(({ ids }) => ids),
      Array.from({ length: 4 }, () => [[], []]),
    );
  });

  test('weights that are no numbers: generation says so, the lens puts them last', async () => {
    const files = tasks('marian');
    const bytes = files['model.safetensors'].slice();
    const view = new DataView(bytes.buffer);
    const size = Number(view.getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
    const name = Object.keys(header).find((key) => key.endsWith('final_logits_bias'));
    const { dtype, data_offsets: offsets } = header[name];
    assert.equal(dtype, 'F32');
    for (let at = offsets[0]; at < offsets[1]; at += 12) view.setFloat32(8 + size + at, NaN, true);
    await withModel({ ...files, 'model.safetensors': bytes }, async (lm) => {
      for (const options of [{ numBeams: 1 }, { numBeams: 4 }, { numBeams: 4, doSample: true }])
        await assert.rejects(lm.generate(source, options).result, code('invalid-argument', /score of token 0: .*NaN.*removeInvalidValues/));
      await assert.rejects(lm.translate('a'), code('invalid-argument', /NaN/));
      const [lens] = await lm.logitLens({ inputIds: [[5]], decoderInputIds: [[0]] }, { topK: 111 });
      for (const { ids } of lens) assert.ok(ids[0].every((id) => id % 3 !== 0));
    });
  });
});

describe('tasks', () => {
  test('arguments that are none', async () => {
    const invalid = code('invalid-argument');
    for (const value of [undefined, null, 5, [null], [[]], trap, new Proxy([], { get: boom }), Symbol('s')]) {
      for (const task of ['translate', 'summarize', 'embed', 'fillMask', 'classify'])
        await assert.rejects(async () => mt[task](value), invalid);
      await assert.rejects(async () => mt.answer(value, value), invalid);
    }
    for (const options of [null, 5, 'x', []])
      await assert.rejects(async () => mt.translate('a', options), code('invalid-argument', /options: expected an object, got/));
    for (const language of [5, {}, null])
      await assert.rejects(
        async () => mt.translate('a', { targetLanguage: language }),
        code('invalid-argument', /targetLanguage: expected a string/),
      );
    await assert.rejects(async () => mt.translate('a', trap), code('invalid-argument', /boom/));
    for (const onSentence of [boom, async () => boom()]) await assert.rejects(mt.translate('A whale.', { onSentence }), /^Error: boom$/);
    assert.equal((await mt.translate('A whale.', { maxNewTokens: 3 })).segments.length, 1);
    await withModel(tasks('bert-moods', 'wordpiece'), (lm) =>
      assert.rejects(lm.classify({ text: 'a', pair: 'b', more: 1 }), code('invalid-argument', /\{ text, pair \}/)),
    );
    await withModel(tasks('bert-answer', 'wordpiece'), (lm) =>
      assert.rejects(lm.answer('who', 'whale '.repeat(100), { docStride: 1e9 }), (error) => {
        assert.doesNotMatch(error.message, /truncation/);
        return code('invalid-argument', /at most 48 tokens, of which 1000000000 overlap/)(error);
      }),
    );
  });

  test('strange texts', async () => {
    for (const same of ['', '   ', '\n\n', ' \n\t\r\n', '\ud800', '\u200b', '...', '\ufffd']) {
      const { text: made, segments } = await mt.translate(same, { maxNewTokens: 3 });
      assert.deepEqual([made, segments], [same, []]);
    }
    for (const odd of ['a\udc00b. c', 'שלום. عليكم', 'a\0b', '\u202eabc\u202c', 'a\u2028b\vc\fd\x85e', `a${'\u0301'.repeat(3000)}`])
      assert.equal(typeof (await mt.translate(odd, { maxNewTokens: 3, alignment: true })).text, 'string');
  });

  test('maxTime is of the whole task', async () => {
    const began = performance.now();
    const { segments } = await mt.translate('A whale swam. '.repeat(300), {
      maxTime: 0.2,
      maxNewTokens: 5000,
      eosTokenId: null,
      noRepeatNgramSize: 0,
    });
    assert.equal(segments.length, 300);
    assert.ok(performance.now() - began < 3000);
    for (const { finishReason } of segments.slice(-100)) assert.equal(finishReason, 'time');
  });

  // Intl.Segmenter takes seconds for ten thousand sentences at once, minutes for more.
  test('many sentences in one line', async () => {
    const began = performance.now();
    const { segments } = await mt.translate('A whale swam. '.repeat(10000), { maxNewTokens: 1, numBeams: 1, split: true });
    assert.equal(segments.length, 10000);
    for (const [i, { source: at }] of segments.entries()) assert.deepEqual(at, [14 * i, 14 * i + 13]);
    assert.ok(performance.now() - began < 15000);
  });

  test('sentences that never end, in linear time', async () => {
    const began = performance.now();
    for (const run of ['A b. ', 'A. ', 'Mr. ']) {
      const { segments } = await mt.translate(run.repeat(16000), { maxNewTokens: 1, truncation: true });
      assert.equal(segments.length, 1);
    }
    assert.ok(performance.now() - began < 10000);
  });

  // Each took half a minute when every window looked at all tokens.
  test('long texts in windows take as long as they are', async () => {
    const long = 'the white whale swam '.repeat(4000);
    const began = performance.now();
    await withModel(tasks('bert-moods', 'wordpiece'), (lm) => lm.classify(long, { window: true }));
    await withModel(tasks('bert-answer', 'wordpiece'), async (lm) => {
      const { text: found, offsets } = await lm.answer('who swam', long);
      assert.equal(long.slice(...offsets), found);
    });
    assert.ok(performance.now() - began < 15000);
  });
});

describe('files', () => {
  const refused = (files, wanted, message) => assert.rejects(load(files, { worker: false }), code(wanted, message));

  test('modules.json stays within its folder', async () => {
    const files = tasks('bert', 'wordpiece');
    const modules = (path) => ({ ...files, 'modules.json': json([{ path, type: 'sentence_transformers.models.Pooling' }]) });
    for (const path of ['../x', '/etc', 'a/../../b', '..', 'C:\\x', '\\\\host\\x'])
      await refused(modules(path), 'invalid-file', /modules.json: expected paths inside the folder/);
    await withModel(modules('1_Pooling'), (lm) => lm.embed('a'));
    await refused({ ...files, 'modules.json': text('{') }, 'invalid-file', /modules.json/);
    await refused({ ...modules('p'), 'p/config.json': json({ pooling_mode: 'x' }) }, 'invalid-file', /pooling_mode: expected cls/);
  });

  test('tokenizers', async () => {
    const files = tasks('bert', 'wordpiece');
    const tokenizer = read(files, 'tokenizer.json');
    const withPart = (part) => ({ ...files, 'tokenizer.json': json({ ...tokenizer, ...part }) });
    for (const charsmap of [5, null, {}])
      await refused(
        withPart({ normalizer: { type: 'Precompiled', precompiled_charsmap: charsmap } }),
        'invalid-file',
        /precompiled_charsmap: expected text/,
      );
    for (const charsmap of ['!!!', '', 'AAAA', '////////'])
      await refused(
        withPart({ normalizer: { type: 'Precompiled', precompiled_charsmap: charsmap } }),
        'invalid-file',
        /precompiled_charsmap: /,
      );
    for (const id of [-1, 1e9, 1.5, '1'])
      await refused(
        withPart({ post_processor: { type: 'BertProcessing', sep: ['[SEP]', id], cls: ['[CLS]', 2] } }),
        'invalid-file',
        /post_processor.sep: expected a token and its id/,
      );
    for (const unk of [2, -1, 'x', 1.5])
      await refused(
        withPart({
          model: {
            type: 'Unigram',
            unk_id: unk,
            vocab: [
              ['a', -1],
              ['b', -2],
            ],
          },
        }),
        'invalid-file',
        /unk_id: expected an index below 2/,
      );
    await refused(
      withPart({ model: { type: 'Unigram', unk_id: 0, vocab: [['a', 'x']] } }),
      'invalid-file',
      /model.vocab: a: expected a score/,
    );
    await refused(withPart({ model: { ...tokenizer.model, max_input_chars_per_word: 'x' } }), 'invalid-file', /max_input_chars_per_word/);

    const { 'tokenizer.json': _, 'tokenizer_config.json': __, ...bare } = files;
    const words = (list, settings = {}) => ({
      ...bare,
      'vocab.txt': text(list.join('\n')),
      'tokenizer_config.json': json({ tokenizer_class: 'BertTokenizer', ...settings }),
    });
    await refused(words(['[PAD]', '[CLS]', '[SEP]']), 'invalid-file', /unk_token/);
    await refused(words(['[UNK]', 'a']), 'invalid-file', /special_tokens: expected the ids of \[CLS\], got nothing/);
    await refused(
      words(['[UNK]', '[CLS]', '[SEP]'], { do_lower_case: 'x' }),
      'invalid-file',
      /tokenizer_config.json\] do_lower_case: expected a boolean/,
    );

    for (const name of [{}, [], 5, null])
      await withModel(changed(files, 'tokenizer_config.json', { tokenizer_class: name }), (lm) => lm.tokenize('a'));

    const marian = tasks('marian');
    for (const file of ['source.spm', 'target.spm', 'vocab.json']) {
      const { [file]: _, ...rest } = marian;
      await withModel(rest, (lm) => assert.rejects(lm.translate('a'), code('unsupported', /source.spm, target.spm, vocab.json.*missing/)));
    }
    await withModel(changed(marian, 'tokenizer_config.json', { separate_vocabs: true }), (lm) =>
      assert.rejects(lm.translate('a'), code('unsupported', /target_vocab.json/)),
    );
    const { 'config.json': config, 'model.safetensors': weights, 'source.spm': pieces } = marian;
    for (const extra of [1e9, -1, 'x'])
      await refused(
        {
          'config.json': config,
          'model.safetensors': weights,
          'spiece.model': pieces,
          'tokenizer_config.json': json({ tokenizer_class: 'T5Tokenizer', extra_ids: extra }),
        },
        'invalid-file',
        /extra_ids: expected an integer from 0 to 65535/,
      );
  });
});

test('create: numbers that JSON cannot say; caches of models that have none', async () => {
  const config = { model_type: 'transformer', vocab_size: 20, d_model: 8, heads: 2, encoder_layers: 1, decoder_layers: 1 };
  for (const [key, value] of Object.entries({ vocab_size: NaN, scale: Infinity, layer_norm_eps: -Infinity }))
    await assert.rejects(
      create({ ...config, [key]: value }, { worker: false }),
      code('invalid-argument', new RegExp(`${key}: expected a finite number`)),
    );
  await assert.rejects(create({ ...config, encoder_layers: 0, decoder_layers: 0 }, { worker: false }), code('invalid-argument', /layers/));
  await assert.rejects(mt.createCache(), code('unsupported', /expected a decoder alone, got marian/));
  await withModel(tasks('bert', 'wordpiece'), (lm) => assert.rejects(lm.createCache(), code('unsupported', /got bert/)));
});

test('bare operations: shapes that a 32-bit size cannot hold, and what is no shape', async () => {
  for (const size of [2 ** 31, 2 ** 32, 2 ** 32 + 2, 2 ** 53, 1e300, -1, 0.5, NaN])
    await assert.rejects(
      ops.softmax({ data: [1, 2], shape: [size] }),
      code('invalid-argument', /x.shape: expected an array of whole numbers below 2\^31/),
    );
  for (const shape of [
    { length: 1e9 },
    '12',
    5,
    null,
    {
      *[Symbol.iterator]() {
        for (;;) yield 1;
      },
    },
  ])
    await assert.rejects(ops.softmax({ data: [1, 2], shape }), code('invalid-argument', /x.shape/));
  await assert.rejects(ops.softmax([[1, 2], [3]]), code('invalid-argument', /x\[1\]: expected the shape \(2\) of its neighbours/));
  const data = new Float32Array([1, 2, 3, 4]);
  const shape = [2, 2];
  const made = ops.softmax({ data, shape });
  data.fill(NaN);
  shape[0] = 1e9;
  assert.deepEqual((await made).shape, [2, 2]);
  assert.ok((await made).data.every(Number.isFinite));
});

describe('plotAttention', () => {
  const weights = [
    [0.5, 0.5],
    [1, 0],
  ];
  const two = ['a', 'b'];

  test('what is no text or number is refused, and nothing of it stands in the picture', () => {
    const number = { valueOf: () => 24, toString: () => '"><script>' };
    for (const [name, value] of Object.entries({ cell: number, max: number, columns: number }))
      assert.throws(
        () => plotAttention(weights, two, two, { [name]: value }),
        code('invalid-argument', new RegExp(`${name}: expected a number above 0`)),
      );
    for (const title of [5, null, {}, Symbol('s')])
      assert.throws(() => plotAttention(weights, two, two, { title }), code('invalid-argument', /title: expected a string/));
    // biome-ignore lint/suspicious/noSparseArray: what is tested
    for (const tokens of [[, ,], ['a', 5], ['a', null], 'ab', ['a']])
      assert.throws(() => plotAttention(weights, tokens, two), code('invalid-argument', /source: expected an array of 2 strings/));
    for (const token of [']]>', '</svg><script>', '&#0;', '\0', '\ud800', '"onload="x', '<!--', '\u202e']) {
      const svg = plotAttention(weights, [token, token], [token, token], { title: token });
      for (const not of [']]>', '<script', '"onload', '<!--', '\0', '\ud800', '\u202e']) assert.ok(!svg.includes(not), `${token}: ${not}`);
    }
  });

  // Measuring and cutting labels took minutes.
  test('labels of a million characters', () => {
    const began = performance.now();
    for (const token of ['x'.repeat(1e6), `a${'\u0301'.repeat(1e6)}`, '\u{1f600}'.repeat(5e5), '\ud800'.repeat(1e5)])
      assert.match(plotAttention(weights, [token, 'b'], two), /\u2026/);
    assert.ok(performance.now() - began < 10000);
  });
});
