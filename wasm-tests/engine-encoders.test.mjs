// Every encoder-only family and head against Hugging Face transformers: logits or pooled state, hidden states, attention weights, padded
// batches, token types, positions.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { load } from '../dist/node.js';
import { closeBatch, closeResult, folderOf, foldersWhere, readJson, readTensors } from './support/fixtures.mjs';

const folders = foldersWhere(({ kind }) => kind === 'encoder');

test('there are fixtures of every family and head', () => {
  const found = new Set(folders.map((name) => `${readJson(name, 'config.json').model_type} ${readJson(name, 'expected.json').head}`));
  for (const family of ['bert', 'distilbert', 'roberta', 'albert'])
    for (const head of ['masked-lm', 'sequence-classification']) assert.ok(found.has(`${family} ${head}`), `${family} ${head}`);
  for (const kind of ['bert null', 'xlm-roberta null', 'bert token-classification', 'bert question-answering'])
    assert.ok(found.has(kind), kind);
});

for (const name of folders) {
  test(name, async (t) => {
    const { cases, batches } = readJson(name, 'expected.json');
    const tensors = readTensors(join(folderOf(name), 'expected.safetensors'));
    const lm = await load(folderOf(name), { worker: false });
    const rows = (...chosen) =>
      chosen.some(({ tokenTypeIds }) => tokenTypeIds)
        ? {
            inputIds: chosen.map(({ inputIds }) => inputIds),
            tokenTypeIds: chosen.map(({ inputIds, tokenTypeIds }) => tokenTypeIds ?? inputIds.map(() => 0)),
          }
        : { inputIds: chosen.map(({ inputIds }) => inputIds) };

    await t.test('one sequence after the other', async () => {
      let worst = 0;
      for (const [i, one] of cases.entries()) {
        const [result] = await lm.forward(rows(one), { hiddenStates: true, attentions: true });
        worst = Math.max(worst, closeResult(result, tensors, `case.${i}`));
      }
      t.diagnostic(`largest difference ${worst.toExponential(1)} of the spread`);
    });

    await t.test('sequences of different lengths at once are bit for bit the same', async () => {
      const together = await lm.forward(rows(...cases));
      for (const [i, one] of cases.entries()) assert.deepEqual(together[i], (await lm.forward(rows(one)))[0], `case ${i}`);
    });

    for (const { name: batch, ...given } of batches)
      await t.test(`batch padded ${batch}`, async () => {
        closeBatch(await lm.forward(given), tensors, `batch.${batch}`, given.attentionMask);
      });

    await lm.dispose();
  });
}
