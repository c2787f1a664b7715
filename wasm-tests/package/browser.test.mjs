import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { cpSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { launchChromium, openPage } from '../../scripts/chromium.mjs';
import { copyApp, installPackage, root, run } from './install.mjs';
import { serve } from './server.mjs';

let installed;
let browser;
let expected;
before(async () => {
  installed = await installPackage();
  browser = await launchChromium();
  const app = copyApp(installed.folder, 'vite-app');
  writeFileSync(
    join(app, 'node.mjs'),
    `
    import { load } from 'wasmformer';
    const lm = await load('public/model', { deterministic: true });
    console.log(JSON.stringify(await lm.generate('It was a ', { maxNewTokens: 24, temperature: 0.8, seed: 7 }).result));
  `,
  );
  expected = JSON.parse(await run(process.execPath, ['node.mjs'], { cwd: app, quiet: true, timeout: 60_000 }));
});
after(async () => {
  await browser?.close();
  installed?.remove();
});

/** Opens the page, waits for its outcome, and expects the tokens that Node gave, and a clean console. Returns the page's `threads`. */
async function expectText(url) {
  const { context, page, problems } = await openPage(browser);
  try {
    await page.goto(url);
    await page
      .waitForFunction(() => globalThis.outcome !== undefined, undefined, { timeout: 60_000 })
      .catch((error) => {
        throw new Error(`${error.message}\n${problems.join('\n')}`);
      });
    const outcome = await page.evaluate(() => globalThis.outcome);
    assert.equal(outcome.error, undefined, problems.join('\n'));
    assert.deepEqual(Array.from(outcome.tokenIds), Array.from(expected.tokenIds));
    assert.equal(outcome.text, expected.text);
    assert.equal(await page.textContent('output'), expected.text);
    assert.deepEqual(problems, []);
    return await page.evaluate(() => globalThis.threads);
  } finally {
    await context.close();
  }
}

test('a page with a bare <script type=module>, under a strict content security policy', async () => {
  const app = copyApp(installed.folder, 'bare-page');
  cpSync(join(installed.folder, 'node_modules/wasmformer/dist'), join(app, 'wasmformer'), { recursive: true });
  cpSync(join(app, 'public/model'), join(app, 'page/model'), { recursive: true });
  for (const name of ['index.html', 'main.js']) cpSync(join(app, name), join(app, 'page', name));
  const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; img-src data:";
  const server = await serve(app, { base: '/some/where/', policy });
  try {
    await expectText(`${server.url}page/`);
    const loaded = server.requests
      .filter((path) => /\/wasmformer\//.test(path))
      .map((path) => path.split('/').pop())
      .sort();
    assert.deepEqual(loaded, ['index.js', 'wasmformer.wasm', 'worker.js'], 'what a page downloads of the package, each once');
  } finally {
    await server.close();
  }
});

const vite = join(root, 'node_modules/vite/bin/vite.js');

test('a Vite app, built, served under a sub-path', async () => {
  const app = copyApp(installed.folder, 'vite-app');
  const log = await run(process.execPath, [vite, 'build', '--base', './'], { cwd: app, quiet: true, capture: true, timeout: 120_000 });
  assert.doesNotMatch(log, /warn|externalized/i, log);
  for (const isolated of [false, true]) {
    const server = await serve(join(app, 'dist'), { base: '/deep/down/', isolated });
    try {
      // The bundled worker's script makes threads of itself.
      const threads = await expectText(server.url);
      assert.equal(threads, isolated ? Math.min(availableParallelism(), 8) : 1);
    } finally {
      await server.close();
    }
  }
});

test('a Vite app in development', async () => {
  const app = copyApp(installed.folder, 'vite-app');
  const child = spawn(process.execPath, [vite, '--host', '127.0.0.1', '--port', '0'], {
    cwd: app,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, NO_COLOR: '1' },
  });
  let log = '';
  try {
    const url = await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no address within 30 s:\n${log}`)), 30_000);
      for (const stream of [child.stdout, child.stderr]) {
        stream.setEncoding('utf8').on('data', (chunk) => {
          log += chunk;
          const found = /http:\/\/127\.0\.0\.1:\d+\//.exec(log);
          if (found) {
            clearTimeout(timer);
            resolve(found[0]);
          }
        });
      }
      child.on('exit', (code) => reject(new Error(`Vite ended with ${code}:\n${log}`)));
    });
    await expectText(url);
    assert.doesNotMatch(log, /warn|error/i, log);
  } finally {
    child.kill();
  }
});
