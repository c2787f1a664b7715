/// <reference lib="esnext.disposable" preserve="true" />
import { dtypeOf } from './dtypes.ts';
import type { Client } from './engine/client.ts';
import type { ChatSettings, GenerateInput, LoadedModel } from './engine/messages.ts';
import type { NativeParameter } from './engine/native.ts';
import { GenerationStream } from './engine/stream.ts';
import { WasmformerError } from './errors.ts';
import { decodeIds, encodeTexts } from './ids.ts';
import {
  checkBatch,
  checkCacheLength,
  checkForward,
  checkIds,
  checkLens,
  checkMessages,
  checkOptions,
  checkPrompts,
  fail,
  nearestOf,
  reading,
  resolveGeneration,
} from './options.ts';
import type {
  Answer,
  AnswerOptions,
  ClassifyInput,
  ClassifyOptions,
  EmbedOptions,
  FilledMask,
  FillMaskOptions,
  Label,
  SummarizeOptions,
  Summary,
  TranslateOptions,
  Translation,
} from './task-types.ts';
import { type CheckedTask, checkRewrite, checkTask } from './tasks.ts';
import { checkAdapter } from './train/adapter-options.ts';
import { train } from './train/client.ts';
import { checkTrain } from './train/options.ts';
import type {
  AdapterOptions,
  Cache,
  ChatMessage,
  ChatOptions,
  ForwardInput,
  ForwardOptions,
  ForwardResult,
  GenerateOptions,
  GenerateResult,
  GradientBatch,
  Gradients,
  LensTop,
  Memory,
  ModelInfo,
  ParameterInfo,
  Piece,
  Prompt,
  SavedFile,
  SaveOptions,
  Score,
  Tensor,
  TokenizerInfo,
  TrainData,
  TrainOptions,
  TrainStep,
} from './types.ts';

// Older browsers lack the symbol; code compiled for them looks it up under this name.
const asyncDispose: typeof Symbol.asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose');

/**
 * A loaded model. Calls that compute are queued: they run one at a time, in order. After `dispose` every call rejects
 * with `disposed`; after a trap or the death of its worker with `dead`.
 */
export class Model {
  /** `config.json` as it was read. */
  readonly config: Readonly<Record<string, unknown>>;
  /** What the model's `generation_config.json` says, as it was read. */
  readonly generationConfig: Readonly<Record<string, unknown>>;
  /** The tokenizer's properties; null for a model that works with ids only. */
  readonly tokenizer: TokenizerInfo | null;
  #client: Client;
  #info: ModelInfo;

  /** `load` makes models. */
  constructor(client: Client, { config, generationConfig, tokenizer, info }: LoadedModel) {
    this.#client = client;
    this.config = config;
    this.generationConfig = generationConfig;
    this.tokenizer = tokenizer;
    this.#info = info;
  }

  /** What was loaded, how it is kept, and what it runs on. */
  info(): ModelInfo {
    return structuredClone(this.#info);
  }

  /** Wasm memory in use, in bytes. */
  memory(): Promise<Memory> {
    return this.#client.call('memory', []);
  }

  /** Token ids of a text, or of each of several. */
  tokenize(text: string, options?: { addSpecialTokens?: boolean }): Promise<number[]>;
  tokenize(texts: readonly string[], options?: { addSpecialTokens?: boolean }): Promise<number[][]>;
  async tokenize(text: string | readonly string[], options?: { addSpecialTokens?: boolean }): Promise<number[] | number[][]> {
    return encodeTexts('tokenize', (...args) => this.#client.call('tokenize', args), text, options);
  }

  /** The text of token ids, or of each of several sequences. */
  decode(ids: ArrayLike<number>, options?: { skipSpecialTokens?: boolean }): Promise<string>;
  decode(sequences: readonly ArrayLike<number>[], options?: { skipSpecialTokens?: boolean }): Promise<string[]>;
  async decode(
    ids: ArrayLike<number> | readonly ArrayLike<number>[],
    options?: { skipSpecialTokens?: boolean },
  ): Promise<string | string[]> {
    return decodeIds('decode', (...args) => this.#client.call('decode', args), ids, options);
  }

  /** The prompt text that the model's chat template makes of messages. */
  async applyChatTemplate(messages: string | readonly ChatMessage[], options?: ChatOptions): Promise<string> {
    const args = reading('chat', () => {
      resolveGeneration('chat', options, {});
      return [checkMessages(messages), chatSettings(options)];
    });
    return this.#client.call('chatPrompt', args);
  }

  /**
   * Continues a prompt. The work starts at once: iterate the stream for its pieces, or await its `result`, which is an
   * array for an array of prompts and for `numReturnSequences` > 1.
   * @throws WasmformerError `invalid-argument` or `unsupported`, at once, for an option that will not do; whatever goes
   * wrong later rejects the iteration and the result
   */
  generate(prompts: readonly Prompt[], options?: GenerateOptions): GenerationStream<GenerateResult[]>;
  generate(prompt: Prompt, options?: GenerateOptions & { numReturnSequences?: 1 | null }): GenerationStream<GenerateResult>;
  generate(prompt: Prompt, options: GenerateOptions): GenerationStream<GenerateResult | GenerateResult[]>;
  generate(prompt: readonly Prompt[] | Prompt, options?: GenerateOptions): GenerationStream<any> {
    return reading('generate', () => {
      const { prompts, many } = checkPrompts('generate', prompt);
      return this.#generate('generate', { prompts }, options, many);
    });
  }

  /** Answers a conversation (or one message of the user's, as a string) by the model's chat template; else as `generate`. */
  chat(
    messages: string | readonly ChatMessage[],
    options?: ChatOptions & { numReturnSequences?: 1 | null },
  ): GenerationStream<GenerateResult>;
  chat(messages: string | readonly ChatMessage[], options: ChatOptions): GenerationStream<GenerateResult | GenerateResult[]>;
  chat(messages: string | readonly ChatMessage[], options?: ChatOptions): GenerationStream<any> {
    return reading('chat', () => {
      const chat = { messages: checkMessages(messages), settings: chatSettings(options) };
      return this.#generate('chat', { chat }, options, false);
    });
  }

  #generate(where: 'generate' | 'chat', input: GenerateInput, options: GenerateOptions | undefined, many: boolean) {
    const request = resolveGeneration(where, options, this.generationConfig);
    const several = many || request.numReturnSequences > 1;
    if (options?.cache) {
      if (several) {
        throw new WasmformerError('invalid-argument', `[${where}] cache: expected one prompt and one return sequence with a cache`);
      }
      input.cache = this.#idOf(options.cache);
    }
    return new GenerationStream<GenerateResult | GenerateResult[]>(async (emit: (pieces: Piece[]) => void, signal: AbortSignal) => {
      const results = await this.#client.call<GenerateResult[]>('generate', [input, request], { signal, onEvent: emit, endsEarly: true });
      return several ? results : results[0];
    }, options?.signal);
  }

  /**
   * One forward pass over each sequence: logits and, on request, hidden states and attention weights. Sequences may
   * differ in length; padding is what `attentionMask` marks with 0, and its rows come back as zeros.
   * @throws WasmformerError `out-of-memory` naming the bytes, before anything is computed, where the result cannot fit
   */
  async forward(input: ForwardInput, options?: ForwardOptions): Promise<ForwardResult[]> {
    const { signal, ...request } = reading('forward', () => checkForward(input, options));
    return this.#client.call('forward', [request], { signal });
  }

  /**
   * What the model would say if it ended after each layer: its head applied to each hidden state (`ForwardResult.logitLens`).
   * One list a sequence, in it one a hidden state, the embedding first: logits (T, V), or with `topK` the k likeliest tokens.
   * @throws WasmformerError `unsupported` for a model that predicts no tokens
   */
  logitLens(input: ForwardInput, options: { topK: number; signal?: AbortSignal }): Promise<LensTop[][]>;
  logitLens(input: ForwardInput, options?: { topK?: undefined; signal?: AbortSignal }): Promise<Tensor[][]>;
  async logitLens(input: ForwardInput, options?: { topK?: number; signal?: AbortSignal }): Promise<Tensor[][] | LensTop[][]> {
    const { signal, ...request } = reading('logitLens', () => checkLens(input, options));
    const results = await this.#client.call<ForwardResult[]>('forward', [request], { signal });
    return results.map(({ logitLens }) => logitLens) as Tensor[][] | LensTop[][];
  }

  /**
   * What each token stands for, as text: what it adds in the middle of a text, its space included; the name of a special token;
   * `<0xE4>` for bytes that are no whole character. `target: true` for tokens of the decoder, where it has a vocabulary of its own.
   */
  async tokenStrings(ids: ArrayLike<number>, options?: { target?: boolean }): Promise<string[]> {
    const { target = false } = checkOptions('tokenStrings', options, ['target']);
    return this.#client.call('tokenStrings', [reading('tokenStrings', () => checkIds('tokenStrings', ids)), target]);
  }

  /** Every weight of the model: its published name and shape, and how it is kept. */
  async parameters(): Promise<ParameterInfo[]> {
    return (await this.#parameters()).map(({ name, shape, dtype }) => ({ name, shape, dtype: dtypeOf(dtype) }));
  }

  #parameters(): Promise<NativeParameter[]> {
    return this.#client.call('parameters', []);
  }

  /**
   * A weight by its published name, with or without the base model's prefix: a copy, as published, in float32.
   * @throws WasmformerError `invalid-argument` naming the nearest name there is; `out-of-memory` with the bytes
   */
  async parameter(name: string): Promise<Tensor> {
    if (typeof name !== 'string') fail('parameter', 'name', 'a string', name);
    const all = await this.#parameters();
    const index = all.findIndex(({ name: own, prefix = '', alias }) => [own, alias, prefix + own].includes(name) || prefix + name === own);
    if (index >= 0) return this.#client.call('parameter', [index]);
    const nearest = nearestOf(
      name,
      all.map((parameter) => parameter.name),
    );
    const hint = nearest === undefined ? '' : `: the nearest is '${nearest}'`;
    throw new WasmformerError('invalid-argument', `[parameter] name: expected one of parameters(), got '${name}'${hint}`);
  }

  /** Each token's log-probability given those before it, and the perplexity, from one parallel pass. */
  score(text: Prompt, options?: { addSpecialTokens?: boolean; signal?: AbortSignal }): Promise<Score>;
  score(texts: readonly Prompt[], options?: { addSpecialTokens?: boolean; signal?: AbortSignal }): Promise<Score[]>;
  async score(text: Prompt | readonly Prompt[], options?: { addSpecialTokens?: boolean; signal?: AbortSignal }): Promise<Score | Score[]> {
    const { signal, ...settings } = checkOptions('score', options, ['addSpecialTokens', 'signal']);
    const { prompts, many } = reading('score', () => checkPrompts('score', text));
    const scores = await this.#client.call<Score[]>('score', [prompts, settings], { signal });
    return many ? scores : scores[0];
  }

  /**
   * Mean cross-entropy of a batch and its gradient in every weight, of a model that can be trained; with `labelSmoothing` that share of
   * the probability goes to all tokens alike (Szegedy et al. 2016, section 7).
   * @throws WasmformerError `invalid-argument` for any other model
   */
  async gradients(batch: GradientBatch, options?: { labelSmoothing?: number; signal?: AbortSignal }): Promise<Gradients> {
    const { labelSmoothing = 0, signal } = checkOptions('gradients', options, ['labelSmoothing', 'signal']);
    return this.#client.call('gradients', [{ ...reading('gradients', () => checkBatch(batch)), labelSmoothing }], { signal });
  }

  /**
   * Trains the model, which was made by `create` or loaded with `trainable: true`: iterate for the steps. Each is taken when it is asked
   * for, as one turn in the queue of calls: in between, the model can be used and saved. Leaving the loop ends the training.
   * @throws WasmformerError `invalid-argument` or `unsupported`, at once, for an option that will not do; the iteration rejects with those
   * for data that will not do, before anything is learned, with `out-of-memory` and the bytes, `diverged` with the step and the tensor, or
   * whatever the data throw
   */
  train(data: TrainData, options?: TrainOptions): AsyncGenerator<TrainStep, void, undefined> {
    return train(
      this.#client,
      reading('train', () => checkTrain(data, options, this.generationConfig)),
    );
  }

  /**
   * Saves the model as transformers would: config.json, model.safetensors in float32, generation_config.json and the tokenizer's files;
   * with `optimizer: true` also what `train(data, { resume: true })` goes on from. Into a folder by its path (Node) or handle (browsers),
   * or without one as files that `load` takes: `load(Object.fromEntries(files.map(({ name, bytes }) => [name, bytes])))`.
   * @throws WasmformerError `unsupported` for a model that was not made to be trained, one with an adapter, or a tokenizer that no
   * tokenizer.json can stand for; `invalid-argument` with `optimizer` for one that has not been trained
   */
  save(folder: string | FileSystemDirectoryHandle, options?: SaveOptions): Promise<undefined>;
  save(folder?: undefined, options?: SaveOptions): Promise<SavedFile[]>;
  async save(folder?: string | FileSystemDirectoryHandle, options?: SaveOptions): Promise<SavedFile[] | undefined> {
    const { optimizer = false, signal } = checkOptions('save', options, ['optimizer', 'signal']);
    return this.#client.call('save', [destination('save', folder), optimizer], { signal });
  }

  /**
   * Puts low-rank changes beside linear layers, which may be held in any `dtype`: `train` then trains those alone. One set at a time.
   * @throws WasmformerError `invalid-argument` for a layer that the model does not have; `unsupported` for a module that is no linear
   * layer, the output layer, or an expression that JavaScript does not have; `out-of-memory`; `busy` while a training runs
   */
  async addAdapter(options: AdapterOptions): Promise<void> {
    const { settings, seed, signal } = checkAdapter(options);
    return this.#client.call('addAdapter', [settings, seed], { signal });
  }

  /**
   * Adds an adapter that the PEFT library or `saveAdapter` wrote: adapter_config.json and adapter_model.safetensors, by Hub id, URL, path
   * (Node), or bytes by name.
   * @throws WasmformerError `unsupported` for what is not plain LoRA; `missing-tensor` and `shape-mismatch` by name
   */
  async loadAdapter(source: string | URL | Readonly<Record<string, Uint8Array>>, options?: { signal?: AbortSignal }): Promise<void> {
    const { signal } = checkOptions('loadAdapter', options, ['signal']);
    if (typeof source !== 'string' && !(source && typeof source === 'object'))
      fail('loadAdapter', 'source', 'a Hub id, URL, folder or bytes by name', source);
    return this.#client.call('loadAdapter', [source instanceof URL ? source.href : source, {}], { signal });
  }

  /**
   * Saves the adapter as PEFT does, to where `save` would save the model; with `optimizer: true` also what `train(data, { resume: true })`
   * goes on from where `loadAdapter` has loaded it.
   * @throws WasmformerError `invalid-argument` for a model without an adapter, or with `optimizer` one that has not been trained
   */
  saveAdapter(folder: string | FileSystemDirectoryHandle, options?: SaveOptions): Promise<undefined>;
  saveAdapter(folder?: undefined, options?: SaveOptions): Promise<SavedFile[]>;
  async saveAdapter(folder?: string | FileSystemDirectoryHandle, options?: SaveOptions): Promise<SavedFile[] | undefined> {
    const { optimizer = false, signal } = checkOptions('saveAdapter', options, ['optimizer', 'signal']);
    return this.#client.call('saveAdapter', [destination('saveAdapter', folder), optimizer], { signal });
  }

  /** Adds the changes to the weights themselves. @throws WasmformerError `unsupported` where those are held in few bits */
  async mergeAdapter(): Promise<void> {
    return this.#client.call('mergeAdapter', []);
  }

  /** The weights are again as they were. */
  async removeAdapter(): Promise<void> {
    return this.#client.call('removeAdapter', []);
  }

  /**
   * Translates a text, or each of several: sentence by sentence, with lines, blank lines and the white space between sentences kept.
   * @throws WasmformerError `unsupported` for a model that is not an encoder-decoder; `invalid-argument` for a language that it does
   * not know, or a sentence that is longer than it was made for and may not be split or cut
   */
  translate(text: string, options?: TranslateOptions): Promise<Translation>;
  translate(texts: readonly string[], options?: TranslateOptions): Promise<Translation[]>;
  async translate(text: string | readonly string[], options?: TranslateOptions): Promise<Translation | Translation[]> {
    return this.#task('translate', checkRewrite('translate', text, options, this.config, this.generationConfig));
  }

  /**
   * Summarises a text, or each of several, with the model's own settings for that (`task_specific_params` of config.json).
   * @throws WasmformerError `invalid-argument` for a text longer than the model was made for, without `window` or `truncation`
   */
  summarize(text: string, options?: SummarizeOptions): Promise<Summary>;
  summarize(texts: readonly string[], options?: SummarizeOptions): Promise<Summary[]>;
  async summarize(text: string | readonly string[], options?: SummarizeOptions): Promise<Summary | Summary[]> {
    return this.#task('summarize', checkRewrite('summarize', text, options, this.config, this.generationConfig));
  }

  /** A vector for a text, or for each of several, as sentence-transformers computes it. A text without any token gives zeros. */
  embed(text: string, options?: EmbedOptions): Promise<Float32Array>;
  embed(texts: readonly string[], options?: EmbedOptions): Promise<Float32Array[]>;
  async embed(text: string | readonly string[], options?: EmbedOptions): Promise<Float32Array | Float32Array[]> {
    return this.#task('embed', checkTask('embed', text, options));
  }

  /**
   * The likeliest tokens in place of a mask (`tokenizer.maskToken`), as Hugging Face's pipeline: the best first, of a text with
   * several masks a list for each; which of the two it is depends on the text. A text without one is `invalid-argument`.
   */
  fillMask(text: string, options?: FillMaskOptions): Promise<FilledMask[] | FilledMask[][]>;
  fillMask(texts: readonly string[], options?: FillMaskOptions): Promise<(FilledMask[] | FilledMask[][])[]>;
  async fillMask(text: string | readonly string[], options?: FillMaskOptions): Promise<any> {
    return this.#task('fillMask', checkTask('fillMask', text, options));
  }

  /** Labels of a text with their scores, the likeliest first, or of its tokens, in order: whichever the model has a head for. */
  classify(text: ClassifyInput, options?: ClassifyOptions): Promise<Label[]>;
  classify(texts: readonly ClassifyInput[], options?: ClassifyOptions): Promise<Label[][]>;
  async classify(text: ClassifyInput | readonly ClassifyInput[], options?: ClassifyOptions): Promise<Label[] | Label[][]> {
    return this.#task('classify', checkTask('classify', text, options));
  }

  /** The stretch of a context that answers a question; with `topK` > 1 the likeliest stretches. */
  answer(question: string, context: string, options?: AnswerOptions & { topK?: 1 }): Promise<Answer>;
  answer<K extends number>(
    question: string,
    context: string,
    options: AnswerOptions & { topK: K },
  ): Promise<1 extends K ? Answer | Answer[] : Answer[]>;
  answer(question: string, context: string, options: AnswerOptions): Promise<Answer | Answer[]>;
  async answer(question: string, context: string, options?: AnswerOptions): Promise<Answer | Answer[]> {
    const found = await this.#task('answer', checkTask('answer', { question, context }, options));
    return (options?.topK ?? 1) > 1 ? found : found[0];
  }

  async #task(name: string, { items, many, request, signal, onSentence }: CheckedTask): Promise<any> {
    const found = await this.#client.call<unknown[]>('task', [name, items, request], { signal, onEvent: onSentence });
    return many ? found : found[0];
  }

  /** An empty cache of keys and values, to pass to `generate` and `chat`. */
  async createCache(): Promise<Cache> {
    return this.#handle(await this.#client.call<number>('createCache', []));
  }

  #handle(id: number): Cache {
    const client = this.#client;
    let alive = true;
    const dispose = async () => {
      if (!alive || client.end) return;
      alive = false;
      await client.call('deleteCache', [id]);
    };
    const cache: Cache = {
      length: () => client.call('cacheLength', [id]),
      clone: async () => this.#handle(await client.call<number>('cloneCache', [id])),
      truncate: async (length: number) => {
        checkCacheLength(length);
        return client.call('truncateCache', [id, length]);
      },
      dispose,
      [asyncDispose]: dispose,
    };
    caches.set(cache, { client, id });
    return Object.freeze(cache);
  }

  #idOf(cache: Cache): number {
    const found = caches.get(cache);
    if (found?.client !== this.#client)
      throw new WasmformerError('invalid-argument', "[generate] cache: expected one of this model's createCache()");
    return found.id;
  }

  /** Ends the model and its worker; the memory is given back. Calls in flight reject with `disposed`. Harmless when repeated. */
  dispose(): Promise<void> {
    return this.#client.dispose();
  }

  [asyncDispose](): Promise<void> {
    return this.dispose();
  }
}

/** Which model a cache belongs to, and its number there. */
const caches = new WeakMap<Cache, { client: Client; id: number }>();

function chatSettings({ chatTemplate, addGenerationPrompt = true, tools, documents, templateVariables }: ChatOptions = {}): ChatSettings {
  return {
    ...templateVariables,
    addGenerationPrompt,
    ...(chatTemplate === undefined ? {} : { template: chatTemplate }),
    ...(tools ? { tools } : {}),
    ...(documents ? { documents } : {}),
  };
}

/** Where a model is saved to: a path, a handle of a folder, or nowhere. */
function destination(where: string, folder: unknown): unknown {
  const handle = folder as FileSystemDirectoryHandle | undefined;
  const isFolder = typeof folder === 'string' ? folder !== '' : typeof handle?.getFileHandle === 'function';
  if (folder !== undefined && !isFolder) fail(where, 'folder', 'a path, a FileSystemDirectoryHandle or nothing', folder);
  return folder;
}
