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

const same = (actual, wanted) =>
  Number.isFinite(wanted) ? Math.abs(actual - wanted) <= 2e-6 * Math.max(1, Math.abs(wanted)) : Object.is(actual, wanted);

for (const { name, options, promptLength, ids, scores, expected } of cases) {
  test(name, async () => {
    const given = numbers(scores);
    const wanted = numbers(expected);
    const processed = await ops.processLogits(given, ids, { ...options, promptLength });
    assert.equal(processed.length, wanted.length);
    // Python sorts without keeping the order of equals: which of them a border cuts off is chance, only how many is not.
    const groups = new Map();
    for (const [i, score] of given.entries()) groups.set(score, [...(groups.get(score) ?? []), i]);
    for (const places of groups.values()) {
      const cut = places.filter((i) => wanted[i] === Number.NEGATIVE_INFINITY).length;
      const divided = 'topP' in options && cut > 0 && cut < places.length;
      const order = (values) => (divided ? places.map((i) => values[i]).sort((a, b) => a - b) : places.map((i) => values[i]));
      const [ours, theirs] = [order(processed), order(wanted)];
      for (const [k, place] of places.entries()) {
        assert.ok(same(ours[k], theirs[k]), `token ${divided ? `group of ${place}` : place}: expected ${theirs[k]}, got ${ours[k]}`);
      }
    }
  });
}
