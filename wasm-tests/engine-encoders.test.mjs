// Every encoder-only family and head against Hugging Face transformers: logits or pooled state, hidden states, attention weights, padded
// batches, token types, positions.
import assert from 'node:assert/strict';
import { test } from 'node:test';
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
