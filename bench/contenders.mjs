// A contender is one library with one model in one format, in a page of its own or in a process of Node's.
import { fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { countCompiling } from './compiling.mjs';

/** The library's name in reports, and its file in peers/. */
export const libraries = {
  wasmformer: 'wasmformer',
  kernels: 'machine',
  'onnxruntime-web': 'onnxruntime-web',
  'transformers.js': 'transformers',
  wllama: 'wllama',
};

/** 'wasmformer q8 x2 in Node' in its parts. */
export function parseContender(name) {
  const [, library, dtype, threads, node] = /^(\S+) (\S+)(?: x(\d+))?( in Node)?$/.exec(name);
  return { library, dtype, threads: Number(threads ?? 1), node: node !== undefined };
}

/** Rejects if there is no answer in five minutes: what hangs is to cost its own row only. */
async function inTime(name, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${name}: no answer in five minutes`)), 300_000);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Bytes of memory that a process had at most; undefined where the system does not say. */
function peakMemory(pid) {
  try {
    return Number(/^VmHWM:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) * 1024;
  } catch {
    return undefined;
  }
}

async function rendererMemory(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  await session.detach();
  return new Map(processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => [id, peakMemory(id)]));
}

/**
 * Opens a page of its own, and in it the library. `load` is the time in milliseconds that this took; with `count` the contender
 * can say how much of it was `compiling`.
 */
export async function openInPage(browser, server, name, { count = false, ...options }) {
  const { library, dtype, threads } = parseContender(name);
  const before = await rendererMemory(browser);
  const context = await browser.newContext();
  if (count) await context.addInitScript(countCompiling);
  const page = await context.newPage();
  await page.goto(server.url);
  server.files.clear();
  const close = () => context.close();
  try {
    const opening = page.evaluate(
      async ({ file, ...spec }) => {
        const start = performance.now();
        const { open } = await import(`${spec.base}/bench/peers/${file}.mjs`);
        globalThis.contender = await open(spec);
        return performance.now() - start;
      },
      { base: server.url, file: libraries[library], dtype, threads, ...options },
    );
    const load = await inTime(name, opening);
    // The page's process is the one that has grown most: browsers keep spare ones.
    const after = [...(await rendererMemory(browser))];
    const grown = ([id, bytes]) => bytes - (before.get(id) ?? 0);
    const [pid] = after.reduce((a, b) => (grown(b) > grown(a) ? b : a));
    return {
      load,
      files: [...server.files],
      call: (method, ...args) =>
        inTime(
          name,
          page.evaluate(([method, args]) => globalThis.contender[method](...args), [method, args]),
        ),
      compiling: () => page.evaluate(() => globalThis.compiling()),
      peakMemory: () => peakMemory(pid),
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** The same in a process of Node's. */
export async function openInNode(server, name, options) {
  const { library, dtype, threads } = parseContender(name);
  const child = fork(fileURLToPath(new URL('in-node.mjs', import.meta.url)), { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  const answer = (method, args) =>
    new Promise((resolve, reject) => {
      const end = () => reject(new Error(`${name}: its process ended`));
      child.once('exit', end);
      child.once('message', ({ value, error }) => {
        child.off('exit', end);
        if (error) reject(new Error(error));
        else resolve(value);
      });
      child.send({ method, args });
    });
  const call = (method, ...args) => inTime(name, answer(method, args));
  const close = async () => child.kill();
  try {
    const load = await call('open', { base: server.url, file: libraries[library], dtype, threads, ...options });
    return { load, files: [], call, peakMemory: () => peakMemory(child.pid), close };
  } catch (error) {
    await close();
    throw error;
  }
}
