// Downloads in Chromium: a worker keeps them in the origin private file system. One Hub, another origin for the page.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, before, beforeEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { launchChromium, openPage } from '../../scripts/chromium.mjs';
import { noise, safetensors, startHub } from '../support/hub.mjs';

const kCommit = 'c'.repeat(40);
const kRows = 600;
const weights = noise(kRows * 4096, 5);
const json = (value) => Buffer.from(JSON.stringify(value));
const repo = () => ({
  commit: kCommit,
  files: {
    'config.json': json({ model_type: 'gpt2' }),
    'generation_config.json': json({}),
    'model.safetensors': safetensors({ w: { dtype: 'F32', shape: [kRows, 1024], data: weights } }),
  },
});

/** Runs in the page's worker, and in the page itself where nothing can be written. */
const code = `
  import { createCacheApi, loadTensors, matchTensors, openCheckpoint } from './web/files/index.ts';
  import { browserFiles } from './web/platform/browser-files.ts';
  export async function run({ what, endpoint, source = 'org/name', more = {}, hold }) {
    try {
      const cache = createCacheApi(browserFiles, more);
      if (what === 'list') return { list: await cache.list(), location: await cache.location() };
      if (what === 'clear') return { freed: await cache.clear() };
      const network = { retries: 3, retryDelay: 5, stallTimeout: 700, cacheWait: 200 };
      const checkpoint = await openCheckpoint(source, { endpoint, network, ...more }, browserFiles);
      if (hold) await new Promise((resolve) => setTimeout(resolve, hold));
      const { matches } = matchTensors([{ name: 'w', shape: [${kRows}, 1024] }], checkpoint.tensors);
      let sum = 0;
      let bytes = 0;
      for await (const slab of loadTensors(checkpoint, matches)) {
        bytes += slab.bytes.length;
        for (const byte of slab.bytes) sum = (Math.imul(sum, 31) + byte) | 0;
      }
      await checkpoint.close();
      return { sum, bytes, warnings: checkpoint.warnings.map(({ code, message }) => code + ': ' + message) };
    } catch (error) {
      return { code: error.code, message: error.message };
    }
  }
`;
let sum = 0;
for (const byte of weights) sum = (Math.imul(sum, 31) + byte) | 0;
const loaded = { sum, bytes: weights.length, warnings: [] };

let hub;
let site;
let browser;
let context;
let page;
let problems;

before(async () => {
  const bundled = async (tail) => {
    const { outputFiles } = await build({
      stdin: { contents: code + tail, resolveDir: fileURLToPath(new URL('../../', import.meta.url)), loader: 'ts' },
      bundle: true,
      write: false,
      format: 'esm',
      target: 'es2022',
      logLevel: 'error',
    });
    return outputFiles[0].text;
  };
  const pages = {
    '/': ['text/html', '<!doctype html><link rel="icon" href="data:,"><script type="module" src="page.js"></script>'],
    '/page.js': ['text/javascript', await bundled('window.run = run; window.ready = true;')],
    '/worker.js': ['text/javascript', await bundled('onmessage = async ({ data }) => postMessage(await run(data));')],
  };
  site = createServer((request, response) => {
    const [type, body] = pages[request.url] ?? ['text/plain', ''];
    response.writeHead(pages[request.url] ? 200 : 404, { 'content-type': type }).end(body);
  });
  await new Promise((resolve) => site.listen(0, '127.0.0.1', resolve));
  site.url = `http://127.0.0.1:${site.address().port}/`;
  hub = await startHub({ 'org/name': repo() });
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  await hub?.close();
  site?.close();
});

beforeEach(async () => {
  Object.assign(hub, { repos: { 'org/name': repo() }, rules: {}, api: true, commits: true, token: null, log: [] });
  await context?.close();
  ({ context, page, problems } = await openPage(browser));
  await page.goto(site.url);
  await page.waitForFunction('window.ready');
});

/** Runs one thing in a fresh worker, as a new load does. */
const inWorker = (ask, tab = page) =>
  tab.evaluate(
    (data) =>
      new Promise((resolve, reject) => {
        const worker = new Worker('worker.js', { type: 'module' });
        worker.onmessage = ({ data: answer }) => {
          worker.terminate();
          resolve(answer);
        };
        worker.onerror = (event) => reject(new Error(event.message));
        worker.postMessage(data);
      }),
    { endpoint: hub.url, ...ask },
  );
const weightsAsked = () => hub.log.filter(({ path }) => path.endsWith('model.safetensors'));

test('a download is kept, not fetched again, and works offline', async () => {
  assert.deepEqual(await inWorker({}), loaded);
  const sent = weightsAsked().reduce((total, entry) => total + entry.sent, 0);
  assert.ok(sent < weights.length + 10_000, `sent ${sent}`);
  hub.log.length = 0;
  assert.deepEqual(await inWorker({}), loaded);
  assert.deepEqual(weightsAsked(), []);
  assert.deepEqual(await inWorker({ more: { offline: true } }), loaded);
  const { list, location } = await inWorker({ what: 'list' });
  assert.deepEqual(
    list.map(({ file, commit }) => [file, commit]),
    ['config.json', 'generation_config.json', 'model.safetensors'].map((file) => [file, kCommit]),
  );
  assert.match(location, /^opfs:/);
  assert.deepEqual(await inWorker({ more: { cacheDir: 'other' } }), loaded);
  assert.equal((await inWorker({ what: 'list', more: { cacheDir: 'other' } })).location, 'opfs:/other');
  assert.ok((await inWorker({ what: 'clear', more: { cacheDir: 'other' } })).freed > weights.length);
  assert.equal((await inWorker({ what: 'list' })).list.length, 3);
  assert.ok((await inWorker({ what: 'clear' })).freed > weights.length);
  assert.deepEqual((await inWorker({ what: 'list' })).list, []);
  assert.equal((await inWorker({ more: { offline: true } })).code, 'offline');
  assert.deepEqual(problems, []);
  assert.deepEqual(
    hub.log.filter(({ method }) => method === 'OPTIONS'),
    [],
    'no preflight',
  );
});

test('dropped connections are resumed; an interrupted load goes on in the next', async () => {
  hub.rules['model.safetensors'] = { dropAfter: 300_000, drops: 5 };
  assert.deepEqual(await inWorker({}), loaded);
  await inWorker({ what: 'clear' });
  hub.rules['model.safetensors'] = { dropAfter: 400_000, drops: 100 };
  hub.rules['model.safetensors'].status = undefined;
  hub.token = null;
  const cut = page.evaluate(
    (data) =>
      new Promise((resolve) => {
        const worker = new Worker('worker.js', { type: 'module' });
        worker.postMessage(data);
        setTimeout(() => resolve(worker.terminate()), 900);
      }),
    { endpoint: hub.url },
  );
  hub.rules['model.safetensors'] = { slow: 60 };
  await cut;
  hub.rules = {};
  hub.log.length = 0;
  assert.deepEqual(await inWorker({}), loaded);
  const ranges = weightsAsked().map(({ range }) => Number(/bytes=(\d+)/.exec(range)[1]));
  assert.ok(
    ranges.some((begin) => begin > 524_288),
    `resumed where it stopped: ${ranges}`,
  );
});

test('more shards than a browser opens connections to one host', async () => {
  const names = Array.from({ length: 12 }, (_, i) => `model-${String(i + 1).padStart(5, '0')}-of-00012.safetensors`);
  const part = Buffer.concat([weights, weights]);
  hub.repos['org/name'].files = {
    'config.json': json({ model_type: 'gpt2' }),
    'model.safetensors.index.json': json({ weight_map: Object.fromEntries(names.map((name, i) => [i === 0 ? 'w' : `x${i}`, name])) }),
    ...Object.fromEntries(
      names.map((name, i) => [
        name,
        safetensors(
          i === 0
            ? { w: { dtype: 'F32', shape: [kRows, 1024], data: weights } }
            : { [`x${i}`]: { dtype: 'U8', shape: [part.length], data: part } },
        ),
      ]),
    ),
  };
  for (const ignoreRange of [false, true]) {
    for (const name of names) hub.rules[name] = { ignoreRange };
    assert.deepEqual(await inWorker({ more: { cacheDir: `shards-${ignoreRange}` } }), loaded);
    assert.deepEqual(await inWorker({ more: { cacheDir: false } }), loaded);
  }
  // A body that takes longer than anybody waits: whoever holds six of these waits for ever.
  for (const name of names.slice(1)) hub.rules[name] = { ignoreRange: true, slow: 150 };
  assert.deepEqual(await inWorker({ more: { cacheDir: false } }), loaded);
});

test('errors are named', async () => {
  hub.rules['model.safetensors'] = { html: true };
  assert.equal((await inWorker({})).code, 'invalid-file');
  hub.rules['model.safetensors'] = { status: 403 };
  assert.equal((await inWorker({})).code, 'unauthorized');
  hub.rules = {};
  assert.equal((await inWorker({ source: 'org/other' })).code, 'not-found');
  hub.rules['model.safetensors'] = { lie: 5000 };
  assert.ok(['network', 'invalid-file'].includes((await inWorker({})).code));
  hub.rules['model.safetensors'] = { stallAfter: 0, stalls: 100 };
  assert.equal((await inWorker({})).code, 'network');
  assert.equal((await inWorker({ source: './models/x' })).code, 'invalid-argument');
  assert.equal((await inWorker({ more: { cacheDir: '../x' } })).code, 'invalid-argument');
});

test('one tab at a time: the other loads into memory and says so', async () => {
  const other = await context.newPage();
  await other.goto(site.url);
  const first = inWorker({ hold: 1500 });
  await new Promise((resolve) => setTimeout(resolve, 500));
  const second = await inWorker({}, other);
  assert.deepEqual({ ...second, warnings: second.warnings.length }, { ...loaded, warnings: 1 });
  assert.match(second.warnings[0], /^busy: .*another tab/);
  assert.deepEqual(await first, loaded);
  assert.deepEqual(await inWorker({ more: { offline: true } }, other), loaded);
});

test('a full quota is a named warning, and the model loads', async () => {
  const session = await context.newCDPSession(page);
  await session.send('Storage.overrideQuotaForOrigin', { origin: new URL(site.url).origin, quotaSize: 1_000_000 });
  const answer = await inWorker({});
  assert.deepEqual({ ...answer, warnings: answer.warnings.length }, { ...loaded, warnings: 1 });
  assert.match(answer.warnings[0], /^quota: /);
  await session.send('Storage.overrideQuotaForOrigin', { origin: new URL(site.url).origin });
  assert.deepEqual(await inWorker({}), loaded);
});

test('on the main thread nothing is written, what is there is read', async () => {
  const here = (ask) => page.evaluate((data) => window.run(data), { endpoint: hub.url, ...ask });
  const answer = await here({});
  assert.deepEqual({ ...answer, warnings: [] }, loaded);
  assert.ok(
    answer.warnings.length > 0 && answer.warnings.every((warning) => /only a worker can write/.test(warning)),
    answer.warnings.join(),
  );
  assert.deepEqual(await inWorker({}), loaded);
  assert.deepEqual(await here({ more: { offline: true } }), loaded);
});
