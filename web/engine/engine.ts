import { dtypeOf, dtypes, storeOf } from '../dtypes.ts';
import { WasmformerError } from '../errors.ts';
import {
  type Checkpoint,
  createCacheApi,
  type FileOptions,
  flattenConfig,
  type JsonObject,
  loadSentenceSettings,
  loadTensors,
  loadTokenizer,
  matchTensors,
  mergeGenerationConfig,
  openCheckpoint,
  openTokenizerOf,
  plainSettings,
  rowsASlab,
  type SentenceSettings,
  type Source,
  type TensorEntry,
  type Tokenizer,
} from '../files/index.ts';
import type { CheckedPrompt, ForwardRequest, GenerateRequest } from '../options.ts';
import type { FilePlatform } from '../platform/files.ts';
import type { Pooling } from '../task-types.ts';
import { type Origin, Trainings } from '../train/host.ts';
import { tokenizerMethods } from '../train/tokenizer-host.ts';
import type {
  ChatMessage,
  Dtype,
  ForwardResult,
  GenerateResult,
  Gradients,
  Inspection,
  LensTop,
  LoadOptions,
  Memory,
  ModelInfo,
  Score,
  TokenizerInfo,
} from '../types.ts';
import type { Flat } from './flat.ts';
import { runGeneration } from './generate.ts';
import type { Call, Methods } from './host.ts';
import type { ChatSettings, GenerateInput, LoadedModel } from './messages.ts';
import {
  type Guarded,
  Native,
  type NativeGradientBatch,
  type NativeInfo,
  type NativeParameter,
  type NativeSession,
  type NativeTensor,
  type Plan,
} from './native.ts';
import { Queue } from './queue.ts';
import { runTask, type TaskHost, tasksOf } from './tasks.ts';
import type { ThreadPort, Threads } from './threads.ts';

/** What differs between a page, a browser's worker and Node. */
export interface EnginePlatform {
  files: FilePlatform;
  /** Lets other tasks of this thread run: messages, timers, input and output. */
  turn(): Promise<void>;
  /** Starts a worker that is to become a thread. */
  openThread(): ThreadPort;
}

/** How an engine is to compute. */
export interface EngineStart {
  threads: Threads;
  deterministic: boolean | undefined;
  simdReason: string;
}

/** `load`'s options that reach the engine. */
export interface EngineLoadOptions extends FileOptions, Pick<LoadOptions, 'dtype' | 'cacheDtype'> {
  trainable?: boolean;
}

/** `create`'s. */
export interface EngineCreateOptions extends EngineLoadOptions {
  seed?: number;
  tokenizer?: Source;
}

/** What the program itself takes of it: stack, static data, the allocator, a slab of staged weights. */
const overhead = 16 * 2 ** 20;
/** The context that must fit beside the weights for a model to be of use, in tokens. */
const leastContext = 256;
/** Longest stretch of work, in milliseconds, without other tasks of the thread having their turn. */
const longestTask = 12;

/** Weights drawn at once, so that other tasks have their turn. */
const longestDraw = 2 ** 16;

/** Who lets a computation begin. */
type Turns = Pick<Queue, 'run'>;

type Matched = ReturnType<typeof matchTensors>;
type Matches = Matched['matches'];

/** What a model is made from, as it is described afterwards. */
type Described = Pick<Checkpoint, 'name' | 'config' | 'generationConfig' | 'warnings'> & { format: string; commit?: string | undefined };

/** Where a model's parts come from. */
interface Parts {
  match(parameters: readonly NativeParameter[]): Matched;
  tokenizer(): Promise<Tokenizer | null>;
  sentence?(likely: boolean): Promise<SentenceSettings | null>;
  /** Fills the weights, a few rows a step. */
  fill(session: NativeSession, matches: Matches): AsyncIterable<unknown>;
}

interface Model {
  session: NativeSession;
  /** Of the prompts: of an encoder-decoder model the encoder's. */
  vocabSize: number;
  tokenizer: Tokenizer | null;
  /** Why there is no tokenizer, where the folder has one that cannot be read. */
  tokenizerError: unknown;
  sentence: SentenceSettings | null;
  /** Segments that it tells apart. */
  tokenTypes: number;
  loaded: LoadedModel;
  /** Of a model that can be trained. */
  origin: Origin | null;
}

/** One model and the WebAssembly instance it lives in. Its public methods answer a client's calls. */
export class Engine {
  #platform: EnginePlatform;
  #native: Native | null = null;
  #start: EngineStart | null = null;
  #model: Model | null = null;
  #queue = new Queue();
  /** The caches that callers hold. */
  #caches = new Set<number>();
  #trainings: Trainings;

  constructor(platform: EnginePlatform) {
    this.#platform = platform;
    const { files, turn } = platform;
    const atOnce: Turns = { run: (work) => work() };
    this.#trainings = new Trainings({
      files,
      turn,
      queue: this.#queue,
      trainee: () => {
        const { native, model } = this.#loaded();
        const needTokenizer = () => this.#tokenizer('train');
        return { ...model.loaded, ...model, native, needTokenizer };
      },
      generate: async (prompt, request, signal) =>
        (await this.generate({ prompts: [prompt] }, request, { signal, emit: () => {} }, atOnce))[0],
    });
  }

  /** The methods, for `serve`. */
  methods(): Methods {
    const names = [
      'start',
      'load',
      'create',
      'inspect',
      'tokenize',
      'decode',
      'tokenStrings',
      'chatPrompt',
      'generate',
      'forward',
      'score',
      'task',
      'gradients',
      'memory',
      'parameters',
      'parameter',
      'createCache',
      'cloneCache',
      'truncateCache',
      'cacheLength',
      'deleteCache',
      'processLogits',
      'mechanism',
      'listFiles',
      'clearFiles',
      'close',
    ] as const;
    return {
      ...tokenizerMethods(this.#platform, describeTokenizer),
      ...this.#trainings.methods(),
      ...Object.fromEntries(names.map((name) => [name, (this[name] as (...args: any[]) => unknown).bind(this)])),
    };
  }

  /** Makes the WebAssembly instance. */
  async start(compiled: WebAssembly.Module, start: EngineStart, { signal }: Call): Promise<void> {
    this.#start = start;
    const native = await Native.create(compiled, start.threads, this.#platform.openThread, signal);
    this.#native = native;
    if (start.deterministic && native.simd !== 'simd128')
      throw new WasmformerError('invalid-argument', `[load] wasmUrl: expected simd128 with deterministic: true, got ${native.simd}`);
  }

  async load(source: Source, options: EngineLoadOptions, { signal, emit }: Call): Promise<LoadedModel> {
    const native = this.#instance();
    const checkpoint = await openCheckpoint(source, { ...options, signal, onProgress: emit }, this.#platform.files);
    try {
      const origin: Origin | null = options.trainable ? { kept: new Map() } : null;
      if (origin && (await checkpoint.folder.list())?.includes('trainer_state.json')) origin.training = { source, options };
      this.#model = await this.#build(checkpoint, native, options, signal, origin, {
        match: (parameters) => matchTensors(parameters, checkpoint.tensors),
        tokenizer: () => loadTokenizer(checkpoint, { signal, kept: origin?.kept }),
        sentence: (likely) => loadSentenceSettings(checkpoint, likely, signal),
        async *fill(session, matches) {
          for await (const { index, rowBegin, rowCount, bytes } of loadTensors(checkpoint, matches, { signal })) {
            signal.throwIfAborted();
            const pointer = native.call(() => session.stage(bytes.length));
            native.write(bytes, pointer);
            yield native.call(() => session.loadRows(index, rowBegin, rowCount));
          }
        },
      });
      return this.#model.loaded;
    } finally {
      await checkpoint.close();
    }
  }

  /** Makes a model that has learned nothing yet. */
  async create(config: JsonObject, options: EngineCreateOptions, { signal }: Call): Promise<LoadedModel> {
    const native = this.#instance();
    const { seed = 0, tokenizer } = options;
    const generationConfig = mergeGenerationConfig(config, null);
    const described = { name: 'create', format: 'none', config, generationConfig, warnings: [] };
    const origin: Origin | null = options.trainable ? { kept: new Map() } : null;
    this.#model = await this.#build(described, native, options, signal, origin, {
      match: (parameters) => ({
        matches: parameters.map((parameter, index) => ({ index, parameter, entry: { dtype: 'F32' } as TensorEntry })),
        dtypes: parameters.map(() => 'F32'),
        unused: [],
        without: [],
      }),
      tokenizer: async () => {
        if (tokenizer === undefined) return null;
        const opened = await openTokenizerOf(tokenizer, config.model_type, { signal, kept: origin?.kept }, this.#platform.files);
        // What the configuration leaves out of special tokens the tokenizer says.
        for (const role of ['bos', 'eos', 'pad'] as const) {
          const id = (opened?.target ?? opened)?.specials[role] ?? null;
          if (id !== null) generationConfig[`${role}_token_id`] ??= id;
        }
        return opened;
      },
      async *fill(session, matches) {
        for (const { index, parameter } of matches) {
          const [rows, width = 1] = parameter.shape;
          const slab = rowsASlab(longestDraw, width);
          for (let row = 0; row < rows; row += slab) {
            yield native.call(() => session.drawRows(seed, index, row, Math.min(slab, rows - row)));
          }
        }
      },
    });
    return this.#model.loaded;
  }

  /** What `load` would load, from the headers alone. */
  async inspect(
    source: Source,
    { threads, ...options }: EngineLoadOptions & { threads: number },
    { signal, emit }: Call,
  ): Promise<Inspection> {
    const native = this.#instance();
    // Plans ask the pool for its size; nothing ever runs in it.
    if (threads > 1) native.call((module) => module.startThreads(threads, threads));
    const checkpoint = await openCheckpoint(source, { ...options, signal, onProgress: emit }, this.#platform.files);
    try {
      const config = flattenConfig(checkpoint.config);
      const memory = {} as Inspection['memory'];
      let described: ReturnType<typeof describeModel> | undefined;
      for (const row of ['file', ...(options.trainable ? (['f32'] as const) : dtypes)] as const) {
        const dtype = row === 'file' ? undefined : row;
        const {
          session,
          matches,
          dtypes: given,
          unused,
        } = openSession(native, config, sessionOptions({ ...options, dtype }), (parameters) =>
          matchTensors(parameters, checkpoint.tensors),
        );
        const plan = native.call(() => session.plan(given));
        memory[row] = { ...bytesOf(plan), fits: bytesNeeded(plan) <= native.memoryLimit };
        if (dtype === options.dtype) {
          described = describeModel(
            checkpoint,
            native.call(() => session.info()),
            plan,
            matches,
            unused,
            options,
          );
        }
        session.delete();
      }
      const { memory: _, warnings: __, ...rest } = described as ReturnType<typeof describeModel>;
      return { ...rest, fileBytes: checkpoint.weightBytes, memory };
    } finally {
      await checkpoint.close();
    }
  }

  async #build(
    from: Described,
    native: Native,
    options: EngineLoadOptions,
    signal: AbortSignal,
    origin: Origin | null,
    parts: Parts,
  ): Promise<Model> {
    const { threads, simdReason } = this.#start as EngineStart;
    const config = flattenConfig(from.config);
    const given = sessionOptions(options);
    const { session, matches, dtypes, unused } = openSession(native, config, given, parts.match);
    try {
      const plan = native.call(() => session.plan(dtypes));
      refuseTooLarge(native, config, options, dtypes, plan);

      let tokenizer: Tokenizer | null = null;
      let tokenizerError: unknown;
      try {
        tokenizer = await parts.tokenizer();
      } catch (reason) {
        // A model whose tokenizer cannot be read still works with ids.
        if (!(reason instanceof WasmformerError && reason.code === 'unsupported')) throw reason;
        tokenizerError = reason;
      }
      const { encoderOnly } = native.call(() => session.info());
      const sentence = (tokenizer && (await parts.sentence?.(encoderOnly))) ?? null;

      native.call(() => session.allocate());
      let turned = performance.now();
      for await (const _ of parts.fill(session, matches)) {
        if (performance.now() - turned > longestTask) {
          await this.#platform.turn();
          signal.throwIfAborted();
          turned = performance.now();
        }
      }
      native.call(() => session.finishLoading());
      const info = native.call(() => session.info());
      return {
        session,
        vocabSize: info.sourceVocabSize,
        tokenizer,
        tokenizerError,
        sentence,
        tokenTypes: info.tokenTypes,
        origin,
        loaded: {
          // Copies with ordinary prototypes, in process too.
          config: structuredClone(from.config),
          generationConfig: structuredClone(from.generationConfig),
          tokenizer: tokenizer && describeTokenizer(tokenizer),
          info: {
            ...describeModel(from, info, plan, matches, unused, options),
            ...describeTasks(info, tokenizer, sentence),
            simd: { level: native.simd, reason: simdReason },
            threads: { count: threads.count, reason: threads.reason },
          },
        },
      };
    } catch (reason) {
      if (!native.death) session.delete();
      throw reason;
    }
  }

  /** Ids of texts. */
  tokenize(texts: string[], { addSpecialTokens = true }: { addSpecialTokens?: boolean }): number[][] {
    const tokenizer = this.#tokenizer('tokenize');
    return texts.map((text) => tokenizer.encode(text, { addSpecialTokens }));
  }

  /** Texts of id sequences. */
  decode(sequences: Int32Array[], { skipSpecialTokens = true }: { skipSpecialTokens?: boolean }): string[] {
    const tokenizer = this.#tokenizer('decode');
    return sequences.map((ids) => tokenizer.decode(Array.from(ids), { skipSpecialTokens }));
  }

  /** The prompt that the model's chat template makes of messages. */
  async chatPrompt(messages: ChatMessage[], settings: ChatSettings): Promise<string> {
    const tokenizer = this.#tokenizer('chat');
    const { template, ...rest } = settings;
    if (template === undefined && !tokenizer.hasChatTemplate && !(await tokenizer.prepareChatTemplate())) {
      throw new WasmformerError('unsupported', '[chat] the model has no chat template: pass one as chatTemplate, or use generate');
    }
    return tokenizer.applyChatTemplate(messages, settings.template === undefined ? rest : settings);
  }

  /** Continues prompts, or one conversation; emits the pieces of each step. */
  async generate(
    input: GenerateInput,
    request: GenerateRequest,
    { signal, emit }: Call,
    queue: Turns = this.#queue,
  ): Promise<GenerateResult[]> {
    const where = input.chat ? 'chat' : 'generate';
    const { native, model } = this.#loaded();
    if (input.chat) {
      const text = await this.chatPrompt(input.chat.messages, input.chat.settings);
      input = { ...input, prompts: [{ text }] };
    }
    if (request.stopStrings.length > 0) this.#tokenizer(where);
    const { encoderDecoder } = model.loaded.info;
    const notes = [...request.notes];
    const prompts = (input.prompts ?? []).map((prompt) => this.#promptIds(where, prompt, request, notes));
    const settings = { ...request, tokenizer: model.tokenizer?.target ?? model.tokenizer };
    const { decoderStartTokenId, ...options } = request.native;
    if (encoderDecoder) options.decoderStartTokenId = decoderStartTokenId ?? request.bosTokenId;
    const { decoderInputIds: given } = request;
    const contexts = encoderDecoder ? prompts.map((_, p) => given[p] ?? given[0] ?? []) : prompts;
    const run = () =>
      runGeneration(
        native,
        prompts,
        contexts,
        () => {
          const { cache = 0 } = input;
          if (cache) this.#expectHeld(cache);
          return native.call(() => model.session.startGeneration(prompts, options, cache));
        },
        settings,
        { signal, emit, turn: () => this.#platform.turn() },
      );
    let results: GenerateResult[];
    try {
      results = await queue.run(run, signal);
    } catch (reason) {
      if (!signal.aborted || reason !== signal.reason) throw reason;
      // Aborted before its turn came: this computes nothing.
      results = await run();
    }
    const { contextLength, contextIsWall } = model.loaded.info;
    for (const result of results) {
      const own = [...notes];
      const length = (encoderDecoder ? 0 : result.promptTokens) + result.tokenIds.length;
      if (contextLength > 0 && length > contextLength && !contextIsWall) {
        own.push(`${length} tokens are more than the ${contextLength} the model was configured for`);
      }
      if (own.length > 0) result.notes = own;
    }
    if (request.looks) {
      const starts = [decoderStartTokenId ?? request.bosTokenId ?? []].flat() as number[];
      for (const [i, result] of results.entries()) {
        const p = Math.floor(i / request.numReturnSequences);
        const start = starts[starts.length === 1 ? 0 : p];
        const begun = encoderDecoder && contexts[p][0] !== start ? [start] : [];
        await this.#lookAt(
          result,
          prompts[p],
          Int32Array.from([...begun, ...Array.from(contexts[p]), ...result.tokenIds]),
          request,
          signal,
          queue,
        );
      }
    }
    return results;
  }

  /** One pass over a generated sequence, `ids`, of which the result shows what was asked for. */
  async #lookAt(
    result: GenerateResult,
    prompt: Int32Array,
    ids: Int32Array,
    { looks }: GenerateRequest,
    signal: AbortSignal,
    queue: Turns,
  ): Promise<void> {
    const { contextLength, contextIsWall, encoderDecoder } = this.#loaded().model.loaded.info;
    // The last token may be one for which there is no position.
    if (contextIsWall) ids = ids.slice(0, contextLength);
    const input = encoderDecoder ? { inputIds: [prompt], decoderInputIds: [ids] } : { inputIds: [ids] };
    try {
      Object.assign(result, (await this.forward({ input, request: { ...looks, logits: false } }, { signal }, queue))[0]);
    } catch (reason) {
      if (!signal.aborted) throw reason;
    }
  }

  #promptIds(where: string, prompt: CheckedPrompt, request: GenerateRequest, notes: string[]): Int32Array {
    const { model } = this.#loaded();
    let ids: Int32Array;
    let start = 0;
    if ('ids' in prompt) {
      ids = prompt.ids;
    } else {
      const tokenizer = this.#tokenizer(where);
      const { addSpecialTokens } = request;
      ids = Int32Array.from(tokenizer.encode(prompt.text, { addSpecialTokens }));
      if (addSpecialTokens && ids.length > 1 && ids[0] === (tokenizer.specials.bos ?? -1)) start = 1;
    }
    if (ids.length === 0) {
      const bos = request.bosTokenId ?? model.tokenizer?.specials.bos ?? null;
      if (bos === null) {
        throw new WasmformerError(
          'invalid-argument',
          `[${where}] prompt: expected at least one token, got none, and the model has no start token`,
        );
      }
      ids = Int32Array.of(bos);
    }
    this.#checkVocabulary(where, ids);
    const { contextLength: limit, contextIsWall, encoderDecoder } = model.loaded.info;
    if (limit > 0 && ids.length > limit && (request.truncation || contextIsWall)) {
      if (!request.truncation) {
        throw new WasmformerError(
          'invalid-argument',
          `[${where}] prompt: expected at most ${limit} tokens, which is all the model has positions for, got ${ids.length} (truncation: true drops the beginning)`,
        );
      }
      const wanted = (request.native.maxNewTokens as number | undefined) ?? 0;
      const keep = encoderDecoder ? limit : Math.max(limit - wanted, Math.ceil(limit / 2));
      notes.push(`the prompt was cut from ${ids.length} to ${keep} tokens`);
      if (request.truncation === 'right') ids = ids.slice(0, keep);
      else ids = Int32Array.from([...ids.slice(0, start), ...ids.slice(ids.length - keep + start)]);
    }
    const { maxLength } = request.native as { maxLength?: number };
    if (maxLength !== undefined && ids.length >= maxLength && !encoderDecoder) {
      throw new WasmformerError(
        'invalid-argument',
        `[${where}] maxLength: expected more than the prompt's ${ids.length} tokens, got ${maxLength}`,
      );
    }
    return ids;
  }

  #checkVocabulary(where: string, ids: Int32Array): void {
    const { vocabSize } = this.#loaded().model;
    const wrong = ids.findIndex((id) => id < 0 || id >= vocabSize);
    if (wrong >= 0) {
      throw new WasmformerError(
        'invalid-argument',
        `[${where}] token id at ${wrong}: expected an integer from 0 to ${vocabSize - 1}, got ${ids[wrong]}`,
      );
    }
  }

  #expectHeld(cache: number): void {
    if (!this.#caches.has(cache)) throw new WasmformerError('disposed', '[cache] the cache has been disposed of');
  }

  /** One forward pass over each sequence. */
  async forward(
    { input, request }: ForwardRequest,
    { signal }: Pick<Call, 'signal'>,
    queue: Turns = this.#queue,
  ): Promise<ForwardResult[]> {
    const { native, model } = this.#loaded();
    for (const ids of input.inputIds) this.#checkVocabulary('forward', ids);
    const results = await queue.run(
      () =>
        this.#advance(
          signal,
          () => native.call(() => model.session.startForward(input, request)),
          (forward) => forward.result(),
        ),
      signal,
    );
    return results.map(({ logitLens, ...rest }, i) => {
      const result: Partial<ForwardResult> = rest;
      const [ids, decoderIds] = [input.inputIds[i], input.decoderInputIds?.[i]];
      if (logitLens) result.logitLens = request['logitLens.topK'] ? logitLens.map((lens) => this.#likeliest(lens)) : logitLens;
      if (model.tokenizer && (request.attentions || request.trace)) {
        if (decoderIds) {
          result.sourceTokens = this.#strings(ids);
          result.targetTokens = this.#strings(decoderIds, true);
        } else {
          result.tokens = this.#strings(ids);
        }
      }
      return result as ForwardResult;
    });
  }

  #likeliest({ data, shape, ids = new Int32Array(0) }: NativeTensor & { ids?: Int32Array }): LensTop {
    const [T, k] = shape;
    const rows = <V>(list: ArrayLike<number> & { slice(begin: number, end: number): Iterable<number> }, map: (values: number[]) => V) =>
      Array.from({ length: T }, (_, t) => map(ids[t * k] < 0 ? [] : [...list.slice(t * k, (t + 1) * k)]));
    return {
      ids: rows(ids, (row) => row),
      logprobs: rows(data, (row) => row),
      ...(this.#model?.tokenizer ? { tokens: rows(ids, (row) => this.#strings(row, true)) } : {}),
    };
  }

  /** What tokens stand for, of the decoder's vocabulary where there are two. */
  tokenStrings(ids: Int32Array, target: boolean): string[] {
    this.#tokenizer('tokenStrings');
    return this.#strings(ids, target);
  }

  #strings(ids: Iterable<number>, target = false): string[] {
    const own = this.#tokenizer('tokenStrings');
    const tokenizer = (target && own.target) || own;
    const special = new Set(tokenizer.specials.all);
    return Array.from(ids, (id) => {
      if (special.has(id)) return tokenizer.idToToken(id) ?? '';
      const bytes = tokenizer.tokenBytes(id);
      try {
        return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
      } catch {
        return Array.from(bytes, (byte) => `<0x${byte.toString(16).padStart(2, '0').toUpperCase()}>`).join('');
      }
    });
  }

  /** Log-probabilities of texts or id sequences. */
  async score(prompts: CheckedPrompt[], { addSpecialTokens = true }: { addSpecialTokens?: boolean }, { signal }: Call): Promise<Score[]> {
    const { native, model } = this.#loaded();
    const sequences = prompts.map((prompt) => {
      const ids = 'ids' in prompt ? prompt.ids : Int32Array.from(this.#tokenizer('score').encode(prompt.text, { addSpecialTokens }));
      if (ids.length === 0) throw new WasmformerError('invalid-argument', '[score] text: expected at least one token, got none');
      this.#checkVocabulary('score', ids);
      return ids;
    });
    const found = await this.#queue.run(
      () =>
        this.#advance(
          signal,
          () => native.call(() => model.session.startScore(sequences)),
          (score) => score.result(),
        ),
      signal,
    );
    return found.map((logprobs, i) => {
      let sum = 0;
      for (let t = 1; t < logprobs.length; ++t) sum += logprobs[t];
      return { tokenIds: Array.from(sequences[i]), logprobs: Array.from(logprobs), perplexity: Math.exp(-sum / (logprobs.length - 1)) };
    });
  }

  /** `translate` and the like, of each of some texts, as one turn in the queue. */
  task(name: string, items: unknown[], request: Record<string, unknown>, { signal, emit }: Call): Promise<unknown[]> {
    const { model } = this.#loaded();
    const { info, config } = model.loaded;
    const atOnce: Turns = { run: (work) => work() };
    const host: TaskHost = {
      info,
      config,
      tokenizer: this.#tokenizer(name),
      sentence: model.sentence,
      tokenTypes: model.tokenTypes,
      strings: (ids, target) => this.#strings(ids, target),
      forward: (input, request) => this.forward({ input, request }, { signal }, atOnce),
      generate: async (prompts, request) => {
        const results = await this.generate({ prompts: prompts.map((ids) => ({ ids })) }, request, { signal, emit: () => {} }, atOnce);
        signal.throwIfAborted();
        return results;
      },
      emit,
    };
    return this.#queue.run(() => runTask(name, host, items, request), signal);
  }

  /** Runs something that advances in steps, turning the event loop between them. */
  async #advance<R, T extends { advance(): Guarded<{ done: boolean }>; delete(): void }>(
    signal: AbortSignal,
    start: () => T,
    result: (work: T) => Guarded<R>,
  ): Promise<R> {
    const { native } = this.#loaded();
    const work = start();
    try {
      while (!native.call(() => work.advance()).done) {
        await this.#platform.turn();
        signal.throwIfAborted();
      }
      return native.call(() => result(work));
    } finally {
      if (!native.death) work.delete();
    }
  }

  /** Loss and gradients of a batch, for models loaded to be trained. */
  gradients(batch: NativeGradientBatch, { signal }: Call): Promise<Gradients> {
    const { native, model } = this.#loaded();
    return this.#queue.run(async () => native.call(() => model.session.gradients(batch)), signal);
  }

  memory(): Memory {
    const { native, model } = this.#loaded();
    return { ...native.call(() => model.session.memory()), total: native.memoryBytes };
  }

  /** Every weight's name, shape and format. */
  parameters(): NativeParameter[] {
    const { native, model } = this.#loaded();
    return native.call(() => model.session.parameters());
  }

  /** One of them, by its number. */
  parameter(index: number, { signal }: Call): Promise<NativeTensor> {
    const { native, model } = this.#loaded();
    return this.#queue.run(async () => native.call(() => model.session.parameter(index)), signal);
  }

  createCache({ signal }: Call): Promise<number> {
    return this.#queue.run(async () => {
      const { native, model } = this.#loaded();
      const { architecture, encoderOnly, encoderDecoder } = model.loaded.info;
      if (encoderOnly || encoderDecoder)
        throw new WasmformerError('unsupported', `[cache] model: expected a decoder alone, got ${architecture}, which has an encoder`);
      const id = native.call(() => model.session.createCache());
      this.#caches.add(id);
      return id;
    }, signal);
  }

  cloneCache(cache: number, { signal }: Call): Promise<number> {
    return this.#queue.run(async () => {
      const { native, model } = this.#loaded();
      this.#expectHeld(cache);
      const id = native.call(() => model.session.cloneCache(cache));
      this.#caches.add(id);
      return id;
    }, signal);
  }

  truncateCache(cache: number, length: number, { signal }: Call): Promise<void> {
    return this.#queue.run(async () => {
      const { native, model } = this.#loaded();
      this.#expectHeld(cache);
      const held = native.call(() => model.session.cacheLength(cache));
      if (!(Number.isInteger(length) && length >= 0 && length <= held)) {
        throw new WasmformerError('invalid-argument', `[cache] length: expected an integer from 0 to ${held}, got ${length}`);
      }
      native.call(() => model.session.truncateCache(cache, length));
    }, signal);
  }

  cacheLength(cache: number, { signal }: Call): Promise<number> {
    return this.#queue.run(async () => {
      const { native, model } = this.#loaded();
      this.#expectHeld(cache);
      return native.call(() => model.session.cacheLength(cache));
    }, signal);
  }

  deleteCache(cache: number, { signal }: Call): Promise<void> {
    return this.#queue.run(async () => {
      if (!this.#caches.delete(cache)) return;
      const { native, model } = this.#loaded();
      native.call(() => model.session.deleteCache(cache));
    }, signal);
  }

  /** The logits processors and warpers alone. */
  processLogits(scores: Float32Array, promptLength: number, ids: Int32Array, options: Flat): Float32Array {
    return this.#instance().call((module) => module.processLogits(scores, promptLength, ids, options));
  }

  /** One of the bare operations. */
  mechanism(operation: string, tensors: Record<string, NativeTensor>, options: Flat): Record<string, NativeTensor> {
    return this.#instance().call((module) => module.runMechanism(operation, tensors, options));
  }

  /** Downloaded files. */
  listFiles(cacheDir?: string): Promise<unknown[]> {
    return createCacheApi(this.#platform.files, { cacheDir }).list();
  }

  /** Removes downloads, of one model or all; the bytes freed. */
  clearFiles(id?: string, cacheDir?: string): Promise<number> {
    return createCacheApi(this.#platform.files, { cacheDir }).clear(id);
  }

  /** Drops the instance. */
  close(): void {
    this.#model = null;
    this.#native?.close();
    this.#native = null;
  }

  #instance(): Native {
    if (!this.#native) throw new WasmformerError('internal', '[engine] not started');
    return this.#native;
  }

  #loaded(): { native: Native; model: Model } {
    if (!this.#model) throw new WasmformerError('internal', '[engine] no model has been loaded');
    return { native: this.#instance(), model: this.#model };
  }

  #tokenizer(where: string): Tokenizer {
    const { model } = this.#loaded();
    if (model.tokenizer) return model.tokenizer;
    if (model.tokenizerError) throw model.tokenizerError;
    const instead = ['generate', 'score', 'train'].includes(where) ? ', or give { inputIds } in place of text' : '';
    throw new WasmformerError(
      'unsupported',
      `[${where}] the model has no tokenizer: load it from a folder with one, pass \`tokenizer\` to create${instead}`,
    );
  }
}

function describeModel(
  checkpoint: Described,
  info: NativeInfo,
  plan: Plan,
  matches: Matches,
  unusedTensors: string[],
  { cacheDtype = 'f32' }: EngineLoadOptions,
): Omit<ModelInfo, 'simd' | 'threads'> {
  const dtypes: Partial<Record<Dtype, number>> = {};
  matches.forEach(({ parameter }, i) => {
    const kept = dtypeOf(plan.stores[i]);
    dtypes[kept] = (dtypes[kept] ?? 0) + count(parameter.shape);
  });
  const [most] = (Object.entries(dtypes) as [Dtype, number][]).sort(([, a], [, b]) => b - a)[0];
  return {
    source: checkpoint.name,
    ...(checkpoint.commit && { commit: checkpoint.commit }),
    format: checkpoint.format,
    architecture: info.architecture,
    parameters: matches.reduce((sum, { parameter }) => sum + count(parameter.shape), 0),
    dtypes,
    dtype: most,
    cacheDtype,
    layers: info.layers,
    heads: info.heads,
    kvHeads: info.kvHeads,
    hiddenSize: info.hiddenSize,
    vocabSize: info.vocabSize,
    contextLength: info.context,
    positions: info.positions,
    contextIsWall: info.maxPositions > 0,
    encoderDecoder: info.encoderDecoder,
    ...(info.encoderDecoder && {
      encoderLayers: info.encoderLayers,
      encoderHeads: info.encoderHeads,
      sourceVocabSize: info.sourceVocabSize,
    }),
    encoderOnly: info.encoderOnly,
    head: info.head,
    memory: bytesOf(plan),
    tasks: tasksOf(info, false),
    unusedTensors,
    warnings: checkpoint.warnings.map(({ code, message }) => ({ code, message })),
  };
}

function bytesOf({ weights, workspace, cachePerToken }: Plan): ModelInfo['memory'] {
  return { weights, workspace, cachePerToken };
}

function count(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

function sessionOptions({ dtype, cacheDtype, trainable }: EngineLoadOptions): Flat {
  return {
    ...(dtype && { dtype: storeOf(dtype) }),
    ...(cacheDtype && { cacheDtype: storeOf(cacheDtype) }),
    ...(trainable && { trainable }),
  };
}

/** A session and where its parameters come from. Parts of the model that the files may lack and do lack are turned off in `config`. */
function openSession(native: Native, config: Flat, options: Flat, match: Parts['match']): Matched & { session: NativeSession } {
  for (;;) {
    const session = native.call((module) => module.createSession(config, { ...options, memoryLimit: native.memoryLimit }));
    try {
      const matched = match(native.call(() => session.parameters()));
      if (matched.without.length === 0) return { session, ...matched };
      for (const key of matched.without) config[key] = false;
    } catch (reason) {
      if (!native.death) session.delete();
      throw reason;
    }
    session.delete();
  }
}

/** Throws `out-of-memory` for a model that cannot fit, and says what would. */
function refuseTooLarge(native: Native, config: Flat, { dtype, trainable }: EngineLoadOptions, given: string[], plan: Plan): void {
  const need = bytesNeeded(plan);
  const { memoryLimit } = native;
  if (need <= memoryLimit) return;
  const smaller: [string, EngineLoadOptions][] = (['f16', 'q8', 'q4'] as const).map((dtype) => [`dtype '${dtype}'`, { dtype }]);
  if (trainable) smaller.unshift(['trainable: false', {}]);
  const fitting = smaller.find(([, options]) => {
    const session = native.call((module) => module.createSession(config, sessionOptions(options)));
    const bytes = bytesNeeded(native.call(() => session.plan(given)));
    session.delete();
    return bytes <= memoryLimit;
  });
  throw new WasmformerError(
    'out-of-memory',
    `[load] model: expected at most ${memoryLimit} bytes${dtype ? ` with dtype '${dtype}'` : ''}, got ${need} (weights ${plan.weights}, ` +
      `working memory ${plan.workspace}, ${plan.cachePerToken} a token of context); ` +
      `${fitting ? `${fitting[0]} would fit` : 'no dtype would fit'}`,
  );
}

function bytesNeeded({ weights, workspace, cachePerToken }: Plan): number {
  return weights + workspace + cachePerToken * leastContext + overhead;
}

/** What a model can do beyond generating and looking, and how it embeds. */
function describeTasks(
  info: NativeInfo,
  tokenizer: Tokenizer | null,
  sentence: SentenceSettings | null,
): Pick<ModelInfo, 'tasks' | 'embedding'> {
  // What works on text needs a tokenizer.
  const tasks = tasksOf(info, sentence !== null).filter((task) => tokenizer || task === 'generate');
  if (!tasks.includes('embed')) return { tasks };
  const { pooling, normalize, maxLength, prompts, promptName, from } = sentence ?? plainSettings('default', 'mean');
  const embedding = { pooling: pooling as Pooling[], normalize, maxLength: maxLength ?? tokenizer?.maxLength ?? null, prompts, promptName };
  return { tasks, embedding: { ...embedding, from } };
}

function describeTokenizer(tokenizer: Tokenizer): TokenizerInfo {
  const { vocabSize, specials, hasChatTemplate, languages, maxLength } = tokenizer;
  const maskToken = specials.mask === null ? null : tokenizer.idToToken(specials.mask);
  return { vocabSize, specials, hasChatTemplate, maskToken, languages, maxLength };
}
