// The demo page, built, served under a sub-path without cross-origin isolation, used as a visitor would.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { openPage } from '../../scripts/chromium.mjs';
import { root, run } from '../../scripts/run.mjs';
import { serve } from '../package/server.mjs';
import { folderOf } from '../support/fixtures.mjs';
import { random } from '../support/tiny.mjs';
import { launch, real, serveHub } from './servers.mjs';

const site = join(root, 'build/browser/site');
const pictures = join(root, 'build/screenshots');
const scratch = mkdtempSync(join(tmpdir(), 'wasmformer-page-'));
const chatTemplate =
  '{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}';

const slow = random(8);

/** The same bytes, 32 KB every 50 ms. */
const trickle = (bytes) => ({
  size: bytes.length,
  async write(begin, end, response) {
    for (let at = begin; at < end && !response.destroyed; at += 32_768) {
      response.write(bytes.subarray(at, Math.min(end, at + 32_768)));
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    response.end();
  },
});

let server;
let hub;
let browser;
before(async () => {
  mkdirSync(pictures, { recursive: true });
  const log = await run('node_modules/.bin/vite', ['build', 'examples/demo', '--outDir', site], {
    quiet: true,
    capture: true,
    timeout: 120_000,
  });
  assert.doesNotMatch(log, /warn|externalized/i, log);
  server = await serve(site, { base: '/some/where/' });
  hub = await serveHub({
    'someone/talker': { files: random(3, { chatTemplate }) },
    'someone/private': { files: random(4), token: 'hf_secret' },
    'someone/slow': { files: { ...slow, 'model.safetensors': trickle(slow['model.safetensors']) } },
  });
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
  await hub?.close();
  rmSync(scratch, { recursive: true, force: true });
});

/** Starts a generation by keyboard; on return it has started, and may be over: 200 tokens take a fifth of a second. */
async function startByKeyboard(page) {
  await page.evaluate(() => {
    const stop = document.querySelector('#stop');
    globalThis.started = new Promise((resolve) => {
      new MutationObserver(() => {
        if (stop.getAttribute('aria-disabled') === 'false') resolve();
      }).observe(stop, { attributes: true });
    });
  });
  await page.keyboard.press('Control+Enter');
  await page.evaluate(() => globalThis.started);
}

const ready = (page) => page.waitForSelector('#generate[aria-disabled=false]');

/** Opens the page, waits for its model, runs the body; then the console must be clean and nothing may stick out sideways. */
async function visit(body, { expected = () => false, ...options } = {}) {
  const { context, page, problems } = await openPage(browser, { viewport: { width: 1280, height: 900 }, ...options });
  page.setDefaultTimeout(30_000);
  try {
    await page.goto(server.url);
    await ready(page);
    await body(page, context);
    const { scrollWidth, innerWidth } = await page.evaluate(() => ({ scrollWidth: document.documentElement.scrollWidth, innerWidth }));
    assert.ok(scrollWidth <= innerWidth, `the page is ${scrollWidth} pixels wide in a window of ${innerWidth}`);
    assert.deepEqual(
      real(problems).filter((problem) => !expected(problem)),
      [],
    );
  } catch (error) {
    await page.screenshot({ path: join(pictures, 'failure.png'), fullPage: true }).catch(() => {});
    if (problems.length) error.message += `\n${problems.join('\n')}`;
    throw error;
  } finally {
    await context.close();
  }
}

const picture = (page, name, fullPage = true) => page.screenshot({ path: join(pictures, `${name}.png`), fullPage });
const status = (page) => page.textContent('#status');

/** Presses Generate, waits for the end, and returns what was written. */
async function generate(page, { tokens = 60, seed } = {}) {
  await page.fill('#max-tokens', String(tokens));
  if (seed !== undefined) {
    await page.uncheck('#new-seed');
    await page.fill('#seed', String(seed));
  }
  await page.$eval('#speed', (speed) => speed.replaceChildren());
  await page.click('#generate');
  await page.waitForFunction(() => document.querySelector('#speed').textContent.includes('seed'));
  await ready(page);
  return page.textContent('#output');
}

test('generates with the model that came with it; the same seed gives the same text, another another', async () => {
  await visit(async (page) => {
    assert.equal(await page.evaluate(() => crossOriginIsolated), false);
    const first = await generate(page, { seed: 7, tokens: 120 });
    assert.match(first, /^It was a dark night, and the whale./);
    assert.match(await status(page), /It stopped at the limit you set/);
    assert.match(await page.textContent('#speed'), /^120 tokens, [\d,.]+ a second, seed 7$/);
    assert.equal(await generate(page, { seed: 7, tokens: 120 }), first);
    assert.notEqual(await generate(page, { seed: 8, tokens: 120 }), first);
    await page.fill('#temperature', '0');
    const greedy = await generate(page, { seed: 1, tokens: 40 });
    assert.equal(await generate(page, { seed: 2, tokens: 40 }), greedy, 'at temperature 0 the seed does not matter');
    assert.match(await page.textContent('#about'), /Parameters.*Memory in all.*Arithmetic.*simd128/s);
  });
});

test('a running text stops by button and by Escape, and can be gone on with', async () => {
  await visit(async (page) => {
    for (const stop of [() => page.click('#stop'), () => page.keyboard.press('Escape')]) {
      await page.fill('#max-tokens', '100000');
      await page.click('#generate');
      await page.waitForFunction(() => document.querySelector('#output .new')?.textContent.length > 20);
      await stop();
      await ready(page);
      assert.match(await status(page), /You stopped it/);
    }
    const before = await page.textContent('#output');
    await page.fill('#max-tokens', '30');
    await page.click('#continue');
    await ready(page);
    const after = await page.textContent('#output');
    assert.ok(after.startsWith(before) && after.length > before.length);
  });
});

test('the look inside: rows of attention that sum to one, chosen by slider, layer and head', async () => {
  await visit(async (page) => {
    await generate(page, { seed: 3, tokens: 150 });
    await page.waitForSelector('#views:not([hidden])');
    const map = () =>
      page.$eval('#map', (canvas) => {
        const size = canvas.width;
        const copy = new OffscreenCanvas(size, size).getContext('2d', { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, size, size);
        // The opacity of a cell is the square root of its weight.
        const rows = Array.from({ length: size }, (_, row) => {
          let sum = 0;
          for (let column = 0; column < size; ++column) sum += (data[4 * (row * size + column) + 3] / 255) ** 2;
          return sum;
        });
        let later = 0;
        for (let row = 0; row < size; ++row)
          for (let column = row + 1; column < size; ++column) later += data[4 * (row * size + column) + 3];
        return { size, rows, later, sample: Array.from(data.slice(-4 * size)) };
      });
    const first = await map();
    assert.equal(first.size, 128);
    assert.equal(first.later, 0, 'no token looks at a later one');
    // 128 weights, each known to half a 255th of its root.
    for (const sum of first.rows) assert.ok(Math.abs(sum - 1) < 0.06, `a row sums to ${sum}`);
    await page.selectOption('#layer', { label: '2' });
    await page.waitForFunction(() => document.querySelector('#map').getAttribute('aria-label').includes('layer 2'));
    assert.notDeepEqual((await map()).sample, first.sample);
    await page.focus('#token');
    await page.keyboard.press('Home');
    assert.match(await page.textContent('#sentence'), /^Token 1, .* takes 100 % from itself\.$/);
    await page.keyboard.press('ArrowRight');
    assert.match(await page.getAttribute('#token', 'aria-valuetext'), /^Token 2, /);
  });
});

/** Tabs from where the focus is through all that follows: every control has a name, and shows that it has the focus. */
async function walk(page) {
  const seen = [];
  for (let i = 0; i < 40; ++i) {
    const found = await page.evaluate(() => {
      const { activeElement: at } = document;
      if (!at || at === document.body) return null;
      const shown = at.matches('.segments input, .button input') ? at.closest('label') : at;
      const name = at.getAttribute('aria-label') || at.labels?.[0]?.textContent || at.textContent;
      const { outlineStyle, outlineWidth } = getComputedStyle(shown);
      return {
        id: at.id || at.name || at.tagName,
        name: name.trim(),
        ring: outlineStyle !== 'none' && Number.parseFloat(outlineWidth) >= 1,
      };
    });
    if (!found || seen.includes(found.id)) break;
    assert.ok(found.name, `${found.id} has no name`);
    assert.ok(found.ring, `${found.id} shows no focus`);
    seen.push(found.id);
    await page.keyboard.press('Tab');
  }
  return seen;
}

test('wholly by keyboard', async () => {
  await visit(async (page) => {
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
    await page.keyboard.press('Enter');
    await page.evaluate(() => new Promise(requestAnimationFrame));
    await page.keyboard.press('Tab');
    const seen = await walk(page);
    for (const id of [
      'generate',
      'stop',
      'output',
      'temperature',
      'top-p',
      'top-k',
      'max-tokens',
      'seed',
      'new-seed',
      'SUMMARY',
      'layer',
      'head',
      'token',
    ]) {
      assert.ok(seen.includes(id), `${id} is not reached: ${seen}`);
    }
    await page.focus('#prompt');
    await page.keyboard.press('Control+A');
    await page.keyboard.type('Call me');
    await startByKeyboard(page);
    await page.keyboard.press('Escape');
    await ready(page);
    assert.match(await page.textContent('#output'), /^Call me/);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt', 'the focus stays');

    await page.focus('#choose');
    await page.keyboard.press('Enter');
    assert.ok(await page.$('#sources[open]'));
    const inDialog = await walk(page);
    for (const id of ['close-sources', 'hub-id', 'SUMMARY', 'BUTTON', 'folder', 'files', 'shipped']) {
      assert.ok(inDialog.includes(id), `${id} is not reached: ${inDialog}`);
    }
    await page.keyboard.press('Escape');
    assert.equal(await page.$('#sources[open]'), null);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'choose', 'the focus comes back');
  });
});

test('screen readers are told of states, not of tokens', async () => {
  await visit(async (page) => {
    await page.evaluate(() => {
      globalThis.said = [];
      for (const region of document.querySelectorAll('[role=status], [role=alert], [aria-live]')) {
        new MutationObserver(() => said.push(region.textContent)).observe(region, { childList: true, characterData: true, subtree: true });
      }
    });
    await generate(page, { tokens: 200, seed: 1 });
    await page.waitForSelector('#views:not([hidden])');
    const said = await page.evaluate(() => globalThis.said.filter(Boolean));
    assert.ok(said.length >= 2 && said.length <= 6, said.join(' | '));
    assert.match(said.join(' | '), /Generating….*It stopped at the limit/);
  });
});

test('a model from a Hub: progress, chat, and what is kept', async () => {
  await visit(async (page) => {
    await page.click('#choose');
    await page.fill('#hub-id', 'someone/talker');
    await page.click('#hub summary');
    await page.fill('#hub-endpoint', hub.url);
    await picture(page, 'choose', false);
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
    assert.equal(await page.textContent('#model-name'), 'someone/talker');
    assert.equal(await page.isVisible('#problem'), false);
    await page.check('input[name=mode][value=chat]', { force: true });
    await page.fill('#max-tokens', '24');
    for (const message of ['Hello there', 'And again']) {
      await page.fill('#prompt', message);
      await page.keyboard.press('Enter');
      await page.waitForFunction((text) => document.querySelector('#output').textContent.includes(text), message);
      await ready(page);
    }
    assert.equal(await page.$$eval('.turn', (turns) => turns.length), 4);
    assert.match(await status(page), /stopped at the limit|ended the text/);
    await page.waitForSelector('#views:not([hidden])');
    assert.match(await page.textContent('#tokens'), /^\[user\] Hello there/);
    await picture(page, 'chat');
    await page.click('#fresh');
    assert.equal(await page.textContent('#output'), '');
    await page.click('#choose');
    await page.waitForSelector('#kept li');
    assert.match(await page.textContent('#kept'), /someone\/talker/);
    await page.click('#kept button');
    await page.waitForSelector('#kept-none:not([hidden])');
    await page.click('#shipped');
    await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
    assert.equal(await page.isVisible('#mode'), false);
    await generate(page, { tokens: 10 });
  });
});

test('a slow download shows its progress, can be cancelled, and goes on where it stopped', async () => {
  await visit(async (page) => {
    const start = async () => {
      await page.focus('#choose');
      await page.keyboard.press('Enter');
      await page.fill('#hub-id', 'someone/slow');
      if (!(await page.isVisible('#hub-endpoint'))) await page.click('#hub summary');
      await page.fill('#hub-endpoint', hub.url);
      await page.keyboard.press('Enter');
    };
    await start();
    await page.waitForFunction(() => document.querySelector('#load-progress').value > 0.2);
    assert.match(await page.textContent('#model-line'), /^model\.safetensors: [\d.]+ (KB|MB) of 1\.8 MB/);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'cancel-load', 'the focus is on what can be done');
    await picture(page, 'loading', false);
    await page.keyboard.press('Enter');
    await page.waitForSelector('#choose:not([hidden])');
    assert.equal(await page.textContent('#model-name'), 'Moby-Dick, letter by letter');
    assert.equal(await page.textContent('#load-status'), 'Loading was cancelled.');
    assert.equal(await page.isVisible('#problem'), false);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'choose');
    await generate(page, { tokens: 10 });

    const before = hub.requests.length;
    await start();
    await page.waitForFunction(() => document.querySelector('#load-status').textContent.startsWith('someone/slow is ready'));
    const ranges = hub.requests
      .slice(before)
      .filter(({ path }) => path.endsWith('model.safetensors'))
      .map(({ range }) => Number(/^bytes=(\d+)/.exec(range)?.[1] ?? 0));
    assert.ok(Math.max(...ranges) > 300_000, `asked for ${ranges}`);
    assert.equal(await page.isVisible('#problem'), false);
  });
});

test('what the Hub does not have, or does not give, is said in words; the model before goes on working', async () => {
  const fromHub = (problem) => problem.includes(hub.url);
  await visit(
    async (page) => {
      const ask = async (id, { token = '', revision = 'main' } = {}) => {
        await page.click('#choose');
        await page.fill('#hub-id', id);
        if (!(await page.isVisible('#hub-endpoint'))) await page.click('#hub summary');
        await page.fill('#hub-endpoint', hub.url);
        await page.fill('#hub-revision', revision);
        await page.fill('#hub-token', token);
        await page.keyboard.press('Enter');
        await page.waitForSelector('#choose:not([hidden])');
      };
      await ask('nobody/nothing');
      assert.match(await page.textContent('#problem'), /The Hub did not let us in\..*nobody\/nothing/s);
      await picture(page, 'error', false);
      await ask('someone/talker', { revision: 'nowhere' });
      assert.match(await page.textContent('#problem'), /There is no such model, or a file of it is missing\..*someone\/talker/s);
      await ask('someone/private');
      assert.match(await page.textContent('#problem'), /an access token may help/);
      await generate(page, { tokens: 10 });
      assert.equal(await page.isVisible('#problem'), false);
      await ask('someone/private', { token: 'hf_secret' });
      await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
      assert.equal(await page.textContent('#model-name'), 'someone/private');
    },
    { expected: fromHub },
  );
});

/** Gives files or a folder to an input of the dialog, and waits for the model. */
async function choose(page, selector, paths) {
  await page.click('#choose');
  await page.setInputFiles(selector, paths);
  await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
}

test('a folder of this computer, chosen and dropped; one without a tokenizer works with ids', async () => {
  const folder = join(scratch, 'tiny-model');
  mkdirSync(folder);
  for (const [name, bytes] of Object.entries(random(5))) writeFileSync(join(folder, name), bytes);
  await visit(async (page, context) => {
    await choose(page, '#folder', folder);
    assert.equal(await page.textContent('#model-name'), 'tiny-model');
    await page.fill('#prompt', 'Hello');
    assert.match(await generate(page, { tokens: 8 }), /^Hello/);

    await choose(page, '#folder', folderOf('llama'));
    assert.match(await page.textContent('#prompt-label'), /Token ids/);
    await page.fill('#prompt', '5 6 7');
    assert.match(await generate(page, { tokens: 8 }), /^5 6 7( \d+){1,8}$/);
    await page.waitForSelector('#views:not([hidden])');

    const session = await context.newCDPSession(page);
    const data = { items: [], files: [folder], dragOperationsMask: 1 };
    for (const type of ['dragEnter', 'dragOver']) await session.send('Input.dispatchDragEvent', { type, x: 300, y: 300, data });
    await page.waitForSelector('#drop.over');
    await session.send('Input.dispatchDragEvent', { type: 'drop', x: 300, y: 300, data });
    await page.waitForFunction(() => document.querySelector('#model-name').textContent === 'tiny-model');
    await page.waitForFunction(() => document.querySelector('#model-line').textContent.includes('of memory'));
    assert.equal(await page.isVisible('#drop'), false);
    await page.fill('#prompt', 'Hello');
    await generate(page, { tokens: 8 });

    await page.click('#choose');
    await page.setInputFiles('#files', {
      name: 'config.json',
      mimeType: 'application/json',
      buffer: Buffer.from('{"model_type": "mamba"}'),
    });
    await page.waitForSelector('#problem:not([hidden])');
    await page.click('#problem button');
    assert.equal(await page.isVisible('#problem'), false);
    await generate(page, { tokens: 8 });
  });
});

test('works without a network once it is there', async () => {
  await visit(async (page, context) => {
    await context.setOffline(true);
    assert.match(await generate(page, { tokens: 40 }), /whale./);
    await page.waitForSelector('#views:not([hidden])');
  });
});

test('light, dark and chosen colours; a telephone, a tablet, a screen; nothing jumps', async () => {
  for (const [name, options] of Object.entries({
    'light-1280': { colorScheme: 'light' },
    'dark-1280': { colorScheme: 'dark' },
    'light-360': { colorScheme: 'light', viewport: { width: 360, height: 740 } },
    'dark-360': { colorScheme: 'dark', viewport: { width: 360, height: 740 }, reducedMotion: 'reduce' },
    'light-768': { colorScheme: 'light', viewport: { width: 768, height: 1024 } },
  })) {
    await visit(async (page) => {
      const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      const system = await paper();
      await page.check('input[name=theme][value=dark]', { force: true });
      const dark = await paper();
      await page.check('input[name=theme][value=light]', { force: true });
      const light = await paper();
      assert.notEqual(dark, light);
      assert.equal(system, options.colorScheme === 'dark' ? dark : light);
      await page.reload();
      await ready(page);
      assert.equal(await paper(), light, 'the choice is remembered');
      await page.check('input[name=theme][value=auto]', { force: true });
      assert.equal(await paper(), system);

      await page.fill('#max-tokens', '200');
      await page.evaluate(() => {
        globalThis.shift = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.shift += entry.value;
        }).observe({ type: 'layout-shift', buffered: false });
      });
      await page.focus('#prompt');
      await startByKeyboard(page);
      await ready(page);
      assert.ok((await page.evaluate(() => globalThis.shift)) < 0.01, 'what was in view stays where it was');
      await page.waitForSelector('#views:not([hidden])');
      await picture(page, name);
      // Whatever can be pressed is large enough for a finger.
      if (options.viewport?.width === 360) {
        const small = await page.$$eval('button, select, input:not([type=radio], [type=checkbox], [type=file])', (all) =>
          all.filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 28).map((one) => one.id),
        );
        assert.deepEqual(small, []);
      }
    }, options);
  }
});
