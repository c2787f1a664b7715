import { readFile } from 'node:fs/promises';
import { drawLoading, kebabCase, listFlags, liveLine, megabytes, parseFlags, UsageError, untilInterrupted } from './cli-flags.ts';
import { train } from './cli-train.ts';
import { cache, defaultModel, inspect, load } from './node.js';
import { checkLoadOptions, describeOptions, resolveGeneration } from './options.ts';
import type { ChatOptions, GenerateResult, LoadOptions, ModelInfo } from './types.ts';

const {
  load: { trainable: _, ...loadWords },
  generate: generateWords,
} = describeOptions();

function help(): string {
  return `Usage:
  wasmformer PROMPT [options]      continue a text (from standard input where PROMPT is -)
  wasmformer train FILE... --out FOLDER   train a new model; wasmformer train --help says more
  wasmformer info [SOURCE]         architecture, parameters, memory as in the file and by dtype; loads no weights
  wasmformer cache list            what has been downloaded
  wasmformer cache clear [MODEL]   remove it, or one model's files

  --model SOURCE                       a Hub id, address or folder; default: the model in the package
  --chat                               answer PROMPT by the model's chat template
  --json                               one JSON object in place of text
  --help, --version

Loading:
${listFlags(loadWords)}

Generating (lists as 1,2,3 or JSON):
${listFlags(generateWords)}
`;
}

interface Arguments {
  positionals: string[];
  /** All options that were typed. */
  names: string[];
  flags: Record<'chat' | 'json' | 'help' | 'version', boolean>;
  model?: string;
  load: LoadOptions;
  generate: ChatOptions;
}

function parse(argv: string[]): Arguments {
  const { positionals, own, given } = parseFlags(
    argv,
    { ...loadWords, ...generateWords },
    { model: { type: 'string', short: 'm' }, chat: { type: 'boolean' }, json: { type: 'boolean' } },
  );
  const pick = (from: object) => Object.fromEntries(Object.entries(given).filter(([name]) => name in from));
  const { chat = false, json = false, help = false, version = false, model } = own;
  const names = Object.keys({ ...own, ...given });
  return { positionals, names, flags: { chat, json, help, version }, model, load: pick(loadWords), generate: pick(generateWords) };
}

/** Refuses what a command has no use for. */
function expectOnly(names: string[], command: string, used: string[]): void {
  const other = names.find((name) => !used.includes(name));
  if (other) throw new UsageError(`${command} takes no --${kebabCase(other)}`);
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

  const { signal } = untilInterrupted();
  let lm: Awaited<ReturnType<typeof load>>;
  try {
    lm = await load(model, { ...loadOptions, onProgress: drawLoading, signal });
  } catch (reason) {
    if (signal.aborted) return 130;
    throw reason;
  } finally {
    liveLine.clear();
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

async function info({ positionals, names, flags, load: loadOptions, model }: Arguments): Promise<number> {
  const sources = [...positionals.slice(1), ...(model === undefined ? [] : [model])];
  if (sources.length > 1) throw new UsageError(`expected one source, got ${sources.length}`);
  expectOnly(names, 'info', ['model', 'json', ...Object.keys(loadWords)]);
  const [source = defaultModel] = sources;
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
    ...Object.entries(memory).map(([dtype, { weights, workspace, cachePerToken, fits }]): [string, string] => [
      `memory ${dtype === 'file' ? 'as in file' : dtype}`,
      `weights ${megabytes(weights)}, working ${megabytes(workspace)}, cache ${megabytes(cachePerToken)} a token${fits ? '' : ': does not fit'}`,
    ]),
    ...(unusedTensors.length > 0 ? [['unused tensors', unusedTensors.join(', ')] as [string, string]] : []),
  ];
  for (const [name, value] of lines) process.stdout.write(`${name.padEnd(17)} ${value}\n`);
  return 0;
}

function contextOf({ contextLength, contextIsWall, positions }: Pick<ModelInfo, 'contextLength' | 'contextIsWall' | 'positions'>): string {
  if (contextLength === 0) return `${positions} positions, no limit stated`;
  return `${contextLength.toLocaleString('en')} tokens, ${positions} positions${contextIsWall ? '' : ' (goes on past them)'}`;
}

async function files({ positionals, names, flags, load: { cacheDir } }: Arguments): Promise<number> {
  const [, action, id, extra] = positionals;
  const options = typeof cacheDir === 'string' ? { cacheDir } : {};
  if (extra !== undefined) throw new UsageError('expected one model at most');
  if (action === 'list' && id === undefined) {
    expectOnly(names, 'cache list', ['cacheDir', 'json']);
    const found = await cache.list(options);
    if (flags.json) process.stdout.write(`${JSON.stringify(found, null, 2)}\n`);
    else
      for (const { id, file, size, revision } of found)
        process.stdout.write(`${megabytes(size).padStart(10)}  ${id}${revision ? `@${revision}` : ''}  ${file}\n`);
    return 0;
  }
  if (action === 'clear') {
    expectOnly(names, 'cache clear', ['cacheDir']);
    const freed = await cache.clear(id, options);
    process.stdout.write(`${megabytes(freed)} freed\n`);
    return 0;
  }
  throw new UsageError(`expected 'cache list' or 'cache clear [MODEL]', got 'cache ${[action, id].filter(Boolean).join(' ')}'`);
}

async function main(): Promise<number> {
  const argv = process.argv.slice(2);
  if (argv[0] === 'train') return train(argv.slice(1));
  const given = parse(argv);
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
  if (command === 'train') throw new UsageError("expected 'train' before its options");
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
    process.stderr.write(
      `wasmformer: ${reason.message}\n(wasmformer ${process.argv[2] === 'train' ? 'train ' : ''}--help lists the options)\n`,
    );
    process.exitCode = 2;
  } else {
    const { code, message } = reason as Error & { code?: string };
    process.stderr.write(`wasmformer: ${code ? `${code}: ` : ''}${message}\n`);
    process.exitCode = 1;
  }
}
