// The bare operations against PyTorch, a case worked by hand, and what is refused.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { create, ops, WasmformerError } from '../dist/node.js';
import { fixtures } from './support/fixtures.mjs';

const near = (actual, expected, tolerance, what) => {
  assert.deepEqual(actual.shape, expected.shape, what);
  for (const [i, value] of expected.data.entries())
    assert.ok(
      Math.abs(actual.data[i] - value) <= tolerance * Math.max(1, Math.abs(value)),
      `${what} at ${i}: ${actual.data[i]}, not ${value}`,
    );
};

for (const { name, operation, args, options, expected } of JSON.parse(readFileSync(join(fixtures, 'ops.json'), 'utf8'))) {
  test(name, async () => {
    const result = await ops[operation](...args, options);
    // The file has seven digits; sums here have at most 40 terms of about 1.
    if (expected.shape) near(result, expected, 3e-6, 'result');
    else for (const [key, tensor] of Object.entries(expected)) near(result[key], tensor, 3e-6, key);
  });
}

test('the case worked by hand', async () => {
  const x = [
    [1, 0],
    [0, 1],
    [1, 1],
  ];
  const { output, weights, ...rest } = await ops.attention(x, x, x);
  const rounded = ({ data, shape: [rows, cols] }) =>
    Array.from({ length: rows }, (_, r) => Array.from(data.subarray(r * cols, (r + 1) * cols), (value) => value.toFixed(2)));
  assert.deepEqual(rounded(weights), [
    ['0.40', '0.20', '0.40'],
    ['0.20', '0.40', '0.40'],
    ['0.25', '0.25', '0.50'],
  ]);
  assert.deepEqual(rounded(output), [
    ['0.80', '0.60'],
    ['0.60', '0.80'],
    ['0.75', '0.75'],
  ]);
  assert.ok(output.data instanceof Float32Array);
  assert.deepEqual(rest, {});
});

test('tensors of every form are the same, and stay as they were', async () => {
  const nested = [
    [1, 2, 3],
    [4, 5, 7],
  ];
  const flat = { data: nested.flat(), shape: [2, 3] };
  const typed = { data: Float64Array.from(nested.flat()), shape: [2, 3] };
  const rows = nested.map((row) => Float32Array.from(row));
  const expected = await ops.layerNorm(nested);
  assert.deepEqual(expected.shape, [2, 3]);
  for (const x of [flat, typed, rows]) assert.deepEqual(await ops.layerNorm(x), expected);
  assert.deepEqual(flat.data, [1, 2, 3, 4, 5, 7]);
  assert.equal(typed.data.length, 6);
  const one = await ops.softmax(new Float32Array(4));
  assert.deepEqual([one.shape, [...one.data]], [[4], [0.25, 0.25, 0.25, 0.25]]);
  // A mask may be of booleans.
  const masked = await ops.attention(nested, nested, nested, { mask: [true, false] });
  assert.deepEqual([...masked.weights.data], [1, 0, 1, 0]);
});

test('weights may be nested under their dotted names', async () => {
  const { args, options, expected } = JSON.parse(readFileSync(join(fixtures, 'ops.json'), 'utf8')).find(
    ({ name }) => name === 'encoderLayer: pre-norm',
  );
  const nested = {};
  for (const [name, tensor] of Object.entries(args[1])) {
    const path = name.split('.');
    const last = path.pop();
    let at = nested;
    for (const key of path) {
      at[key] ??= {};
      at = at[key];
    }
    at[last] = tensor;
  }
  const { output, weights } = await ops.encoderLayer(args[0], nested, options);
  near(output, expected.output, 3e-6, 'output');
  for (let row = 0; row < 15; ++row) {
    const sum = weights.data.subarray(row * 5, row * 5 + 5).reduce((a, b) => a + b);
    assert.ok(Math.abs(sum - 1) < 1e-6, `row ${row}: ${sum}`);
  }
});

const x = [
  [1, 2],
  [3, 4],
];
const refused = [
  ['k of another width', () => ops.attention(x, [[1, 2, 3]], x), 'shape-mismatch', '[attention] k: expected (S, 2), got (1, 3)'],
  ['rows of unequal length', () => ops.attention([[1, 2], [3]], x, x), 'invalid-argument', '[attention] q[1]: expected the shape (2)'],
  ['text', () => ops.softmax(['a']), 'invalid-argument', '[softmax] x[0]: expected a number, got string'],
  ['nothing', () => ops.softmax(), 'invalid-argument', '[softmax] x: expected a tensor, got none'],
  ['a number', () => ops.softmax(5), 'invalid-argument', '[softmax] x: expected a tensor, got 5'],
  ['empty', () => ops.softmax([]), 'shape-mismatch', '[softmax] x: expected dimensions of at least 1, got (0)'],
  ['holes', () => ops.softmax(new Array(3)), 'invalid-argument', '[softmax] x[0]: expected a number, got undefined'],
  ['data that does not fit', () => ops.softmax({ data: [1], shape: [2] }), 'shape-mismatch', '[softmax] x: expected 2 numbers'],
  ['a negative size', () => ops.softmax({ data: [1], shape: [-1] }), 'invalid-argument', '[softmax] x.shape: expected '],
  ['big integers', () => ops.softmax(new BigInt64Array(2)), 'invalid-argument', '[softmax]'],
  ['an unknown option', () => ops.attention(x, x, x, { casual: true }), 'invalid-argument', "[attention] unknown argument 'casual'"],
  ['an argument as an option too', () => ops.attention(x, x, x, { k: x }), 'invalid-argument', '[attention] k: expected it once'],
  ['options that are a list', () => ops.attention(x, x, x, [1]), 'invalid-argument', "[attention] unknown argument 'options'"],
  ['options that are a number', () => ops.attention(x, x, x, 7), 'invalid-argument', "[attention] unknown argument 'options'"],
  ['a prototype as an option', () => ops.softmax(x, JSON.parse('{"__proto__": 1}')), 'invalid-argument', "unknown argument '__proto__'"],
  ['a function', () => ops.attention(x, x, x, { causal: () => true }), 'invalid-argument', ''],
  ['a word for a flag', () => ops.attention(x, x, x, { causal: 'yes' }), 'invalid-argument', '[attention] causal: expected true or false'],
  ['a missing weight', () => ops.multiHeadAttention(x, { query: x }), 'invalid-argument', '[multiHeadAttention] weights.key.weight'],
  [
    'heads that do not divide',
    () => ops.multiHeadAttention(x, { query: x, key: x, value: x, output: x }, { heads: 3 }),
    'shape-mismatch',
    '[multiHeadAttention] weights.query: expected a multiple of 3',
  ],
  ['an unknown activation', () => ops.feedForward(x, { up: x, down: x, activation: 'swoosh' }), 'unsupported', '[feedForward] activation'],
  ['an unknown layout', () => ops.sinusoidalPositions(2, 2, { layout: 'thirds' }), 'invalid-argument', '[sinusoidalPositions] layout'],
  ['no length', () => ops.sinusoidalPositions(0, 2), 'invalid-argument', '[sinusoidalPositions] length: expected a whole number from 1'],
  ['more than there is memory', () => ops.sinusoidalPositions(1e6, 1e6), 'out-of-memory', 'bytes, got 8000004000000'],
  [
    'weights beyond memory',
    () => {
      const tall = { data: new Float32Array(200_000), shape: [200_000, 1] };
      return ops.attention(tall, tall, tall);
    },
    'out-of-memory',
    '[attention] memory: expected at most 4294901760 bytes, got 1600',
  ],
];
for (const [name, call, code, message] of refused) {
  test(`refused: ${name}`, async () => {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof WasmformerError, String(error));
      assert.equal(error.code, code);
      assert.ok(error.message.includes(message), error.message);
      return true;
    });
  });
}

test('NaN is a number like others; the engine is well after all that', async () => {
  const { data } = await ops.softmax([
    [Number.NaN, 1],
    [0, 0],
    [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY],
  ]);
  assert.ok(Number.isNaN(data[0]));
  assert.deepEqual([...data.subarray(2)], [0.5, 0.5, 0, 0]);
});

test('a layer of a model, by its own weights, gives the very bits of its forward pass', async (t) => {
  const config = { model_type: 'transformer', vocab_size: 20, d_model: 16, encoder_layers: 1, decoder_layers: 1, heads: 2 };
  const model = await create({ ...config, encoder_ffn_dim: 24, decoder_ffn_dim: 24 }, { seed: 3 });
  t.after(() => model.dispose());
  const [pass] = await model.forward(
    { inputIds: [[3, 4, 5, 6, 7]], decoderInputIds: [[1, 2, 9]] },
    { hiddenStates: true, attentions: true },
  );
  const layer = async (side, parts) => {
    const weights = {};
    for (const part of [...parts, 'self_attn_layer_norm', 'fc1', 'fc2', 'final_layer_norm'])
      for (const kind of ['weight', 'bias']) weights[`${part}.${kind}`] = await model.parameter(`${side}.layers.0.${part}.${kind}`);
    return weights;
  };
  const projections = (name) => ['q_proj', 'k_proj', 'v_proj', 'out_proj'].map((part) => `${name}.${part}`);
  const [embedded, memory] = pass.encoderHiddenStates;
  const encoded = await ops.encoderLayer(embedded, await layer('encoder', projections('self_attn')), { heads: 2 });
  assert.deepEqual(encoded.output, memory);
  assert.deepEqual(encoded.weights, pass.encoderAttentions[0]);
  const parts = [...projections('self_attn'), ...projections('encoder_attn'), 'encoder_attn_layer_norm'];
  const [start, end] = pass.decoderHiddenStates;
  const decoded = await ops.decoderLayer(start, memory, await layer('decoder', parts), { heads: 2 });
  assert.deepEqual(decoded.output, end);
  assert.deepEqual(decoded.weights, pass.decoderAttentions[0]);
  assert.deepEqual(decoded.crossWeights, pass.crossAttentions[0]);
});
