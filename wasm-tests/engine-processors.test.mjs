// Each generation option on random logits against Hugging Face's processors and warpers.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ops } from '../dist/node.js';
import { fixtures } from './support/fixtures.mjs';

const { cases } = JSON.parse(readFileSync(join(fixtures, 'logits.json'), 'utf8'));
const special = { nan: Number.NaN, inf: Number.POSITIVE_INFINITY, '-inf': Number.NEGATIVE_INFINITY };
const numbers = (list) => list.map((value) => (value === null ? Number.NEGATIVE_INFINITY : (special[value] ?? value)));

test('every option of the list is there', () => {
  const seen = new Set(cases.flatMap(({ options }) => Object.keys(options)));
  for (const name of [
    'temperature',
    'topK',
    'topP',
    'minP',
    'typicalP',
    'epsilonCutoff',
    'etaCutoff',
    'repetitionPenalty',
    'noRepeatNgramSize',
    'badWordsIds',
    'sequenceBias',
    'suppressTokens',
    'minLength',
    'minNewTokens',
    'forcedBosTokenId',
    'forcedEosTokenId',
    'exponentialDecayLengthPenalty',
    'removeInvalidValues',
    'renormalizeLogits',
  ]) {
    assert.ok(seen.has(name), name);
  }
});

for (const { name, options, promptLength, ids, scores, expected } of cases) {
  test(name, async () => {
    const processed = await ops.processLogits(numbers(scores), ids, { ...options, promptLength });
    assert.equal(processed.length, expected.length);
    for (const [i, wanted] of numbers(expected).entries()) {
      const close = Number.isFinite(wanted)
        ? Math.abs(processed[i] - wanted) <= 2e-6 * Math.max(1, Math.abs(wanted))
        : Object.is(processed[i], wanted);
      assert.ok(close, `token ${i}: expected ${wanted}, got ${processed[i]}`);
    }
  });
}
