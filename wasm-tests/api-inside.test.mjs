// What the library shows of a model: traces, the logit lens, weights, token strings; and models made from a configuration alone.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { create, load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { folderOf, readTensors } from './support/fixtures.mjs';
import { byteTokenizer } from './support/tiny.mjs';

const files = (tokenizer) => ({ 'tokenizer.json': new TextEncoder().encode(JSON.stringify(tokenizer)) });
const here = { worker: false };
/** Small, and wide enough apart that attention is not dull. */
const sizes = {
  vocab_size: 300,
  d_model: 16,
  encoder_layers: 2,
  decoder_layers: 2,
  heads: 2,
  encoder_ffn_dim: 24,
  decoder_ffn_dim: 24,
};
const translator = (more = {}, options = {}) => create({ model_type: 'transformer', ...sizes, ...more }, { ...here, ...options });
const decoder = (more = {}, options = {}) => translator({ encoder_layers: 0, ...more }, options);
const encoder = (more = {}, options = {}) => translator({ decoder_layers: 0, ...more }, options);

const ids = [5, 17, 40, 3, 77, 120, 9];

test('a trace is what attention is made of, recomputed by hand', async () => {
  for (const [model, input, stacks] of [
    [await decoder(), { inputIds: [ids] }, { 'layers.0.attention': ['attentions', 0, true] }],
    [await encoder(), { inputIds: [ids] }, { 'layers.1.attention': ['attentions', 1, false] }],
    [
      await translator(),
      { inputIds: [ids], decoderInputIds: [[2, 8, 30]] },
      {
        'encoder.0.attention': ['encoderAttentions', 0, false],
        'decoder.1.attention': ['decoderAttentions', 1, true],
        'decoder.1.crossAttention': ['crossAttentions', 1, false],
      },
    ],
  ]) {
    const [plain] = await model.forward(input);
    const [seen] = await model.forward(input, { trace: true, attentions: true, hiddenStates: true });
    for (const name of ['logits', 'lastHiddenState']) assert.deepEqual(seen[name], plain[name], name);
    for (const [at, [field, layer, causal]] of Object.entries(stacks)) {
      const part = (name) => seen.trace[`${at}.${name}`];
      const [q, k, v, scores, heads] = ['query', 'key', 'value', 'scores', 'heads'].map(part);
      const [H, T, Dk] = q.shape;
      const S = k.shape[1];
      assert.deepEqual(
        [k.shape, v.shape, scores.shape, heads.shape].map(String),
        [
          [H, S, Dk],
          [H, S, Dk],
          [H, T, S],
          [H, T, Dk],
        ].map(String),
      );
      const weights = seen[field][layer];
      for (let h = 0; h < H; ++h) {
        for (let t = 0; t < T; ++t) {
          const row = Array.from({ length: S }, (_, s) => {
            if (causal && s > t) return -Infinity;
            let dot = 0;
            for (let i = 0; i < Dk; ++i) dot += q.data[(h * T + t) * Dk + i] * k.data[(h * S + s) * Dk + i];
            return dot / Math.sqrt(Dk);
          });
          const sum = row.reduce((total, score) => total + Math.exp(score), 0);
          const near = (a, b, what) => assert.ok(a === b || Math.abs(a - b) < 1e-5, `${at} ${what} ${h} ${t}: ${a}, ${b}`);
          for (let s = 0; s < S; ++s) {
            near(scores.data[(h * T + t) * S + s], row[s], 'score');
            near(weights.data[(h * T + t) * S + s], Math.exp(row[s]) / sum, 'weight');
          }
          for (let i = 0; i < Dk; ++i) {
            const mixed = row.reduce((total, score, s) => total + (Math.exp(score) / sum) * v.data[(h * S + s) * Dk + i], 0);
            near(heads.data[(h * T + t) * Dk + i], mixed, 'head');
          }
        }
      }
    }
    const inner = Object.keys(seen.trace).filter((name) => name.endsWith('feedForward.inner'));
    for (const name of inner) assert.equal(seen.trace[name].shape[1], 24);
    assert.equal(inner.length, Object.keys(seen.trace).filter((name) => name.endsWith('.attention.query')).length);
    const [some] = await model.forward(input, { trace: { layers: [1], heads: [1] } });
    assert.ok(Object.keys(some.trace).every((name) => name.split('.')[1] === '1'));
    assert.ok(Object.entries(some.trace).every(([name, { shape }]) => name.endsWith('inner') || shape[0] === 1));
    await assert.rejects(model.forward(input, { trace: { layers: [9] } }), code('invalid-argument', /trace\.layers/));
    await assert.rejects(model.forward(input, { trace: { layer: [0] } }), code('invalid-argument', /'layers'/));
    await model.dispose();
  }
});

test('the logit lens ends in the logits', async () => {
  for (const [model, input] of [
    [await decoder({ normalize_before: true }, { tokenizer: files(byteTokenizer()) }), { inputIds: [ids, [1]] }],
    [
      await encoder({ architectures: ['TransformerForMaskedLM'] }),
      {
        inputIds: [ids, [4, 4]],
        attentionMask: [
          [1, 1, 1, 1, 1, 0, 0],
          [1, 1],
        ],
      },
    ],
    [await translator({ normalize_before: true }), { inputIds: [ids, [1]], decoderInputIds: [[2, 3], [2]] }],
  ]) {
    const plain = await model.forward(input);
    const lenses = await model.logitLens(input);
    const top = await model.logitLens(input, { topK: 4 });
    const asked = await model.forward(input, { logitLens: { topK: 4 } });
    for (const [i, { logits }] of plain.entries()) {
      assert.equal(lenses[i].length, 3);
      assert.deepEqual(lenses[i][2], logits);
      assert.notDeepEqual(lenses[i][1], logits);
      assert.deepEqual(asked[i].logits, logits);
      assert.deepEqual(asked[i].logitLens, top[i]);
      const [T, V] = logits.shape;
      for (const [l, { ids: best, logprobs, tokens }] of top[i].entries()) {
        assert.equal(best.length, T);
        for (let t = 0; t < T; ++t) {
          const row = lenses[i][l].data.subarray(t * V, (t + 1) * V);
          if (input.attentionMask?.[i][t] === 0) {
            assert.deepEqual([best[t], logprobs[t]], [[], []]);
            continue;
          }
          const order = Array.from(row.keys()).sort((a, b) => row[b] - row[a] || a - b);
          assert.deepEqual(best[t], order.slice(0, 4));
          const sum = row.reduce((total, logit) => total + Math.exp(logit), 0);
          for (const [n, id] of best[t].entries()) assert.ok(Math.abs(logprobs[t][n] - (row[id] - Math.log(sum))) < 1e-5);
          if (model.tokenizer) assert.deepEqual(tokens[t], await model.tokenStrings(best[t]));
        }
      }
    }
    await assert.rejects(model.logitLens(input, { topK: 301 }), code('invalid-argument', /topK.*300/));
    await assert.rejects(model.logitLens(input, { topk: 3 }), code('invalid-argument', /'topK'/));
    await model.dispose();
  }
  const bare = await encoder();
  await assert.rejects(bare.logitLens({ inputIds: [ids] }), code('unsupported', /predicts tokens/));
  await bare.dispose();
});

test('a parameter is what the file holds', async () => {
  for (const [name, prefix] of [
    ['gpt2', 'transformer.'],
    ['llama-bias', 'model.'],
    ['llama-no-prefix', 'model.'],
    ['transformer', ''],
  ]) {
    const lm = await load(folderOf(name), here);
    const all = await lm.parameters();
    assert.equal(
      all.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0),
      lm.info().parameters,
    );
    if (name === 'gpt2' || name === 'transformer') {
      const stored = readTensors(join(folderOf(name), 'model.safetensors'));
      for (const { name: own, shape, dtype } of all) {
        const tensor = await lm.parameter(own);
        assert.deepEqual(tensor, stored[own] ?? stored[own.slice(prefix.length)], own);
        assert.deepEqual(tensor.shape, shape);
        assert.equal(dtype, 'f32');
        if (prefix && own.startsWith(prefix)) assert.deepEqual(await lm.parameter(own.slice(prefix.length)), tensor);
      }
    }
    await assert.rejects(lm.parameter(`${all[3].name}x`), code('invalid-argument', new RegExp(`nearest is '${all[3].name}'`)));
    await assert.rejects(lm.parameter(7), code('invalid-argument'));
    await lm.dispose();
  }
  const half = await load(folderOf('gpt2'), { ...here, dtype: 'f16' });
  const kept = Object.fromEntries((await half.parameters()).map(({ name, dtype }) => [name, dtype]));
  assert.equal(kept['transformer.h.0.attn.c_attn.weight'], 'f16');
  assert.equal(kept['transformer.ln_f.weight'], 'f32');
  await half.dispose();
});

test('the same seed makes the same model, in whatever is asked for', async () => {
  const weights = async (options) => {
    const model = await translator({}, options);
    const all = await Promise.all((await model.parameters()).map(async ({ name }) => [name, await model.parameter(name)]));
    await model.dispose();
    return Object.fromEntries(all);
  };
  const first = await weights({ seed: 5 });
  assert.deepEqual(await weights({ seed: 5, worker: true }), first);
  assert.deepEqual(await weights({ seed: 5, trainable: true }), first);
  const other = await weights({ seed: 6 });
  assert.notDeepEqual(other['encoder.layers.0.fc1.weight'], first['encoder.layers.0.fc1.weight']);
  assert.notDeepEqual(await weights({}), first);

  const half = await translator({}, { dtype: 'f16', seed: 5 });
  assert.equal(half.info().dtype, 'f16');
  const { data } = await half.parameter('encoder.layers.0.fc1.weight');
  assert.ok(data.every((value, i) => Math.abs(value - first['encoder.layers.0.fc1.weight'].data[i]) < 1e-3));
  await half.dispose();
});

test('the base model of the paper', { timeout: 300_000 }, async () => {
  const V = 1000;
  const model = await create({ model_type: 'transformer', vocab_size: V });
  const { parameters, layers, heads, hiddenSize, encoderDecoder } = model.info();
  assert.deepEqual(
    { parameters, layers, heads, hiddenSize, encoderDecoder },
    {
      parameters: 44_138_496 + 512 * V,
      layers: 6,
      heads: 8,
      hiddenSize: 512,
      encoderDecoder: true,
    },
  );
  const deviation = ({ data }) => Math.sqrt(data.reduce((sum, value) => sum + value * value, 0) / data.length);
  const near = (a, b) => assert.ok(Math.abs(a / b - 1) < 0.01, `${a}, ${b}`);
  near(deviation(await model.parameter('shared.weight')), 512 ** -0.5);
  near(deviation(await model.parameter('encoder.layers.5.fc1.weight')), Math.sqrt(2 / (512 + 2048)));
  near(deviation(await model.parameter('decoder.layers.0.encoder_attn.q_proj.weight')), Math.sqrt(2 / 1024));
  const [{ logits }] = await model.forward({ inputIds: [[1, 2, 3]], decoderInputIds: [[0, 4]] });
  assert.deepEqual(logits.shape, [2, V]);
  assert.ok(logits.data.every(Number.isFinite));
  await model.dispose();
});

test('what create will not make', async () => {
  const base = { model_type: 'transformer', vocab_size: 10 };
  await assert.rejects(create({ ...base, d_model: 500, heads: 8 }, here), code('invalid-argument', /d_model.*heads.*8.*500/));
  await assert.rejects(create({ vocab_size: 10 }, here), code('invalid-argument', /model_type/));
  await assert.rejects(create(null, here), code('invalid-argument', /config/));
  await assert.rejects(create({ model_type: 'rnn' }, here), code('unsupported', /model_type/));
  await assert.rejects(create(base, { ...here, revision: 'main' }), code('invalid-argument', /revision/));
  await assert.rejects(create(base, { ...here, seed: -1 }), code('invalid-argument', /seed/));
  await assert.rejects(create(base, { ...here, dtype: 'q2' }), code('invalid-argument', /dtype.*'q4'/));
  await assert.rejects(create({ ...base, vocab_size: 1_000_000, d_model: 1024 }, here), code('out-of-memory', /\[create\].*bytes/));
  const aborted = AbortSignal.abort('enough');
  await assert.rejects(create(base, { ...here, signal: aborted }), (reason) => reason === 'enough');
});

test('families are made from their own configurations', async () => {
  const tiny = { vocab_size: 90, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24 };
  for (const config of [
    { model_type: 'gpt2', vocab_size: 90, n_embd: 16, n_layer: 2, n_head: 2, n_positions: 32 },
    { model_type: 'llama', ...tiny },
    { model_type: 't5', vocab_size: 90, d_model: 16, d_kv: 8, d_ff: 24, num_layers: 2, num_heads: 2 },
    {
      model_type: 'bart',
      vocab_size: 90,
      d_model: 16,
      encoder_layers: 1,
      decoder_layers: 1,
      encoder_attention_heads: 2,
      decoder_attention_heads: 2,
    },
    { model_type: 'bert', architectures: ['BertForMaskedLM'], ...tiny },
  ]) {
    const model = await create(config, here);
    const input = { inputIds: [[5, 6, 7]], ...(model.info().encoderDecoder ? { decoderInputIds: [[1, 2]] } : {}) };
    const [{ logits }] = await model.forward(input);
    assert.equal(logits.shape[1], 90, config.model_type);
    assert.ok(logits.data.every(Number.isFinite));
    assert.equal(model.info().architecture, config.model_type);
    // What works on text is not there without a tokenizer, and says what is missing.
    assert.deepEqual(model.info().tasks, model.info().encoderOnly ? [] : ['generate']);
    for (const task of ['translate', 'summarize', 'embed', 'fillMask']) {
      await assert.rejects(model[task]('a'), (error) => {
        assert.equal(error.code, 'unsupported');
        assert.match(error.message, /tokenizer/);
        assert.doesNotMatch(error.message, /inputIds/);
        return true;
      });
    }
    await model.dispose();
  }
});

test('padding is not seen, on either side', async () => {
  const model = await translator();
  const source = [5, 17, 40, 3];
  const target = [2, 8, 30];
  const [alone] = await model.forward({ inputIds: [source], decoderInputIds: [target] });
  const [right] = await model.forward({
    inputIds: [[...source, 0, 0]],
    attentionMask: [[1, 1, 1, 1, 0, 0]],
    decoderInputIds: [[...target, 7]],
    decoderAttentionMask: [[1, 1, 1, 0]],
  });
  const V = 300;
  assert.deepEqual(right.logits.data.subarray(0, 3 * V), alone.logits.data);
  assert.ok(right.logits.data.subarray(3 * V).every((value) => value === 0));
  for (const junk of [1, 200]) {
    const [{ logits }] = await model.forward({
      inputIds: [[junk, 5, junk, 17, 40, 3]],
      attentionMask: [[0, 1, 0, 1, 1, 1]],
      decoderInputIds: [[2, junk, 8, 30]],
      decoderAttentionMask: [[1, 0, 1, 1]],
    });
    const [{ logits: same }] = await model.forward({
      inputIds: [[0, 5, 0, 17, 40, 3]],
      attentionMask: [[0, 1, 0, 1, 1, 1]],
      decoderInputIds: [[2, 0, 8, 30]],
      decoderAttentionMask: [[1, 0, 1, 1]],
    });
    assert.deepEqual(logits, same);
  }
  const bad = (input, message) => assert.rejects(model.forward(input), code('invalid-argument', message));
  await bad({ inputIds: [source], decoderInputIds: [target], decoderAttentionMask: [[1]] }, /decoderAttentionMask\[0\]: expected 3/);
  await bad({ inputIds: [source], decoderAttentionMask: [[1]] }, /decoderInputIds/);
  await bad({ inputIds: [source], decoderInputIds: [target], tokenTypeIds: [[0, 0, 0, 0]] }, /token types/);
  await bad({ inputIds: [source] }, /decoderInputIds/);
  await model.dispose();
});

test('an encoder alone says what it is for', async () => {
  const model = await encoder();
  assert.equal(model.info().encoderOnly, true);
  assert.equal(model.info().head, 'none');
  await assert.rejects(model.generate({ inputIds: ids }).result, code('unsupported', /embed and forward/));
  await assert.rejects(model.score({ inputIds: ids }), code('unsupported', /embed and forward/));
  await model.dispose();
});

test('generate shows one pass over what it generated, with the strings of both axes', async () => {
  const text = 'a 我!';
  const lm = await decoder({}, { tokenizer: files(byteTokenizer({ addBos: true })) });
  const { tokenIds, attentions, hiddenStates, trace, tokens, logits } = await lm.generate(text, {
    maxNewTokens: 3,
    doSample: false,
    attentions: { layers: [1] },
    hiddenStates: true,
    trace: { layers: [0], heads: [1] },
  }).result;
  const prompt = await lm.tokenize(text);
  const [whole] = await lm.forward({ inputIds: [[...prompt, ...tokenIds]] }, { attentions: true, hiddenStates: true });
  assert.deepEqual(attentions, [whole.attentions[1]]);
  assert.deepEqual(hiddenStates, whole.hiddenStates);
  assert.ok(trace['layers.0.attention.query']);
  assert.equal(logits, undefined);
  assert.equal(tokens.length, prompt.length + tokenIds.length);
  assert.deepEqual(tokens.slice(0, 7), ['<bos>', 'a', ' ', '<0xE6>', '<0x88>', '<0x91>', '!']);
  assert.deepEqual(tokens, await lm.tokenStrings([...prompt, ...tokenIds]));
  const plain = await lm.generate(text, { maxNewTokens: 3, doSample: false }).result;
  assert.deepEqual(plain.tokenIds, tokenIds);
  assert.ok(!('attentions' in plain) && !('tokens' in plain));
  assert.throws(() => lm.generate(text, { attentions: 'all' }), code('invalid-argument', /attentions/));
  await lm.dispose();

  const mt = await translator({}, { tokenizer: files(byteTokenizer()) });
  const results = await mt.generate([text, 'b'], {
    maxNewTokens: 3,
    numBeams: 2,
    numReturnSequences: 2,
    decoderStartTokenId: 7,
    attentions: true,
  }).result;
  assert.equal(results.length, 4);
  for (const [i, result] of results.entries()) {
    const source = await mt.tokenize(i < 2 ? text : 'b');
    const target = [7, ...result.tokenIds];
    const [whole] = await mt.forward({ inputIds: [source], decoderInputIds: [target] }, { attentions: true });
    for (const name of ['encoderAttentions', 'decoderAttentions', 'crossAttentions']) assert.deepEqual(result[name], whole[name], name);
    assert.deepEqual(result.sourceTokens, await mt.tokenStrings(source));
    assert.deepEqual(result.targetTokens, await mt.tokenStrings(target, { target: true }));
    assert.deepEqual(whole.sourceTokens, result.sourceTokens);
  }
  await mt.dispose();
});

test('of stacks of different depth each shows the layers and heads that it has, in the order asked for', async () => {
  const mt = await translator({ encoder_layers: 3, decoder_layers: 1, encoder_attention_heads: 4, decoder_attention_heads: 2 });
  const { layers, heads, encoderLayers, encoderHeads, sourceVocabSize } = mt.info();
  assert.deepEqual([layers, heads, encoderLayers, encoderHeads, sourceVocabSize], [1, 2, 3, 4, 300]);
  const input = { inputIds: [ids], decoderInputIds: [[1, 5]] };
  const [all] = await mt.forward(input, { attentions: true });
  const [some] = await mt.forward(input, { attentions: { layers: [2, 0] } });
  assert.deepEqual(some.encoderAttentions, [all.encoderAttentions[2], all.encoderAttentions[0]]);
  assert.deepEqual(some.decoderAttentions, all.decoderAttentions);
  assert.deepEqual(some.crossAttentions, all.crossAttentions);
  const [deep] = await mt.forward(input, { attentions: { layers: [1] } });
  assert.deepEqual([deep.encoderAttentions, deep.decoderAttentions, deep.crossAttentions], [[all.encoderAttentions[1]], [], []]);
  const [wide] = await mt.forward(input, { attentions: { heads: [3] } });
  assert.deepEqual(
    [wide.encoderAttentions.length, wide.encoderAttentions[0].shape, wide.decoderAttentions, wide.crossAttentions],
    [3, [1, 7, 7], [], []],
  );
  await assert.rejects(mt.forward(input, { attentions: { layers: [3] } }), code('invalid-argument', /below 3, got 3/));
  await mt.dispose();
});

test('a slip in a key of the original is an error', async () => {
  await assert.rejects(translator({ d_modle: 64 }), code('invalid-argument', /d_modle: unknown key: expected d_model/));
  await assert.rejects(translator({ encoder_vocab_size: 99 }), code('invalid-argument', /encoder_vocab_size: expected 300/));
});
