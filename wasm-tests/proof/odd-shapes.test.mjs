// Shapes that fit nothing evenly, made on the spot by wasm-tests/python/odd_shapes.py: logits, hidden states, attention weights, greedy
// tokens, padded batches and scores. WASMFORMER_ODD_SHAPES names a folder that is made already; WASMFORMER_SEED fixes the seed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load } from '../../dist/node.js';
import { readTensors, relativeError } from '../support/fixtures.mjs';

const tolerance = 1e-4;
const root = fileURLToPath(new URL('../../', import.meta.url));
const seed = process.env.WASMFORMER_SEED ?? String(1 + Math.floor(Math.random() * 1e6));
const given = process.env.WASMFORMER_ODD_SHAPES;
const place = given ?? join(root, 'build/proof', `odd-shapes-${seed}`);
if (!given) {
  rmSync(place, { recursive: true, force: true });
  const script = join(root, 'wasm-tests/python/odd_shapes.py');
  execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [script, '--out', place, '--seed', seed], { stdio: 'inherit' });
  after(() => rmSync(place, { recursive: true, force: true }));
}

const names = readdirSync(place).filter((name) => existsSync(join(place, name, 'expected.safetensors')));
let worst = 0;
function close(actual, expected, what) {
  assert.deepEqual(actual.shape, expected.shape, `${what}: shape`);
  const error = relativeError(actual.data, expected.data);
  worst = Math.max(worst, error);
  assert.ok(error <= tolerance, `${what}: ${error} of the spread apart`);
}
/** Attention weights, which are shares of 1: among 200 keys their spread is no measure. Python itself is 2e-5 off with float64. */
function closeWeights(actual, expected, what) {
  assert.deepEqual(actual.shape, expected.shape, `${what}: shape`);
  for (let i = 0; i < expected.data.length; ++i)
    assert.ok(Math.abs(actual.data[i] - expected.data[i]) <= 5e-5, `${what}: ${actual.data[i]} for ${expected.data[i]}`);
}

test(`there are models, seed ${seed}`, () => assert.ok(names.length > 0));

for (const name of names) {
  test(name, async (t) => {
    const folder = join(place, name);
    const expected = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8'));
    const tensors = readTensors(join(folder, 'expected.safetensors'));
    const lm = await load(folder, { worker: false });
    worst = 0;

    await t.test('forward', async () => {
      for (const [i, { inputIds }] of expected.forwards.entries()) {
        const what = `${inputIds.length} tokens`;
        const [{ logits, hiddenStates, attentions }] = await lm.forward({ inputIds: [inputIds] }, { hiddenStates: true, attentions: true });
        close(logits, tensors[`forward.${i}.logits`], `${what}, logits`);
        for (const [l, state] of hiddenStates.entries()) close(state, tensors[`forward.${i}.hidden.${l}`], `${what}, hidden ${l}`);
        for (const [l, weights] of attentions.entries())
          closeWeights(weights, tensors[`forward.${i}.attention.${l}`], `${what}, attention ${l}`);
      }
    });

    await t.test('greedy tokens, one prompt after the other and all at once', async () => {
      const options = { maxNewTokens: 32, doSample: false };
      for (const { inputIds, greedy, finishReason } of expected.prompts) {
        const { tokenIds, finishReason: reason } = await lm.generate({ inputIds }, options).result;
        assert.deepEqual(tokenIds, greedy, `${inputIds.length} tokens`);
        assert.equal(reason, finishReason);
      }
      const prompts = expected.prompts.map(({ inputIds }) => ({ inputIds }));
      const all = await lm.generate(prompts, options).result;
      assert.deepEqual(
        all.map(({ tokenIds }) => tokenIds),
        expected.prompts.map(({ greedy }) => greedy),
      );
    });

    await t.test('padded batches', async () => {
      for (const { name: batch, inputIds, attentionMask } of expected.batches) {
        const results = await lm.forward({ inputIds, attentionMask });
        const {
          data,
          shape: [, length, vocabulary],
        } = tensors[`batch.${batch}.logits`];
        const size = length * vocabulary;
        for (const [b, { logits }] of results.entries())
          close(logits, { shape: [length, vocabulary], data: data.subarray(b * size, (b + 1) * size) }, `${batch}, row ${b}`);
      }
    });

    await t.test('scores', async () => {
      for (const { inputIds, logprobs, perplexity } of expected.scores) {
        const score = await lm.score({ inputIds });
        assert.ok(Number.isNaN(score.logprobs[0]));
        for (let i = 1; i < logprobs.length; ++i)
          assert.ok(Math.abs(score.logprobs[i] - logprobs[i]) < 2e-4 * Math.max(1, Math.abs(logprobs[i])), `token ${i}`);
        assert.ok(Math.abs(score.perplexity - perplexity) < 1e-3 * perplexity);
      }
    });

    t.diagnostic(`largest difference ${worst.toExponential(1)} of the spread`);
    await lm.dispose();
  });
}
