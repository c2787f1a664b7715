// SentencePiece models trained anew, with the charsmaps that published models carry (Marian's is nmt_nfkc), against the sentencepiece
// library on freshly drawn texts: accents apart, Hangul, emoji, tabs, full-width forms, U+FFFD. WASMFORMER_SEED fixes the seed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sentencePiece } from '../support/bundle.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const folder = join(root, 'build/proof/sentencepiece');
const seed = process.env.WASMFORMER_SEED ?? String(1 + Math.floor(Math.random() * 1e6));
execFileSync(
  process.env.WASMFORMER_PYTHON ?? 'python3',
  [join(root, 'wasm-tests/python/tokenizer_fixtures.py'), '--only-library', folder, '--seed', seed, '--texts', '500'],
  { stdio: 'inherit' },
);
const { readSentencePiece, segmenter } = await sentencePiece();

const { texts, models } = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8'));
for (const [name, expected] of Object.entries(models)) {
  test(`${name}: ${texts.length} texts, seed ${seed}`, () => {
    const tokenizer = segmenter(readSentencePiece(new Uint8Array(readFileSync(join(folder, `${name}.model`))), name));
    texts.forEach((text, i) => {
      assert.deepEqual(tokenizer.encode([text], true).ids, expected[i].ids, JSON.stringify(text));
    });
  });
}
