// What the tests over fixtures and over fresh models have in common: an engine's results against Python's, of encoder-decoders and encoders.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { load } from '../../dist/node.js';
import { readJson, readTensors, relativeError } from './fixtures.mjs';

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

/**
 * One sequence's result of `forward` against every tensor `PREFIX.KIND` or `PREFIX.KIND.LAYER`; returns the largest difference.
 * `weights`: how far an attention weight, a share of 1, may be off; without it those are held to their spread, as everything is.
 */
export function closeResult(result, tensors, prefix, weights) {
  const names = Object.keys(tensors).filter((name) => name.startsWith(`${prefix}.`));
  assert.ok(names.length > 0, prefix);
  let worst = 0;
  for (const name of names) {
    const [kind, layer] = name.slice(prefix.length + 1).split('.');
    const found = result[fields[kind]];
    if (layer !== undefined) assert.equal(found?.length, names.filter((other) => other.startsWith(`${prefix}.${kind}.`)).length, kind);
    const tensor = layer === undefined ? found : found[layer];
    if (weights && kind.endsWith('attention')) {
      assert.deepEqual(tensor.shape, tensors[name].shape, name);
      for (const [i, value] of tensors[name].data.entries())
        assert.ok(Math.abs(tensor.data[i] - value) <= weights, `${name}: ${tensor.data[i]} for ${value}`);
    } else {
      worst = Math.max(worst, close(tensor, tensors[name], name));
    }
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

/** The sequences of one prompt's result of `generate`: tokens the same, scores within 1e-4, of their size where that is above 1. */
export function sameSequences(result, expected, what) {
  const found = Array.isArray(result) ? result : [result];
  assert.deepEqual(
    found.map(({ tokenIds }) => tokenIds),
    expected.map(({ tokenIds }) => tokenIds),
    what,
  );
  for (const [i, { score, finishReason }] of expected.entries()) {
    if (score !== undefined)
      assert.ok(
        Math.abs(found[i].score - score) <= 1e-4 * Math.max(1, Math.abs(score)),
        `${what}, ${i}: score ${found[i].score} for ${score}`,
      );
    assert.equal(found[i].finishReason, finishReason, what);
  }
}

const unpadded = (ids, mask) => ids.filter((_, t) => mask[t]);

/** The lists of some cases as one batch; token types where any case has them. */
function batchOf(cases) {
  const batch = { inputIds: cases.map(({ inputIds }) => inputIds) };
  if (cases[0].decoderInputIds) batch.decoderInputIds = cases.map(({ decoderInputIds }) => decoderInputIds);
  if (cases.some(({ tokenTypeIds }) => tokenTypeIds))
    batch.tokenTypeIds = cases.map(({ inputIds, tokenTypeIds }) => tokenTypeIds ?? inputIds.map(() => 0));
  return batch;
}

async function forwardCases(t, lm, cases, tensors, weights) {
  await t.test('one case after the other', async () => {
    let worst = 0;
    for (const [i, one] of cases.entries()) {
      const [result] = await lm.forward(batchOf([one]), { hiddenStates: true, attentions: true });
      worst = Math.max(worst, closeResult(result, tensors, `case.${i}`, weights));
    }
    t.diagnostic(`largest difference ${worst.toExponential(1)} of the spread`);
  });
  await t.test('cases of different lengths at once are bit for bit the same', async () => {
    const together = await lm.forward(batchOf(cases));
    for (const [i, one] of cases.entries()) assert.deepEqual(together[i], (await lm.forward(batchOf([one])))[0], `case ${i}`);
  });
}

/** Calls of `generate`, each also beside another source, which changes no bit. */
async function generateRuns(t, lm, runs) {
  for (const { inputIds, decoderInputIds, options, sequences } of runs)
    await t.test(`${JSON.stringify(options)}${decoderInputIds ? ' after a prefix' : ''}`, async () => {
      const all = { ...options, ...(decoderInputIds ? { decoderInputIds } : {}) };
      const alone = [await lm.generate({ inputIds }, all).result].flat();
      sameSequences(alone, sequences, 'alone');
      const others = [5, ...runs[0].inputIds, 6];
      const both = await lm.generate([{ inputIds: others }, { inputIds }], all).result;
      const seen = ({ tokenIds, score, finishReason }) => ({ tokenIds, score, finishReason });
      assert.deepEqual(both.slice(both.length / 2).map(seen), alone.map(seen), 'beside another source');
    });
}

/** Rows of a padded batch without their padding, where Python's batch gives what each gives alone. */
async function generateBatch(lm, { inputIds, attentionMask }, { options, results, equalsAlone }) {
  const prompts = inputIds.map((ids, b) => ({ inputIds: unpadded(ids, attentionMask[b]) }));
  const found = await lm.generate(prompts, options).result;
  const each = found.length / prompts.length;
  for (const [b, wanted] of results.entries()) if (equalsAlone[b]) sameSequences(found.slice(b * each, (b + 1) * each), wanted, `row ${b}`);
}

/** Everything that a folder's expected.json asks of the model in it: cases, runs, batches. `weights` as in `closeResult`. */
export async function likePython(t, folder, { weights } = {}) {
  const { kind, cases, runs = [], batches = [] } = readJson(folder, 'expected.json');
  const tensors = readTensors(join(folder, 'expected.safetensors'));
  const lm = await load(folder, { worker: false });
  assert.equal(lm.info().encoderDecoder, cases[0].decoderInputIds !== undefined);
  await forwardCases(t, lm, cases, tensors, weights);
  await generateRuns(t, lm, runs);
  for (const { name, runs: generations = [], ...given } of batches)
    await t.test(`batch padded ${name}`, async () => {
      closeBatch(await lm.forward(given), tensors, `batch.${name}`, kind === 'encoder' && given.attentionMask);
      for (const generation of generations) await generateBatch(lm, given, generation);
    });
  await lm.dispose();
}

/** The beams.json of a decoder-only model. */
export async function beamsLikePython(t, folder) {
  const { runs, batches } = readJson(folder, 'beams.json');
  const lm = await load(folder, { worker: false });
  await generateRuns(t, lm, runs);
  for (const batch of batches) await t.test(`prompts padded ${batch.name}`, () => generateBatch(lm, batch, batch));
  await lm.dispose();
}
