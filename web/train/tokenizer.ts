import { untilAborted } from '../engine/queue.ts';
import { decodeIds, encodeTexts } from '../ids.ts';
import { boolean, checked, count, fail, kind, oneOf, positiveInteger, reading, signal } from '../options.ts';
import type { Service } from '../service.ts';
import type { TokenizerInfo } from '../types.ts';
import { isIterable, iteratorOf } from './options.ts';
import type { TokenizerFiles, TokenizerPlan, TokenizerType } from './tokenizer-trainer.ts';

const where = 'trainTokenizer';

/** What `trainTokenizer` takes beside the texts. */
export interface TrainTokenizerOptions {
  /**
   * - `char`: a token for each character (Unicode code point) of the texts, `<unk>` for any other;
   * - `byte`: the 256 bytes of UTF-8; nothing is learned;
   * - `bpe`: byte-pair encoding over bytes, as GPT-2's (Radford et al. 2019, section 2.2);
   * - `wordpiece`: BERT's, in lower case and without accents (Devlin et al. 2019).
   */
  type: TokenizerType;
  /** The most tokens there may be, special ones included. Default 30000. There are fewer where the texts do not yield as many. */
  vocabSize?: number;
  /**
   * Tokens that get the first ids and are found as wholes in any text. Default: `<pad>`, `<unk>`, `<s>`, `</s>` for `char`; `<|endoftext|>`
   * for `byte` and `bpe`; `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]` for `wordpiece`. Those with such a name get its role.
   */
  specialTokens?: readonly string[];
  /** How often a pair must occur to become a token, for `char` a character. Default 0, as in Hugging Face's trainers. */
  minFrequency?: number;
  /** Puts the end-of-sequence token after each text, as a model that translates needs it. Default `false`. */
  addEosToken?: boolean;
  signal?: AbortSignal;
}

/** A tokenizer by itself. It works in a worker. */
export interface TrainedTokenizer extends Pick<TokenizerInfo, 'vocabSize' | 'specials'> {
  /** Its files, which `create` and `load` read. */
  readonly files: Readonly<Record<string, Uint8Array>>;
  /** Token ids of a text, or of each of several. */
  encode(text: string, options?: { addSpecialTokens?: boolean }): Promise<number[]>;
  encode(texts: readonly string[], options?: { addSpecialTokens?: boolean }): Promise<number[][]>;
  /** The text of token ids, or of each of several sequences; `skipSpecialTokens` is `true` by default. */
  decode(ids: ArrayLike<number>, options?: { skipSpecialTokens?: boolean }): Promise<string>;
  decode(sequences: readonly ArrayLike<number>[], options?: { skipSpecialTokens?: boolean }): Promise<string[]>;
}

/** What `trainTokenizer` makes. */
export interface TokenizerTraining {
  /** The text of a tokenizer.json, which Hugging Face's tokenizers library loads. */
  json: string;
  /** The text of a tokenizer_config.json: what the special tokens are for. */
  config: string;
  /** The number of tokens. */
  vocabSize: number;
  /** For `create`, and to encode and decode with. */
  tokenizer: TrainedTokenizer;
}

const presets: Record<TokenizerType, string[]> = {
  char: ['<pad>', '<unk>', '<s>', '</s>'],
  byte: ['<|endoftext|>'],
  bpe: ['<|endoftext|>'],
  wordpiece: ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'],
};

const kinds = {
  type: oneOf('char', 'byte', 'bpe', 'wordpiece'),
  vocabSize: positiveInteger,
  specialTokens: kind(
    'an array of different strings, none of them empty',
    (value) => Array.isArray(value) && new Set(value).size === value.length && value.every((one) => typeof one === 'string' && one !== ''),
  ),
  minFrequency: count,
  addEosToken: boolean,
  signal,
};

/** UTF-16 units that are sent to the worker at once. */
const longestMessage = 2 ** 18;
/** Milliseconds of reading without other tasks of the thread having their turn. */
const longestTask = 12;

function checkPlan(options: TrainTokenizerOptions): TokenizerPlan {
  const { signal: _, ...given } = reading(where, () => checked(where, options, kinds));
  const type: TokenizerType = given.type ?? fail(where, 'type', kinds.type.expected, given.type);
  const plan: TokenizerPlan = { vocabSize: 30000, specialTokens: presets[type], minFrequency: 0, addEosToken: false, ...given, type };
  const needs = (...names: string[]) => {
    if (!names.some((name) => plan.specialTokens.includes(name)))
      fail(where, 'specialTokens', `one of ${names.join(', ')} among them`, plan.specialTokens);
  };
  if (type === 'char' || type === 'wordpiece') needs('<unk>', '[UNK]');
  if (plan.addEosToken) needs('</s>', '<eos>', '[EOS]', '<|endoftext|>');
  if (plan.addEosToken && type === 'wordpiece') fail(where, 'addEosToken', 'false with wordpiece, whose texts end in [SEP]', true);
  return plan;
}

let trainings = 0;

/** Makes `trainTokenizer` over the worker that needs no model. */
export function createTrainTokenizer(service: Service) {
  return async function trainTokenizer(
    texts: Iterable<string> | AsyncIterable<string>,
    options: TrainTokenizerOptions,
  ): Promise<TokenizerTraining> {
    const plan = checkPlan(options);
    const { signal } = options;
    if (typeof texts === 'string' || !isIterable(texts)) fail(where, 'texts', 'an array, iterable or async iterable of strings', texts);
    const id = ++trainings;
    const call = <T>(method: string, ...args: unknown[]): Promise<T> => service.call<T>(method, [id, ...args], { signal });
    let batch: string[] = [];
    let length = 0;
    let counted = false;
    const send = async () => {
      counted = true;
      await call('countTexts', plan.type, batch);
      batch = [];
      length = 0;
    };
    try {
      signal?.throwIfAborted();
      // The bytes are known without any text.
      if (plan.type !== 'byte') {
        const iterator = iteratorOf(where, texts);
        let turned = performance.now();
        let ended = false;
        try {
          for (let place = 0; ; ++place) {
            const { value: text, done } = Object(await untilAborted(Promise.resolve(iterator.next()), signal));
            ended = done;
            if (done) break;
            if (typeof text !== 'string') fail(where, `texts[${place}]`, 'a string', text);
            if (text !== '') batch.push(text);
            length += text.length;
            if (length >= longestMessage) await send();
            if (performance.now() - turned < longestTask) continue;
            await new Promise((resolve) => setTimeout(resolve));
            turned = performance.now();
          }
        } finally {
          // Not waited for: it may come after what the texts wait for.
          if (!ended) (async () => iterator.return?.())().catch(() => {});
        }
        await send();
      }
      const { files, info } = await call<{ files: TokenizerFiles; info: TokenizerInfo }>('trainTokenizer', plan);
      const { vocabSize, specials } = info;
      return {
        json: files['tokenizer.json'],
        config: files['tokenizer_config.json'],
        vocabSize,
        tokenizer: {
          vocabSize,
          specials,
          files: Object.fromEntries(Object.entries(files).map(([name, text]) => [name, new TextEncoder().encode(text)])),
          encode: (texts: any, options?: any): Promise<any> =>
            encodeTexts('encode', (...args) => service.call('encodeTexts', [files, ...args]), texts, options),
          decode: (ids: any, options?: any): Promise<any> =>
            decodeIds('decode', (...args) => service.call('decodeIds', [files, ...args]), ids, options),
        },
      };
    } finally {
      if (counted) service.call('forgetTexts', [id]).catch(() => {});
    }
  };
}
