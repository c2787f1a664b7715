// The real all-MiniLM-L6-v2: embeddings as sentence-transformers gives them. WASMFORMER_MINILM names its folder; without it the model is
// fetched (wasm-tests/python/ask_minilm.py).
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load } from '../../dist/node.js';

const root = fileURLToPath(new URL('../../', import.meta.url));
const folder = process.env.WASMFORMER_MINILM ?? join(root, 'build/proof/all-MiniLM-L6-v2');
const answers = join(root, 'build/proof/minilm.json');
mkdirSync(join(root, 'build/proof'), { recursive: true });
execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [join(root, 'wasm-tests/python/ask_minilm.py'), folder, answers], {
  stdio: 'inherit',
});
const { texts, vectors } = JSON.parse(readFileSync(answers, 'utf8'));

const lm = await load(folder, { worker: false });
after(() => lm.dispose());

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

test('50 embeddings', async (t) => {
  assert.equal(texts.length, 50);
  assert.deepEqual(lm.info().embedding, {
    pooling: ['mean'],
    normalize: true,
    maxLength: 256,
    prompts: {},
    promptName: null,
    from: 'modules.json',
  });
  const found = await lm.embed(texts, { truncation: true });
  let worst = 1;
  for (const [i, vector] of found.entries()) {
    const cosine = dot(vector, vectors[i]) / Math.sqrt(dot(vector, vector) * dot(vectors[i], vectors[i]));
    assert.ok(cosine > 0.9999, `${cosine} for ${JSON.stringify(texts[i].slice(0, 60))}`);
    worst = Math.min(worst, cosine);
  }
  t.diagnostic(`cosines at least ${worst}`);
  await assert.rejects(lm.embed(texts.at(-1)), /at most 256 tokens/);
});

test('what is alike is near', async () => {
  const [cat, kitten, tax] = await lm.embed(['a cat', 'a kitten', 'the tax return of a company']);
  assert.ok(dot(cat, kitten) > dot(cat, tax) + 0.3);
});
