// Debian's Chromium, driven by playwright-core.
import { aptInstall } from './apt.mjs';
import { which } from './run.mjs';

const names = ['chromium', 'chromium-browser', 'google-chrome-stable', 'google-chrome', 'chrome'];

/** The path of a Chromium: WASMFORMER_CHROMIUM, or the first on PATH, or Debian's, installed if there is none. */
export async function ensureChromium() {
  const find = () => process.env.WASMFORMER_CHROMIUM ?? names.map(which).find(Boolean);
  if (!find()) await aptInstall(['chromium']);
  return find();
}

/** A headless browser. Its sandbox does not start for root, nor in most containers. */
export async function launchChromium(options = {}) {
  const { chromium } = await import('playwright-core');
  return chromium.launch({ executablePath: await ensureChromium(), args: ['--no-sandbox', '--disable-dev-shm-usage'], ...options });
}

/** A page that remembers everything that went wrong in it: console errors and warnings, exceptions, failed requests. */
export async function openPage(browser, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const problems = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) problems.push(`${message.type()}: ${message.text()} (${message.location().url})`);
  });
  page.on('pageerror', (error) => problems.push(`exception: ${error.stack ?? error}`));
  page.on('requestfailed', (request) => {
    // A download that the page itself cancels, having read what it wanted, is nothing wrong.
    const reason = request.failure()?.errorText;
    if (reason !== 'net::ERR_ABORTED') problems.push(`request failed: ${request.url()} ${reason}`);
  });
  page.on('response', (response) => {
    if (response.status() >= 400) problems.push(`${response.status()}: ${response.url()}`);
  });
  return { context, page, problems };
}
