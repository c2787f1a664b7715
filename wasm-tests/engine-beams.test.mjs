// What generate makes of beams: pieces, ends, refusals. That they are those of Hugging Face transformers: engine-encdec.test.mjs for models,
// src/generate/beam_search_test.cpp for the search itself.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { eos, random, recite } from './support/tiny.mjs';

for (const worker of [true, false]) {
  describe(worker ? 'in a worker' : 'in process', () => {
    let lm;
    before(async () => {
      lm = await load(random(5), { worker });
    });
    after(() => lm.dispose());

    test('pieces come with their sequence, the score is that of their log-probabilities', async () => {
      const options = { numBeams: 4, numReturnSequences: 3, maxNewTokens: 9, lengthPenalty: 0.5 };
      const stream = lm.generate(['Once', 'upon a time'], options);
      const tokens = Array.from({ length: 6 }, () => []);
      const texts = Array(6).fill('');
      const sums = Array(6).fill(0);
      for await (const { sequence, index, tokenId, logprob, text } of stream) {
        assert.equal(index, tokens[sequence].length);
        tokens[sequence].push(tokenId);
        texts[sequence] += text;
        sums[sequence] += logprob;
      }
      const results = await stream.result;
      for (const [s, { tokenIds, text, score, finishReason, promptTokens }] of results.entries()) {
        assert.deepEqual(tokenIds, tokens[s]);
        assert.equal(text, texts[s]);
        assert.ok(Math.abs(score - sums[s] / tokenIds.length ** 0.5) < 1e-4);
        assert.equal(finishReason, tokenIds.at(-1) === eos ? 'stop' : 'length');
        assert.equal(promptTokens, s < 3 ? 4 : 11);
        if (s % 3 > 0) assert.ok(score <= results[s - 1].score);
      }
      const [alone] = await lm.generate(['upon a time'], { ...options, numReturnSequences: 1 }).result;
      assert.deepEqual([alone.tokenIds, alone.score], [results[3].tokenIds, results[3].score]);
    });

    test('more beams never find a worse sequence here; one beam is greedy search', async () => {
      const sumOf = async (numBeams) => (await lm.generate('ab', { numBeams, maxNewTokens: 6, lengthPenalty: 0 }).result).score;
      const greedy = await lm.generate('ab', { numBeams: 1, maxNewTokens: 6, doSample: false }).result;
      assert.ok((await sumOf(32)) >= greedy.score);
    });

    test('beam sampling replays by its seed', async () => {
      const options = { numBeams: 3, numReturnSequences: 3, doSample: true, maxNewTokens: 8 };
      const ids = async (seed) => (await lm.generate('ab', { ...options, seed }).result).map(({ tokenIds }) => tokenIds);
      assert.deepEqual(await ids(3), await ids(3));
      assert.notDeepEqual(await ids(3), await ids(4));
    });

    test('logprobs come along', async () => {
      const { logprobs, tokenIds } = await lm.generate('ab', { numBeams: 3, maxNewTokens: 5, logprobs: 2 }).result;
      assert.equal(logprobs.length, tokenIds.length);
      for (const { logprob, top } of logprobs) {
        assert.equal(top.length, 2);
        assert.ok(top[0].logprob >= top[1].logprob && top[0].logprob >= logprob);
      }
    });

    test('an abort gives the best so far', async () => {
      const controller = new AbortController();
      const stream = lm.generate('ab', {
        numBeams: 4,
        numReturnSequences: 2,
        maxNewTokens: 4000,
        minNewTokens: 4000,
        signal: controller.signal,
      });
      setTimeout(() => controller.abort(), 300);
      const results = await stream.result;
      assert.equal(results.length, 2);
      for (const { finishReason, tokenIds } of results) {
        assert.equal(finishReason, 'aborted');
        assert.ok(tokenIds.length > 0 && tokenIds.length < 4000);
      }
      assert.ok(results[0].score >= results[1].score);
      const before = AbortSignal.abort();
      assert.deepEqual((await lm.generate('ab', { numBeams: 4, signal: before }).result).tokenIds, []);
    });

    test('so does maxTime', async () => {
      const { finishReason, tokenIds } = await lm.generate('ab', { numBeams: 2, maxNewTokens: 4000, minNewTokens: 4000, maxTime: 0.2 })
        .result;
      assert.equal(finishReason, 'time');
      assert.ok(tokenIds.length > 0 && tokenIds.length < 4000);
      const at = await lm.generate('ab', { numBeams: 2, maxNewTokens: 50, minNewTokens: 50, maxTime: 0 }).result;
      assert.equal(at.tokenIds.length, 1);
    });

    test('what cannot be is refused by name', async () => {
      for (const [options, expected, message] of [
        [{ numBeams: 0 }, 'invalid-argument', /numBeams: expected an integer from 1/],
        [{ numBeams: 2.5 }, 'invalid-argument', /numBeams/],
        [{ numBeams: 2, numReturnSequences: 3 }, 'invalid-argument', /numReturnSequences: expected at most numBeams, 2, got 3/],
        [{ numReturnSequences: 2 }, 'invalid-argument', /numReturnSequences/],
        [{ numBeams: 2, lengthPenalty: Number.POSITIVE_INFINITY }, 'invalid-argument', /lengthPenalty: expected a finite number/],
        [{ numBeams: 2, earlyStopping: 'always' }, 'invalid-argument', /earlyStopping: expected true, false, "never"/],
        [{ numBeams: 2, stopStrings: 'a' }, 'unsupported', /stopStrings/],
        [{ numBeamGroups: 2, numBeams: 4 }, 'unsupported', /numBeamGroups: 2/],
        [{ numBeams: 4, diversityPenalty: 0.5 }, 'unsupported', /diversityPenalty/],
        [{ encoderRepetitionPenalty: 0 }, 'invalid-argument', /encoderRepetitionPenalty/],
        [{ encoderNoRepeatNgramSize: -1 }, 'invalid-argument', /encoderNoRepeatNgramSize/],
        [{ decoderInputIds: 'a' }, 'invalid-argument', /token ids/],
        [{ decoderInputIds: [] }, 'invalid-argument', /decoderInputIds/],
      ])
        assert.throws(() => lm.generate('ab', options), code(expected, message), JSON.stringify(options));
      await assert.rejects(lm.generate('ab', { decoderInputIds: [1] }).result, code('invalid-argument', /decoderInputIds: expected none/));
      await assert.rejects(lm.generate('ab', { numBeams: 65536, maxNewTokens: 2 ** 30 }).result, code('out-of-memory'));
      const cache = await lm.createCache();
      await assert.rejects(lm.generate('ab', { numBeams: 2, cache }).result, code('unsupported', /cache: with numBeams/));
      assert.equal((await lm.generate('ab', { numBeams: 2, maxNewTokens: 2 }).result).tokenIds.length, 2);
    });

    test('the penalties by the source are those by the prompt', async () => {
      const { tokenIds } = await lm.generate(
        { inputIds: [65, 66, 65] },
        { encoderNoRepeatNgramSize: 1, maxNewTokens: 30, minNewTokens: 30 },
      ).result;
      assert.ok(!tokenIds.includes(65) && !tokenIds.includes(66));
      const { tokenIds: rewarded } = await lm.generate(
        { inputIds: [65] },
        { encoderRepetitionPenalty: 1e9, maxNewTokens: 5, minNewTokens: 5 },
      ).result;
      assert.deepEqual(rewarded, [65, 65, 65, 65, 65]);
    });

    test('a setting of beams without beams is said to do nothing', async () => {
      const { notes } = await lm.generate('ab', { lengthPenalty: 2, maxNewTokens: 2 }).result;
      assert.deepEqual(notes, ['lengthPenalty has no effect without numBeams > 1']);
      assert.equal((await lm.generate('ab', { lengthPenalty: 1, earlyStopping: false, maxNewTokens: 2 }).result).notes, undefined);
    });

    test('two hundred searches, some abandoned, leave the memory as it was', async () => {
      const once = async (i) => {
        const stream = lm.generate(['a'.repeat(i % 40), 'abc'], { numBeams: 4, maxNewTokens: 6 + (i % 5), minNewTokens: 6 });
        if (i % 3 === 0) for await (const _ of stream) break;
        await stream.result;
      };
      for (let i = 0; i < 40; ++i) await once(i);
      const { cache } = await lm.memory();
      for (let i = 0; i < 200; ++i) await once(i);
      assert.equal((await lm.memory()).cache, cache);
    });
  });
}

describe('a model that asks for beams itself', () => {
  const withModel = (files, run) => load(files, { worker: false }).then((lm) => Promise.resolve(run(lm)).finally(() => lm.dispose()));

  test('in generation_config.json', () =>
    withModel(random(3, { generationConfig: { num_beams: 4, length_penalty: 2, early_stopping: true } }), async (lm) => {
      const own = await lm.generate('ab', { maxNewTokens: 9 }).result;
      const same = await lm.generate('ab', { maxNewTokens: 9, numBeams: 4, lengthPenalty: 2, earlyStopping: true }).result;
      assert.deepEqual([own.tokenIds, own.score, own.notes], [same.tokenIds, same.score, undefined]);
      const greedy = await lm.generate('ab', { maxNewTokens: 9, numBeams: 1 }).result;
      assert.equal(greedy.notes, undefined, 'the setting is the model’s');
      const sum = await lm.generate('ab', { maxNewTokens: 9, lengthPenalty: 0 }).result;
      assert.notEqual(sum.score, own.score);
      assert.throws(() => lm.generate('ab', { stopStrings: 'a' }), code('unsupported', /stopStrings with numBeams > 1/));
    }));

  test('a text that is all but certain is found by beams as well', () =>
    withModel(recite('abcdefgh'), async (lm) => {
      const { text, finishReason } = await lm.generate('a', { numBeams: 3 }).result;
      assert.equal(text, 'bcdefgh');
      assert.equal(finishReason, 'stop');
    }));
});
