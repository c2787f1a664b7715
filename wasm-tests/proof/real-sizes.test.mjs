// Models of published sizes with random weights (wasm-tests/python/real_sizes.py), one at a time: logits of a prompt of 64 tokens and 16
// greedy tokens as in Python. Takes about 3 GB of disk and 7 GB of memory. WASMFORMER_SIZES names some of them, by commas.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load } from '../../dist/node.js';
import { likePython } from '../support/compare.mjs';
import { readTensors, relativeError } from '../support/fixtures.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const seed = process.env.WASMFORMER_SEED ?? String(1 + Math.floor(Math.random() * 1e6));
const place = process.env.WASMFORMER_SIZES_FOLDER ?? join(root, 'build/proof', `sizes-${seed}`);
const script = join(root, 'wasm-tests/python/real_sizes.py');
const python = (...args) =>
  execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [script, ...args], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
const names = process.env.WASMFORMER_SIZES?.split(',') ?? python('--list').trim().split('\n');

/** Bytes that this process has read, from files or anything else; where the system does not count them, 0. */
const bytesRead = () => (existsSync('/proc/self/io') ? Number(/rchar: (\d+)/.exec(readFileSync('/proc/self/io', 'utf8'))[1]) : 0);

for (const name of names) {
  test(`${name}, seed ${seed}`, async (t) => {
    const folder = join(place, name);
    try {
      python('--out', place, '--seed', seed, '--only', name);
      const expected = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8'));
      if (expected.refused) {
        const before = bytesRead();
        await assert.rejects(load(folder, { worker: false }), ({ code, message }) => {
          assert.equal(code, 'out-of-memory');
          t.diagnostic(message);
          return /\d/.test(message);
        });
        assert.ok(bytesRead() - before < 20e6, `${bytesRead() - before} bytes were read`);
        return;
      }
      const begin = performance.now();
      const lm = await load(folder, { worker: false });
      const loaded = performance.now();
      assert.equal(lm.info().parameters, expected.parameters);
      if (expected.kind) {
        await lm.dispose();
        t.diagnostic(`${name}: ${expected.dtype}, ${(expected.parameters / 1e6).toFixed(1)} M parameters`);
        await likePython(t, folder);
        return;
      }
      const [{ logits }] = await lm.forward({ inputIds: [expected.inputIds] });
      const { logits: wanted } = readTensors(join(folder, 'expected.safetensors'));
      assert.deepEqual(logits.shape, wanted.shape);
      const error = relativeError(logits.data, wanted.data);
      const started = performance.now();
      const { tokenIds } = await lm.generate({ inputIds: expected.inputIds }, { maxNewTokens: 16, doSample: false }).result;
      const ended = performance.now();
      const { weights, total } = await lm.memory();
      t.diagnostic(
        `${name}: ${expected.dtype}, ${(expected.parameters / 1e6).toFixed(1)} M parameters, logits ${error.toExponential(1)} of the spread apart, ` +
          `${new Set(expected.greedy).size} distinct of ${expected.greedy.length} tokens, smallest lead ${expected.lead.toExponential(1)}; ` +
          `loaded in ${((loaded - begin) / 1000).toFixed(1)} s, 64 + 16 tokens in ${((ended - started) / 1000).toFixed(1)} s, ` +
          `weights ${(weights / 2 ** 20).toFixed(0)} MiB, memory ${(total / 2 ** 20).toFixed(0)} MiB`,
      );
      await lm.dispose();
      assert.ok(error <= 1e-4, `${error} of the spread apart`);
      assert.deepEqual(tokenIds, expected.greedy);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
}
