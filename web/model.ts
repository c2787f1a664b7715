/// <reference lib="esnext.disposable" preserve="true" />
import type { Client } from './engine/client.ts';
import type { ChatSettings, GenerateInput, LoadedModel } from './engine/messages.ts';
import { GenerationStream } from './engine/stream.ts';
import { WasmformerError } from './errors.ts';
import {
  checkBatch,
  checkCacheLength,
  checkForward,
  checkIds,
  checkMessages,
  checkOptions,
  checkPrompts,
  reading,
  resolveGeneration,
} from './options.ts';
import type {
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
  Memory,
  ModelInfo,
  Piece,
  Prompt,
  Score,
  TokenizerInfo,
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
    const settings = checkOptions('tokenize', options, ['addSpecialTokens']);
    const texts = reading('tokenize', () => (typeof text === 'string' ? [text] : Array.isArray(text) ? Array.from(text) : [null]));
    if (!texts.every((item) => typeof item === 'string')) {
      throw new WasmformerError('invalid-argument', `[tokenize] text: expected a string or an array of strings, got ${typeof text}`);
    }
    const found = await this.#client.call<number[][]>('tokenize', [texts, settings]);
    return typeof text === 'string' ? found[0] : found;
  }

  /** The text of token ids, or of each of several sequences. */
  decode(ids: ArrayLike<number>, options?: { skipSpecialTokens?: boolean }): Promise<string>;
  decode(sequences: readonly ArrayLike<number>[], options?: { skipSpecialTokens?: boolean }): Promise<string[]>;
  async decode(
    ids: ArrayLike<number> | readonly ArrayLike<number>[],
    options?: { skipSpecialTokens?: boolean },
  ): Promise<string | string[]> {
    const settings = checkOptions('decode', options, ['skipSpecialTokens']);
    const { many, sequences } = reading('decode', () => {
      const many = Array.isArray(ids) && typeof ids[0] === 'object';
      return { many, sequences: Array.from(many ? ids : [ids], (list) => checkIds('decode', list)) };
    });
    const found = await this.#client.call<string[]>('decode', [sequences, settings]);
    return many ? found : found[0];
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
   * Mean cross-entropy of a batch and its gradient in every weight, for a model loaded with `trainable: true`.
   * @throws WasmformerError `invalid-argument` for any other model
   */
  async gradients(batch: GradientBatch, options?: { signal?: AbortSignal }): Promise<Gradients> {
    const { signal } = checkOptions('gradients', options, ['signal']);
    return this.#client.call('gradients', [reading('gradients', () => checkBatch(batch))], { signal });
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
