// load and inspect: sources, options, refusals, aborts.
import assert from 'node:assert/strict';
import { closeSync, ftruncateSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { create, defaultModel, errorCodes, inspect, load as loadModel, ops } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { startHub } from './support/hub.mjs';
import { llama, random, safetensors } from './support/tiny.mjs';

const opened = [];
/** `load`, and `dispose` when all tests are done. */
async function load(...args) {
  const lm = await loadModel(...args);
  opened.push(lm);
  return lm;
}
after(() => Promise.all(opened.map((lm) => lm.dispose())));

const files = random(1);
const folder = mkdtempSync(join(tmpdir(), 'wasmformer-load-'));
for (const [name, bytes] of Object.entries(files)) writeFileSync(join(folder, name), bytes);
after(() => rmSync(folder, { recursive: true }));

const edited = (change) => {
  const config = JSON.parse(new TextDecoder().decode(files['config.json']));
  return { ...files, 'config.json': new TextEncoder().encode(JSON.stringify(change(config))) };
};

describe('sources', () => {
  for (const worker of [true, false]) {
    for (const [name, source] of [
      ['bytes by name', () => files],
      ['a folder', () => folder],
      ['a file URL', () => pathToFileURL(`${folder}/`)],
      ['Files', () => Object.entries(files).map(([file, bytes]) => new File([bytes], file))],
    ]) {
      test(`${name}, ${worker ? 'in a worker' : 'in process'}`, async () => {
        const lm = await load(source(), { worker });
        const info = lm.info();
        assert.equal(info.architecture, 'llama');
        assert.equal(info.format, 'safetensors');
        const { tokenIds } = await lm.generate('hello', { maxNewTokens: 4, doSample: false, eosTokenId: null }).result;
        assert.equal(tokenIds.length, 4);
      });
    }
  }

  test('the model in the package', async () => {
    const lm = await load(defaultModel);
    const { text } = await lm.generate('The whale ', { maxNewTokens: 40, temperature: 0.8, seed: 1 }).result;
    assert.match(text, /^[\x20-\x7e\n—’‘“”]+$/);
  });

  test('what is no source is refused', async () => {
    for (const source of [undefined, null, 5]) await assert.rejects(load(source), code('invalid-argument', /source/));
    await assert.rejects(load(join(folder, 'nowhere')), (error) => ['not-found', 'invalid-argument'].includes(error.code));
  });
});

test('info, config and tokenizer are plain snapshots', async () => {
  const progress = [];
  const lm = await load(folder, { onProgress: (event) => progress.push(event) });
  const info = lm.info();
  assert.equal(info.parameters, 264 * 264 * 2 + 4 * 264 * 264 + 3 * 264 * 32 + 3 * 264);
  assert.deepEqual([info.dtype, info.layers, info.heads, info.hiddenSize, info.vocabSize], ['f32', 1, 4, 264, 264]);
  assert.deepEqual(info.dtypes, { f32: info.parameters });
  assert.deepEqual(info.unusedTensors, []);
  assert.deepEqual(info.warnings, []);
  assert.match(info.simd.level, /^(simd128|relaxed)$/);
  assert.ok(info.simd.reason && info.threads.reason);
  info.layers = 5;
  assert.equal(lm.info().layers, 1);
  assert.equal(lm.config.model_type, 'llama');
  assert.deepEqual([lm.tokenizer.vocabSize, lm.tokenizer.specials.bos, lm.tokenizer.hasChatTemplate], [259, 257, false]);
  const memory = await lm.memory();
  assert.ok(memory.weights >= info.parameters * 4 && memory.weights < info.parameters * 4.3);
  assert.ok(memory.total >= memory.weights + memory.arena + memory.cache);
  assert.ok(progress.length > 0);
  const { loaded, total, overallLoaded, overallTotal } = progress.at(-1);
  assert.ok(loaded <= total && overallLoaded === overallTotal);
});

test('cacheDtype f16 halves the cache', async () => {
  const [exact, half] = await Promise.all([load(folder), load(folder, { cacheDtype: 'f16' })]);
  assert.deepEqual([exact.info().cacheDtype, half.info().cacheDtype], ['f32', 'f16']);
  const ratio = half.info().memory.cachePerToken / exact.info().memory.cachePerToken;
  assert.ok(ratio < 0.51, String(ratio));
  const prompt = { inputIds: [1, 2, 3] };
  const kept = await Promise.all([exact, half].map(async (lm) => (await lm.generate(prompt, { maxNewTokens: 40 }).result).tokenIds.length));
  assert.deepEqual(kept, [40, 40]);
  const [a, b] = [(await exact.memory()).cache, (await half.memory()).cache];
  assert.ok(b < 0.51 * a, `${b} of ${a}`);
  await assert.rejects(load(folder, { cacheDtype: 'q8' }), code('invalid-argument', /cacheDtype: expected 'f32', 'f16', got "q8"/));
});

describe('options', () => {
  test('unknown or ill-typed ones are refused', async () => {
    await assert.rejects(load(files, { dtpe: 'f32' }), code('invalid-argument', /'dtpe'.*'dtype'/));
    await assert.rejects(load(files, { cache_dir: '/x' }), code('invalid-argument', /'cacheDir'/));
    await assert.rejects(
      load(files, { dtype: 'fp16' }),
      code('invalid-argument', /dtype: expected 'f32', 'f16', 'bf16', 'q8', 'q4', got "fp16"/),
    );
    await assert.rejects(load(files, { worker: 'no' }), code('invalid-argument'));
    await assert.rejects(load(files, { onProgress: true }), code('invalid-argument'));
    await assert.rejects(load(files, { threads: 0 }), code('invalid-argument'));
    await assert.rejects(load(files, { network: { retry: 1 } }), code('invalid-argument', /'retries'/));
    await assert.rejects(load(files, 'f32'), code('invalid-argument'));
  });

  test('known and not built ones are unsupported', async () => {
    await assert.rejects(load(files, { dtype: 'q8', trainable: true }), code('invalid-argument', /dtype: expected 'f32' with trainable/));
    await (await load(files, { threads: 1, deterministic: true, worker: true })).dispose();
  });

  test('dtype says how weights are kept', async () => {
    const f32 = await load(files, { worker: false });
    const before = await f32.memory();
    const [{ logits: exact }] = await f32.forward({ inputIds: [[1, 2, 3]] });
    for (const [dtype, precision] of [
      ['f16', 2 ** -11],
      ['bf16', 2 ** -8],
    ]) {
      const half = await load(files, { dtype, worker: false });
      assert.equal(half.info().dtype, dtype);
      const { weights } = await half.memory();
      assert.ok(weights < before.weights * 0.55, `${weights} of ${before.weights}`);
      const [{ logits }] = await half.forward({ inputIds: [[1, 2, 3]] });
      const worst = logits.data.reduce((most, value, i) => Math.max(most, Math.abs(value - exact.data[i])), 0);
      const largest = exact.data.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      assert.ok(worst > 0 && worst < 16 * precision * largest, `${dtype}: ${worst}`);
    }
  });
});

test('a weight that dtype cannot hold is refused by name and value; what a file has of NaN and infinities is kept where it can be', async () => {
  const name = 'model.layers.0.mlp.up_proj.weight';
  const holding = (value) => {
    const weights = random(1);
    const bytes = weights['model.safetensors'].slice();
    const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    new DataView(bytes.buffer).setFloat32(8 + length + header[name].data_offsets[0] + 400, value, true);
    return { ...weights, 'model.safetensors': bytes };
  };
  const most = (dtype, value) =>
    `[load] ${name}: expected numbers up to 65504, the most that dtype '${dtype}' can hold, got ${value}; dtype 'f32' holds it`;
  const finite = (value) => `[load] ${name}: expected finite numbers to quantise, got ${value}`;
  for (const [value, dtype, expected] of [
    [70_000, 'f16', most('f16', 70_000)],
    [-70_000, 'q4', most('q4', -70_000)],
    [70_000, 'q8'],
    [70_000, 'bf16'],
    [NaN, 'f16'],
    [-Infinity, 'f32'],
    [NaN, 'q8', finite('NaN')],
    [-Infinity, 'q4', finite('-Infinity')],
  ]) {
    const loading = loadModel(holding(value), { dtype, threads: 1 });
    if (expected) await assert.rejects(loading, { code: 'invalid-file', message: expected });
    else await (await loading).dispose();
  }
});

test('errors name the call: load, create, inspect', async () => {
  const config = JSON.parse(new TextDecoder().decode(files['config.json']));
  for (const [where, call] of [
    ['load', (options) => load(files, options)],
    ['create', (options) => create(config, options)],
    ['inspect', (options) => inspect(files, options)],
  ]) {
    const named = (expected, what) => code(expected, new RegExp(`^\\[${where}\\] ${what}`));
    await assert.rejects(call({ thread: 1 }), named('invalid-argument', "unknown option 'thread'"));
    await assert.rejects(call({ dtype: 'q8', trainable: true }), named('invalid-argument', "dtype: expected 'f32' with trainable"));
    await assert.rejects(call({ wasmUrl: '/no/such.wasm' }), named('not-found', '/no/such.wasm: '));
  }
  await assert.rejects(create(config, { tokenizer: '/no/such/folder' }), code('not-found', /^\[create\] source: no such file or folder/));
  await assert.rejects(inspect('/no/such/folder'), code('not-found', /^\[inspect\] source: no such file or folder/));
  await assert.rejects(inspect(5), code('invalid-argument', /^\[inspect\] source: expected a Hub id/));
  await assert.rejects(load(Uint8Array.of(71)), code('invalid-file', /got a file of 1 \(not a llama2\.c checkpoint\?\)$/));
});

describe('refusals', () => {
  const without = (name) => {
    const weights = {};
    llama((key, shape) => {
      if (key !== name) weights[key] = { shape, data: new Float32Array(shape.reduce((a, b) => a * b, 1)) };
      return new Float32Array(0);
    });
    return weights;
  };
  test('a missing tensor, a wrong shape, an unknown architecture, activation, rope type', async () => {
    await assert.rejects(
      load({ ...files, 'model.safetensors': safetensors(without('model.layers.0.mlp.up_proj.weight')) }),
      code('missing-tensor', /model\.layers\.0\.mlp\.up_proj\.weight/),
    );
    const wrong = without('model.norm.weight');
    wrong['model.norm.weight'] = { shape: [263], data: new Float32Array(263) };
    await assert.rejects(
      load({ ...files, 'model.safetensors': safetensors(wrong) }),
      code('shape-mismatch', /model\.norm\.weight.*264.*263/),
    );
    await assert.rejects(load(edited((config) => ({ ...config, model_type: 'mamba' }))), code('unsupported', /mamba/));
    await assert.rejects(load(edited((config) => ({ ...config, hidden_act: 'gulp' }))), code('unsupported', /gulp/));
    await assert.rejects(
      load(edited((config) => ({ ...config, rope_scaling: { rope_type: 'magic', factor: 2 } }))),
      code('unsupported', /magic/),
    );
    await assert.rejects(load({ ...files, 'config.json': new TextEncoder().encode('{') }), code('invalid-file'));
  });

  test('a tensor nobody needs is listed', async () => {
    const weights = without('');
    weights['model.layers.0.self_attn.rotary_emb.inv_freq'] = { shape: [33], data: new Float32Array(33) };
    const lm = await load({ ...files, 'model.safetensors': safetensors(weights) }, { worker: false });
    assert.deepEqual(lm.info().unusedTensors, ['model.layers.0.self_attn.rotary_emb.inv_freq']);
  });

  test('a model that cannot fit says so before any weights are asked for', async () => {
    // The header of a checkpoint with 1.3 billion parameters; its data does not exist.
    const config = {
      hidden_size: 2048,
      intermediate_size: 8192,
      num_hidden_layers: 20,
      num_attention_heads: 16,
      num_key_value_heads: 16,
      vocab_size: 32000,
    };
    const header = {};
    let offset = 0;
    llama(
      (name, shape) => {
        const size = shape.reduce((a, b) => a * b, 1) * 4;
        header[name] = { dtype: 'F32', shape, data_offsets: [offset, (offset += size)] };
        return new Float32Array(0);
      },
      { config },
    );
    const text = new TextEncoder().encode(JSON.stringify(header));
    const prefix = new Uint8Array(8 + text.length);
    new DataView(prefix.buffer).setBigUint64(0, BigInt(text.length), true);
    prefix.set(text, 8);
    const total = prefix.length + offset;
    const configFile = edited((old) => ({ ...old, ...config }))['config.json'];
    let farthest = 0;
    const server = createServer((request, response) => {
      const file = request.url.split('/').at(-1);
      if (file === 'config.json') return response.end(configFile);
      if (file !== 'model.safetensors') return response.writeHead(404).end();
      const range = /bytes=(\d+)-(\d*)/.exec(request.headers.range ?? '');
      const begin = Number(range?.[1] ?? 0);
      const end = Math.min(total, range?.[2] ? Number(range[2]) + 1 : total);
      response.writeHead(range ? 206 : 200, {
        'content-length': end - begin,
        'accept-ranges': 'bytes',
        etag: '"1"',
        ...(range ? { 'content-range': `bytes ${begin}-${end - 1}/${total}` } : {}),
      });
      if (request.method === 'HEAD') return response.end();
      farthest = Math.max(farthest, Math.min(end, begin + 1024 * 1024));
      response.end(prefix.subarray(begin, Math.min(end, begin + 1024 * 1024)));
    });
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    const url = `http://127.0.0.1:${server.address().port}/model/`;
    try {
      const bytes = offset;
      await assert.rejects(load(url, { cacheDir: false }), (error) => {
        code('out-of-memory', /dtype 'f16' would fit/)(error);
        const [, limit, need] = /expected at most (\d+) bytes, got (\d+)/.exec(error.message);
        assert.ok(Number(need) > bytes && Number(limit) < 2 ** 32);
        return true;
      });
      assert.ok(farthest <= 2 * 1024 * 1024, `${farthest} bytes of weights were asked for`);
      const { memory, parameters } = await inspect(url, { cacheDir: false });
      assert.ok(parameters > 1e9);
      assert.deepEqual([memory.f32.fits, memory.f16.fits], [false, true]);
    } finally {
      server.close();
      server.closeAllConnections();
    }
  });
});

test('inspect plans what load would do, with its threads, to be trained too', async () => {
  for (const options of [
    {},
    { threads: 1 },
    { threads: 3 },
    { worker: false, threads: 2 },
    { trainable: true },
    { dtype: 'q8', cacheDtype: 'f16' },
  ]) {
    const found = await inspect(folder, options);
    const lm = await load(folder, options);
    assert.deepEqual(found.memory[options.dtype ?? 'file'], { ...lm.info().memory, fits: true }, JSON.stringify(options));
    assert.equal(lm.info().memory.weights, (await lm.memory()).weights);
    assert.deepEqual(Object.keys(found.memory), options.trainable ? ['file', 'f32'] : ['file', 'f32', 'f16', 'bf16', 'q8', 'q4']);
    await lm.dispose();
  }
  const workspace = async (threads) => (await inspect(folder, { threads })).memory.file.workspace;
  assert.ok((await workspace(4)) > (await workspace(1)));
  const [plain, trained] = [await inspect(folder, { dtype: 'f32' }), await inspect(folder, { trainable: true })];
  assert.ok(trained.memory.f32.weights > 1.9 * plain.memory.f32.weights);
  await assert.rejects(
    inspect(folder, { trainable: true, dtype: 'f16' }),
    code('invalid-argument', /^\[inspect\] dtype: expected 'f32' with/),
  );
});

test('a name that is neither a local file nor found on the Hub', async () => {
  for (const name of ['none.gguf', 'gg/none.gguf', 'gg/none.bin', 'gg/none.safetensors'])
    await assert.rejects(
      load(name, { endpoint: 'http://127.0.0.1:1' }),
      code('not-found', new RegExp(`^\\[load\\] source: no such file or folder: ${name}$`)),
    );
  const hub = await startHub({ 'gg/there': { commit: 'b'.repeat(40), files: { 'config.json': '{}' } } });
  const options = { endpoint: hub.url, cacheDir: false, network: { retries: 0 } };
  const lost = (what, path) => code(what, new RegExp(`\\(and there is no local file or folder ${path}\\)$`));
  try {
    for (const name of ['gg/none', 'gg/deeper/none.gguf']) {
      await assert.rejects(load(name, options), lost('not-found', name));
      await assert.rejects(inspect(name, options), lost('not-found', name));
    }
    // What is there is no mistyped path.
    await assert.rejects(load('gg/there', options), code('invalid-file', /model_type: .*got nothing$/));
    Object.assign(hub, { api: false, token: 'x' });
    await assert.rejects(load('gg/there', options), lost('unauthorized', 'gg/there'));
  } finally {
    await hub.close();
  }
  await assert.rejects(load('gg/none', options), lost('network', 'gg/none'));
  await assert.rejects(load('gg/none', { ...options, offline: true }), lost('offline', 'gg/none'));
  await assert.rejects(
    create({ model_type: 'gpt2' }, { tokenizer: 'gg/none.json' }),
    code('not-found', /no such file or folder: gg\/none\.json$/),
  );
});

test('inspect reads no weights and computes memory by dtype', async () => {
  const found = await inspect(folder);
  assert.equal(found.architecture, 'llama');
  assert.ok(found.memory.f32.weights >= found.parameters * 4 && found.memory.f16.weights < found.memory.f32.weights * 0.55);
  assert.ok(found.memory.f32.fits && found.memory.f32.cachePerToken > 0);
});

describe('aborting', () => {
  for (const worker of [true, false]) {
    test(`at any moment of a load, ${worker ? 'in a worker' : 'in process'}`, async () => {
      await assert.rejects(load(folder, { worker, signal: AbortSignal.abort('early') }), (reason) => reason === 'early');
      const attempt = async (arm) => {
        const controller = new AbortController();
        const reason = new Error('enough');
        const onProgress = arm(() => controller.abort(reason));
        try {
          await (await load(folder, { worker, signal: controller.signal, ...(onProgress ? { onProgress } : {}) })).dispose();
          return 'loaded';
        } catch (error) {
          assert.equal(error, reason);
          return 'aborted';
        }
      };
      // After so many turns of the event loop; after so much of the time that a load takes; at the n-th report of progress.
      const outcomes = [];
      for (let turns = 0; turns < 30; ++turns) {
        outcomes.push(
          await attempt((abort) => {
            const tick = (left) => (left === 0 ? abort() : setImmediate(tick, left - 1));
            tick(turns);
          }),
        );
      }
      const began = performance.now();
      await attempt(() => {});
      const duration = performance.now() - began;
      for (let part = 0; part < 30; ++part) outcomes.push(await attempt((abort) => void setTimeout(abort, (duration * part) / 30)));
      for (let report = 0; report < 6; ++report) {
        outcomes.push(
          await attempt((abort) => {
            let seen = 0;
            return () => seen++ === report && abort();
          }),
        );
      }
      assert.ok(outcomes.filter((outcome) => outcome === 'aborted').length > 20, outcomes.join());
      const controller = new AbortController();
      const lm = await load(folder, { worker, signal: controller.signal });
      controller.abort();
      assert.equal((await lm.score('ab')).tokenIds.length, 2, 'an abort after the load does nothing');
    });
  }

  test('listeners are taken off again', async () => {
    const controller = new AbortController();
    const { signal } = controller;
    let listeners = 0;
    const add = signal.addEventListener.bind(signal);
    const remove = signal.removeEventListener.bind(signal);
    const known = new Set();
    signal.addEventListener = (type, listener, options) => {
      known.add(listener);
      listeners = known.size;
      add(type, listener, options);
    };
    signal.removeEventListener = (type, listener, options) => {
      known.delete(listener);
      listeners = known.size;
      remove(type, listener, options);
    };
    const lm = await load(folder, { signal });
    await lm.generate('ab', { maxNewTokens: 2, signal }).result;
    await lm.forward({ inputIds: [[1]] }, { signal });
    await lm.score('ab', { signal });
    await assert.rejects(lm.score('', { signal }));
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(listeners, 0);
  });
});

test('inspect tells of a model beyond 32 bits too', async () => {
  const config = {
    hidden_size: 4096,
    intermediate_size: 11008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: 32,
    vocab_size: 32000,
  };
  const header = {};
  let offset = 0;
  llama(
    (name, shape) => {
      const size = shape.reduce((a, b) => a * b, 1) * 4;
      header[name] = { dtype: 'F32', shape, data_offsets: [offset, (offset += size)] };
      return new Float32Array(0);
    },
    { config },
  );
  const text = Buffer.from(JSON.stringify(header));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(text.length));
  const big = mkdtempSync(join(tmpdir(), 'wasmformer-big-'));
  try {
    const file = openSync(join(big, 'model.safetensors'), 'w');
    writeSync(file, Buffer.concat([prefix, text]));
    ftruncateSync(file, prefix.length + text.length + offset);
    closeSync(file);
    writeFileSync(join(big, 'config.json'), edited((old) => ({ ...old, ...config }))['config.json']);
    const { parameters, memory } = await inspect(big);
    assert.equal(parameters, 6_738_415_616);
    assert.ok(memory.f32.weights >= parameters * 4 && !memory.f32.fits && !memory.f16.fits);
    await assert.rejects(load(big), code('out-of-memory', /no dtype would fit/));
  } finally {
    rmSync(big, { recursive: true });
  }
});

describe('from a server', () => {
  let hub;
  const cacheDir = join(folder, 'cache');
  before(async () => {
    const large = random(1, { config: { intermediate_size: 1600 } });
    hub = await startHub({ 'someone/model': { commit: 'a'.repeat(40), files: large } });
  });
  after(() => hub.close());

  for (const worker of [true, false]) {
    test(`an abort midway rejects at once, and the next load goes on from there, ${worker ? 'in a worker' : 'in process'}`, async () => {
      const options = { endpoint: hub.url, cacheDir: join(cacheDir, String(worker)), worker };
      const weights = '/someone/model/resolve/main/model.safetensors';
      hub.rules[weights] = { slow: 20 };
      hub.rules[weights.replace('main', 'a'.repeat(40))] = { slow: 20 };
      const controller = new AbortController();
      let abortedAt = 0;
      const onProgress = ({ file, loaded }) => {
        if (file === 'model.safetensors' && loaded > 1e6 && !abortedAt) {
          abortedAt = performance.now();
          controller.abort(new Error('enough'));
        }
      };
      await assert.rejects(load('someone/model', { ...options, onProgress, signal: controller.signal }), { message: 'enough' });
      assert.ok(abortedAt > 0 && performance.now() - abortedAt < 1000);
      hub.rules = {};
      const before = hub.log.length;
      const lm = await load('someone/model', options);
      assert.equal((await lm.generate('ab', { maxNewTokens: 2, eosTokenId: null }).result).tokenIds.length, 2);
      const sent = hub.log.slice(before).filter(({ path }) => path.endsWith('model.safetensors'));
      const size = hub.repos['someone/model'].files['model.safetensors'].length;
      assert.ok(sent.reduce((sum, entry) => sum + entry.sent, 0) < size - 0.5e6, 'what had arrived is not downloaded again');
      assert.equal(lm.info().commit, 'a'.repeat(40));
      assert.equal(lm.info().source, 'someone/model');
    });
  }

  test('errors keep their codes on the way out of the worker', async () => {
    const options = { endpoint: hub.url, cacheDir: false, network: { retries: 1, retryDelay: 5 } };
    await assert.rejects(load('someone/nothing', options), code('not-found', /someone\/nothing/));
    hub.token = 'right';
    try {
      await assert.rejects(load('someone/model', { ...options, token: 'wrong' }), code('unauthorized'));
      await load('someone/model', { ...options, token: 'right' });
    } finally {
      hub.token = null;
    }
    await assert.rejects(load('someone/model', { ...options, offline: true }), code('offline'));
    await assert.rejects(load('someone/model', { ...options, endpoint: 'http://127.0.0.1:9' }), code('network'));
  });
});

describe('forward', () => {
  test('checks what it is given', async () => {
    const lm = await load(files, { worker: false });
    await assert.rejects(lm.forward({}), code('invalid-argument', /inputIds/));
    await assert.rejects(lm.forward({ inputIds: [[1]], mask: [[1]] }), code('invalid-argument', /'mask'/));
    await assert.rejects(lm.forward({ inputIds: [[264]] }), code('invalid-argument', /from 0 to 263, got 264/));
    await assert.rejects(
      lm.forward({ inputIds: [[1, 2]], attentionMask: [[1]] }),
      code('invalid-argument', /attentionMask\[0\]: expected 2/),
    );
    await assert.rejects(lm.forward({ inputIds: [[1, 2]], attentionMask: [[1, 2]] }), code('invalid-argument', /0 or 1/));
    await assert.rejects(
      lm.forward({
        inputIds: [[1, 2]],
        positionIds: [
          [0, 1],
          [0, 1],
        ],
      }),
      code('invalid-argument'),
    );
    await assert.rejects(lm.forward({ inputIds: [[1]] }, { attention: true }), code('invalid-argument', /'attentions'/));
    await assert.rejects(lm.forward({ inputIds: [[1]] }, { trace: 'all' }), code('invalid-argument', /trace/));
    await assert.rejects(lm.forward({ inputIds: [[1]], tokenTypeIds: [[0]] }), code('invalid-argument', /token types/));
    await assert.rejects(lm.forward({ inputIds: [[1]] }, { attentions: { layers: [1] } }), code('invalid-argument', /layer/));
  });

  test('attentions can be selected, and asking changes nothing', async () => {
    const lm = await load(files);
    const input = {
      inputIds: [
        [1, 2, 3, 4],
        [5, 6],
      ],
    };
    const plain = await lm.forward(input);
    const all = await lm.forward(input, { attentions: true, hiddenStates: true });
    const some = await lm.forward(input, { attentions: { layers: [0], heads: [2, 0] } });
    for (const i of [0, 1]) {
      const n = input.inputIds[i].length;
      assert.deepEqual(Object.keys(plain[i]), ['logits']);
      assert.deepEqual(all[i].logits, plain[i].logits);
      assert.deepEqual(
        all[i].attentions.map(({ shape }) => shape),
        [[4, n, n]],
      );
      assert.deepEqual(
        all[i].hiddenStates.map(({ shape }) => shape),
        [
          [n, 264],
          [n, 264],
        ],
      );
      assert.deepEqual(some[i].attentions[0].shape, [2, n, n]);
      const head = (tensor, h) => tensor.data.slice(h * n * n, (h + 1) * n * n);
      assert.deepEqual(head(some[i].attentions[0], 0), head(all[i].attentions[0], 2));
      assert.deepEqual(head(some[i].attentions[0], 1), head(all[i].attentions[0], 0));
      for (let row = 0; row < 4 * n; ++row) {
        const sum = all[i].attentions[0].data.subarray(row * n, (row + 1) * n).reduce((a, b) => a + b, 0);
        assert.ok(Math.abs(sum - 1) < 1e-5);
      }
    }
    // The tensors are the caller's own.
    plain[0].logits.data.fill(0);
    assert.deepEqual(await lm.forward(input), await lm.forward(input));
    assert.deepEqual((await lm.forward({ inputIds: [1, 2, 3, 4] }))[0].logits, all[0].logits, 'one flat list is one sequence');
  });
});

test('score: texts, ids, arrays, specials', async () => {
  const lm = await load(files, { worker: false });
  const [a, b] = await lm.score(['hello', { inputIds: [104, 101] }]);
  assert.deepEqual(a.tokenIds, [104, 101, 108, 108, 111]);
  assert.ok(Number.isNaN(a.logprobs[0]) && a.logprobs.slice(1).every((value) => value < 0));
  assert.equal(a.logprobs[1], b.logprobs[1], 'a batch gives what each gives alone');
  assert.equal(a.perplexity, Math.exp(-a.logprobs.slice(1).reduce((x, y) => x + y) / 4));
  assert.ok(Number.isNaN((await lm.score('h')).perplexity));
  await assert.rejects(lm.score(''), code('invalid-argument'));
});

test('ops.processLogits needs no model', async () => {
  assert.deepEqual([...(await ops.processLogits([1, 2, 3, 4], [0], { topK: 2 }))], [-Infinity, -Infinity, 3, 4]);
  assert.deepEqual([...(await ops.processLogits([2, -2, 4], [0, 1], { repetitionPenalty: 2 }))], [1, -4, 4]);
  await assert.rejects(ops.processLogits([1], [0], { topk: 2 }), code('invalid-argument', /'topK'/));
  await assert.rejects(ops.processLogits([], [0]), code('invalid-argument'));
  await assert.rejects(ops.processLogits([1], [0], { promptLength: 3 }), code('invalid-argument'));
});

test('error codes are a stable list', () => {
  assert.deepEqual([...errorCodes].sort(), [
    'busy',
    'dead',
    'disposed',
    'diverged',
    'internal',
    'invalid-argument',
    'invalid-file',
    'missing-tensor',
    'network',
    'not-found',
    'offline',
    'out-of-memory',
    'quota',
    'shape-mismatch',
    'unauthorized',
    'unsupported',
  ]);
});
