// Random options and generation_config.json files against transformers' generate() (wasm-tests/python/generation_runs.py): greedy runs
// token by token, what sampling draws from, what is really drawn, and the filters over a vocabulary of 49152.
// WASMFORMER_GENERATION_RUNS names a folder that is made already; WASMFORMER_SEED fixes the seed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load, ops } from '../../dist/node.js';
import { readTensors } from '../support/fixtures.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const seed = process.env.WASMFORMER_SEED ?? String(1 + Math.floor(Math.random() * 1e6));
const given = process.env.WASMFORMER_GENERATION_RUNS;
const place = given ?? join(root, 'build/proof', `generation-${seed}`);
if (!given) {
  rmSync(place, { recursive: true, force: true });
  const script = join(root, 'wasm-tests/python/generation_runs.py');
  execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [script, '--out', place, '--seed', seed], { stdio: 'inherit' });
  after(() => rmSync(place, { recursive: true, force: true }));
}
const readJson = (file) => JSON.parse(readFileSync(join(place, file), 'utf8'));
const { models } = readJson('runs.json');

/** Every token's log-probability in the distribution of the first new token; -Infinity where it is ruled out. */
async function firstDistribution(lm, inputIds, options) {
  const { vocabSize } = lm.info();
  const all = new Array(vocabSize).fill(-Infinity);
  for await (const { top } of lm.generate({ inputIds }, { ...options, logprobs: vocabSize, seed: 1 })) {
    for (const { tokenId, logprob } of top) all[tokenId] = logprob;
    return all;
  }
}

test(`there are models, seed ${seed}`, () => assert.ok(models.length > 0));

for (const { name, generationConfig, calls } of models) {
  test(name, async (t) => {
    const lm = await load(join(place, name), { worker: false });
    for (const [i, { inputIds, options, greedy, logprobs }] of calls.entries()) {
      const kind = greedy ? 'greedy' : 'sampling';
      await t.test(`${kind} ${i}`, async () => {
        const what = () => JSON.stringify({ generationConfig, inputIds, options });
        if (greedy) {
          const { tokenIds } = await lm.generate({ inputIds }, options).result;
          assert.deepEqual(tokenIds, greedy, what());
          return;
        }
        const got = await firstDistribution(lm, inputIds, options);
        for (const [token, wanted] of logprobs.map((x) => x ?? -Infinity).entries()) {
          assert.equal(got[token] === -Infinity, wanted === -Infinity, `token ${token}: ${got[token]} for ${wanted}, ${what()}`);
          if (wanted > -Infinity) assert.ok(Math.abs(got[token] - wanted) < 1e-3, `token ${token}: ${got[token]} for ${wanted}, ${what()}`);
        }
      });
    }
    await lm.dispose();
  });
}

test('draws follow the distribution', async (t) => {
  const draws = 4000;
  let tried = 0;
  for (const { name, calls } of models.filter((_, i) => i % 3 === 0)) {
    const open = calls.filter(({ logprobs }) => logprobs?.filter((logprob) => logprob !== null).length > 4);
    if (open.length === 0) continue;
    const { inputIds, options } = open.at(-1);
    const lm = await load(join(place, name), { worker: false });
    const one = { ...options, maxNewTokens: 1 };
    const logprobs = await firstDistribution(lm, inputIds, one);
    const counts = new Array(logprobs.length).fill(0);
    const results = await lm.generate({ inputIds }, { ...one, numReturnSequences: draws, seed: 7 }).result;
    for (const { tokenIds } of results) ++counts[tokenIds[0]];
    // Pearson's statistic; tokens expected fewer than 5 times count as one.
    let statistic = 0;
    let cells = 0;
    let rest = 0;
    let restCount = 0;
    for (const [token, logprob] of logprobs.entries()) {
      const expected = draws * Math.exp(logprob);
      if (logprob === -Infinity) assert.equal(counts[token], 0, `${name}: token ${token} is ruled out`);
      if (expected >= 5) {
        statistic += (counts[token] - expected) ** 2 / expected;
        ++cells;
      } else {
        rest += expected;
        restCount += counts[token];
      }
    }
    if (rest >= 5) {
      statistic += (restCount - rest) ** 2 / rest;
      ++cells;
    }
    const freedom = cells - 1;
    // Wilson and Hilferty 1931: the cube root of a chi-squared over its freedom is nearly normal. 4 deviations: 1 in 30000.
    const deviation = freedom > 0 ? (Math.cbrt(statistic / freedom) - (1 - 2 / (9 * freedom))) / Math.sqrt(2 / (9 * freedom)) : 0;
    assert.ok(deviation < 4, `${name}: chi-squared ${statistic} with ${freedom} degrees of freedom`);
    t.diagnostic(`${name}: chi-squared ${statistic.toFixed(1)} with ${freedom} degrees of freedom`);
    ++tried;
    await lm.dispose();
  }
  assert.ok(tried > 2);
});

test('filters over 49152 tokens', async (t) => {
  const tensors = readTensors(join(place, 'filters.safetensors'));
  for (const [i, { options, ids, ties }] of readJson('filters.json').cases.entries()) {
    await t.test(JSON.stringify(options), async () => {
      const expected = tensors[`${i}.expected`].data;
      const got = await ops.processLogits(tensors[`${i}.scores`].data, ids, { topK: 0, ...options });
      // Which of equal scores stay at a filter's border is up to the order of Python's sort, which is not stable.
      const compared = ties ? [got.toSorted(), expected.toSorted()] : [got, expected];
      let different = 0;
      for (const [token, wanted] of compared[1].entries()) {
        const found = compared[0][token];
        if (wanted === -Infinity || found === -Infinity) different += wanted !== found;
        else assert.ok(Math.abs(found - wanted) <= 1e-5 * Math.max(1, Math.abs(wanted)), `token ${token}: ${found} for ${wanted}`);
      }
      assert.equal(different, 0, 'tokens kept by one and not by the other');
    });
  }
});
