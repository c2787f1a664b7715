// Every encoder-decoder family against Hugging Face transformers: logits, hidden states and all attention weights of both sides, greedy
// tokens, beams with their scores, prefixes of the decoder, padded batches; the original Transformer's values against its reference; beams
// of decoder-only models.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { load } from '../dist/node.js';
import { beamsLikePython, close, likePython } from './support/compare.mjs';
import { folderOf, foldersWhere, modelFolders, readJson, readTensors } from './support/fixtures.mjs';

const folders = foldersWhere(({ kind }) => kind === 'encoder-decoder');
const variants = foldersWhere(({ kind }) => kind === 'transformer');
const withBeams = modelFolders.filter((name) => existsSync(join(folderOf(name), 'beams.json')));

test('there are fixtures of every family', () => {
  const families = new Set(folders.map((name) => readJson(name, 'config.json').model_type));
  for (const family of ['marian', 't5', 'mt5', 'bart', 'mbart', 'pegasus', 'm2m_100']) assert.ok(families.has(family), family);
  assert.ok(variants.length > 10 && withBeams.length > 1);
});

for (const name of [...folders, ...variants]) test(name, (t) => likePython(t, folderOf(name)));
for (const name of withBeams) test(`beams of ${name}`, (t) => beamsLikePython(t, folderOf(name)));

test('T5 in half precision: feed-forward activations beyond 65504 stay finite', async () => {
  const lm = await load(folderOf('t5-large-ff'), { worker: false, dtype: 'f16' });
  const { cases } = readJson('t5-large-ff', 'expected.json');
  const tensors = readTensors(join(folderOf('t5-large-ff'), 'expected.safetensors'));
  const [{ logits }] = await lm.forward({ inputIds: [cases[0].inputIds], decoderInputIds: [cases[0].decoderInputIds] });
  assert.ok(logits.data.every(Number.isFinite));
  close(logits, tensors['case.0.logits'], 'logits');
  await lm.dispose();
});
