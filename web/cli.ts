import { readFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { cache, defaultModel, inspect, load } from './node.js';
import { checkLoadOptions, describeOptions, nearestOf, type OptionWords, resolveGeneration } from './options.ts';
import type { ChatOptions, Dtype, GenerateResult, LoadOptions, ModelInfo, Progress } from './types.ts';

/** A mistake on the command line: exit code 2. */
class UsageError extends Error {}

const kebabCase = (name: string) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
const {
  load: { trainable: _, ...loadWords },
  generate: generateWords,
} = describeOptions();
const words: Record<string, OptionWords> = { ...loadWords, ...generateWords };
const nameOf = new Map(Object.keys(words).map((name) => [kebabCase(name), name]));

function help(): string {
  const list = (options: Record<string, OptionWords>) =>
    Object.entries(options)
      .map(([name, { expected, type }]) => {
        const flag = type === 'switch' ? `--[no-]${kebabCase(name)}` : `--${kebabCase(name)}`;
        return type === 'switch' ? `  ${flag}` : `  ${flag.padEnd(36)} ${expected}`;
      })
      .join('\n');
  return `Usage:
  wasmformer PROMPT [options]      continue a text (from standard input where PROMPT is -)
  wasmformer info [SOURCE]         architecture, parameters, memory by dtype; loads no weights
  wasmformer cache list            what has been downloaded
  wasmformer cache clear [MODEL]   remove it, or one model's files

  --model SOURCE                       a Hub id, address or folder; default: the model in the package
  --chat                               answer PROMPT by the model's chat template
  --json                               one JSON object in place of text
  --help, --version

Loading:
${list(loadWords)}

Generating (lists as 1,2,3 or JSON):
${list(generateWords)}
`;
}

interface Arguments {
  positionals: string[];
  flags: Record<'chat' | 'json' | 'help' | 'version', boolean>;
  model?: string;
  load: LoadOptions;
  generate: ChatOptions;
}

function parse(argv: string[]): Arguments {
  const options: Record<string, { type: 'string' | 'boolean'; short?: string; multiple?: boolean }> = {
    model: { type: 'string', short: 'm' },
    chat: { type: 'boolean' },
    json: { type: 'boolean' },
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
  const given: Record<string, unknown> = {};
  for (const [flag, value] of Object.entries(values)) {
    const name = nameOf.get(flag) ?? (flag.startsWith('no-') ? nameOf.get(flag.slice(3)) : undefined);
    if (!name) continue;
    const { type } = words[name];
    if (type === 'switch') given[name] = nameOf.has(flag);
    else given[name] = type === 'text' ? value : readValue(value);
    if (type === 'list' && typeof given[name] === 'number') given[name] = [given[name]];
  }
  const pick = (from: Record<string, OptionWords>) => Object.fromEntries(Object.entries(given).filter(([name]) => name in from));
  const { chat = false, json = false, help = false, version = false, model } = values;
  return { positionals, flags: { chat, json, help, version }, model, load: pick(loadWords), generate: pick(generateWords) };
}

/** A number, a list of numbers, JSON, or the text itself, which the check of the option then refuses. */
function readValue(text: string): unknown {
  if (/^-?\d+(,-?\d+)+$/.test(text)) return text.split(',').map(Number);
  if (/^[-+]?Infinity$/.test(text)) return Number(text);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const megabytes = (bytes: number) =>
  bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;

/** Draws a bar on a terminal while a model loads. */
function progressBar(): { update(progress: Progress): void; clear(): void } {
  const { stderr } = process;
  if (!stderr.isTTY) return { update: () => {}, clear: () => {} };
  const width = 30;
  return {
    update: ({ overallLoaded, overallTotal, file }) => {
      const part = overallTotal > 0 ? Math.min(1, overallLoaded / overallTotal) : 0;
      const filled = Math.round(part * width);
      const bar = '█'.repeat(filled) + '░'.repeat(width - filled);
      const line = `${bar} ${String(Math.round(part * 100)).padStart(3)} %  ${megabytes(overallLoaded)} of ${megabytes(overallTotal)}  ${file}`;
      stderr.write(`\r\x1b[K${line.slice(0, (stderr.columns || 80) - 1)}`);
    },
    clear: () => stderr.write('\r\x1b[K'),
  };
}

async function generate({ positionals, flags, model = defaultModel, load: loadOptions, generate: options }: Arguments): Promise<number> {
  if (positionals.length > 1) throw new UsageError(`expected one prompt (in quotation marks), got ${positionals.length}`);
  let [prompt] = positionals;
  if (prompt === undefined && process.stdin.isTTY) throw new UsageError('expected a prompt');
  try {
    checkLoadOptions(loadOptions);
    // Whether the model itself samples is known only when it is loaded.
    resolveGeneration(flags.chat ? 'chat' : 'generate', options, { do_sample: true });
  } catch (reason) {
    throw new UsageError((reason as Error).message);
  }
  if (prompt === undefined || prompt === '-') prompt = await text(process.stdin);

  const controller = new AbortController();
  const { signal } = controller;
  const interrupt = () => {
    // A second interrupt ends the process in the usual way.
    process.removeListener('SIGINT', interrupt);
    controller.abort();
  };
  process.on('SIGINT', interrupt);
  // There is nobody left to write for.
  process.stdout.on('error', () => controller.abort());

  const bar = progressBar();
  let lm: Awaited<ReturnType<typeof load>>;
  try {
    lm = await load(model, { ...loadOptions, onProgress: bar.update, signal });
  } catch (reason) {
    if (signal.aborted) return 130;
    throw reason;
  } finally {
    bar.clear();
  }
  try {
    for (const { message } of lm.info().warnings) process.stderr.write(`wasmformer: ${message}\n`);
    const began = performance.now();
    let first = 0;
    const stream = flags.chat ? lm.chat(prompt, { ...options, signal }) : lm.generate(prompt, { ...options, signal });
    let sequence = 0;
    for await (const piece of stream) {
      first ||= performance.now();
      // Several sequences grow at once: only whole ones can be read.
      if (!flags.json && !several(options)) process.stdout.write(piece.text);
      sequence = Math.max(sequence, piece.sequence);
    }
    const ended = performance.now();
    const result: GenerateResult | GenerateResult[] = await stream.result;
    const results = [result].flat();
    const count = results.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
    // Beams give all they have at the end.
    const grew = count > results.length && (ended - first) * 100 > ended - began;
    const perSecond = grew ? ((count - results.length) * 1000) / (ended - first) : 0;
    if (flags.json) process.stdout.write(`${JSON.stringify(several(options) ? results : results[0])}\n`);
    else if (several(options)) for (const { text } of results) process.stdout.write(`${text}\n`);
    else if (!results[0].text.endsWith('\n')) process.stdout.write('\n');
    const [{ promptTokens, seed, finishReason, notes = [] }] = results;
    for (const note of notes) process.stderr.write(`wasmformer: ${note}\n`);
    const speed = perSecond ? `, ${perSecond.toFixed(perSecond < 100 ? 1 : 0)} tokens/s` : '';
    const wait = first ? `, first after ${Math.round(first - began)} ms` : '';
    process.stderr.write(`${count} tokens${speed} (prompt ${promptTokens}${wait}, ${finishReason}, seed ${seed})\n`);
    return signal.aborted ? 130 : 0;
  } finally {
    await lm.dispose();
  }
}

const several = ({ numReturnSequences }: ChatOptions) => (numReturnSequences ?? 1) > 1;

async function text(stream: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString('utf8');
}

async function info({ positionals, flags, load: loadOptions, model }: Arguments): Promise<number> {
  const [, source = model ?? defaultModel, extra] = positionals;
  if (extra !== undefined) throw new UsageError(`expected one source, got ${positionals.length - 1}`);
  const found = await inspect(source, loadOptions);
  if (flags.json) {
    process.stdout.write(`${JSON.stringify(found, null, 2)}\n`);
    return 0;
  }
  const { memory, fileBytes, unusedTensors, ...rest } = found;
  const lines: [string, string][] = [
    ['source', rest.source],
    ['format', `${rest.format}, ${megabytes(fileBytes)}`],
    [
      'architecture',
      `${rest.architecture}, ${rest.layers} layers, ${rest.heads} heads (${rest.kvHeads} for keys and values), width ${rest.hiddenSize}`,
    ],
    ['head', rest.head],
    ['made for', rest.tasks.join(', ')],
    ['parameters', rest.parameters.toLocaleString('en')],
    ['vocabulary', rest.vocabSize.toLocaleString('en')],
    ['context', contextOf(rest)],
    [
      'weights kept as',
      Object.entries(rest.dtypes)
        .map(([dtype, count]) => `${dtype} ${count.toLocaleString('en')}`)
        .join(', '),
    ],
    ...(Object.entries(memory) as [Dtype, (typeof memory)[Dtype]][]).map(
      ([dtype, { weights, workspace, cachePerToken, fits }]): [string, string] => [
        `memory ${dtype}`,
        `weights ${megabytes(weights)}, working ${megabytes(workspace)}, cache ${megabytes(cachePerToken)} a token${fits ? '' : ': does not fit'}`,
      ],
    ),
    ...(unusedTensors.length > 0 ? [['unused tensors', unusedTensors.join(', ')] as [string, string]] : []),
  ];
  for (const [name, value] of lines) process.stdout.write(`${name.padEnd(16)} ${value}\n`);
  return 0;
}

function contextOf({ contextLength, contextIsWall, positions }: Pick<ModelInfo, 'contextLength' | 'contextIsWall' | 'positions'>): string {
  if (contextLength === 0) return `${positions} positions, no limit stated`;
  return `${contextLength.toLocaleString('en')} tokens, ${positions} positions${contextIsWall ? '' : ' (goes on past them)'}`;
}

async function files({ positionals, flags, load: { cacheDir } }: Arguments): Promise<number> {
  const [, action, id, extra] = positionals;
  const options = typeof cacheDir === 'string' ? { cacheDir } : {};
  if (extra !== undefined) throw new UsageError('expected one model at most');
  if (action === 'list' && id === undefined) {
    const found = await cache.list(options);
    if (flags.json) process.stdout.write(`${JSON.stringify(found, null, 2)}\n`);
    else
      for (const { id, file, size, revision } of found)
        process.stdout.write(`${megabytes(size).padStart(10)}  ${id}${revision ? `@${revision}` : ''}  ${file}\n`);
    return 0;
  }
  if (action === 'clear') {
    const freed = await cache.clear(id, options);
    process.stdout.write(`${megabytes(freed)} freed\n`);
    return 0;
  }
  throw new UsageError(`expected 'cache list' or 'cache clear [MODEL]', got 'cache ${[action, id].filter(Boolean).join(' ')}'`);
}

async function main(): Promise<number> {
  const given = parse(process.argv.slice(2));
  if (given.flags.help) {
    process.stdout.write(help());
    return 0;
  }
  if (given.flags.version) {
    const { version } = JSON.parse(await readFile(new URL('../package.json', import.meta.url), 'utf8'));
    process.stdout.write(`${version}\n`);
    return 0;
  }
  const [command] = given.positionals;
  if (command === 'info') return info(given);
  if (command === 'cache') return files(given);
  return generate(given);
}

// The reader of a pipe may leave early; anything else that keeps text from being written is a failure.
let unwritten: NodeJS.ErrnoException | undefined;
process.stdout.on('error', (reason: NodeJS.ErrnoException) => {
  if (reason.code === 'EPIPE' || unwritten) return;
  unwritten = reason;
  process.stderr.write(`wasmformer: standard output: ${reason.message}\n`);
  process.exitCode = 1;
});
process.stderr.on('error', () => {});

try {
  const code = await main();
  process.exitCode = unwritten ? 1 : code;
} catch (reason) {
  if (reason instanceof UsageError) {
    process.stderr.write(`wasmformer: ${reason.message}\n(wasmformer --help lists the options)\n`);
    process.exitCode = 2;
  } else {
    const { code, message } = reason as Error & { code?: string };
    process.stderr.write(`wasmformer: ${code ? `${code}: ` : ''}${message}\n`);
    process.exitCode = 1;
  }
}
