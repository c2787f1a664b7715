// The demo page: built, served under a sub-path without cross-origin isolation, visited, walked through and looked at.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { openPage } from '../../scripts/chromium.mjs';
import { root, run } from '../../scripts/run.mjs';
import { serve } from '../package/server.mjs';
import { launch, real } from './servers.mjs';

const site = join(root, 'build/browser/site');
const pictures = join(root, 'build/screenshots');

/** Builds and serves the page, and starts a browser. */
export async function openDemo() {
  mkdirSync(pictures, { recursive: true });
  const log = await run('node_modules/.bin/vite', ['build', 'examples/demo', '--outDir', site], {
    quiet: true,
    capture: true,
    timeout: 120_000,
  });
  assert.doesNotMatch(log, /warn|externalized/i, log);
  const server = await serve(site, { base: '/some/where/' });
  const browser = await launch();

  /**
   * Opens the page, waits for what says that it is `ready`, runs the body; then the console must be clean and nothing may stick out
   * sideways. `tab` is opened by the address.
   */
  async function visit(body, { expected = () => false, tab = '', ready = '#generate[aria-disabled=false]', ...options } = {}) {
    const { context, page, problems } = await openPage(browser, { viewport: { width: 1280, height: 900 }, ...options });
    page.setDefaultTimeout(30_000);
    try {
      await page.goto(server.url + tab);
      await page.waitForSelector(ready);
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

  return {
    url: server.url,
    browser,
    visit,
    async close() {
      await browser.close();
      await server.close();
    },
  };
}

/** Keeps a picture of the page for people to look at. */
export const picture = (page, name, fullPage = true) => page.screenshot({ path: join(pictures, `${name}.png`), fullPage });

/** The cells of a drawn picture, `{ row, column, weight }`, the weight read off the legend's colours, and what their tooltips say. */
export function readPicture(page, selector) {
  return page.$eval(selector, (frame) => {
    const [matrix, legend] = frame.querySelectorAll('g');
    const texts = [...frame.querySelector('svg').querySelectorAll(':scope > text')].map((text) => text.textContent);
    const max = Number(texts.at(-1));
    const rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
    const scale = [...legend.children].map((step) => rgb(step.getAttribute('fill')));
    const cells = [...matrix.querySelectorAll('path')].map((path) => {
      const [, column, row] = /^M(\d+) (\d+)h/.exec(path.getAttribute('d')).map(Number);
      const colour = rgb(path.getAttribute('fill'));
      const far = scale.map((step) => step.reduce((sum, value, i) => sum + (value - colour[i]) ** 2, 0));
      return { row, column, weight: (max * far.indexOf(Math.min(...far))) / (scale.length - 1), tip: path.textContent };
    });
    return { max, cells, title: frame.querySelector('title').textContent };
  });
}

/** Whether each cell has its weight's colour, to a step of the legend; `weightOf(row, column)` is the weight. */
export function checkColours({ max, cells }, weightOf) {
  for (const { row, column, weight } of cells) {
    const wanted = Math.min(max, weightOf(row, column));
    assert.ok(Math.abs(weight - wanted) <= max / 32, `row ${row}, column ${column}: ${weight} is drawn for ${wanted}`);
  }
}

/** Tabs from where the focus is through all that follows: every control has a name, and shows that it has the focus. */
export async function walk(page) {
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
