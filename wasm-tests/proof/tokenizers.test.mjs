// tokenizer.json files of random normalizers, pre-tokenizers, models and post-processors, against the tokenizers library: ids, segments,
// which text a token is of, and its place in it. WASMFORMER_SEED fixes the seed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { files } from '../support/bundle.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const seed = process.env.WASMFORMER_SEED ?? String(1 + Math.floor(Math.random() * 1e6));
const output = join(root, `build/proof/tokenizers-${seed}.json`);
mkdirSync(join(root, 'build/proof'), { recursive: true });
const script = join(root, 'wasm-tests/python/tokenizer_pipelines.py');
execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [script, output, '--seed', seed], { stdio: ['ignore', 'inherit', 'ignore'] });
const drawn = JSON.parse(readFileSync(output, 'utf8'));
const api = await files();
const bytes = (value) => new TextEncoder().encode(JSON.stringify(value));

test(`${drawn.length} random tokenizers, seed ${seed}`, async () => {
  for (const { json, cases } of drawn) {
    const folder = { 'model.safetensors': Buffer.from('\x02\0\0\0\0\0\0\0{}', 'latin1'), 'config.json': bytes({ model_type: 'x' }) };
    const checkpoint = await api.openCheckpoint({ ...folder, 'tokenizer.json': bytes(json) }, { cacheDir: false }, api.nodeFiles);
    const tokenizer = await api.loadTokenizer(checkpoint);
    const { normalizer, pre_tokenizer, post_processor, model } = json;
    const parts = JSON.stringify({ normalizer, pre_tokenizer, post_processor, model: model.type }).replaceAll(
      /"precompiled_charsmap":"[^"]*"/g,
      '',
    );
    for (const { text, pair, add, ids, typeIds, sequence, offsets } of cases) {
      const made = tokenizer.encodeFully(text, { pair: pair ?? undefined, addSpecialTokens: add });
      const expected = { ids, typeIds, offsets: offsets ?? made.offsets, sequence };
      assert.deepEqual(made, expected, `${JSON.stringify([text, pair])} with ${parts}`);
    }
  }
});
