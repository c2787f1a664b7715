import type { Flat } from '../engine/flat.ts';
import { WasmformerError } from '../errors.ts';
import {
  boolean,
  type CheckedPrompt,
  checked,
  checkIds,
  checkLabels,
  checkPrompts,
  count,
  fail,
  type GenerateRequest,
  type Kind,
  kind,
  nonNegative,
  object,
  oneOf,
  positiveInteger,
  resolveGeneration,
  seed,
  share,
  signal,
} from '../options.ts';
import type { GenerateOptions, TrainData, TrainOptions } from '../types.ts';
import type { Item, Objective } from './examples.ts';
import { format } from './training.ts';

/** Options of `train` that are kept with a saved training. */
export interface TrainSettings {
  /** What the native side is told. */
  native: Flat;
  batchTokens?: number;
  microBatchTokens?: number;
  steps?: number;
  epochs?: number;
  seed?: number;
  shuffle?: boolean;
  maxLength?: number;
  truncate?: boolean;
  objective?: Objective;
  maskProbability?: number;
  evalEvery?: number;
  evalFraction?: number;
  sampleEvery?: number;
}

/** Text files, to be read where the engine is. */
export interface TextFiles {
  files: (string | Blob)[];
  /** Whether each line is an entry; by default where the model takes pairs. */
  lines?: boolean;
}

/** What the engine is told of a training before it gets data. */
export interface TrainRequest {
  settings: TrainSettings;
  /** The data come as the caller has them, perhaps without end, and are read again for every epoch. */
  streams: boolean;
  hasEval: boolean;
  resume: boolean;
  files?: TextFiles;
  evalFiles?: TextFiles;
  /** `asked`: the caller said what samples are to be. */
  sample: { asked: boolean; prompt: CheckedPrompt | null; request: GenerateRequest };
}

/** Data that are not in files: entries one after the other, from the beginning each time. */
export type Entries = Iterable<unknown> | AsyncIterable<unknown>;

export interface CheckedTraining {
  request: TrainRequest;
  data: Entries;
  evalData: Entries;
  signal?: AbortSignal;
}

const where = 'train';
const native: Record<string, Kind> = {
  optimizer: oneOf('adamw', 'adam', 'muon'),
  learningRate: nonNegative,
  schedule: oneOf('constant', 'linear', 'cosine', 'inverse_sqrt', 'paper'),
  warmup: count,
  beta1: share,
  beta2: share,
  epsilon: nonNegative,
  weightDecay: nonNegative,
  maxGradNorm: nonNegative,
  labelSmoothing: share,
  dropout: share,
  checkpointing: boolean,
};
const part = kind('a number > 0 and < 1', (value) => typeof value === 'number' && value > 0 && value < 1);
const own: Record<string, Kind> = {
  batchTokens: positiveInteger,
  microBatchTokens: positiveInteger,
  steps: positiveInteger,
  epochs: positiveInteger,
  seed,
  shuffle: boolean,
  maxLength: positiveInteger,
  truncate: boolean,
  objective: oneOf('causal', 'seq2seq', 'masked'),
  maskProbability: part,
  evalEvery: positiveInteger,
  evalFraction: part,
  sampleEvery: positiveInteger,
};
/** Options that are numbers, switches or names. */
export const trainKinds = { ...native, ...own };
const call: Record<string, Kind> = {
  evalData: kind('data', (value) => dataOf(value) !== null),
  sample: kind('a prompt or { prompt, ...options }', (value) => typeof value === 'string' || object.test(value)),
  resume: boolean,
  signal,
};

/** Refuses what trainer_state.json says where no training can have written it. */
export function checkState(state: Record<string, any>): void {
  const file = 'trainer_state.json';
  const need = (from: Record<string, unknown>, kinds: Record<string, Kind>, before = '') => {
    for (const [name, { test, expected }] of Object.entries(kinds)) if (!test(from[name])) fail(file, before + name, expected, from[name]);
  };
  try {
    const examples = kind('null or an integer >= 0', (value) => value === null || count.test(value));
    need(state, { format: oneOf(format), step: count, position: object, examples, evalData: boolean, settings: object });
    const { position, settings } = state;
    need(position, { epoch: count, read: count, pool: count, used: count }, 'position.');
    // Of an array all are within it: each update has an example of its own.
    const most = state.examples ?? Infinity;
    if (position.read + position.used > most || position.pool > position.read) fail(file, 'position', `one of ${most} examples`, position);
    need(settings, { native: object }, 'settings.');
    const { native: told, ...rest } = settings;
    checked(file, told, native);
    checked(file, rest, own);
  } catch (cause) {
    throw new WasmformerError('invalid-file', (cause as Error).message, { cause });
  }
}

/** Checks `train`'s arguments, as far as that can be done before the data are read. */
export function checkTrain(data: TrainData, options: TrainOptions | undefined, generationConfig: Record<string, unknown>): CheckedTraining {
  const given = checked(where, options, { ...trainKinds, ...call });
  const source = dataOf(data);
  if (!source) fail(where, 'dataset', 'an array, an iterable, a text or { file }', data);
  const settings: Record<string, unknown> = { native: {} };
  for (const [name, value] of Object.entries(given)) {
    if (name in native) (settings.native as Flat)[name] = value;
    else if (name in own) settings[name] = value;
  }
  const held = given.evalData === undefined ? null : dataOf(given.evalData);
  if (held && given.evalFraction !== undefined) fail(where, 'evalFraction', 'none with evalData', given.evalFraction);
  const { sample = {} } = given;
  const asked: GenerateOptions & { prompt?: unknown } = typeof sample === 'string' || 'inputIds' in sample ? { prompt: sample } : sample;
  const { prompt, ...generate } = asked;
  for (const name of ['cache', 'signal', 'numReturnSequences'] as const) {
    if (generate[name] !== undefined) fail(where, `sample.${name}`, 'none', generate[name]);
  }
  const prompts = prompt === undefined ? [] : checkPrompts(where, prompt).prompts;
  if (prompts.length > 1) fail(where, 'sample', 'one prompt', prompts.length);
  return {
    request: {
      settings: settings as unknown as TrainSettings,
      streams: source.streams,
      hasEval: held !== null,
      resume: given.resume ?? false,
      ...(source.files ? { files: source.files } : {}),
      ...(held?.files ? { evalFiles: held.files } : {}),
      sample: {
        asked: given.sample !== undefined,
        prompt: prompts[0] ?? null,
        request: resolveGeneration(
          where,
          { maxNewTokens: 64, seed: given.seed ?? 0, ...generate, numReturnSequences: 1 },
          generationConfig,
        ),
      },
    },
    data: source.entries,
    evalData: held?.entries ?? [],
    signal: given.signal,
  };
}

interface Source {
  entries: Entries;
  streams: boolean;
  files?: TextFiles;
}

/** Where an iterable's iterator comes from. */
const source = (data: any) => data?.[Symbol.asyncIterator] ?? data?.[Symbol.iterator];
export const isIterable = (data: unknown): data is Entries => typeof source(data) === 'function';

export function iteratorOf<T>(where: string, data: Iterable<T> | AsyncIterable<T>): Iterator<T> | AsyncIterator<T> {
  const iterator = source(data).call(data);
  if (typeof iterator?.next !== 'function') fail(where, 'iterator', 'one with a function next', iterator);
  return iterator;
}

/** Data as entries; null for what is none. */
function dataOf(data: unknown): Source | null {
  if (typeof data === 'string') return { entries: [data], streams: false };
  if (Array.isArray(data)) return { entries: data, streams: false };
  if (typeof data !== 'object' || data === null) return null;
  if (isIterable(data)) return { entries: data as Entries, streams: true };
  const isFile = (file: unknown) => typeof file === 'string' || file instanceof Blob;
  const { file, files, lines } = checked(where, data, {
    file: kind('a path or a Blob', isFile),
    files: kind('an array of paths or Blobs', (list) => Array.isArray(list) && list.length > 0 && list.every(isFile)),
    lines: boolean,
  });
  if ((file === undefined) === (files === undefined)) return null;
  return { entries: [], streams: false, files: { files: files ?? [file], ...(lines === undefined ? {} : { lines }) } };
}

/** One entry of the data, checked and copied. */
export function checkItem(entry: unknown, what: string): Item {
  if (typeof entry === 'string') return { text: entry };
  const expected = 'a text, { text }, { source, target }, [source, target] or { inputIds }';
  if (typeof entry !== 'object' || entry === null) return fail(where, what, expected, entry);
  const isText = (value: unknown) => typeof value === 'string';
  if (Array.isArray(entry)) {
    if (entry.length !== 2 || !entry.every(isText)) fail(where, what, expected, entry);
    return { source: entry[0], target: entry[1] };
  }
  const { text, source, target, inputIds, labels, decoderInputIds } = entry as Record<string, unknown>;
  const keys = Object.keys(entry);
  const only = (...names: string[]) => keys.every((key) => names.includes(key));
  if (isText(text) && only('text')) return { text: text as string };
  if (isText(source) && isText(target) && only('source', 'target')) return { source: source as string, target: target as string };
  if (inputIds === undefined || !only('inputIds', 'labels', 'decoderInputIds')) fail(where, what, expected, entry);
  return {
    inputIds: checkIds(where, inputIds, `${what}: `),
    ...(labels === undefined ? {} : { labels: checkLabels(where, `${what}: labels`, labels) }),
    ...(decoderInputIds === undefined ? {} : { decoderInputIds: checkIds(where, decoderInputIds, `${what}: `) }),
  };
}
