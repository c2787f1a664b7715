import { dtypes } from './dtypes.ts';
import type { Flat } from './engine/flat.ts';
import { WasmformerError } from './errors.ts';
import type {
  ChatMessage,
  ChatOptions,
  CreateOptions,
  Dtype,
  ForwardInput,
  ForwardOptions,
  GenerateOptions,
  GradientBatch,
  LoadOptions,
  Prompt,
} from './types.ts';

/** Tells whether a value will do, and in words what will. */
export interface Kind {
  expected: string;
  test(value: any): boolean;
}

export const kind = (expected: string, test: (value: any) => boolean): Kind => ({ expected, test });
const number = (expected: string, test: (value: number) => boolean) => kind(expected, (value) => typeof value === 'number' && test(value));
const integerFrom = (least: number, most = 2 ** 31 - 1) =>
  number(`an integer from ${least} to ${most}`, (value) => Number.isInteger(value) && value >= least && value <= most);
const isId = (value: unknown) => Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 31;

export const boolean = kind('true or false', (value) => typeof value === 'boolean');
export const string = kind('a string', (value) => typeof value === 'string');
const finite = number('a finite number', Number.isFinite);
const bias = number('a finite number or -Infinity', (value) => value < Infinity);
export const nonNegative = number('a number >= 0', (value) => value >= 0 && value < Infinity);
export const seed = integerFrom(0, Number.MAX_SAFE_INTEGER);
const positive = number('a number > 0', (value) => value > 0 && value < Infinity);
export const positiveInteger = integerFrom(1);
export const count = integerFrom(0);
const several = integerFrom(1, 65536);
export const share = number('a number >= 0 and < 1', (value) => value >= 0 && value < 1);
const fraction = number('a number from 0 to 1', (value) => value >= 0 && value <= 1);
const positiveFraction = number('a number > 0 and <= 1', (value) => value > 0 && value <= 1);
const id = kind('a token id', isId);
/** Whether a value is an array and all its entries pass; unlike `every` this looks at holes too, as undefined. */
export const isArrayOf = (value: unknown, test: (item: any) => boolean) =>
  Array.isArray(value) && Array.from(value).every((item) => test(item));
const ids = kind('an array of token ids', (value) => isArrayOf(value, isId));
/** Lists of ids, none of them empty. */
const idLists = kind('an array of non-empty arrays of token ids', (value) => isArrayOf(value, (item) => ids.test(item) && item.length > 0));
const idOrIds = kind('a token id or an array of them', (value) => isId(value) || ids.test(value));
export const callback = kind('a function', (value) => typeof value === 'function');
export const signal = kind(
  'an AbortSignal',
  (value) => typeof value?.addEventListener === 'function' && typeof value.aborted === 'boolean',
);
const address = kind('a URL', (value) => typeof value === 'string' || value instanceof URL);
const array = kind('an array', Array.isArray);
export const object = kind('an object', (value) => typeof value === 'object' && value !== null && !Array.isArray(value));
const anything = kind('anything', () => true);
export const oneOf = (...values: unknown[]) =>
  kind(values.map((value) => JSON.stringify(value)).join(', '), (value) => values.includes(value));

/** What a generation option is: checked and passed on, or known and not built unless it has a value that asks for nothing. */
interface GenerationOption {
  kind: Kind;
  /** Values that mean the same as leaving the option out; everything else of an option with this is `unsupported`. */
  inert?: readonly unknown[];
  sampling?: true;
}

const built = (kind: Kind): GenerationOption => ({ kind });
const sampling = (kind: Kind): GenerationOption => ({ kind, sampling: true });
const notBuilt = (...inert: unknown[]): GenerationOption => ({ kind: anything, inert });

/** Hugging Face's generation options, all of them. */
const generationOptions: Record<string, GenerationOption> = {
  maxNewTokens: built(positiveInteger),
  maxLength: built(positiveInteger),
  minNewTokens: built(count),
  minLength: built(count),
  maxTime: built(number('a number of seconds >= 0', (value) => value >= 0)),
  stopStrings: built(
    kind('a string or an array of strings, none of them empty', (value) =>
      isArrayOf(Array.isArray(value) ? value : [value], (item) => typeof item === 'string' && item !== ''),
    ),
  ),
  doSample: built(boolean),
  temperature: sampling(number('a number > 0 (for the likeliest token: doSample: false)', (value) => value > 0 && value < Infinity)),
  topK: sampling(count),
  topP: sampling(fraction),
  minP: sampling(fraction),
  topH: sampling(positiveFraction),
  typicalP: sampling(positiveFraction),
  epsilonCutoff: sampling(share),
  etaCutoff: sampling(share),
  repetitionPenalty: built(positive),
  noRepeatNgramSize: built(count),
  encoderNoRepeatNgramSize: built(count),
  encoderRepetitionPenalty: built(positive),
  badWordsIds: built(idLists),
  sequenceBias: built(
    kind('an array of [token ids, bias]', (value) =>
      isArrayOf(value, (item) => Array.isArray(item) && item.length === 2 && ids.test(item[0]) && item[0].length > 0 && bias.test(item[1])),
    ),
  ),
  suppressTokens: built(ids),
  beginSuppressTokens: built(ids),
  forcedBosTokenId: built(id),
  forcedEosTokenId: built(idOrIds),
  exponentialDecayLengthPenalty: built(
    kind('[tokens, factor]', (value) => Array.isArray(value) && value.length === 2 && count.test(value[0]) && positive.test(value[1])),
  ),
  renormalizeLogits: built(boolean),
  removeInvalidValues: built(boolean),
  eosTokenId: built(idOrIds),
  bosTokenId: built(id),
  decoderStartTokenId: built(idOrIds),
  padTokenId: built(kind('a token id', Number.isInteger)),
  numReturnSequences: built(several),
  numBeams: built(several),
  lengthPenalty: built(finite),
  earlyStopping: built(oneOf(true, false, 'never')),
  useCache: notBuilt(true),
  cacheImplementation: notBuilt('dynamic'),
  returnDictInGenerate: notBuilt(true, false),
  outputScores: notBuilt(false),
  outputLogits: notBuilt(false),
  outputAttentions: notBuilt(false),
  outputHiddenStates: notBuilt(false),
  numBeamGroups: notBuilt(1),
  diversityPenalty: notBuilt(0),
  guidanceScale: notBuilt(1),
  penaltyAlpha: notBuilt(0),
  promptLookupNumTokens: notBuilt(0),
  tokenHealing: notBuilt(false),
  isAssistant: notBuilt(false),
  lowMemory: notBuilt(true, false),
  disableCompile: notBuilt(true, false),
  // Numbers that only matter to a kind of assisted generation that is not asked for.
  numAssistantTokens: notBuilt(20),
  numAssistantTokensSchedule: notBuilt('constant', 'heuristic'),
  assistantConfidenceThreshold: notBuilt(0.4),
  assistantLookbehind: notBuilt(10),
  targetLookbehind: notBuilt(10),
  useMtp: notBuilt(false),
  ...Object.fromEntries(
    (
      'dolaLayers constraints forceWordsIds watermarkingConfig cacheConfig ' +
      'maxCacheLen maxMatchingNgramSize assistantEarlyExit assistantEnsembleWeight speculationType ' +
      'compileConfig continuousBatchingConfig prefillChunkSize'
    )
      .split(' ')
      .map((name) => [name, notBuilt()]),
  ),
};

/** Of those that are not built, the ones that would change what a published configuration generates. */
const changesMode = (
  'numBeamGroups penaltyAlpha dolaLayers constraints forceWordsIds watermarkingConfig guidanceScale ' + 'tokenHealing promptLookupNumTokens'
).split(' ');

const selection = kind('true, false or { layers, heads }', (value) => typeof value === 'boolean' || object.test(value));
/** What a forward pass can be asked to show. */
const lookOptions: Record<string, Kind> = { attentions: selection, hiddenStates: boolean, trace: selection };

/** The options of a call that are not Hugging Face's. */
const callOptions: Record<string, Kind> = {
  seed,
  logprobs: count,
  frequencyPenalty: finite,
  presencePenalty: finite,
  logitBias: kind(
    'an object or Map from token id to number',
    (value) => object.test(value) && biases(value).every(([key, value]) => isId(key) && bias.test(value)),
  ),
  decoderInputIds: kind(
    'token ids, or an array of them for each prompt, none of them empty',
    (value) => value?.length > 0 && (!isNested(value) || value.every((list) => list?.length !== 0)),
  ),
  addSpecialTokens: boolean,
  skipSpecialTokens: boolean,
  truncation: oneOf(true, false, 'left', 'right'),
  cache: object,
  signal,
  ...lookOptions,
};

const chatOnlyOptions: Record<string, Kind> = {
  chatTemplate: string,
  addGenerationPrompt: boolean,
  tools: array,
  documents: array,
  templateVariables: object,
};

const loadOptions: Record<string, Kind> = {
  dtype: kind(`${dtypes.map((name) => `'${name}'`).join(', ')}`, (value) => dtypes.includes(value as Dtype)),
  cacheDtype: kind("'f32', 'f16'", (value) => value === 'f32' || value === 'f16'),
  revision: string,
  token: string,
  endpoint: string,
  cacheDir: kind('a string, or false', (value) => typeof value === 'string' || value === false),
  offline: boolean,
  onProgress: callback,
  signal,
  threads: integerFrom(1, 64),
  deterministic: boolean,
  worker: boolean,
  trainable: boolean,
  wasmUrl: address,
  workerUrl: address,
  network: object,
};
const networkOptions: Record<string, Kind> = { retries: count, retryDelay: count, stallTimeout: count, cacheWait: count };

function biases(value: object): [number, unknown][] {
  return (value instanceof Map ? [...value] : Object.entries(value)).map(([key, bias]) => [Number(key), bias]);
}

export function fail(where: string, what: string, expected: string, got: unknown): never {
  throw new WasmformerError('invalid-argument', `[${where}] ${what}: expected ${expected}, got ${show(got)}`);
}

function unsupported(where: string, what: string, hint = ''): never {
  throw new WasmformerError('unsupported', `[${where}] ${what} is not built${hint && `: ${hint}`}`);
}

/** A value in an error message: short, whatever it is. */
function show(value: unknown): string {
  if (typeof value === 'function') return 'a function';
  if (typeof value === 'bigint' || typeof value === 'symbol') return String(value);
  let text: string | undefined;
  try {
    text = typeof value === 'number' ? String(value) : JSON.stringify(value);
  } catch {}
  try {
    text ??= String(value);
  } catch {
    text = 'something that cannot be shown';
  }
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}

/** The number of single-letter changes that turn one word into another (Levenshtein 1966), letter case apart. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; ++i) {
    const next = [i];
    for (let j = 1; j <= b.length; ++j) {
      const same = a[i - 1].toLowerCase() === b[j - 1].toLowerCase();
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (same ? 0 : 1));
    }
    row = next;
  }
  return row[b.length];
}

const camelCase = (name: string) => name.replace(/[_-]([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** The one of `known` that `wanted` was probably meant to be: the fewest changes away, at most three, or a third of its letters. */
export function nearestOf(wanted: string, known: readonly string[]): string | undefined {
  if (wanted.length > 200) return;
  const nearest = known.reduce((best, other) => (distance(wanted, other) < distance(wanted, best) ? other : best));
  return distance(wanted, nearest) <= Math.max(3, wanted.length / 3) ? nearest : undefined;
}

function unknownOption(where: string, name: string, known: string[]): never {
  const nearest = nearestOf(camelCase(name), known);
  const hint = nearest === undefined ? '' : `: the nearest known is '${nearest}'`;
  throw new WasmformerError('invalid-argument', `[${where}] unknown option '${name.slice(0, 60)}'${hint}`);
}

/** Reads what a caller gave. Whatever its getters, proxies and iterators throw becomes `invalid-argument`. */
export function reading<T>(where: string, read: () => T): T {
  try {
    return read();
  } catch (cause) {
    if (cause instanceof WasmformerError) throw cause;
    let reason = 'it throws';
    try {
      reason = String((cause as Error)?.message ?? cause);
    } catch {}
    throw new WasmformerError('invalid-argument', `[${where}] arguments: expected values that can be read, got an error: ${reason}`, {
      cause,
    });
  }
}

/** Own properties that are not undefined; anything but a plain set of options is an error. */
function entriesOf(where: string, options: unknown): [string, any][] {
  if (options === undefined) return [];
  if (typeof options !== 'object' || options === null || Array.isArray(options)) fail(where, 'options', 'an object', options);
  return Object.entries(options).filter(([, value]) => value !== undefined);
}

export function checked(where: string, options: unknown, kinds: Record<string, Kind>): Record<string, any> {
  const result: Record<string, any> = {};
  for (const [name, value] of entriesOf(where, options)) {
    if (!Object.hasOwn(kinds, name)) unknownOption(where, name, Object.keys(kinds));
    if (!kinds[name].test(value)) fail(where, name, kinds[name].expected, value);
    result[name] = value;
  }
  return result;
}

/** Checks `load`'s options. */
export function checkLoadOptions(options: unknown): LoadOptions {
  return reading('load', () => checkedLoadOptions(options));
}

/** Checks `create`'s options; its errors speak of `load`. */
export function checkCreateOptions(options: unknown): CreateOptions {
  const names = ['dtype', 'cacheDtype', 'signal', 'threads', 'deterministic', 'worker', 'trainable', 'wasmUrl', 'workerUrl'];
  const kinds = Object.fromEntries(names.map((name) => [name, loadOptions[name]]));
  return reading('load', () => {
    const result = checkedLoadOptions(options, { ...kinds, seed, tokenizer: anything });
    return { trainable: (result.dtype ?? 'f32') === 'f32', ...result };
  });
}

function checkedLoadOptions(options: unknown, kinds = loadOptions): LoadOptions {
  const result = checked('load', options, kinds);
  if (result.trainable && (result.dtype ?? 'f32') !== 'f32') fail('load', 'dtype', "'f32' with trainable", result.dtype);
  if (result.network) checked('load', result.network, networkOptions);
  return result;
}

/** Checks the options of a small call. */
export function checkOptions<T>(where: string, options: T | undefined, names: (keyof T & string)[]): T {
  const flags = ['addSpecialTokens', 'skipSpecialTokens', 'target', 'optimizer'].map((name) => [name, boolean]);
  const kinds: Record<string, Kind> = { ...Object.fromEntries(flags), labelSmoothing: share, signal, cacheDir: string };
  return reading(where, () => checked(where, options, Object.fromEntries(names.map((name) => [name, kinds[name] ?? anything])))) as T;
}

/** Checks the length to truncate a cache to, as far as that can be told without the cache. */
export function checkCacheLength(length: unknown): void {
  if (!count.test(length)) fail('cache', 'length', count.expected, length);
}

/** A prompt, checked and copied. */
export type CheckedPrompt = { text: string } | { ids: Int32Array };

/** Token ids of one sequence, checked and copied. */
export function checkIds(where: string, value: unknown, what = ''): Int32Array {
  const list = value as ArrayLike<number>;
  if (typeof value !== 'object' || value === null || typeof list.length !== 'number')
    fail(where, `${what}token ids`, 'an array of integers >= 0', value);
  const { length } = list;
  if (!(Number.isInteger(length) && length >= 0 && length < 2 ** 31))
    fail(where, `${what}token ids`, 'a length from 0 to 2^31 - 1', length);
  for (let i = 0; i < length; ++i) if (!isId(list[i])) fail(where, `${what}token id at ${i}`, 'an integer >= 0', list[i]);
  return Int32Array.from(list);
}

/** A list of token ids, or a list of such lists: `nested` tells which. */
function isNested(value: unknown): value is ArrayLike<number>[] {
  return Array.isArray(value) && value.length > 0 && typeof value[0] === 'object';
}

/** Prompts, and whether the caller gave a list of them. */
export function checkPrompts(where: string, prompt: unknown): { prompts: CheckedPrompt[]; many: boolean } {
  const expected = 'a string, { inputIds }, or an array of these';
  if (Array.isArray(prompt)) {
    if (prompt.length === 0) fail(where, 'prompts', 'at least one', prompt);
    return { many: true, prompts: Array.from(prompt, (item) => onePrompt(item)) };
  }
  const inputIds = (prompt as { inputIds?: unknown } | null)?.inputIds;
  if (typeof prompt === 'object' && isNested(inputIds)) {
    return { many: true, prompts: Array.from(inputIds, (list) => ({ ids: checkIds(where, list) })) };
  }
  return { many: false, prompts: [onePrompt(prompt)] };

  function onePrompt(item: unknown): CheckedPrompt {
    if (typeof item === 'string') return { text: item };
    if (typeof item !== 'object' || item === null || !('inputIds' in item)) return fail(where, 'prompt', expected, item);
    for (const key of Object.keys(item)) if (key !== 'inputIds') unknownOption(where, key, ['inputIds']);
    return { ids: checkIds(where, item.inputIds) };
  }
}

/** Messages of a conversation; a string is one message of the user's. */
export function checkMessages(messages: unknown): ChatMessage[] {
  if (typeof messages === 'string') return [{ role: 'user', content: messages }];
  if (!Array.isArray(messages) || messages.length === 0)
    fail('chat', 'messages', 'a string or a non-empty array of { role, content }', messages);
  for (const message of messages) {
    if (typeof message?.role !== 'string') fail('chat', 'message', '{ role, content }', message);
  }
  return messages;
}

/** `generate`'s options, resolved against the model's own, in the form the engine takes. */
export interface GenerateRequest {
  /** What goes to the native generation: names as in Hugging Face, in camelCase; lists flattened. */
  native: Flat;
  maxTime?: number;
  stopStrings: string[];
  addSpecialTokens: boolean;
  skipSpecialTokens: boolean;
  truncation: false | 'left' | 'right';
  numReturnSequences: number;
  beams: boolean;
  /** What the decoder's tokens begin with: none, one for all prompts, or one a prompt. */
  decoderInputIds: number[][];
  seed: number;
  logprobs: number;
  bosTokenId: number | null;
  notes: string[];
  /** What to look at afterwards, if anything. */
  looks?: Flat;
}

/**
 * Resolves `generate`'s options. The order of precedence is Hugging Face's: the caller, the model's
 * `generation_config.json` (snake_case keys), the defaults. `more`: what else the call takes, to be checked only.
 */
export function resolveGeneration(
  where: string,
  options: GenerateOptions | ChatOptions | undefined,
  modelConfig: Record<string, unknown>,
  more: Record<string, Kind> = {},
): GenerateRequest {
  const own: Record<string, any> = {};
  const extra: Record<string, any> = {};
  const extraKinds: Record<string, Kind> = { ...callOptions, ...(where === 'chat' ? chatOnlyOptions : more) };
  for (const [name, value] of entriesOf(where, options)) {
    if (Object.hasOwn(extraKinds, name)) {
      if (!extraKinds[name].test(value)) fail(where, name, extraKinds[name].expected, value);
      extra[name] = value;
    } else if (Object.hasOwn(generationOptions, name)) {
      own[name] = checkGeneration(where, name, value, '');
    } else {
      unknownOption(where, name, [...Object.keys(generationOptions), ...Object.keys(extraKinds)]);
    }
  }

  const samplingGiven = Object.keys(own).filter((name) => generationOptions[name].sampling && own[name] !== null);
  if (own.doSample === false && samplingGiven.length > 0) {
    throw new WasmformerError(
      'invalid-argument',
      `[${where}] ${samplingGiven[0]}: expected no sampling option with doSample: false, got ${show(own[samplingGiven[0]])}`,
    );
  }
  const doSample = own.doSample ?? (samplingGiven.length > 0 || (own.doSample === undefined && modelConfig.do_sample === true));
  own.doSample = doSample;

  const model: Record<string, any> = {};
  for (const [key, value] of Object.entries(modelConfig)) {
    const name = camelCase(key);
    if (value === null || own[name] !== undefined || !Object.hasOwn(generationOptions, name)) continue;
    const option = generationOptions[name];
    // Python does not look at these either, in this mode.
    if ((option.sampling && !doSample) || (option.inert && !changesMode.includes(name))) continue;
    model[name] = checkGeneration(where, name, value, ' (from generation_config.json)');
  }

  const merged: Record<string, any> = {};
  for (const [name, value] of Object.entries({ ...model, ...own })) if (value != null) merged[name] = value;

  if (doSample && own.topK !== null) merged.topK ??= 50;
  const numReturnSequences = merged.numReturnSequences ?? 1;
  const { numBeams = 1 } = merged;
  const beams = numBeams > 1;
  if (numReturnSequences > 1 && (beams ? numReturnSequences > numBeams : !doSample)) {
    fail(where, 'numReturnSequences', beams ? `at most numBeams, ${numBeams}` : '1 without sampling or beams', numReturnSequences);
  }
  if (beams && merged.stopStrings) unsupported(where, 'stopStrings with numBeams > 1', 'pass an eosTokenId');
  const idle = ['lengthPenalty', 'earlyStopping'].filter((name) => !beams && ![undefined, null, false, 1].includes(own[name]));
  const notes = idle.map((name) => `${name} has no effect without numBeams > 1`);
  // The number of new tokens goes first, the model's own too, as in Python.
  if (merged.maxNewTokens !== undefined) delete merged.maxLength;
  else if (merged.maxLength === undefined) merged.maxNewTokens = 256;
  if (merged.minNewTokens !== undefined) delete merged.minLength;

  const { maxTime, stopStrings, padTokenId: _, bosTokenId, ...native } = merged;
  asLists(native);
  const given = extra.decoderInputIds;
  const decoderInputIds = (given === undefined ? [] : isNested(given) ? given : [given]).map((list: unknown) => [...checkIds(where, list)]);
  if (given !== undefined) native.decoderInputIds = decoderInputIds;
  const seed = extra.seed ?? randomSeed();
  const logprobs = extra.logprobs ?? 0;
  for (const name of ['frequencyPenalty', 'presencePenalty', 'logitBias']) if (extra[name] !== undefined) native[name] = extra[name];
  return {
    native: { ...flatten(native), seed, logprobs },
    maxTime,
    stopStrings: stopStrings === undefined ? [] : [stopStrings].flat(),
    addSpecialTokens: extra.addSpecialTokens ?? where !== 'chat',
    skipSpecialTokens: extra.skipSpecialTokens ?? true,
    truncation: extra.truncation === true ? 'left' : (extra.truncation ?? false),
    numReturnSequences,
    beams,
    decoderInputIds,
    seed,
    logprobs,
    bosTokenId: bosTokenId ?? null,
    notes,
    looks: looksOf(where, extra),
  };
}

/** The options of the processors alone, for `ops.processLogits`; there is no model, so nothing is filled in. */
export function resolveProcessors(where: string, options: unknown): Flat {
  const native: Record<string, any> = {};
  const own = ['frequencyPenalty', 'presencePenalty', 'logitBias'];
  for (const [name, value] of entriesOf(where, options)) {
    if (own.includes(name)) {
      if (!callOptions[name].test(value)) fail(where, name, callOptions[name].expected, value);
      native[name] = value;
    } else if (Object.hasOwn(generationOptions, name)) {
      const checkedValue = checkGeneration(where, name, value, '');
      if (checkedValue != null) native[name] = checkedValue;
    } else {
      unknownOption(where, name, [...Object.keys(generationOptions), ...own]);
    }
  }
  if (native.doSample === undefined && Object.keys(native).some((name) => generationOptions[name]?.sampling)) native.doSample = true;
  asLists(native);
  return flatten(native);
}

function checkGeneration(where: string, name: string, value: any, origin: string): any {
  const option = generationOptions[name];
  if (value === null) return null;
  if (option.inert) {
    if (option.inert.includes(value)) return null;
    unsupported(where, `${name}: ${show(value)}${origin}`);
  }
  if (!option.kind.test(value)) fail(where, name + origin, option.kind.expected, value);
  return value;
}

/** What may be one id becomes a list of one. */
function asLists(native: Record<string, any>): void {
  for (const name of ['eosTokenId', 'forcedEosTokenId', 'decoderStartTokenId'])
    if (native[name] !== undefined) native[name] = [native[name]].flat();
}

/** Lists of lists laid end to end, with their lengths and values beside them, as the native side reads them. */
function flatten({ badWordsIds, decoderInputIds, sequenceBias, logitBias, ...rest }: Record<string, any>): Flat {
  const flat: Record<string, any> = rest;
  const sequences = sequenceBias?.map(([list]: [number[], number]) => list);
  for (const [name, lists] of Object.entries({ badWordsIds, decoderInputIds, sequenceBias: sequences })) {
    if (!lists) continue;
    flat[name] = lists.flat();
    flat[`${name}.lengths`] = lists.map((list: number[]) => list.length);
  }
  if (sequenceBias) flat['sequenceBias.values'] = sequenceBias.map(([, value]: [number[], number]) => value);
  if (logitBias) {
    const entries = biases(logitBias);
    flat.logitBias = entries.map(([key]) => key);
    flat['logitBias.values'] = entries.map(([, value]) => value);
  }
  return flat;
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

/** One option for people who type: what it takes, and how to read that. */
export interface OptionWords {
  expected: string;
  type: 'text' | 'switch' | 'list' | 'value';
}

/** Every option that is built and can be typed: what the command line offers. */
export function describeOptions(): { load: Record<string, OptionWords>; generate: Record<string, OptionWords> } {
  const texts: Kind[] = [string, address, loadOptions.dtype, loadOptions.cacheDir, generationOptions.stopStrings.kind];
  const typeOf = (kind: Kind): OptionWords['type'] =>
    kind === boolean ? 'switch' : kind === ids ? 'list' : texts.includes(kind) ? 'text' : 'value';
  const typed = (kinds: [string, Kind][]) =>
    Object.fromEntries(
      kinds
        .filter(([, kind]) => ![callback, signal, object].includes(kind))
        .map(([name, kind]): [string, OptionWords] => [name, { expected: kind.expected, type: typeOf(kind) }]),
    );
  const built = Object.entries(generationOptions).filter(([, option]) => !option.inert);
  return {
    load: typed(Object.entries(loadOptions)),
    generate: typed([
      ...built.map(([name, option]): [string, Kind] => [name, option.kind]),
      ...Object.entries(callOptions).filter(([name]) => !(name in lookOptions)),
      ...Object.entries(chatOnlyOptions),
    ]),
  };
}

/** Labels of one sequence, checked and copied. */
export function checkLabels(where: string, what: string, value: unknown): Int32Array {
  if (!(Number((value as ArrayLike<number> | null)?.length) >= 0)) fail(where, what, 'an array of token ids, or -100', value);
  return Int32Array.from(value as ArrayLike<number>, (label) =>
    Number.isInteger(label) && Math.abs(label) < 2 ** 31 ? label : fail(where, what, 'token ids, or -100', label),
  );
}

/** Checks and copies what `gradients` computes on. */
export function checkBatch(batch: GradientBatch): Record<string, Int32Array[]> {
  const where = 'gradients';
  const lists = kind('an array of sequences', (value) => isNested(value) && isArrayOf(value, (list) => typeof list?.length === 'number'));
  const { inputIds, labels, decoderInputIds } = checked(where, batch, { inputIds: lists, labels: lists, decoderInputIds: lists });
  for (const [name, value] of Object.entries({ inputIds, labels })) if (!value) fail(where, name, lists.expected, value);
  const targets = decoderInputIds ?? inputIds;
  const lengths = (list: ArrayLike<number>[]) => list.map(({ length }) => length).join(', ');
  if (lengths(labels) !== lengths(targets)) fail(where, 'labels', `sequences of ${lengths(targets)} labels`, lengths(labels));
  return {
    inputIds: inputIds.map((list: unknown) => checkIds(where, list)),
    labels: labels.map((list: unknown, i: number) => checkLabels(where, `labels[${i}]`, list)),
    ...(decoderInputIds ? { decoderInputIds: decoderInputIds.map((list: unknown) => checkIds(where, list)) } : {}),
  };
}

/** `forward`'s input and request, checked and copied, in the form the engine takes. */
export interface ForwardRequest {
  input: {
    inputIds: Int32Array[];
    attentionMask?: Uint8Array[];
    positionIds?: Int32Array[];
    tokenTypeIds?: Int32Array[];
    decoderInputIds?: Int32Array[];
    decoderAttentionMask?: Uint8Array[];
  };
  /** What the native side is asked for. */
  request: Flat;
}

/** What to look at as the native side reads it; undefined for nothing. */
function looksOf(where: string, options: Record<string, any>): Flat | undefined {
  const flat: Record<string, any> = {};
  for (const name of Object.keys(lookOptions)) {
    const value = options[name];
    if (!value) continue;
    flat[name] = true;
    if (value === true) continue;
    const indices = kind('a non-empty array of indices', (value) => ids.test(value) && value.length > 0);
    for (const [key, list] of Object.entries(checked(where, value, { layers: indices, heads: indices }))) flat[`${name}.${key}`] = list;
  }
  return Object.keys(flat).length > 0 ? flat : undefined;
}

/** A request and the signal that ends it, which stays on the caller's side. */
export type CheckedForward = ForwardRequest & { signal?: AbortSignal };

/** Checks `forward`'s arguments. */
export function checkForward(input: ForwardInput, options: ForwardOptions | undefined): CheckedForward {
  const where = 'forward';
  const {
    logitLens,
    signal: ends,
    ...looks
  } = checked(where, options, {
    ...lookOptions,
    logitLens: kind('true, false or { topK }', (value) => typeof value === 'boolean' || object.test(value)),
    signal,
  });
  const lens = logitLens ? lensOf(where, logitLens === true ? {} : logitLens) : {};
  return { input: checkForwardInput(where, input), request: { ...looksOf(where, looks), ...lens }, signal: ends };
}

/** Checks `logitLens`'s arguments. */
export function checkLens(input: ForwardInput, options: { topK?: number; signal?: AbortSignal } = {}): CheckedForward {
  const where = 'logitLens';
  const { signal: ends, ...lens } = checked(where, options, { topK: positiveInteger, signal });
  return { input: checkForwardInput(where, input), request: { logits: false, ...lensOf(where, lens) }, signal: ends };
}

function lensOf(where: string, lens: unknown): Flat {
  const { topK } = checked(where, lens, { topK: positiveInteger });
  return { logitLens: true, ...(topK === undefined ? {} : { 'logitLens.topK': topK }) };
}

function checkForwardInput(where: string, input: ForwardInput): ForwardRequest['input'] {
  const sequences = kind('an array', (value) => typeof value === 'object' && value !== null && 'length' in value);
  const names = ['inputIds', 'attentionMask', 'positionIds', 'tokenTypeIds', 'decoderInputIds', 'decoderAttentionMask'];
  const fields = checked(where, input, Object.fromEntries(names.map((name) => [name, sequences])));
  if (fields.inputIds === undefined) fail(where, 'inputIds', 'an array of sequences of token ids', undefined);
  const lists = (value: unknown): ArrayLike<number>[] => (isNested(value) ? Array.from(value) : [value as ArrayLike<number>]);
  const inputIds = lists(fields.inputIds).map((list) => checkIds(where, list));
  const result: ForwardRequest['input'] = { inputIds };
  const like = (name: string, lengths?: ArrayLike<number>[]) => {
    const found = lists(fields[name]);
    if (found.length !== inputIds.length) fail(where, name, `${inputIds.length} sequences, one an entry of inputIds`, found.length);
    lengths?.forEach(({ length }, i) => {
      if (found[i]?.length !== length) fail(where, `${name}[${i}]`, `${length} entries, one a token`, found[i]?.length);
    });
    return found;
  };
  for (const name of ['positionIds', 'tokenTypeIds', 'decoderInputIds'] as const) {
    if (fields[name]) result[name] = like(name, name === 'decoderInputIds' ? undefined : inputIds).map((list) => checkIds(where, list));
  }
  for (const name of ['attentionMask', 'decoderAttentionMask'] as const) {
    if (!fields[name]) continue;
    const tokens = name === 'attentionMask' ? inputIds : result.decoderInputIds;
    if (!tokens) fail(where, name, 'decoderInputIds with it', undefined);
    result[name] = like(name, tokens).map((list) =>
      Uint8Array.from(list, (value, i) => {
        if (Number(value) !== 0 && Number(value) !== 1) fail(where, `${name} at ${i}`, '0 or 1', value);
        return Number(value);
      }),
    );
  }
  return result;
}

export type { Prompt };
