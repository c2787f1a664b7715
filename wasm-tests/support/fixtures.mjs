// Reads wasm-tests/fixtures: what Hugging Face transformers computed for tiny models.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The folder of all fixtures. */
export const fixtures = process.env.WASMFORMER_FIXTURES ?? fileURLToPath(new URL('../fixtures/', import.meta.url));

export const folderOf = (name) => join(fixtures, name);
export const readJson = (name, file) => JSON.parse(readFileSync(join(fixtures, name, file), 'utf8'));

/** Every folder of `place` that holds a model and what is expected of it in a form that `holds` accepts. */
export const foldersWhere = (holds, place = fixtures) =>
  readdirSync(place, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && existsSync(join(place, entry.name, 'expected.json')))
    .map((entry) => entry.name)
    .filter((name) => holds(JSON.parse(readFileSync(join(place, name, 'expected.json'), 'utf8'))))
    .sort();

/** Decoder-only models. */
export const modelFolders = foldersWhere((expected) => 'family' in expected);

/** The float32 tensors of a safetensors file, by name: { data, shape }. */
export function readTensors(path) {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + length));
  const tensors = {};
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [begin, end],
    } = {},
  ] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    if (dtype !== 'F32') throw new Error(`${path}: ${name} is ${dtype}`);
    const copy = bytes.subarray(8 + length + begin, 8 + length + end);
    tensors[name] = { shape, data: new Float32Array(Uint8Array.from(copy).buffer) };
  }
  return tensors;
}

/**
 * The largest difference of two equally long lists, as a share of the spread (the standard deviation) of the expected.
 * Numbers that are not finite must be the same ones.
 */
export function relativeError(actual, expected) {
  if (actual.length !== expected.length) throw new Error(`expected ${expected.length} numbers, got ${actual.length}`);
  let sum = 0;
  let squares = 0;
  let worst = 0;
  for (let i = 0; i < expected.length; ++i) {
    if (!Number.isFinite(expected[i]) || !Number.isFinite(actual[i])) {
      if (!Object.is(expected[i], actual[i])) return Number.POSITIVE_INFINITY;
      continue;
    }
    sum += expected[i];
    squares += expected[i] ** 2;
    worst = Math.max(worst, Math.abs(actual[i] - expected[i]));
  }
  const mean = sum / expected.length;
  const spread = Math.sqrt(Math.max(0, squares / expected.length - mean * mean));
  return worst / (spread || Math.abs(mean) || 1);
}

/** The field of a result of `forward` that a tensor's kind stands for; with a layer, `[layer]` of it. */
const fields = {
  logits: 'logits',
  start_logits: 'startLogits',
  end_logits: 'endLogits',
  last_hidden_state: 'lastHiddenState',
  pooled: 'pooled',
  hidden: 'hiddenStates',
  attention: 'attentions',
  encoder_hidden: 'encoderHiddenStates',
  encoder_attention: 'encoderAttentions',
  decoder_hidden: 'decoderHiddenStates',
  decoder_attention: 'decoderAttentions',
  cross_attention: 'crossAttentions',
};

/** A tensor of the expected shape and within `tolerance` of the spread; returns how far apart. */
export function close(actual, expected, what, tolerance = 1e-4) {
  assert.ok(actual, `${what} is missing`);
  assert.deepEqual(actual.shape, expected.shape, `${what}: shape`);
  const error = relativeError(actual.data, expected.data);
  assert.ok(error <= tolerance, `${what}: ${error} of the spread apart`);
  return error;
}

/** One sequence's result of `forward` against every tensor `PREFIX.KIND` or `PREFIX.KIND.LAYER`; returns the largest difference. */
export function closeResult(result, tensors, prefix, tolerance) {
  const names = Object.keys(tensors).filter((name) => name.startsWith(`${prefix}.`));
  assert.ok(names.length > 0, prefix);
  let worst = 0;
  for (const name of names) {
    const [kind, layer] = name.slice(prefix.length + 1).split('.');
    const found = result[fields[kind]];
    worst = Math.max(worst, close(layer === undefined ? found : found?.[layer], tensors[name], name, tolerance));
    if (layer !== undefined) assert.equal(found.length, names.filter((other) => other.startsWith(`${prefix}.${kind}.`)).length, kind);
  }
  return worst;
}

/**
 * The rows of one padded batch against the tensors `PREFIX.KIND` (B, ...): kinds with a row a source token are compared where the mask is
 * 1 and must be zeros elsewhere; the others whole.
 */
export function closeBatch(results, tensors, prefix, masks) {
  const names = Object.keys(tensors).filter((name) => name.startsWith(`${prefix}.`));
  assert.ok(names.length > 0, prefix);
  let worst = 0;
  for (const name of names) {
    const { shape, data } = tensors[name];
    const size = data.length / shape[0];
    assert.equal(results.length, shape[0]);
    for (const [b, result] of results.entries()) {
      const tensor = result[fields[name.slice(prefix.length + 1)]];
      assert.deepEqual(tensor?.shape, shape.slice(1), `${name}, row ${b}: shape`);
      const wanted = Float32Array.from(data.subarray(b * size, (b + 1) * size));
      const mask = masks?.[b];
      if (mask && shape[1] === mask.length && shape[1] > 1 && !name.endsWith('pooled')) {
        const width = size / mask.length;
        for (const [t, keep] of mask.entries()) if (!keep) wanted.fill(0, t * width, (t + 1) * width);
        for (const [t, keep] of mask.entries())
          if (!keep)
            assert.ok(
              tensor.data.subarray(t * width, (t + 1) * width).every((value) => value === 0),
              `${name}, row ${b}: a padding row is zeros`,
            );
      }
      worst = Math.max(worst, close(tensor, { shape: shape.slice(1), data: wanted }, `${name}, row ${b}`));
    }
  }
  return worst;
}

/** The sequences of one prompt's result of `generate`: tokens the same, scores within 1e-4. */
export function sameSequences(result, expected, what) {
  const found = Array.isArray(result) ? result : [result];
  assert.deepEqual(
    found.map(({ tokenIds }) => tokenIds),
    expected.map(({ tokenIds }) => tokenIds),
    what,
  );
  for (const [i, { score, finishReason }] of expected.entries()) {
    if (score !== undefined) assert.ok(Math.abs(found[i].score - score) <= 1e-4, `${what}, ${i}: score ${found[i].score} for ${score}`);
    assert.equal(found[i].finishReason, finishReason, what);
  }
}
