// Small helpers shared by the scripts here. Node's standard library only: they run before `npm ci`.
import { spawn, spawnSync } from 'node:child_process';
import { accessSync, constants, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The repository's top folder. */
export const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** The path of an executable on PATH, or undefined. */
export function which(name) {
  for (const folder of (process.env.PATH ?? '').split(delimiter)) {
    const file = join(folder || '.', name);
    try {
      accessSync(file, constants.X_OK);
      if (statSync(file).isFile()) return file;
    } catch {}
  }
  return undefined;
}

/** What a command prints, trimmed; undefined if it is missing or fails. */
export function output(command, args = [], options = {}) {
  const { status, stdout } = spawnSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'], ...options });
  return status === 0 ? stdout.trim() : undefined;
}

/**
 * Runs a command with no stdin and its output passed through (`quiet`: shown only if it fails). Rejects if it fails.
 * `input` is written to its stdin; `timeout` in milliseconds kills it.
 */
export function run(command, args = [], { cwd = root, env = {}, quiet = false, capture = false, timeout = 0, input } = {}) {
  return new Promise((resolve, reject) => {
    const piped = quiet || capture;
    const child = spawn(command, args, {
      cwd,
      env: { ...process.env, ...env },
      stdio: [input === undefined ? 'ignore' : 'pipe', piped ? 'pipe' : 'inherit', piped ? 'pipe' : 'inherit'],
    });
    let text = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream?.setEncoding('utf8').on('data', (chunk) => {
        text += chunk;
        if (!quiet) process.stdout.write(chunk);
      });
    }
    if (input !== undefined) child.stdin.end(input);
    // A script that is ended takes its child with it.
    const end = (signal) => child.kill(signal);
    for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, end);
    child.on('close', () => {
      for (const signal of ['SIGINT', 'SIGTERM']) process.off(signal, end);
    });
    let late = false;
    const timer =
      timeout &&
      setTimeout(() => {
        late = true;
        child.kill('SIGKILL');
      }, timeout);
    child.on('error', (error) => {
      clearTimeout(timer);
      reject(new Error(`${command}: ${error.message}`));
    });
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      if (code === 0) return resolve(text);
      if (quiet) process.stdout.write(text);
      const how = late ? `no end after ${timeout / 1000} s` : (signal ?? `exit code ${code}`);
      reject(Object.assign(new Error(`${[command, ...args].join(' ').slice(0, 300)}: ${how}`), { output: text }));
    });
  });
}

/** Calls `attempt(i)` until it succeeds, at most `times` times, with a growing pause between. */
export async function retry(times, attempt) {
  for (let i = 1; ; ++i) {
    try {
      return await attempt(i);
    } catch (error) {
      if (i >= times) throw error;
      console.log(`   ${error.message}; trying again (${i + 1} of ${times})`);
      await new Promise((resolve) => setTimeout(resolve, 3000 * i));
    }
  }
}

/** Prints a title, runs the step, prints the seconds it took. */
export async function step(title, work) {
  console.log(`== ${title}`);
  const start = performance.now();
  const result = await work();
  console.log(`== ${title}: ${((performance.now() - start) / 1000).toFixed(1)} s`);
  return result;
}

const held = new Set();

/** Runs `work` while no other process holds the lock file; the lock of a process that is gone is taken over. */
export async function withLock(file, work) {
  if (held.has(file)) return work();
  mkdirSync(dirname(file), { recursive: true });
  for (let told = false; ; told = true) {
    try {
      writeFileSync(file, String(process.pid), { flag: 'wx' });
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
    }
    if (!isRunning(file)) {
      rmSync(file, { force: true });
      continue;
    }
    if (!told) console.log(`   waiting for another process, which holds ${file}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  held.add(file);
  try {
    return await work();
  } finally {
    held.delete(file);
    rmSync(file, { force: true });
  }
}

/** Whether the process whose number is in the lock file still runs. Numbers come again, so an old lock counts as left behind. */
function isRunning(file) {
  try {
    if (Date.now() - statSync(file).mtimeMs > 30 * 60_000) return false;
    const owner = Number(readFileSync(file, 'utf8'));
    // Between its creation and the writing of the number a lock is empty.
    if (owner) process.kill(owner, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/** The folder of the model that is shipped in the repository. */
export function shippedModel() {
  const models = join(root, 'examples/models');
  const name = existsSync(models)
    ? readdirSync(models)
        .sort()
        .find((entry) => existsSync(join(models, entry, 'config.json')))
    : undefined;
  if (!name) throw new Refusal(`No model in ${models}`);
  return join(models, name);
}

/** A failure whose message is for the user: printed without a stack. */
export class Refusal extends Error {}

/** Runs a script's main function if the script is the one started; ends the process with code 1 if it fails. */
export function main(url, body) {
  if (process.argv[1] && existsSync(process.argv[1]) && fileURLToPath(url) === process.argv[1]) {
    body(process.argv.slice(2)).catch((error) => {
      console.error(error instanceof Refusal ? error.message : error);
      process.exit(1);
    });
  }
}
