// Every family against Hugging Face transformers: logits, hidden states, attention weights, greedy tokens, padded batches.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { load } from '../dist/node.js';
import { close } from './support/compare.mjs';
import { folderOf, modelFolders, readJson, readTensors, relativeError } from './support/fixtures.mjs';

const tolerance = 1e-4;

test('there are fixtures of every family', () => {
  const families = new Set(modelFolders.map((name) => readJson(name, 'config.json').model_type));
  for (const family of ['gpt2', 'llama', 'mistral', 'qwen2', 'qwen3', 'gemma', 'gpt_neox', 'opt', 'bloom'])
    assert.ok(families.has(family), family);
});

for (const name of modelFolders) {
  test(name, async (t) => {
    const expected = readJson(name, 'expected.json');
    const tensors = readTensors(join(folderOf(name), 'expected.safetensors'));
    const lm = await load(folderOf(name), { worker: false });

    await t.test('one prompt after the other', async () => {
      for (const [i, { inputIds }] of expected.prompts.entries()) {
        const [{ logits, hiddenStates, attentions }] = await lm.forward({ inputIds: [inputIds] }, { hiddenStates: true, attentions: true });
        close(logits, tensors[`prompt.${i}.logits`], `prompt ${i}, logits`);
        assert.equal(hiddenStates.length, lm.info().layers + 1);
        assert.equal(attentions.length, lm.info().layers);
        for (const [l, state] of hiddenStates.entries()) close(state, tensors[`prompt.${i}.hidden.${l}`], `prompt ${i}, hidden ${l}`);
        for (const [l, weights] of attentions.entries())
          close(weights, tensors[`prompt.${i}.attention.${l}`], `prompt ${i}, attention ${l}`);
      }
    });

    await t.test('prompts of different lengths at once are bit for bit the same', async () => {
      const prompts = expected.prompts.map(({ inputIds }) => inputIds);
      const together = await lm.forward({ inputIds: prompts });
      for (const [i, inputIds] of prompts.entries()) {
        const [alone] = await lm.forward({ inputIds: [inputIds] });
        assert.deepEqual(together[i].logits, alone.logits, `prompt ${i}`);
      }
    });

    await t.test('greedy tokens', async () => {
      for (const { inputIds, greedy, finishReason } of expected.prompts) {
        const { tokenIds, finishReason: reason, text } = await lm.generate({ inputIds }, { maxNewTokens: 32, doSample: false }).result;
        assert.deepEqual(tokenIds, greedy);
        assert.equal(reason, finishReason);
        assert.equal(text, '');
      }
      const all = await lm.generate(
        expected.prompts.map(({ inputIds }) => ({ inputIds })),
        { maxNewTokens: 32, doSample: false },
      ).result;
      assert.deepEqual(
        all.map(({ tokenIds }) => tokenIds),
        expected.prompts.map(({ greedy }) => greedy),
        'all at once',
      );
    });

    await t.test('padded batches', async () => {
      for (const { name: batch, inputIds, attentionMask, positionIds } of expected.batches) {
        const results = await lm.forward({ inputIds, attentionMask, ...(positionIds ? { positionIds } : {}) });
        const { shape, data } = tensors[`batch.${batch}.logits`];
        const [rows, length, vocabulary] = shape;
        assert.equal(results.length, rows);
        for (let b = 0; b < rows; ++b) {
          assert.deepEqual(results[b].logits.shape, [length, vocabulary]);
          const kept = [];
          const wanted = [];
          for (let t = 0; t < length; ++t) {
            const row = results[b].logits.data.subarray(t * vocabulary, (t + 1) * vocabulary);
            if (attentionMask[b][t]) {
              kept.push(...row);
              wanted.push(...data.subarray((b * length + t) * vocabulary, (b * length + t + 1) * vocabulary));
            } else {
              assert.ok(
                row.every((value) => value === 0),
                `${batch}: a padding row is zeros`,
              );
            }
          }
          const error = relativeError(kept, wanted);
          assert.ok(error <= tolerance, `batch ${batch}, row ${b}: ${error} of the spread apart`);
        }
      }
    });

    await t.test('score is the log-softmax of the logits', async () => {
      const { inputIds } = expected.prompts.at(-1);
      const { logprobs, perplexity, tokenIds } = await lm.score({ inputIds });
      assert.deepEqual(tokenIds, inputIds);
      assert.ok(Number.isNaN(logprobs[0]));
      const {
        data,
        shape: [, vocabulary],
      } = tensors[`prompt.${expected.prompts.length - 1}.logits`];
      let sum = 0;
      for (let i = 1; i < inputIds.length; ++i) {
        const row = Array.from(data.subarray((i - 1) * vocabulary, i * vocabulary));
        const largest = Math.max(...row);
        const wanted = row[inputIds[i]] - largest - Math.log(row.reduce((total, value) => total + Math.exp(value - largest), 0));
        assert.ok(Math.abs(logprobs[i] - wanted) < 2e-4 * Math.max(1, Math.abs(wanted)), `token ${i}: ${logprobs[i]} for ${wanted}`);
        sum += wanted;
      }
      const wanted = Math.exp(-sum / (inputIds.length - 1));
      assert.ok(Math.abs(perplexity - wanted) < 1e-3 * wanted);
    });

    await lm.dispose();
  });
}
