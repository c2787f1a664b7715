// What becomes of a model: disposal, traps, dead workers, scripts that forget, memory.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { numbers, random } from './support/tiny.mjs';

const files = random(1);
const folder = mkdtempSync(join(tmpdir(), 'wasmformer-life-'));
for (const [name, bytes] of Object.entries(files)) writeFileSync(join(folder, name), bytes);
after(() => rmSync(folder, { recursive: true }));

const entry = new URL('../dist/node.js', import.meta.url).href;
const long = { maxNewTokens: 1e6, eosTokenId: null };

/** Runs a script in a Node of its own. */
function script(text, args = []) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [
      ...args,
      '--input-type=module',
      '-e',
      `import { load } from ${JSON.stringify(entry)};\nconst folder = ${JSON.stringify(folder)};\n${text}`,
    ]);
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk));
    const began = performance.now();
    const timer = setTimeout(() => child.kill('SIGKILL'), 400_000);
    child.on('close', (status, signal) => {
      clearTimeout(timer);
      resolve({ status, signal, output, milliseconds: performance.now() - began });
    });
  });
}

for (const worker of [true, false]) {
  describe(worker ? 'in a worker' : 'in process', () => {
    test('dispose: what is in flight and what comes later rejects; twice is harmless', async () => {
      const lm = await load(folder, { worker });
      const cache = await lm.createCache();
      const stream = lm.generate('ab', long);
      const iteration = (async () => {
        for await (const _ of stream);
      })();
      const queued = [
        lm.generate('a').result,
        lm.score('ab'),
        lm.forward({ inputIds: [[1]] }),
        lm.tokenize('a'),
        lm.memory(),
        lm.createCache(),
      ];
      const settled = Promise.allSettled([iteration, stream.result, ...queued]);
      await sleep(30);
      await Promise.all([lm.dispose(), lm.dispose()]);
      await lm.dispose();
      for (const [i, { status, reason }] of (await settled).entries()) {
        if (i < 2 || i === 2 || i === 3 || i === 4) {
          assert.equal(status, 'rejected', `call ${i}`);
          code('disposed')(reason);
        }
      }
      for (const call of [
        () => lm.generate('a').result,
        () => lm.chat('a').result,
        () => lm.score('a'),
        () => lm.forward({ inputIds: [[1]] }),
        () => lm.tokenize('a'),
        () => lm.decode([1]),
        () => lm.memory(),
        () => lm.createCache(),
        () => cache.length(),
        () => cache.clone(),
        () => cache.truncate(0),
      ]) {
        await assert.rejects(call, code('disposed', /disposed of/));
      }
      await cache.dispose();
      assert.equal(lm.info().architecture, 'llama');
      assert.equal(lm.config.model_type, 'llama');
      assert.equal(lm[Symbol.asyncDispose] !== undefined && (await lm[Symbol.asyncDispose]()), undefined);
    });

    test('two models at once do not know of each other', async () => {
      const a = await load(folder, { worker });
      const b = await load(random(2), { worker });
      const [x, y] = await Promise.all([
        a.generate('ab', { maxNewTokens: 20, eosTokenId: null }).result,
        b.generate('ab', { maxNewTokens: 20, eosTokenId: null }).result,
      ]);
      assert.notDeepEqual(x.tokenIds, y.tokenIds);
      await a.dispose();
      assert.deepEqual((await b.generate('ab', { maxNewTokens: 20, eosTokenId: null }).result).tokenIds, y.tokenIds);
      await b.dispose();
    });
  });
}

describe('a trap', () => {
  const workerUrl = new URL('./support/trap-worker.mjs', import.meta.url);

  test('rejects what is pending and every later call; other models go on', async () => {
    const lm = await load(folder, { workerUrl });
    const other = await load(folder);
    const wanted = await lm.generate('ab', { maxNewTokens: 3 }).result;
    const stream = lm.generate('ab', long);
    const queued = lm.score('ab');
    const settled = Promise.allSettled([stream.result, queued]);
    await lm.tokenize('trap after 500');
    const pieces = [];
    await assert.rejects(
      async () => {
        for await (const piece of stream) pieces.push(piece);
      },
      code('dead', /unreachable/),
    );
    assert.ok(pieces.length > 0, 'pieces from before the trap were delivered');
    for (const { reason } of await settled) code('dead')(reason);
    await assert.rejects(lm.generate('a').result, code('dead', /cannot be used any more/));
    await assert.rejects(lm.memory(), code('dead'));
    assert.deepEqual((await other.generate('ab', { maxNewTokens: 3 }).result).tokenIds, wanted.tokenIds);
    await lm.dispose();
    await assert.rejects(lm.memory(), code('disposed'));
    await other.dispose();
  });

  test('in any call, at any point of it', async () => {
    for (const trapAfter of [0, 1, 7, 40]) {
      for (const call of [
        (lm) => lm.forward({ inputIds: [[1, 2]] }, { hiddenStates: true }),
        (lm) => lm.score('abc'),
        (lm) => lm.memory(),
        (lm) => lm.generate('abc', long).result,
      ]) {
        const lm = await load(folder, { workerUrl });
        await lm.tokenize(`trap after ${trapAfter}`);
        // Calls that need fewer imports than that succeed, and a later one dies.
        let reason;
        for (let i = 0; i < 100 && !reason; ++i) await call(lm).catch((error) => (reason = error));
        code('dead')(reason);
        await lm.dispose();
      }
    }
  });
});

describe('a worker that dies', () => {
  const dying = (text) => `data:text/javascript,${encodeURIComponent(text)}`;
  test('before, while and after loading', async () => {
    await assert.rejects(load(folder, { workerUrl: new URL('file:///nowhere/worker.js') }), code('dead', /worker is gone/));
    await assert.rejects(load(folder, { workerUrl: new URL(dying('throw new Error("boom")')) }), code('dead', /boom/));
    await assert.rejects(load(folder, { workerUrl: new URL(dying('process.exit(4)')) }), code('dead', /code 4/));
    await assert.rejects(load(folder, { workerUrl: new URL(dying('await 0')) }), code('dead'));
    const killer = dying(`
      import { parentPort } from 'node:worker_threads';
      await import(${JSON.stringify(new URL('../dist/node-worker.js', import.meta.url).href)});
      parentPort.on('message', ({ method, args }) => {
        if (method === 'tokenize') args[0][0] === 'exit' ? process.exit(5) : setTimeout(() => { throw new Error('boom'); });
      });`);
    for (const [how, message] of [
      ['exit', /code 5/],
      ['throw', /boom/],
    ]) {
      const lm = await load(folder, { workerUrl: new URL(killer) });
      const stream = lm.generate('ab', long);
      const scored = lm.score('ab');
      const settled = Promise.allSettled([stream.result, scored, lm.tokenize(how)]);
      for (const { reason } of (await settled).slice(0, 2)) code('dead', message)(reason);
      await assert.rejects(lm.score('a'), code('dead', message));
      await lm.dispose();
    }
  });

  test('wasmUrl: a missing file and a file that is no module', async () => {
    await assert.rejects(load(folder, { wasmUrl: join(folder, 'none.wasm') }), code('not-found', /none\.wasm/));
    await assert.rejects(load(folder, { wasmUrl: pathToFileURL(join(folder, 'config.json')) }), code('invalid-file', /WebAssembly/));
    const lm = await load(folder, { wasmUrl: fileURLToPath(new URL('../dist/wasmformer.wasm', import.meta.url)) });
    await lm.dispose();
  });
});

describe('no promise hangs', () => {
  for (const worker of [true, false]) {
    test(`whatever is called, aborted, left and disposed of in whatever order, ${worker ? 'in a worker' : 'in process'}`, async () => {
      const draw = numbers(worker ? 1 : 2);
      const pick = (n) => Math.floor(((draw() + 1) / 2) * n) % n;
      for (let round = 0; round < 25; ++round) {
        const lm = await load(folder, { worker });
        const cache = await lm.createCache();
        const calls = [];
        for (let i = 0; i < 12; ++i) {
          const controller = new AbortController();
          const { signal } = controller;
          if (pick(2)) setTimeout(() => controller.abort(), pick(15));
          const options = { signal, maxNewTokens: 1 + pick(40), eosTokenId: null };
          calls.push(
            [
              () => lm.generate('ab', options).result,
              () => lm.generate(['ab', 'c'], { ...options, temperature: 1, numReturnSequences: 2 }).result,
              async () => {
                const stop = pick(10);
                for await (const { index } of lm.generate('abc', options)) if (index === stop) break;
              },
              () => lm.generate('abcd', { ...options, cache }).result,
              () => lm.score(['abc', 'de'], { signal }),
              () => lm.forward({ inputIds: [[1, 2, 3]] }, { signal, attentions: true }),
              () => lm.tokenize('abc'),
              () => lm.memory(),
              () => cache.clone(),
              () => cache.truncate(0),
              () => lm.generate({ inputIds: [9999] }).result,
              () => lm.forward({ inputIds: [[9999]] }),
            ][pick(12)](),
          );
          calls.at(-1).catch(() => {});
          if (pick(3) === 0) await sleep(pick(4));
        }
        const settled = Promise.allSettled(calls);
        if (pick(2)) await sleep(pick(20));
        if (pick(2)) await lm.dispose();
        const timer = setTimeout(() => assert.fail(`round ${round}: a promise hangs`), 30_000);
        for (const { status, reason } of await settled) {
          if (status === 'rejected')
            assert.ok(reason.name === 'AbortError' || ['disposed', 'invalid-argument'].includes(reason.code), reason.stack);
        }
        clearTimeout(timer);
        await lm.dispose();
      }
    });
  }
});

describe('scripts', () => {
  for (const worker of [true, false]) {
    test(`one that forgets dispose exits, ${worker ? 'with a worker' : 'in process'}`, async () => {
      const { status, output, milliseconds } = await script(`
        const lm = await load(folder, { worker: ${worker} });
        const { tokenIds } = await lm.generate('ab', { maxNewTokens: 3, eosTokenId: null }).result;
        console.log(tokenIds.length);`);
      assert.deepEqual([status, output], [0, '3\n']);
      assert.ok(milliseconds < 20_000);
    });

    test(`a pending call keeps a script alive, ${worker ? 'with a worker' : 'in process'}`, async () => {
      const { status, output } = await script(`
        load(folder, { worker: ${worker} }).then((lm) => lm.generate('ab', { maxNewTokens: 30, eosTokenId: null }).result)
          .then(({ tokenIds }) => console.log(tokenIds.length));`);
      assert.deepEqual([status, output], [0, '30\n']);
    });
  }

  test('an error nobody looks at is no crash of a script that reads only pieces, or nothing', async () => {
    const { status, output } = await script(`
      const lm = await load(folder);
      lm.generate({ inputIds: [99999] });
      const stream = lm.generate({ inputIds: [99999] });
      try { for await (const _ of stream); } catch (error) { console.log(error.code); }
      await lm.dispose();
      lm.generate('a');
      await new Promise((resolve) => setTimeout(resolve, 50));
      console.log('end');`);
    assert.deepEqual([status, output], [0, 'invalid-argument\nend\n']);
  });

  test('the main thread stays responsive: no task over 50 ms while a worker generates', async () => {
    // On Linux the time that the thread itself ran, which a busy machine does not stretch.
    const { status, output } = await script(`
      import { readFileSync } from 'node:fs';
      const clock = () => {
        try {
          return Number(readFileSync('/proc/self/task/' + process.pid + '/schedstat', 'utf8').split(' ')[0]) / 1e6;
        } catch {
          return performance.now();
        }
      };
      const lm = await load(folder);
      let longest = 0;
      let last = clock();
      const timer = setInterval(() => {
        const now = clock();
        longest = Math.max(longest, now - last);
        last = now;
      }, 1);
      for await (const _ of lm.generate('ab', { maxNewTokens: 400, eosTokenId: null }));
      clearInterval(timer);
      console.log(longest);`);
    assert.equal(status, 0, output);
    assert.ok(Number(output) > 0 && Number(output) < 50, `${output} ms`);
  });
});

describe('memory is back after dispose: 200 rounds', () => {
  // A model of 6 MB: one that stayed each round would show as 1.2 GB.
  const big = `const { random } = await import(${JSON.stringify(new URL('./support/tiny.mjs', import.meta.url).href)});
    const files = random(1, { config: { intermediate_size: 1600 } });`;
  for (const worker of [true, false]) {
    test(worker ? 'with workers' : 'in process', async () => {
      const { status, output } = await script(
        `
        ${big}
        const { readFile } = await import('node:fs/promises');
        const samples = [];
        let addresses;
        for (let round = 0; round < 200; ++round) {
          const lm = await load(files, { worker: ${worker}, threads: 2 });
          await lm.generate('ab', { maxNewTokens: 2, eosTokenId: null }).result;
          await lm.dispose();
          if (round % 10 === 9) {
            for (let i = 0; i < 3; ++i) { gc(); await new Promise((resolve) => setTimeout(resolve, 20)); }
            samples.push(process.memoryUsage().rss / 2 ** 20);
            addresses = await readFile('/proc/self/statm', 'utf8').then((text) => (parseInt(text) * 4096) / 2 ** 30, () => 0);
          }
        }
        const early = Math.max(...samples.slice(1, 6));
        const late = Math.max(...samples.slice(-5));
        console.log(JSON.stringify({ early, late, addresses }));`,
        ['--expose-gc'],
      );
      assert.equal(status, 0, output);
      const { early, late, addresses } = JSON.parse(output);
      assert.ok(late < early + 60, `resident after 60 rounds ${early} MB, after 200 ${late} MB`);
      // Each round reserved 4 GB and more.
      assert.ok(addresses < 40, `${addresses} GB of addresses after 200 rounds`);
    });
  }
});
