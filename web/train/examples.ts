import { WasmformerError } from '../errors.ts';
import type { Tokenizer } from '../files/index.ts';
import { randomOf } from './random.ts';

/** What a model learns to do: to continue, to write the target of a source, to say what stood behind a mask. */
export type Objective = 'causal' | 'seq2seq' | 'masked';

/** One entry of a dataset, checked and copied. */
export type Item =
  | { text: string }
  | { source: string; target: string }
  | { inputIds: Int32Array; labels?: Int32Array; decoderInputIds?: Int32Array };

/** One sequence, or a source and its target, as ids. */
export interface Example {
  /** Its number in the data, which random masks depend on. */
  index: number;
  inputIds: Int32Array;
  decoderInputIds?: Int32Array;
  /** As the native side takes them; null: masks are drawn each time. */
  labels: Int32Array | null;
  /** Those the model reads. */
  tokens: number;
}

/** What turns entries into examples. */
export interface Reading {
  objective: Objective;
  tokenizer: Tokenizer | null;
  /** The tokenizer, or an error where there is none. */
  needTokenizer(): Tokenizer;
  /** Tokens of a sequence at most, of source and target each. */
  maxLength: number;
  /** Tokens of source and target together at most. */
  maxTokens: number;
  truncate: boolean;
  vocabSize: number;
  sourceVocabSize: number;
  /** Ends a document or a target. */
  eos: number | null;
  /** What a decoder's input begins with. */
  start: number | null;
  pad: number | null;
}

export function fail(what: string, expected: string, got: unknown): never {
  throw new WasmformerError('invalid-argument', `[train] ${what}: expected ${expected}, got ${got}`);
}

/** The examples an entry gives: one, or of a long text, in steps, as many as it is cut into. `what` names it in errors. */
export function* examplesOf(item: Item, what: string, reading: Reading): Steps {
  const { objective } = reading;
  if ('text' in item) {
    if (objective === 'seq2seq') fail(what, '{ source, target }: the model is an encoder-decoder', 'a text');
    return yield* textExamples(item.text, what, reading);
  }
  if (objective !== 'seq2seq' && ('source' in item || item.decoderInputIds)) {
    fail(what, 'one sequence: the model is no encoder-decoder', 'source' in item ? 'a pair' : 'decoderInputIds');
  }
  return [checked(objective === 'seq2seq' ? pair(item, what, reading) : sequence(item as Ids, what, reading), what, reading)];
}

type Ids = Extract<Item, { inputIds: Int32Array }>;
type Steps = Generator<undefined, Omit<Example, 'index'>[]>;
type Made = Omit<Example, 'index' | 'tokens'>;

function checked(made: Made, what: string, { objective, vocabSize, sourceVocabSize, maxTokens }: Reading): Omit<Example, 'index'> {
  const { inputIds, decoderInputIds, labels } = made;
  const inside = (name: string, ids: Int32Array | null | undefined, size: number, least: number) => {
    const wrong = ids?.find((id) => id < least || id >= size);
    if (wrong !== undefined) fail(`${what}: ${name}`, `ids from 0 to ${size - 1}`, wrong);
  };
  inside('inputIds', inputIds, sourceVocabSize, 0);
  inside('decoderInputIds', decoderInputIds, vocabSize, 0);
  inside('labels', labels, vocabSize, -(2 ** 31));
  // Position t of a sequence that is continued is compared with label t + 1.
  const counting = labels?.subarray(objective === 'causal' ? 1 : 0);
  if (counting && !counting.some((label) => label >= 0)) fail(`${what}: labels`, 'at least one that counts', 'none');
  const tokens = inputIds.length + (decoderInputIds?.length ?? 0);
  if (tokens > maxTokens) fail(what, `at most microBatchTokens, ${maxTokens} tokens`, tokens);
  return { ...made, tokens };
}

/** Ids as they are, or as many as a sequence may have if they may be cut; `end` stays what they end with. */
function cut(ids: Int32Array, what: string, { maxLength, truncate }: Reading, end: readonly (number | null)[] = []): Int32Array {
  if (ids.length === 0) fail(what, 'at least one token', 'none');
  if (ids.length <= maxLength) return ids;
  if (!truncate) fail(what, `at most maxLength, ${maxLength} tokens (truncate: true cuts)`, ids.length);
  const kept = ids.slice(0, maxLength);
  const last = ids[ids.length - 1];
  if (end.includes(last)) kept[maxLength - 1] = last;
  return kept;
}

const wordsExpected = 'a token that is not special';
const hasWords = (ids: Int32Array, { tokenizer }: Reading) => ids.some((id) => !tokenizer?.specials.all.includes(id));

function sequence({ inputIds: given, labels }: Ids, what: string, reading: Reading): Made {
  const inputIds = cut(given, what, reading);
  if (labels && labels.length !== given.length) fail(`${what}: labels`, `${given.length} of them, one a token`, labels.length);
  if (reading.objective === 'masked') {
    if (!labels && reading.tokenizer?.specials.mask == null) fail(`${what}: labels`, 'them, without a mask token', 'none');
    if (!labels && !hasWords(inputIds, reading)) fail(what, wordsExpected, 'none');
    return { inputIds, labels: labels?.slice(0, inputIds.length) ?? null };
  }
  if (inputIds.length < 2) fail(what, 'at least two tokens', inputIds.length);
  return { inputIds, labels: labels?.slice(0, inputIds.length) ?? inputIds };
}

/** Teacher forcing: the decoder reads its start token and then what it should have written. */
function pair(item: Exclude<Item, { text: string }>, what: string, reading: Reading): Made {
  const { eos, start, pad } = reading;
  let inputIds: Int32Array;
  let labels: Int32Array | undefined;
  let given: Int32Array | undefined;
  if ('source' in item) {
    const tokenizer = reading.needTokenizer();
    inputIds = Int32Array.from(tokenizer.encode(item.source));
    const target = tokenizer.encode(item.target, { asTarget: true });
    labels = Int32Array.from(eos === null || target.at(-1) === eos ? target : [...target, eos]);
  } else {
    ({ inputIds, labels, decoderInputIds: given } = item);
    if (!labels) fail(`${what}: labels`, "the target's ids", 'none');
    if (given && given.length !== labels.length) fail(`${what}: decoderInputIds`, `${labels.length} of them, one a label`, given.length);
  }
  inputIds = cut(inputIds, `${what}: source`, reading, reading.tokenizer?.specials.all);
  labels = cut(labels, `${what}: target`, reading, [eos]);
  if (given) return { inputIds, decoderInputIds: given.slice(0, labels.length), labels };
  if (start === null) fail('model', 'a decoder_start_token_id or bos_token_id', 'neither');
  const decoderInputIds = labels.map((_, t, all) => (t === 0 ? start : all[t - 1] < 0 ? (pad ?? start) : all[t - 1]));
  return { inputIds, decoderInputIds, labels };
}

/** A text: whole, or in windows. */
function* textExamples(text: string, what: string, reading: Reading): Steps {
  const tokenizer = reading.needTokenizer();
  const { objective, maxLength, truncate, eos } = reading;
  let windows: Int32Array[] = [];
  if (objective === 'causal') {
    const encoded = yield* tokenizer.encodeSteps(text);
    const ids = Int32Array.from(eos === null || encoded.at(-1) === eos ? encoded : [...encoded, eos]);
    // Windows share a token, which the one ends with and the other begins with, so that every token but the first is predicted once.
    for (let at = 0; at + 1 < ids.length; at += maxLength - 1) windows.push(ids.slice(at, at + maxLength));
  } else {
    // Special tokens stand around each window.
    const around = tokenizer.encode('');
    const before = around.slice(0, Math.ceil(around.length / 2));
    const after = around.slice(before.length);
    const ids = yield* tokenizer.encodeSteps(text, { addSpecialTokens: false });
    const room = maxLength - around.length;
    if (room < 1) fail('maxLength', `more than the ${around.length} special tokens`, maxLength);
    for (let at = 0; at < ids.length; at += room) windows.push(Int32Array.from([...before, ...ids.slice(at, at + room), ...after]));
    if (tokenizer.specials.mask === null) fail('tokenizer', 'a mask token', 'none');
    windows = windows.filter((window) => hasWords(window, reading));
    if (ids.length > 0 && windows.length === 0) fail(what, wordsExpected, 'none');
  }
  return (truncate ? windows.slice(0, 1) : windows).map((inputIds) =>
    checked({ inputIds, labels: objective === 'causal' ? inputIds : null }, what, reading),
  );
}

/** Which tokens an encoder is to guess. */
export interface Masks {
  mask: number;
  special: ReadonlySet<number>;
  vocabSize: number;
  probability: number;
}

/**
 * An example with some of its tokens, never special ones, chosen to be guessed: of those 80 % become the mask, 10 % a random token, 10 %
 * stay (Devlin et al. 2018, section 3.1); as in BERT's own code, a fixed share of the text and at least one.
 */
export function masked(example: Example, { mask, special, vocabSize, probability }: Masks, ...keys: number[]): Example {
  const random = randomOf(...keys, example.index);
  const places = Array.from(example.inputIds.keys()).filter((t) => !special.has(example.inputIds[t]));
  const count = Math.min(places.length, Math.max(1, Math.round(places.length * probability)));
  const inputIds = example.inputIds.slice();
  const labels = new Int32Array(inputIds.length).fill(-100);
  for (let i = 0; i < count; ++i) {
    const j = i + random(places.length - i);
    const t = places[j];
    places[j] = places[i];
    labels[t] = inputIds[t];
    const fate = random(10);
    if (fate < 8) inputIds[t] = mask;
    else if (fate === 8) inputIds[t] = random(vocabSize);
  }
  return { ...example, inputIds, labels };
}
