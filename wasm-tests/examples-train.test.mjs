// The programs of examples/train: one of them for a few steps, and what the shipped models' trainings stand on. Whole runs: npm run proof.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { create, load } from '../dist/node.js';
import { draws } from '../examples/train/draws.mjs';
import { half, publish, train } from '../examples/train/shipped.mjs';

const examples = fileURLToPath(new URL('../examples/train/', import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), 'wasmformer-examples-train-'));
after(() => rmSync(scratch, { recursive: true }));

function run(name, ...args) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(examples, name), ...args], { cwd: scratch, encoding: 'utf8' });
  assert.equal(status, 0, `${name}\n${stdout}\n${stderr}`);
  return stdout.trim().split('\n');
}

const config = { model_type: 'gpt2', vocab_size: 20, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 32 };

test('sort: learns a little in a few steps, and saves what it has', async () => {
  const lines = run('sort.mjs', '--steps', '50', '--threads', '1', '--out', join(scratch, 'sort'));
  const [, loss, held] = /^step 50 {2}loss ([\d.]+) {2}held out ([\d.]+)$/.exec(lines[0]);
  // Chance is ln 11 = 2.4; the digits' counts alone give about 1.
  assert.ok(loss < 1.5 && held < 1.5, lines[0]);
  assert.match(lines.at(-1), /^[\d.]+ % of 1000 sequences/);
  const lm = await load(join(scratch, 'sort'));
  assert.equal(lm.info().vocabSize, 11);
  await lm.dispose();
});

test("the shipped models' trainings say how to start them", () => {
  for (const name of ['char', 'pinyin']) assert.match(run(`${name}.mjs`, '--help')[0], new RegExp(`^Usage: npm run train:${name} -- `));
});

test('draws: even, told by the keys, apart for neighbouring ones', () => {
  assert.equal(draws(1, 2)(), draws(1, 2)());
  const counts = new Uint32Array(16);
  for (let n = 0; n < 16000; ++n) ++counts[Math.floor(16 * draws(7, n)())];
  // Five standard deviations.
  for (const count of counts) assert.ok(Math.abs(count - 1000) < 155, `${counts}`);
});

test('half: every number of 16 bits is itself, between two the nearer, of two as near the even one', () => {
  const decoded = (bits) => (bits < 0x400 ? bits * 2 ** -24 : (1024 + (bits & 0x3ff)) * 2 ** ((bits >> 10) - 25));
  for (let bits = 0; bits < 0x7c00; ++bits) {
    const value = decoded(bits);
    assert.equal(half(value), bits);
    assert.equal(half(-value), 0x8000 | bits);
    if (bits === 0x7bff) continue;
    const middle = (value + decoded(bits + 1)) / 2;
    assert.equal(half(middle), bits + (bits % 2), `between ${value} and the next`);
    assert.equal(half(Math.fround(middle * (1 + 2 ** -22))), bits + 1);
  }
  for (const value of [65520, Infinity, Number.NaN]) assert.throws(() => half(value), /16 bits/);
});

test('a shipped model: weights of 16 bits', async () => {
  const lm = await create(config, { seed: 1, worker: false });
  const folder = join(scratch, 'published');
  await publish(lm, folder, { 'config.json': { ...config, dtype: 'float16' } });
  const again = await load(folder, { dtype: 'f32', worker: false });
  for (const { name } of await lm.parameters()) {
    const [{ data: before }, { data: after }] = [await lm.parameter(name), await again.parameter(name)];
    assert.ok(before.every((value, i) => Math.abs(value - after[i]) <= Math.abs(value) * 2 ** -11 + 2 ** -25));
    assert.ok(after.every((value) => half(value) >= 0));
  }
  assert.equal(JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8')).dtype, 'float16');
  await lm.dispose();
  await again.dispose();
});

test('a shipped model: a training that stopped goes on to what it would have been', async () => {
  const data = Array.from({ length: 30 }, (_, i) => ({ inputIds: Array.from({ length: 8 }, (_, t) => (i + 3 * t) % 20) }));
  const whole = { work: join(scratch, 'whole'), first: 0, steps: 6, minutes: Infinity, threads: 1 };
  const parts = { ...whole, work: join(scratch, 'parts') };
  const what = {
    make: () => create(config, { seed: 1, threads: 1 }),
    data,
    options: { batchTokens: 32, seed: 2 },
    evalData: data.slice(0, 2),
  };
  const one = await train(whole, what);
  const stopped = await train({ ...parts, minutes: 1e-9 }, what);
  assert.deepEqual([one.finished, stopped.finished], [true, false]);
  const { step } = JSON.parse(readFileSync(join(parts.work, 'trainer_state.json'), 'utf8'));
  assert.equal(step, 1);
  const other = await train({ ...parts, first: step }, what);
  assert.equal(other.finished, true);
  for (const { name } of await one.model.parameters())
    assert.deepEqual((await other.model.parameter(name)).data, (await one.model.parameter(name)).data, name);
  for (const { model } of [one, stopped, other]) await model.dispose();
});
