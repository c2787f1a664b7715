// Encoder-decoder and encoder-only models of shapes that fit nothing evenly, and beam searches with random options, made on the spot by
// wasm-tests/python/odd_families.py. WASMFORMER_ODD_FAMILIES names a folder that is made already; WASMFORMER_SEED fixes the seed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { beamsLikePython, likePython } from '../support/compare.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const seed = process.env.WASMFORMER_SEED ?? String(1 + Math.floor(Math.random() * 1e6));
const given = process.env.WASMFORMER_ODD_FAMILIES;
const place = given ?? join(root, 'build/proof', `odd-families-${seed}`);
if (!given) {
  rmSync(place, { recursive: true, force: true });
  const script = join(root, 'wasm-tests/python/odd_families.py');
  execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [script, '--out', place, '--seed', seed], { stdio: 'inherit' });
  after(() => rmSync(place, { recursive: true, force: true }));
}

const holding = (file) => readdirSync(place).filter((name) => existsSync(join(place, name, file)));
test(`there are models, seed ${seed}`, () => assert.ok(holding('expected.json').length > 0));
// Among 200 keys the spread of attention weights is no measure; Python itself is 2e-5 off with float64.
for (const name of holding('expected.json')) test(name, (t) => likePython(t, join(place, name), { weights: 5e-5 }));
for (const name of holding('beams.json')) test(name, (t) => beamsLikePython(t, join(place, name)));
