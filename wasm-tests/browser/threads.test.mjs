// Threads in Chromium: in a page that is isolated from other origins, and in one that is not.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { create } from '../../dist/node.js';
import { openPage } from '../../scripts/chromium.mjs';
import { root } from '../../scripts/run.mjs';
import { serve } from '../package/server.mjs';
import { launch } from './servers.mjs';

const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; img-src data:";
const config = {
  model_type: 'llama',
  hidden_size: 192,
  intermediate_size: 500,
  num_attention_heads: 6,
  num_hidden_layers: 2,
  vocab_size: 600,
};
const ids = Array.from({ length: 150 }, (_, i) => (i * 7) % 60);

let site;
let isolated;
let plain;
let browser;
before(async () => {
  site = mkdtempSync(join(tmpdir(), 'wasmformer-threads-'));
  cpSync(join(root, 'dist'), join(site, 'dist'), { recursive: true });
  writeFileSync(join(site, 'index.html'), '<!doctype html><link rel="icon" href="data:,"><script type="module" src="./main.js"></script>');
  writeFileSync(join(site, 'main.js'), "import * as wasmformer from './dist/index.js';\nglobalThis.wf = wasmformer;\n");
  isolated = await serve(site, { base: '/deep/', policy, isolated: true });
  plain = await serve(site, { policy });
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await isolated?.close();
  await plain?.close();
  if (site) rmSync(site, { recursive: true, force: true });
});

/** What `body` returns in a page of `server`, whose console must stay clean. */
async function inPage(server, body, argument) {
  const { context, page, problems } = await openPage(browser);
  try {
    await page.goto(server.url);
    await page.waitForFunction(() => globalThis.wf !== undefined);
    const result = await page.evaluate(body, argument);
    assert.deepEqual(problems, []);
    return result;
  } finally {
    await context.close();
  }
}

/** In a page: what an untrained model computes with each of the options. */
const compute = async ({ config, ids, all }) => {
  const answers = [];
  for (const options of all) {
    const lm = await wf.create(config, { seed: 3, ...options });
    const [{ logits }] = await lm.forward({ inputIds: [ids] });
    const { tokenIds } = await lm.generate({ inputIds: ids }, { maxNewTokens: 20, doSample: false, eosTokenId: null }).result;
    const { simd, threads } = lm.info();
    answers.push({ simd, threads, tokenIds, logits: [...logits.data], ordinary: logits.data.buffer instanceof ArrayBuffer });
    await lm.dispose();
  }
  return answers;
};

test('an isolated page: the same bits for any number of threads, and those of Node where that is asked for', async () => {
  const all = [{ threads: 1 }, { threads: 2 }, { threads: 5 }, {}, { worker: false }, { threads: 2, deterministic: true }];
  const [one, two, five, many, inside, exact] = await inPage(isolated, compute, { config, ids, all });
  for (const { tokenIds, logits, ordinary } of [two, five, many, inside]) {
    assert.deepEqual([tokenIds, logits, ordinary], [one.tokenIds, one.logits, true]);
  }
  assert.deepEqual(one.simd, { level: 'relaxed', reason: 'the engine has relaxed SIMD' });
  assert.deepEqual(two.threads, { count: 2, reason: 'asked for' });
  assert.deepEqual(five.threads, { count: 5, reason: 'asked for' });
  assert.match(many.threads.reason, /^the machine has \d+ cores?$/);
  assert.deepEqual(inside.threads, { count: 1, reason: 'worker: false in a page' });
  assert.deepEqual(exact.simd, { level: 'simd128', reason: 'deterministic: true' });
  const lm = await create(config, { seed: 3, deterministic: true });
  const [{ logits }] = await lm.forward({ inputIds: [ids] });
  await lm.dispose();
  assert.deepEqual(exact.logits, [...logits.data]);
});

test('a page without isolation: one thread, and info says so', async () => {
  const [asked, unasked] = await inPage(plain, compute, { config, ids, all: [{ threads: 4 }, {}] });
  const threads = { count: 1, reason: 'the page is not cross-origin isolated (docs/threads.md)' };
  assert.deepEqual(asked.threads, threads);
  assert.deepEqual(unasked, asked);
});

test('long messages and memory that grows, with and without SharedArrayBuffer', async () => {
  const body = async (config) => {
    const messages = [typeof SharedArrayBuffer];
    for (const worker of [true, false]) {
      const odd = { ...config, hidden_act: 'a function that nobody knows' };
      messages.push(await wf.create(odd, { worker }).catch(({ code, message }) => `${code} ${message}`));
      const lm = await wf.create({ ...config, vocab_size: 20000 }, { worker });
      messages.push((await lm.memory()).weights > 2e7);
      await lm.dispose();
    }
    return messages;
  };
  for (const [server, kind] of [
    [isolated, 'function'],
    [plain, 'undefined'],
  ]) {
    const [type, ...messages] = await inPage(server, body, config);
    assert.equal(type, kind);
    for (const i of [0, 2]) {
      assert.match(messages[i], /^unsupported .*hidden_act.*a function that nobody knows/);
      assert.equal(messages[i + 1], true);
    }
  }
});

test('models are loaded and disposed of again and again, running or not', async () => {
  const rounds = async (config) => {
    for (let i = 0; i < 40; ++i) {
      const lm = await wf.create(config, { threads: 3 });
      const result = lm.generate({ inputIds: [1, 2, 3] }, { maxNewTokens: 1e5, eosTokenId: null }).result.catch(({ code }) => code);
      if (i % 2) await new Promise((resolve) => setTimeout(resolve, 20));
      await lm.dispose();
      if ((await result) !== 'disposed') return `round ${i}: ${await result}`;
    }
    return 'all';
  };
  assert.equal(await inPage(isolated, rounds, config), 'all');
});
