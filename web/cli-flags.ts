import { parseArgs } from 'node:util';
import { nearestOf, type OptionWords } from './options.ts';
import type { Progress } from './types.ts';

/** A mistake on the command line: exit code 2. */
export class UsageError extends Error {}

export const kebabCase = (name: string) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

/** Options, a line each. */
export function listFlags(words: Record<string, OptionWords>): string {
  return Object.entries(words)
    .map(([name, { expected, type }]) => {
      const flag = type === 'switch' ? `--[no-]${kebabCase(name)}` : `--${kebabCase(name)}`;
      return type === 'switch' ? `  ${flag}` : `  ${flag.padEnd(36)} ${expected}`;
    })
    .join('\n');
}

type Flag = { type: 'string' | 'boolean'; short?: string; multiple?: boolean };

/**
 * Reads a command's arguments: `given` has the options of `words`, by their names in JavaScript, and `own` the command's own flags as they
 * were typed, with `help` and `version`.
 */
export function parseFlags(
  argv: string[],
  words: Record<string, OptionWords>,
  flags: Record<string, Flag>,
): { positionals: string[]; own: Record<string, any>; given: Record<string, unknown> } {
  const nameOf = new Map(Object.keys(words).map((name) => [kebabCase(name), name]));
  const options: Record<string, Flag> = {
    ...flags,
    help: { type: 'boolean', short: 'h' },
    version: { type: 'boolean', short: 'v' },
  };
  for (const [flag, name] of nameOf) {
    options[flag] = words[name].type === 'switch' ? { type: 'boolean' } : { type: 'string', multiple: name === 'stopStrings' };
    if (words[name].type === 'switch') options[`no-${flag}`] = { type: 'boolean' };
  }
  // A negative number after an option is its value, which the parser would take for another option.
  const joined: string[] = [];
  for (let i = 0; i < argv.length; ++i) {
    if (/^--[a-z-]+$/.test(argv[i]) && /^-(\d|\.\d|Infinity)/.test(argv[i + 1] ?? '')) joined.push(`${argv[i]}=${argv[++i]}`);
    else joined.push(argv[i]);
  }
  let values: Record<string, any>;
  let positionals: string[];
  try {
    ({ values, positionals } = parseArgs({ args: joined, options, allowPositionals: true }));
  } catch (reason) {
    const message = (reason as Error).message.split('. ')[0];
    const unknown = /^Unknown option '--([\w-]+)'/.exec(message)?.[1];
    const nearest = unknown && nearestOf(unknown, Object.keys(options));
    throw new UsageError(message + (nearest ? `: the nearest known is '--${nearest}'` : ''));
  }
  const own: Record<string, any> = {};
  const given: Record<string, unknown> = {};
  for (const [flag, value] of Object.entries(values)) {
    const name = nameOf.get(flag) ?? (flag.startsWith('no-') ? nameOf.get(flag.slice(3)) : undefined);
    if (!name) {
      own[flag] = value;
      continue;
    }
    const { type } = words[name];
    if (type === 'switch') given[name] = nameOf.has(flag);
    else given[name] = type === 'text' ? value : readValue(value);
    if (type === 'list' && typeof given[name] === 'number') given[name] = [given[name]];
  }
  return { positionals, own, given };
}

/** A number, a list of numbers, JSON, or the text itself, which the check of the option then refuses. */
export function readValue(text: string): unknown {
  if (/^-?\d+(,-?\d+)+$/.test(text)) return text.split(',').map(Number);
  if (/^[-+]?Infinity$/.test(text)) return Number(text);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export const megabytes = (bytes: number) =>
  bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;

/** The last line of a terminal, written over and over; nothing where standard error is none. */
export const liveLine = {
  shown: process.stderr.isTTY === true,
  /** `part`: of the work that is done, from 0 to 1. */
  draw(part: number, text: string): void {
    if (!this.shown) return;
    const room = (process.stderr.columns || 80) - 1;
    const width = Math.max(5, Math.min(30, room - text.length - 1));
    const filled = Math.round(Math.min(1, part) * width);
    const line = `${'█'.repeat(filled)}${'░'.repeat(width - filled)} ${text}`;
    process.stderr.write(`\r\x1b[K${line.slice(0, room)}`);
  },
  clear(): void {
    if (this.shown) process.stderr.write('\r\x1b[K');
  },
};

/** Draws a bar while a model loads. */
export function drawLoading({ overallLoaded, overallTotal, file }: Progress): void {
  const part = overallTotal > 0 ? overallLoaded / overallTotal : 0;
  const percent = String(Math.floor(Math.min(1, part) * 100)).padStart(3);
  liveLine.draw(part, `${percent} %  ${megabytes(overallLoaded)} of ${megabytes(overallTotal)}  ${file}`);
}

/** Aborts at the first interrupt, and when there is nobody left to write for. A second interrupt ends the process in the usual way. */
export function untilInterrupted(): AbortController {
  const controller = new AbortController();
  const interrupt = () => {
    controller.abort();
    // npx hands on what the terminal has sent to everyone already: the second interrupt that counts comes later.
    setTimeout(() => process.removeListener('SIGINT', interrupt), 1000).unref();
  };
  process.on('SIGINT', interrupt);
  process.stdout.on('error', () => controller.abort());
  return controller;
}
