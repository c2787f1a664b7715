import { fileURLToPath } from 'node:url';
import { createApi } from './api.ts';
import type { Model } from './model.ts';
import { compile, portable, spawn, threads } from './platform/node.ts';
import type { TokenizerTraining, TrainTokenizerOptions } from './train/tokenizer.ts';
import type { CreateOptions, Files, Inspect, LoadOptions, Ops, Source } from './types.ts';

export * from './public.ts';

const api = createApi({ compile, threads, spawn, portable, inProcess: async () => (await import('./node-worker.js')).createEngine() });

/**
 * Loads a model: a Hub id (`org/name`), an address, a folder (in Node), a list of `File`s, or bytes by file name.
 * Nothing needs converting. The returned promise rejects with a `WasmformerError` whose `code` says what went wrong:
 * `invalid-argument`, `unsupported`, `invalid-file`, `missing-tensor`, `shape-mismatch`, `not-found`, `unauthorized`,
 * `network`, `offline`, `out-of-memory` (before any weights are downloaded, naming the bytes and the dtype that would fit);
 * or with the signal's reason.
 */
export const load: (source: Source | ArrayLike<File>, options?: LoadOptions) => Promise<Model> = api.load;

/**
 * Makes a model that has learned nothing yet, from what would stand in its config.json: `{ model_type: 'transformer', vocab_size }` is
 * the base model of "Attention Is All You Need". Weights are drawn as each family's authors have it (docs/api.md). Rejects with
 * `invalid-argument` or `unsupported` naming the field that will not do, or with `out-of-memory` and the bytes.
 */
export const create: (config: Readonly<Record<string, unknown>>, options?: CreateOptions) => Promise<Model> = api.create;

/** What `load` would load, and the memory it would take in each dtype; no weights are downloaded or read. */
export const inspect: Inspect = api.inspect;

/**
 * Makes a vocabulary from texts: an array, an iterable or an async iterable of strings. Byte-pair and word-piece vocabularies are those of
 * Hugging Face's trainers. The work is done in a worker. Rejects with `invalid-argument` naming the option or the text that will not do,
 * or with the signal's reason.
 */
export const trainTokenizer: (
  texts: Iterable<string> | AsyncIterable<string>,
  options: TrainTokenizerOptions,
) => Promise<TokenizerTraining> = api.trainTokenizer;

/** The bare operations, without a model. */
export const ops: Ops = api.ops;

/** What has been downloaded and kept. */
export const cache: Files = api.cache;

/** The folder of the model that is shipped in the package, for `load`: a character-level language model of about a million parameters. */
export const defaultModel: string = fileURLToPath(new URL('../examples/models/moby-dick-char/', import.meta.url));

/** The folder of the package's encoder-decoder, for `load` and then `translate`: it reads Chinese as pinyin. */
export const pinyinModel: string = fileURLToPath(new URL('../examples/models/pinyin/', import.meta.url));
