// Downloads: resumed, cached, refused, never hanging. Against a local server laid out like the Hub.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, beforeEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { files } from './support/bundle.mjs';
import { noise, safetensors, startHub } from './support/hub.mjs';

const api = await files();
const { openCheckpoint, loadTensors, matchTensors, loadTokenizer, nodeFiles, createCacheApi } = api;

const kCommit = 'a'.repeat(40);
const kRows = 300;
const kCols = 1024;
const weights = noise(kRows * kCols * 4, 7);
const bias = noise(kCols * 2, 9);
const model = safetensors({
  'model.w': { dtype: 'F32', shape: [kRows, kCols], data: weights },
  'model.b': { dtype: 'F16', shape: [kCols], data: bias },
  'stray.mask': { dtype: 'U8', shape: [5000], data: noise(5000, 3) },
});
const json = (value) => Buffer.from(JSON.stringify(value));
const repo = () => ({
  commit: kCommit,
  files: {
    'config.json': json({ model_type: 'gpt2', n_layer: 1 }),
    'generation_config.json': json({ eos_token_id: [1, 2] }),
    'model.safetensors': model,
  },
});
const parameters = [
  { name: 'w', shape: [kRows, kCols], prefix: 'model.' },
  { name: 'b', shape: [kCols], prefix: 'model.' },
];

const hub = await startHub({ 'org/name': repo(), legacy: repo() });
const folder = mkdtempSync(join(tmpdir(), 'wasmformer-hub-'));
let cacheDir;
let rounds = 0;
beforeEach(() => {
  hub.repos = { 'org/name': repo(), legacy: repo() };
  Object.assign(hub, { rules: {}, api: true, commits: true, token: null, log: [], down: false, missing: 404, noHead: false });
  cacheDir = join(folder, String(++rounds));
});
after(async () => {
  await hub.close();
  rmSync(folder, { recursive: true, force: true });
});

const network = { retries: 3, retryDelay: 5, stallTimeout: 400, cacheWait: 5000 };
const options = (more = {}) => ({ endpoint: hub.url, cacheDir, network, ...more });

/** Loads everything; the weights, checked. */
async function load(source = 'org/name', more = {}, slabBytes = 100_000) {
  const checkpoint = await openCheckpoint(source, options(more), nodeFiles);
  try {
    const { matches, unused } = matchTensors(parameters, checkpoint.tensors);
    const got = [Buffer.alloc(weights.length), Buffer.alloc(bias.length)];
    const row = [kCols * 4, 2];
    for await (const slab of loadTensors(checkpoint, matches, { slabBytes })) {
      assert.equal(slab.bytes.length, slab.rowCount * row[slab.index]);
      got[slab.index].set(slab.bytes, slab.rowBegin * row[slab.index]);
    }
    assert.ok(got[0].equals(weights) && got[1].equals(bias), 'the weights came as they are');
    assert.deepEqual(unused, ['stray.mask']);
    return checkpoint;
  } finally {
    await checkpoint.close();
  }
}

/** An archive as `torch.save` writes it: 40 tensors in stored entries. */
function torchArchive() {
  const tensors = Array.from({ length: 40 }, (_, i) => ({
    name: `layer.${i}.w`,
    shape: [10 + i, 256],
    data: noise((10 + i) * 1024, i + 1),
  }));
  const short = (value) => Buffer.concat([Buffer.from([0x8c, value.length]), Buffer.from(value)]);
  const int = (value) => {
    const bytes = Buffer.from([0x4a, 0, 0, 0, 0]);
    bytes.writeInt32LE(value, 1);
    return bytes;
  };
  const tuple = (...items) => Buffer.concat([Buffer.from('('), ...items, Buffer.from('t')]);
  const pickle = [Buffer.from('\x80\x02}(', 'latin1')];
  tensors.forEach(({ name, shape, data }, i) => {
    const storage = tuple(short('storage'), Buffer.from('ctorch\nFloatStorage\n'), short(String(i)), short('cpu'), int(data.length / 4));
    pickle.push(short(name), Buffer.from('ctorch._utils\n_rebuild_tensor_v2\n'));
    pickle.push(
      tuple(storage, Buffer.from('Q'), int(0), tuple(...shape.map(int)), tuple(int(256), int(1)), Buffer.from([0x89, 0x7d])),
      Buffer.from('R'),
    );
  });
  pickle.push(Buffer.from('u.'));
  const entries = [['archive/data.pkl', Buffer.concat(pickle)], ...tensors.map(({ data }, i) => [`archive/data/${i}`, data])];
  const parts = [];
  const directory = [];
  let offset = 0;
  for (const [name, body] of entries) {
    const extra = Buffer.alloc(4 + ((128 - ((offset + 34 + name.length) % 64)) % 64));
    extra.writeUInt16LE(extra.length - 4, 2);
    const local = Buffer.alloc(30);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(name.length, 26);
    local.writeUInt16LE(extra.length, 28);
    const central = Buffer.alloc(46);
    central.writeUInt32LE(0x02014b50, 0);
    central.writeUInt32LE(body.length, 20);
    central.writeUInt32LE(body.length, 24);
    central.writeUInt16LE(name.length, 28);
    central.writeUInt32LE(offset, 42);
    parts.push(local, Buffer.from(name), extra, body);
    directory.push(central, Buffer.from(name));
    offset += 30 + name.length + extra.length + body.length;
  }
  const central = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(entries.length, 10);
  end.writeUInt32LE(central.length, 12);
  end.writeUInt32LE(offset, 16);
  return { bytes: Buffer.concat([...parts, central, end]), weights: tensors };
}

const rejects = (work, code, pattern) =>
  assert.rejects(work, (error) => {
    assert.equal(error.code, code, `${error.code}: ${error.message}`);
    assert.match(error.message, pattern);
    return true;
  });
const bodies = () => hub.log.filter(({ method, status, path }) => method === 'GET' && status < 300 && !path.startsWith('/api/'));
const blobs = () => (existsSync(join(cacheDir, 'blobs')) ? readdirSync(join(cacheDir, 'blobs')) : []);

test('a repository loads, is fetched once, and works offline', async () => {
  const progress = [];
  const first = await load('org/name', { onProgress: (p) => progress.push(p) });
  assert.equal(first.commit, kCommit);
  assert.deepEqual({ ...first.generationConfig }, { eos_token_id: [1, 2] });
  assert.equal(first.config.n_layer, 1);
  const last = progress.at(-1);
  assert.equal(last.overallLoaded, last.overallTotal);
  assert.deepEqual(progress.filter((p) => p.file === 'model.safetensors').at(-1), {
    ...last,
    file: 'model.safetensors',
    loaded: model.length,
    total: model.length,
    cached: false,
  });
  const sent = bodies().reduce((sum, entry) => sum + entry.sent, 0);
  assert.ok(sent < model.length + 1000, `sent ${sent} bytes for ${model.length}`);
  hub.log.length = 0;
  await load();
  assert.deepEqual(bodies(), [], 'nothing fetched again');
  hub.log.length = 0;
  await load('org/name', { offline: true });
  assert.deepEqual(hub.log, []);
  assert.equal(
    blobs().some((name) => /partial|lock/.test(name)),
    false,
  );
});

test('a commit as revision needs no request at all the second time', async () => {
  await load('org/name', { revision: kCommit });
  hub.log.length = 0;
  await load('org/name', { revision: kCommit });
  assert.deepEqual(hub.log, []);
});

test('ids without an organisation, and paths inside a repository', async () => {
  await load('legacy');
  hub.repos['org/name'].files = Object.fromEntries(Object.entries(repo().files).map(([name, bytes]) => [`sub/dir/${name}`, bytes]));
  await load('org/name/sub/dir');
  await load('org/name/sub/dir/model.safetensors');
});

test('a server that only resolves: optional files are asked for once a commit', async () => {
  hub.api = false;
  const first = await load();
  assert.equal(first.commit, kCommit);
  delete hub.repos['org/name'].files['generation_config.json'];
  hub.log.length = 0;
  await load();
  assert.deepEqual(
    hub.log.map(({ method, path }) => `${method} ${path}`),
    ['GET /api/models/org/name/revision/main', 'HEAD /org/name/resolve/main/config.json'],
  );
});

test('the absence of an optional file is remembered with the commit', async () => {
  hub.api = false;
  delete hub.repos['org/name'].files['generation_config.json'];
  await load();
  assert.equal(hub.requests(`/org/name/resolve/${kCommit}/generation_config.json`).length, 1);
  hub.log.length = 0;
  await load();
  assert.equal(hub.requests(`/org/name/resolve/${kCommit}/generation_config.json`).length, 0);
  await load('org/name', { offline: true });
});

test('without X-Repo-Commit the ETag decides', async () => {
  hub.api = false;
  hub.commits = false;
  const first = await load();
  assert.equal(first.commit, undefined);
  hub.log.length = 0;
  await load();
  assert.deepEqual(
    hub.log.filter(({ method, status }) => method === 'GET' && status === 200),
    [],
  );
  hub.repos['org/name'].files['config.json'] = json({ model_type: 'gpt2', n_layer: 2 });
  const second = await load();
  assert.equal(second.config.n_layer, 2);
  await load('org/name', { offline: true });
});

test('a new commit is seen, and what did not change is not fetched again', async () => {
  await load();
  hub.repos['org/name'].commit = 'b'.repeat(40);
  hub.log.length = 0;
  const second = await load();
  assert.equal(second.commit, 'b'.repeat(40));
  const sent = bodies().reduce((sum, entry) => sum + entry.sent, 0);
  assert.ok(sent < 600_000, `only the first part of the weights may be asked for, ${sent} bytes came`);
});

test('a connection that drops is resumed with Range and If-Range', async () => {
  hub.rules['model.safetensors'] = { dropAfter: 200_000, drops: 4 };
  await load();
  const asked = hub.requests(`/org/name/resolve/${kCommit}/model.safetensors`);
  assert.ok(asked.length >= 4);
  assert.ok(asked.slice(1).every(({ range, ifRange, status }) => /^bytes=[1-9]/.test(range) && ifRange !== undefined && status === 206));
  const sent = asked.reduce((sum, entry) => sum + entry.sent, 0);
  assert.ok(sent < 1.7 * model.length, `sent ${sent} bytes for ${model.length}`);
});

test('a later run goes on where an interrupted one stopped', async () => {
  hub.rules['model.safetensors'] = { dropAfter: 150_000, drops: 100 };
  const stop = new AbortController();
  let loaded = 0;
  const onProgress = (p) => {
    if (p.file === 'model.safetensors') loaded = p.loaded;
    if (loaded > 700_000) stop.abort(new Error('enough'));
  };
  await assert.rejects(load('org/name', { signal: stop.signal, onProgress }), /enough/);
  assert.ok(blobs().some((name) => name.endsWith('.partial')));
  assert.equal(
    blobs().some((name) => name.endsWith('.lock')),
    false,
  );
  const partial = statSync(
    join(
      cacheDir,
      'blobs',
      blobs().find((name) => name.endsWith('.partial')),
    ),
  ).size;
  assert.ok(partial >= 700_000);
  hub.rules = {};
  hub.log.length = 0;
  await load();
  const resumed = hub.requests(`/org/name/resolve/${kCommit}/model.safetensors`);
  assert.ok(
    resumed.some(({ range }) => range === `bytes=${partial}-`),
    JSON.stringify(resumed),
  );
});

test('a server that ignores Range still gives the file', async () => {
  hub.rules['model.safetensors'] = { ignoreRange: true };
  await load();
  hub.rules['model.safetensors'] = { ignoreRange: true, dropAfter: 900_000 };
  await load('org/name', { cacheDir: false });
});

test('without a cache nothing is kept and the weights come all the same', async () => {
  hub.rules['model.safetensors'] = { dropAfter: 300_000, drops: 3 };
  await load('org/name', { cacheDir: false });
  assert.equal(existsSync(cacheDir), false);
});

test('redirects are followed, and the token stays with the host it is for', async () => {
  hub.token = 'secret';
  hub.rules['model.safetensors'] = { redirect: true };
  await load('org/name', { token: 'secret' });
});

test('401, 403 and 404 are named', async () => {
  hub.token = 'secret';
  hub.api = false;
  await rejects(load(), 'unauthorized', /org\/name.*401.*pass a token/);
  await rejects(load('org/name', { token: 'wrong' }), 'unauthorized', /the token does not open it/);
  hub.token = null;
  hub.api = true;
  hub.rules['model.safetensors'] = { status: 403 };
  await rejects(load(), 'unauthorized', /\[org\/name\] model.safetensors.*403/);
  hub.rules = {};
  await rejects(load('org/other'), 'not-found', /\[org\/other\] config.json/);
  await rejects(load('org/name', { revision: 'nope' }), 'not-found', /config.json.*nope/);
  delete hub.repos['org/name'].files['model.safetensors'];
  await rejects(load(), 'not-found', /model.safetensors or pytorch_model.bin/);
});

test('an HTML page in place of a file is named', async () => {
  hub.rules['model.safetensors'] = { html: true };
  await rejects(load(), 'invalid-file', /\[org\/name\] model.safetensors.*HTML page/);
  hub.rules = { 'config.json': { html: true } };
  await rejects(load('legacy'), 'invalid-file', /config.json.*HTML page/);
  hub.rules = {};
  await load();
  await load('legacy');
});

test('a page that does not say it is HTML is not kept either', async () => {
  hub.repos['org/name'].files['config.json'] = Buffer.from('<html>portal</html>');
  await rejects(load(), 'invalid-file', /config.json.*HTML or XML page/);
  hub.repos = { 'org/name': repo() };
  await load();
});

test('lengths that lie end in a named error, not in a hang', async () => {
  for (const lie of [-100_000, 5, 100_000]) {
    hub.rules['model.safetensors'] = { lie };
    const start = performance.now();
    await assert.rejects(load('org/name', { cacheDir: false }), (error) => {
      assert.ok(['network', 'invalid-file'].includes(error.code), `${lie}: ${error.code}: ${error.message}`);
      assert.match(error.message, /model.safetensors/);
      return true;
    });
    hub.rules['model.safetensors'] = { lie, ignoreRange: true };
    await assert.rejects(load(), (error) => ['network', 'invalid-file'].includes(error.code) && /model.safetensors/.test(error.message));
    assert.ok(performance.now() - start < 8000);
  }
  hub.rules = {};
  await load();
});

test('many shards: one pass over each, whatever the server does', async () => {
  const shards = Array.from({ length: 9 }, (_, i) => noise(400 * 2048, i + 1));
  const names = shards.map((_, i) => `model-0000${i + 1}-of-00009.safetensors`);
  hub.repos['org/name'].files = {
    'config.json': json({ model_type: 'gpt2' }),
    'model.safetensors.index.json': json({ weight_map: Object.fromEntries(names.map((name, i) => [`w${i}`, name])) }),
    ...Object.fromEntries(
      names.map((name, i) => [name, safetensors({ [`w${i}`]: { dtype: 'F16', shape: [400, 1024], data: shards[i] } })]),
    ),
  };
  for (const rule of [{}, { dropAfter: 300_000 }, { ignoreRange: true }]) {
    for (const dir of [false, join(cacheDir, JSON.stringify(rule).length.toString())]) {
      for (const name of names) hub.rules[name] = { ...rule };
      hub.log.length = 0;
      const checkpoint = await openCheckpoint('org/name', options({ cacheDir: dir }), nodeFiles);
      const { matches } = matchTensors(
        shards.map((_, i) => ({ name: `w${i}`, shape: [400, 1024] })),
        checkpoint.tensors,
      );
      const got = shards.map(() => Buffer.alloc(400 * 2048));
      for await (const slab of loadTensors(checkpoint, matches, { slabBytes: 70_000 }))
        got[slab.index].set(slab.bytes, slab.rowBegin * 2048);
      await checkpoint.close();
      assert.ok(got.every((bytes, i) => bytes.equals(shards[i])));
      const sent = names.map((name) => hub.requests(`/org/name/resolve/${kCommit}/${name}`).reduce((sum, entry) => sum + entry.sent, 0));
      // What a dropped connection still had in its buffers counts as sent, and is sent again.
      const inBuffers = rule.dropAfter ? Math.floor(819_275 / rule.dropAfter) * 65_536 : 0;
      if (!rule.ignoreRange)
        assert.ok(
          sent.every((bytes) => bytes < 820_000 + inBuffers),
          `${sent} with ${JSON.stringify(rule)}`,
        );
    }
    await (
      await openCheckpoint(
        'org/name',
        options({ cacheDir: join(cacheDir, JSON.stringify(rule).length.toString()), offline: true }),
        nodeFiles,
      )
    ).close();
  }
});

test('small files whose length lies', async () => {
  hub.rules['config.json'] = { lie: 5 };
  await rejects(load(), 'network', /config.json.*4 attempts/);
  hub.rules['config.json'] = { lie: -5 };
  await rejects(load(), 'invalid-file', /config.json.*JSON/);
  hub.rules = {};
  await load();
});

test('torch archives by download: read from both ends, in one pass', async () => {
  const { bytes, weights: tensors } = torchArchive();
  hub.repos['org/name'].files = { 'config.json': json({ model_type: 'gpt2' }), 'pytorch_model.bin': bytes };
  const rules = [{}, { dropAfter: 400_000, drops: 3 }, { ignoreRange: true }, { redirect: true }];
  for (const rule of rules) {
    for (const dir of [false, join(cacheDir, String(rules.indexOf(rule)))]) {
      hub.rules['pytorch_model.bin'] = { ...rule };
      hub.log.length = 0;
      const checkpoint = await openCheckpoint('org/name', options({ cacheDir: dir }), nodeFiles);
      assert.equal(checkpoint.format, 'pytorch');
      const { matches } = matchTensors(
        tensors.map(({ name, shape }) => ({ name, shape })),
        checkpoint.tensors,
      );
      const got = tensors.map(({ data }) => Buffer.alloc(data.length));
      for await (const slab of loadTensors(checkpoint, matches, { slabBytes: 50_000 })) {
        got[slab.index].set(slab.bytes, slab.rowBegin * (tensors[slab.index].data.length / tensors[slab.index].shape[0]));
      }
      await checkpoint.close();
      for (const [i, { name, data }] of tensors.entries()) assert.ok(got[i].equals(data), `${name} with ${JSON.stringify(rule)}`);
      const sent = hub
        .requests(`${rule.redirect ? '/cdn' : ''}/org/name/resolve/${kCommit}/pytorch_model.bin`)
        .reduce((sum, entry) => sum + entry.sent, 0);
      if (!rule.ignoreRange) assert.ok(sent < 1.5 * bytes.length, `sent ${sent} bytes for ${bytes.length} with ${JSON.stringify(rule)}`);
      assert.ok(bodies().length < 30);
    }
    const again = await openCheckpoint(
      'org/name',
      options({ cacheDir: join(cacheDir, String(rules.indexOf(rule))), offline: true }),
      nodeFiles,
    );
    assert.equal(again.tensors.size, tensors.length);
  }
});

test('a connection that stalls is dropped and resumed; one that always stalls is an error', async () => {
  hub.rules['model.safetensors'] = { stallAfter: 100_000, stalls: 2 };
  await load();
  hub.rules['config.json'] = { stallAfter: 0, stalls: 100 };
  const start = performance.now();
  await rejects(load('legacy'), 'network', /config.json.*no .* for 400 ms/);
  assert.ok(performance.now() - start < 6000);
});

test('a server that answers 500 is asked again, then given up', async () => {
  hub.rules['model.safetensors'] = { status: 503 };
  await rejects(load(), 'network', /model.safetensors.*503.*4 attempts/);
});

test('a file that changes during the download is noticed', async () => {
  hub.api = false;
  hub.commits = false;
  hub.rules['model.safetensors'] = { dropAfter: 600_000 };
  const checkpoint = await openCheckpoint('org/name', options(), nodeFiles);
  const other = Buffer.from(model);
  other[other.length - 1] ^= 1;
  hub.repos['org/name'].files['model.safetensors'] = other;
  const { matches } = matchTensors(parameters, checkpoint.tensors);
  await rejects(
    (async () => {
      for await (const _ of loadTensors(checkpoint, matches));
    })(),
    'network',
    /model.safetensors: changed on the server.*ETag/,
  );
  await checkpoint.close();
  hub.rules = {};
  hub.repos['org/name'] = repo();
  await load();
});

test('compressed and chunked answers', async () => {
  hub.rules['config.json'] = { gzip: true };
  hub.rules['generation_config.json'] = { noLength: true };
  hub.rules['model.safetensors'] = { noLength: true, ignoreRange: true };
  await load();
});

test('offline, a missing file is named', async () => {
  await rejects(load('org/name', { offline: true }), 'offline', /org\/name.*config.json/);
  assert.deepEqual(hub.log, []);
});

test('a server out of reach: the cached copy is used, with a warning; without one it is a network error', async () => {
  await load();
  hub.down = true;
  hub.disconnect();
  const checkpoint = await load();
  assert.ok(checkpoint.warnings.some(({ code }) => code === 'network'));
  await rejects(load('legacy'), 'network', /legacy/);
});

test('an abort ends a download at once, with its reason', async () => {
  hub.rules['model.safetensors'] = { slow: 30 };
  const stop = new AbortController();
  const reason = new Error('stopped by the test');
  setTimeout(() => stop.abort(reason), 150);
  const start = performance.now();
  await assert.rejects(load('org/name', { signal: stop.signal }), (error) => error === reason);
  assert.ok(performance.now() - start < 1000);
  await assert.rejects(load('org/name', { signal: AbortSignal.abort(reason) }), (error) => error === reason);
});

test('two loads at once fetch a file once', async () => {
  hub.rules['model.safetensors'] = { slow: 5 };
  await Promise.all([load(), load(), load()]);
  const sent = hub.requests(`/org/name/resolve/${kCommit}/model.safetensors`).reduce((sum, entry) => sum + entry.sent, 0);
  assert.ok(sent < 2 * model.length, `sent ${sent} bytes for ${model.length}`);
  assert.equal(blobs().filter((name) => /partial|lock/.test(name)).length, 0);
});

/** Loads in another process; what it printed, or null if it was killed. */
function elsewhere(more = {}, onStart = () => {}) {
  const child = spawn(
    process.execPath,
    [fileURLToPath(new URL('support/load-child.mjs', import.meta.url)), 'org/name', JSON.stringify(options(more))],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  );
  onStart(child);
  let text = '';
  child.stdout.on('data', (piece) => {
    text += piece;
  });
  return new Promise((resolve) => child.on('close', (code) => resolve(code === 0 ? JSON.parse(text) : null)));
}

test('two processes at once do not harm each other, and fetch a file once', async () => {
  hub.rules['model.safetensors'] = { slow: 20 };
  const results = await Promise.all([elsewhere(), elsewhere(), elsewhere()]);
  assert.ok(results[0] !== null);
  assert.deepEqual(results[1], results[0]);
  assert.deepEqual(results[2], results[0]);
  assert.deepEqual(results[0].warnings, []);
  const sent = hub.requests(`/org/name/resolve/${kCommit}/model.safetensors`).reduce((sum, entry) => sum + entry.sent, 0);
  assert.ok(sent < 2.2 * model.length, `sent ${sent} bytes for ${model.length}`);
  await load('org/name', { offline: true });
});

test('a process that is killed leaves what it had, and nobody waits for it', async () => {
  hub.rules['model.safetensors'] = { slow: 40 };
  let victim;
  const dead = elsewhere({}, (child) => {
    victim = child;
  });
  const partialOf = () => blobs().find((name) => name.endsWith('.partial'));
  const sizeOf = (name) => (name === undefined ? 0 : statSync(join(cacheDir, 'blobs', name)).size);
  while (sizeOf(partialOf()) < 600_000) await new Promise((resolve) => setTimeout(resolve, 10));
  victim.kill('SIGKILL');
  assert.equal(await dead, null);
  assert.ok(blobs().some((name) => name.endsWith('.lock')));
  const had = sizeOf(partialOf());
  hub.rules = {};
  hub.log.length = 0;
  const start = performance.now();
  await load();
  assert.ok(performance.now() - start < 3000);
  assert.ok(hub.requests().some(({ range }) => range === `bytes=${had}-`));
});

test('a busy entry: the wait ends, the model loads without being kept, and says so', async () => {
  const holder = await openCheckpoint('org/name', options(), nodeFiles);
  const other = await load('org/name', { network: { ...network, cacheWait: 100 } });
  assert.deepEqual(
    other.warnings.map(({ code }) => code),
    ['busy'],
  );
  await holder.close();
  await load();
});

test('a full cache: a named warning, and the model loads', async () => {
  const full = {
    ...nodeFiles,
    async openCache(directory) {
      const cache = await nodeFiles.openCache(directory);
      const writeBlob = cache.writeBlob.bind(cache);
      cache.writeBlob = async (key, size, more) => {
        const writer = await writeBlob(key, size, more);
        if (size > 100_000) {
          const append = writer.append.bind(writer);
          writer.append = (bytes) => {
            if (writer.length > 700_000) throw new api.WasmformerError('quota', '[cache] no room');
            return append(bytes);
          };
        }
        return writer;
      };
      return cache;
    },
  };
  const checkpoint = await openCheckpoint('org/name', options(), full);
  const { matches } = matchTensors(parameters, checkpoint.tensors);
  const got = Buffer.alloc(weights.length);
  for await (const slab of loadTensors(checkpoint, matches)) if (slab.index === 0) got.set(slab.bytes, slab.rowBegin * kCols * 4);
  assert.ok(got.equals(weights));
  assert.deepEqual(
    checkpoint.warnings.map(({ code }) => code),
    ['quota'],
  );
  await checkpoint.close();
  assert.equal(
    blobs().some((name) => /partial|lock/.test(name)),
    false,
    'the room is given back',
  );
});

test('a cache folder that cannot be made is a warning', async () => {
  const checkpoint = await load('org/name', { cacheDir: '/dev/null/cache' });
  assert.equal(checkpoint.warnings.length, 1);
});

test('the cache is listed and emptied', async () => {
  const cache = createCacheApi(nodeFiles, { cacheDir });
  assert.deepEqual(await cache.list(), []);
  await load();
  await load('legacy');
  const listed = await cache.list();
  assert.deepEqual(
    listed.map(({ id, file, size, commit, revision }) => [id, file, size, commit, revision]),
    ['legacy', 'org/name'].flatMap((id) =>
      Object.entries(repo().files)
        .sort()
        .map(([file, bytes]) => [id, file, bytes.length, kCommit, 'main']),
    ),
  );
  assert.equal(await cache.location(), cacheDir);
  assert.equal(await cache.clear('legacy'), 0, 'its blobs are also those of org/name');
  await load('org/name', { offline: true });
  await rejects(load('legacy', { offline: true }), 'offline', /legacy/);
  const freed = await cache.clear();
  assert.ok(freed >= model.length);
  assert.deepEqual(await cache.list(), []);
  assert.deepEqual(blobs(), []);
  await load();
});

test('a malformed cached file is forgotten', async () => {
  hub.repos['org/name'].files['model.safetensors'] = model.subarray(0, model.length - 10);
  await rejects(load(), 'invalid-file', /model.safetensors/);
  await rejects(load(), 'invalid-file', /model.safetensors/);
  assert.equal(
    (await createCacheApi(nodeFiles, { cacheDir }).list()).some(({ file }) => file === 'model.safetensors'),
    false,
  );
});

test('URLs of a folder, of a file in it, and of the Hub itself', async () => {
  const base = `${hub.url}/org/name/resolve/main`;
  const elsewhere = { endpoint: 'http://127.0.0.1:9' };
  await load(base, elsewhere);
  hub.log.length = 0;
  await load(`${base}/`, elsewhere);
  assert.deepEqual(bodies(), [], 'revalidated by ETag, not fetched');
  await load(new URL(`${base}/model.safetensors`), elsewhere);
  await load(base, { ...elsewhere, offline: true });
  const listed = await createCacheApi(nodeFiles, { cacheDir }).list();
  assert.ok(listed.every(({ id }) => id === `${base}/`));
  const own = await load(`${hub.url}/org/name/tree/main`);
  assert.equal(own.commit, kCommit);
});

test('folders on servers that answer for everything', async () => {
  const elsewhere = { endpoint: 'http://127.0.0.1:9' };
  const base = `${hub.url}/org/name/resolve/main`;
  delete hub.repos['org/name'].files['generation_config.json'];
  for (const missing of ['html', 403]) {
    hub.missing = missing;
    const checkpoint = await load(base, { ...elsewhere, cacheDir: join(cacheDir, String(missing)) });
    assert.deepEqual({ ...checkpoint.generationConfig }, {});
    assert.equal(await loadTokenizer(checkpoint), null);
  }
  hub.rules['model.safetensors'] = { html: true };
  await rejects(load(base, elsewhere), 'invalid-file', /model.safetensors.*HTML/);
  hub.rules = { 'config.json': { status: 403 } };
  await rejects(load(base, elsewhere), 'unauthorized', /config.json/);
  await rejects(load('http://a b/', elsewhere), 'invalid-argument', /URL/);
});

test('a server that knows no HEAD', async () => {
  hub.noHead = true;
  const elsewhere = { endpoint: 'http://127.0.0.1:9' };
  const base = `${hub.url}/org/name/resolve/main`;
  await load(base, elsewhere);
  hub.log.length = 0;
  const checkpoint = await load(base, elsewhere);
  assert.deepEqual(checkpoint.warnings, []);
  const sent = bodies().reduce((sum, entry) => sum + entry.sent, 0);
  assert.ok(sent < 600_000, `only heads are asked for again, ${sent} bytes came`);
});

test('sources that are none', async () => {
  for (const bad of ['', 'a b', '../x/../../y z', 'org/../name', 'org/name/../../x', 5, null, undefined]) {
    await assert.rejects(
      openCheckpoint(bad, options(), nodeFiles),
      (error) => ['invalid-argument', 'not-found', 'invalid-file'].includes(error.code),
      String(bad),
    );
  }
  await rejects(openCheckpoint('org/name', options({ endpoint: 'ftp://x' }), nodeFiles), 'invalid-argument', /endpoint/);
  assert.deepEqual(hub.log, []);
});

test('a repository without a tokenizer works with ids', async () => {
  const checkpoint = await load();
  assert.equal(await loadTokenizer(checkpoint), null);
});
