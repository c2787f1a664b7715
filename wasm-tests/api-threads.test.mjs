// Threads: the same results for any number of them, and what happens when they do not start, die or are not wanted any more.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { create, defaultModel, load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { failing } from './support/failing-threads.mjs';
import { nodeOf } from './support/nodes.mjs';
import { random } from './support/tiny.mjs';

const long = { maxNewTokens: 1e6, eosTokenId: null };
const ids = Array.from({ length: 150 }, (_, i) => (i * 7) % 60);
// Large enough that every operation shares its work.
const config = {
  model_type: 'llama',
  hidden_size: 192,
  intermediate_size: 500,
  num_attention_heads: 6,
  num_hidden_layers: 2,
  vocab_size: 600,
};

/** Logits, and tokens drawn, by a model of each kind. */
async function results(options) {
  const found = [];
  for (const make of [() => load(defaultModel, options), () => create(config, { seed: 3, ...options })]) {
    const lm = await make();
    const [{ logits }] = await lm.forward({ inputIds: [ids] });
    const { tokenIds } = await lm.generate({ inputIds: ids }, { maxNewTokens: 20, seed: 5, temperature: 1, eosTokenId: null }).result;
    found.push({ tokenIds, logits: Buffer.from(logits.data.buffer).toString('base64') });
    await lm.dispose();
  }
  return found;
}

describe('the same bits for any number of threads', () => {
  for (const worker of [true, false]) {
    test(worker ? 'in a worker' : 'in process', async () => {
      const one = await results({ threads: 1, worker });
      for (const threads of [2, 3, 16, undefined]) assert.deepEqual(await results({ threads, worker }), one, `${threads} threads`);
    });
  }

  for (const major of [22, 24]) {
    test(`relaxed SIMD in Node ${major}; deterministic: true gives what is given here`, async () => {
      const script = `
        import { load } from ${JSON.stringify(new URL('../dist/node.js', import.meta.url).href)};
        const answers = [];
        for (const options of [{ threads: 1 }, { threads: 2 }, { threads: 2, deterministic: true }]) {
          const lm = await load(${JSON.stringify(defaultModel)}, options);
          const [{ logits }] = await lm.forward({ inputIds: [${JSON.stringify(ids)}] });
          answers.push({ simd: lm.info().simd, data: [...logits.data] });
          await lm.dispose();
        }
        console.log(JSON.stringify(answers));`;
      const output = execFileSync(nodeOf(major), ['--input-type=module', '-e', script], { encoding: 'utf8', maxBuffer: 1 << 26 });
      const [one, two, exact] = JSON.parse(output);
      assert.deepEqual(one.simd, { level: 'relaxed', reason: 'the engine has relaxed SIMD' });
      assert.deepEqual(two, one);
      assert.deepEqual(exact.simd, { level: 'simd128', reason: 'deterministic: true' });
      const lm = await load(defaultModel, { deterministic: true });
      const [{ logits }] = await lm.forward({ inputIds: [ids] });
      await lm.dispose();
      assert.deepEqual(exact.data, [...logits.data]);
      const largest = Math.max(...logits.data.map(Math.abs));
      const distance = Math.max(...logits.data.map((x, i) => Math.abs(x - one.data[i])));
      assert.ok(distance > 0 && distance < 1e-5 * largest, `${distance} of ${largest}`);
    });
  }
});

test('deterministic: true and a wasmUrl of relaxed SIMD exclude each other', () => {
  const script = `
    const { create, inspect, load } = await import(${JSON.stringify(new URL('../dist/node.js', import.meta.url).href)});
    const url = (level) => new URL(${JSON.stringify(new URL('../dist/', import.meta.url).href)} + 'wasmformer' + level + '.wasm');
    const source = ${JSON.stringify(defaultModel)}, config = ${JSON.stringify(config)};
    const answers = [];
    for (const worker of [true, false]) {
      const options = { deterministic: true, worker, wasmUrl: url('.relaxed') };
      for (const work of [() => load('/nothing/is/read', options), () => create(config, options), () => inspect(source, options)])
        await work().catch(({ code, message }) => answers.push(code + ' ' + message));
      for (const more of [{ wasmUrl: url('') }, { deterministic: false }]) {
        const lm = await load(source, { ...options, ...more });
        answers.push(lm.info().simd);
        await lm.dispose();
      }
    }
    console.log(JSON.stringify(answers));`;
  const answers = JSON.parse(execFileSync(nodeOf(22), ['--input-type=module', '-e', script], { encoding: 'utf8' }));
  const refused = (where) => `invalid-argument [${where}] wasmUrl: expected simd128 with deterministic: true, got relaxed`;
  const expected = [
    ...['load', 'create', 'inspect'].map(refused),
    ...['simd128', 'relaxed'].map((level) => ({ level, reason: 'wasmUrl names it' })),
  ];
  assert.deepEqual(answers, [...expected, ...expected]);
});

test('where 4 GB of addresses cannot be had, what can be is the limit', async () => {
  const { Memory } = WebAssembly;
  WebAssembly.Memory = class extends Memory {
    constructor(limits) {
      if (limits.maximum > 1024) throw new RangeError('no addresses');
      super(limits);
    }
  };
  try {
    const options = { threads: 2, worker: false };
    await assert.rejects(
      create({ ...config, vocab_size: 60_000 }, options),
      code('out-of-memory', /^\[create\] model: expected at most 67108864 bytes, got \d{9} /),
    );
    const lm = await create(config, options);
    const many = Array.from({ length: 2000 }, (_, i) => i % 600);
    await assert.rejects(lm.forward({ inputIds: [many] }, { attentions: true }), (error) => {
      code('out-of-memory', /expected at most \d+ bytes, which is what is left, got \d+/)(error);
      assert.ok(Number(/at most (\d+)/.exec(error.message)[1]) < 2 ** 26, error.message);
      return true;
    });
    const [{ logits }] = await lm.forward({ inputIds: [[1, 2, 3]] });
    assert.deepEqual(logits.shape, [3, 600]);
    await lm.dispose();
  } finally {
    WebAssembly.Memory = Memory;
  }
});

test('info says how many threads there are, and why', async () => {
  for (const [threads, expected] of [
    [1, { count: 1, reason: 'asked for' }],
    [16, { count: 16, reason: 'asked for' }],
  ]) {
    const lm = await load(random(1), { threads });
    assert.deepEqual(lm.info().threads, expected);
    await lm.dispose();
  }
  const lm = await load(random(1));
  const { availableParallelism } = await import('node:os');
  assert.equal(lm.info().threads.count, Math.min(availableParallelism(), 8));
  assert.match(lm.info().threads.reason, /^the machine has \d+ cores?$/);
  await lm.dispose();
  for (const threads of [0, -1, 1.5, 65, '2', null])
    await assert.rejects(load(random(1), { threads }), code('invalid-argument', /threads/));
});

describe('threads that fail', () => {
  test('at their start', async () => {
    const reason = /^\[threads\] expected 3 to start, 1 did: no thread today/;
    await assert.rejects(load(random(1), { threads: 3, workerUrl: failing('throws') }), code('dead', reason));
  });

  // Beside each other, for they only wait.
  describe('by not answering', { concurrency: true }, () => {
    test('after 20 seconds', async () => {
      await assert.rejects(load(random(1), { threads: 2, workerUrl: failing('silent') }), code('dead', /no answer for 20 s/));
    });

    test('not while the process is stopped', async () => {
      const child = spawn(process.execPath, [
        '--input-type=module',
        '-e',
        `const { load } = await import(${JSON.stringify(new URL('../dist/node.js', import.meta.url).href)});
        const workerUrl = new URL(${JSON.stringify(failing('late').href)});
        const lm = await load(${JSON.stringify(defaultModel)}, { threads: 2, workerUrl });
        console.log(lm.info().threads.count);
        await lm.dispose();`,
      ]);
      let output = '';
      child.stderr.on('data', (data) => (output += data));
      child.stdout.once('data', async () => {
        child.kill('SIGSTOP');
        await sleep(22_000);
        child.kill('SIGCONT');
      });
      child.stdout.on('data', (data) => (output += data));
      const [status] = await once(child, 'exit');
      assert.deepEqual([status, output], [0, 'late2\n']);
    });
  });

  test('an abort while they start rejects with its reason', async () => {
    const controller = new AbortController();
    const loading = load(random(1), { threads: 2, workerUrl: failing('silent'), signal: controller.signal });
    setTimeout(() => controller.abort(new Error('enough')), 200);
    const began = performance.now();
    await assert.rejects(loading, /enough/);
    assert.ok(performance.now() - began < 5000);
  });

  test('in the middle of their work: the call and every later one reject, other models go on', async () => {
    const other = await create(config, { threads: 2 });
    const lm = await create(config, { threads: 2, workerUrl: failing('trap') });
    const settled = Promise.allSettled([lm.generate({ inputIds: ids }).result, lm.forward({ inputIds: [ids] })]);
    for (const { reason } of await settled) code('dead', /one of 2 ended in the middle of its work/)(reason);
    await assert.rejects(lm.memory(), code('dead'));
    await lm.dispose();
    await other.forward({ inputIds: [ids] });
    await other.dispose();
  });

  test('while nothing is computed, and while something is', async () => {
    const lm = await load(random(1), { threads: 2, workerUrl: failing('exit') });
    const stream = lm.generate('ab', long);
    await assert.rejects(stream.result, code('dead', /a thread ended: it exited with code 3/));
    await assert.rejects(lm.score('ab'), code('dead', /exited with code 3/));
    await lm.dispose();
  });
});

test('dispose while they compute; models beside each other', async () => {
  const [a, b] = await Promise.all([create(config, { seed: 1, threads: 3 }), create(config, { seed: 1, threads: 2 })]);
  const stream = a.generate({ inputIds: ids }, long);
  stream.result.catch(() => {});
  const [x, y] = await Promise.all([b.forward({ inputIds: [ids] }), b.forward({ inputIds: [ids] })]);
  await a.dispose();
  await assert.rejects(stream.result, code('disposed'));
  assert.deepEqual(x[0].logits, y[0].logits);
  await b.dispose();
});

test('threads that wait take no time of a processor', async () => {
  for (const worker of [true, false]) {
    const lm = await create(config, { threads: 4, worker });
    await lm.forward({ inputIds: [ids] });
    await sleep(100);
    const before = process.cpuUsage();
    await sleep(1000);
    const { user, system } = process.cpuUsage(before);
    assert.ok(user + system < 100_000, `${(user + system) / 1000} ms of a second`);
    await lm.dispose();
  }
});

test('what comes out is no view of shared memory', async () => {
  const lm = await load(defaultModel, { threads: 2, worker: false });
  const [{ logits, hiddenStates }] = await lm.forward({ inputIds: [[1, 2, 3]] }, { hiddenStates: true });
  for (const { data } of [logits, ...hiddenStates]) assert.ok(data.buffer instanceof ArrayBuffer);
  await lm.dispose();
  // A long text out of shared memory.
  const odd = create({ ...config, hidden_act: 'a function that nobody knows' }, { threads: 2, worker: false });
  await assert.rejects(odd, code('unsupported', /hidden_act.*a function that nobody knows/));
});
