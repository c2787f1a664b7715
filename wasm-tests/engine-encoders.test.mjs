// Every encoder-only family and head against Hugging Face transformers: logits or pooled state, hidden states, attention weights, padded
// batches, token types, positions.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { load } from '../dist/node.js';
import { likePython } from './support/compare.mjs';
import { folderOf, foldersWhere, readJson } from './support/fixtures.mjs';

const folders = foldersWhere(({ kind }) => kind === 'encoder');

test('there are fixtures of every family and head', () => {
  const found = new Set(folders.map((name) => `${readJson(name, 'config.json').model_type} ${readJson(name, 'expected.json').head}`));
  for (const family of ['bert', 'distilbert', 'roberta', 'albert'])
    for (const head of ['masked-lm', 'sequence-classification']) assert.ok(found.has(`${family} ${head}`), `${family} ${head}`);
  for (const kind of ['bert null', 'xlm-roberta null', 'bert token-classification', 'bert question-answering'])
    assert.ok(found.has(kind), kind);
});

for (const name of folders) test(name, (t) => likePython(t, folderOf(name)));

test('a bare encoder under the name of a language model: states, and no logits', async () => {
  const file = (name) => readFileSync(join(folderOf('bert'), name));
  const config = { ...readJson('bert', 'config.json'), architectures: ['BertForMaskedLM'] };
  const lm = await load({ 'config.json': Buffer.from(JSON.stringify(config)), 'model.safetensors': file('model.safetensors') });
  const bare = await load(folderOf('bert'));
  const input = { inputIds: [[3, 1, 4, 1, 5]] };
  const [got, expected] = [await lm.forward(input), await bare.forward(input)];
  assert.deepEqual(got, expected);
  assert.deepEqual(Object.keys([got].flat()[0]), ['lastHiddenState', 'pooled']);
  await Promise.all([lm.dispose(), bare.dispose()]);
});
