// Every encoder-decoder family against Hugging Face transformers: logits, hidden states and all attention weights of both sides, greedy
// tokens, beams with their scores, prefixes of the decoder, padded batches; and the original Transformer's values against its reference.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { load } from '../dist/node.js';
import { closeBatch, closeResult, folderOf, foldersWhere, readJson, readTensors, sameSequences } from './support/fixtures.mjs';

const everything = { hiddenStates: true, attentions: true };
const folders = foldersWhere(({ kind }) => kind === 'encoder-decoder');
const variants = foldersWhere(({ kind }) => kind === 'transformer');

const unpadded = (ids, mask) => ids.filter((_, t) => mask[t]);

async function forwardCases(lm, cases, tensors) {
  let worst = 0;
  for (const [i, { inputIds, decoderInputIds }] of cases.entries()) {
    const batch = { inputIds: [inputIds], ...(decoderInputIds ? { decoderInputIds: [decoderInputIds] } : {}) };
    const [result] = await lm.forward(batch, everything);
    worst = Math.max(worst, closeResult(result, tensors, `case.${i}`));
  }
  return worst;
}

/** All cases in one call give bit for bit what each gives alone. */
async function forwardTogether(lm, cases) {
  const lists = { inputIds: cases.map(({ inputIds }) => inputIds) };
  if (cases[0].decoderInputIds) lists.decoderInputIds = cases.map(({ decoderInputIds }) => decoderInputIds);
  const together = await lm.forward(lists);
  for (const i of cases.keys()) {
    const [alone] = await lm.forward(Object.fromEntries(Object.entries(lists).map(([key, rows]) => [key, [rows[i]]])));
    assert.deepEqual(together[i], alone, `case ${i}`);
  }
}

test('there are fixtures of every family', () => {
  const families = new Set(folders.map((name) => readJson(name, 'config.json').model_type));
  for (const family of ['marian', 't5', 'mt5', 'bart', 'mbart', 'pegasus', 'm2m_100']) assert.ok(families.has(family), family);
  assert.ok(variants.length > 0);
});

for (const name of folders) {
  test(name, async (t) => {
    const expected = readJson(name, 'expected.json');
    const tensors = readTensors(join(folderOf(name), 'expected.safetensors'));
    const lm = await load(folderOf(name), { worker: false });
    assert.equal(lm.info().encoderDecoder, true);

    await t.test('one pair after the other', async () => {
      t.diagnostic(`largest difference ${(await forwardCases(lm, expected.cases, tensors)).toExponential(1)} of the spread`);
    });

    await t.test('pairs of different lengths at once are bit for bit the same', () => forwardTogether(lm, expected.cases));

    for (const { inputIds, decoderInputIds, options, sequences } of expected.runs ?? [])
      await t.test(`${JSON.stringify(options)}${decoderInputIds ? ' after a prefix' : ''}`, async () => {
        const all = { ...options, ...(decoderInputIds ? { decoderInputIds } : {}) };
        sameSequences(await lm.generate({ inputIds }, all).result, sequences, 'alone');
        // Beside another source, which changes nothing.
        const others = expected.cases[2].inputIds;
        const both = await lm.generate([{ inputIds: others }, { inputIds }], all).result;
        sameSequences(both.slice(both.length / 2), sequences, 'beside another source');
      });

    for (const { name: batch, inputIds, attentionMask, decoderInputIds, runs } of expected.batches ?? [])
      await t.test(`batch padded ${batch}`, async () => {
        closeBatch(await lm.forward({ inputIds, attentionMask, decoderInputIds }), tensors, `batch.${batch}`);
        for (const { options, results, equalsAlone } of runs) {
          const prompts = inputIds.map((ids, b) => ({ inputIds: unpadded(ids, attentionMask[b]) }));
          const found = await lm.generate(prompts, options).result;
          const each = found.length / prompts.length;
          for (const [b, wanted] of results.entries())
            if (equalsAlone[b]) sameSequences(found.slice(b * each, (b + 1) * each), wanted, `row ${b}`);
        }
      });

    await lm.dispose();
  });
}

for (const name of variants) {
  test(name, async (t) => {
    const { cases, maxNewTokens } = readJson(name, 'expected.json');
    const tensors = readTensors(join(folderOf(name), 'expected.safetensors'));
    const lm = await load(folderOf(name), { worker: false });
    await t.test('forward', () => forwardCases(lm, cases, tensors));
    await t.test('at once', () => forwardTogether(lm, cases));
    await t.test('greedy tokens', async () => {
      for (const { inputIds, greedy, finishReason } of cases) {
        if (!greedy) continue;
        const result = await lm.generate({ inputIds }, { maxNewTokens, doSample: false }).result;
        sameSequences(result, [{ tokenIds: greedy, finishReason }], `${inputIds.length} tokens`);
      }
    });
    await lm.dispose();
  });
}
