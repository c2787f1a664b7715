import createModule from 'wasmformer-glue';
import { type ErrorCode, WasmformerError } from '../errors.ts';
import type { HeadKind } from '../types.ts';
import type { Flat } from './flat.ts';
import { startThreads, type ThreadEntry, type ThreadPort, type Threads } from './threads.ts';

/** What every native function returns: nothing is thrown across. */
export type Guarded<T> = { value: T; error?: undefined } | { value?: undefined; error: { code: string; message: string } };

export interface NativeParameter {
  name: string;
  shape: number[];
  prefix?: string;
  alias?: string;
  option?: string;
  /** As in `Plan.stores`. */
  dtype: string;
  /** The matrix of a linear layer. */
  linear?: boolean;
}

export interface NativeTensor {
  data: Float32Array;
  shape: number[];
}

/** Bytes a model needs. */
export interface Plan {
  weights: number;
  workspace: number;
  cachePerToken: number;
  /** How the parameters will be kept: `F32`, `F16`, `BF16`, `Q8_0`, `Q4_0`. */
  stores: string[];
}

export interface NativeInfo {
  architecture: string;
  layers: number;
  heads: number;
  kvHeads: number;
  hiddenSize: number;
  vocabSize: number;
  /** Positions the configuration names; 0 for none. */
  context: number;
  /** Rows of a learned position table; 0 where positions have no end. */
  maxPositions: number;
  positions: string;
  encoderDecoder: boolean;
  /** 0 where there are not two stacks. */
  encoderLayers: number;
  encoderHeads: number;
  encoderOnly: boolean;
  head: HeadKind;
  /** Classes of a head that labels; 0 for others. */
  labels: number;
  hasPooler: boolean;
  /** Segments that can be told apart; 0 for none. */
  tokenTypes: number;
  /** Of an encoder-decoder model's encoder; elsewhere `vocabSize`. */
  sourceVocabSize: number;
}

export interface NativeStep {
  done: boolean;
  /** Something was chosen: a token of a sequence, or of a beam. */
  grew: boolean;
  prefilled: number;
  tokens: {
    sequence: number;
    index: number;
    token: number;
    logprob: number;
    top?: { ids: Int32Array; logprobs: Float32Array };
  }[];
  /** `score`: of beam search. */
  finished: { sequence: number; reason: string; score?: number }[];
}

interface Deletable {
  delete(): void;
}

export interface NativeGeneration extends Deletable {
  advance(): Guarded<NativeStep>;
  /** Ends everything where it stands; with beams the step has what was found. */
  conclude(): Guarded<NativeStep>;
  stop(sequence: number, reason: string): Guarded<unknown>;
}

/** Beside these, tensors and lists of tensors by name. */
export interface NativeForwardResult {
  /** (T, V) logits, or with `ids` (T, k) log-probabilities of those tokens, -1 in rows of padding; one a hidden state. */
  logitLens?: (NativeTensor & { ids?: Int32Array })[];
  [name: string]: unknown;
}

export interface NativeForward extends Deletable {
  advance(): Guarded<{ done: boolean }>;
  result(): Guarded<NativeForwardResult[]>;
}

export interface NativeScore extends Deletable {
  advance(): Guarded<{ done: boolean }>;
  result(): Guarded<Float32Array[]>;
}

/** Sequences of any lengths and their labels, as `gradients` takes them. */
export type NativeBatch = Record<string, Int32Array[]>;

export type NativeGradientBatch = { inputIds: Int32Array[]; labels: Int32Array[]; decoderInputIds?: Int32Array[]; labelSmoothing: number };

export interface NativeTraining extends Deletable {
  /** Forward and backward of a micro-batch, whose gradients add up; the mean loss over its labels. */
  accumulate(batch: NativeBatch): Guarded<{ loss: number; labels: number }>;
  /** Divides by all labels, clips, steps. */
  update(): Guarded<{ step: number; loss: number; gradientNorm: number; learningRate: number }>;
  evaluate(batch: NativeBatch): Guarded<{ loss: number; labels: number }>;
  /** Of the optimiser, as the parameter is stored. */
  moments(parameter: number): Guarded<{ first: NativeTensor; second: NativeTensor }>;
  setMoments(parameter: number, first: Float32Array, second: Float32Array): Guarded<unknown>;
  setStep(step: number): Guarded<unknown>;
}

export interface NativeSession extends Deletable {
  parameters(): Guarded<NativeParameter[]>;
  plan(dtypes: string[]): Guarded<Plan>;
  allocate(): Guarded<unknown>;
  stage(bytes: number): Guarded<number>;
  loadRows(parameter: number, rowBegin: number, rowCount: number): Guarded<unknown>;
  /** In place of staged bytes: rows of an untrained model. */
  drawRows(seed: number, parameter: number, rowBegin: number, rowCount: number): Guarded<unknown>;
  finishLoading(): Guarded<unknown>;
  info(): Guarded<NativeInfo>;
  memory(): Guarded<{ weights: number; arena: number; cache: number; total: number }>;
  startGeneration(prompts: Int32Array[], options: Flat, cache: number): Guarded<NativeGeneration>;
  startForward(
    input: {
      inputIds: Int32Array[];
      positionIds?: Int32Array[];
      attentionMask?: Uint8Array[];
      decoderInputIds?: Int32Array[];
      tokenTypeIds?: Int32Array[];
      decoderAttentionMask?: Uint8Array[];
    },
    request: Flat,
  ): Guarded<NativeForward>;
  startScore(sequences: Int32Array[]): Guarded<NativeScore>;
  parameter(index: number): Guarded<NativeTensor>;
  createCache(): Guarded<number>;
  cloneCache(id: number): Guarded<number>;
  truncateCache(id: number, length: number): Guarded<unknown>;
  cacheLength(id: number): Guarded<number>;
  deleteCache(id: number): Guarded<unknown>;
  gradients(batch: NativeGradientBatch): Guarded<{ loss: number; gradients: Record<string, NativeTensor> }>;
  /** Options as in src/train/trainer.hpp. */
  startTraining(options: Flat): Guarded<NativeTraining>;
  /** Options as in src/train/lora.hpp; the adapter's parameters, which are then what is trained. */
  addAdapter(options: Flat): Guarded<NativeParameter[]>;
  adapterParameter(index: number): Guarded<NativeTensor>;
  /** A whole parameter of the adapter, as a file has it. */
  writeAdapter(index: number, dtype: string, bytes: Uint8Array): Guarded<unknown>;
  mergeAdapter(): Guarded<unknown>;
  removeAdapter(): Guarded<unknown>;
}

export interface NativeModule {
  /** `relaxed` or `simd128`. */
  simdLevel(): string;
  /** Makes the pool, to be called once, before the first session. */
  startThreads(count: number, cores: number): Guarded<ThreadEntry>;
  createSession(config: Flat, options: Flat): Guarded<NativeSession>;
  processLogits(scores: Float32Array, promptLength: number, ids: Int32Array, options: Flat): Guarded<Float32Array>;
  runMechanism(operation: string, tensors: Record<string, NativeTensor>, options: Flat): Guarded<Record<string, NativeTensor>>;
}

/** Bytes of a page of wasm memory. */
const page = 2 ** 16;
/** The pages a memory begins with and may have at most; the link flags say the same. */
const initial = 256;
const most = 2 ** 16;

/** A memory as large as can be had. A shared one reserves its maximum at once, which not every machine has 4 GB for. */
function makeMemory(shared: boolean): { memory: WebAssembly.Memory; limit: number } {
  for (let maximum = most; ; maximum /= 2) {
    try {
      // Pointers do not reach into the last page of 4 GB.
      return { memory: new WebAssembly.Memory({ initial, maximum, shared }), limit: Math.min(maximum, most - 1) * page };
    } catch (reason) {
      if (maximum > 2 * initial) continue;
      throw new WasmformerError(
        'out-of-memory',
        `[engine] memory: expected ${maximum * page} bytes of addresses, got: ${messageOf(reason)}`,
        { cause: reason },
      );
    }
  }
}

/** One instance of the WebAssembly module, and whether it is still to be trusted. */
export class Native {
  #module: NativeModule;
  #memory: WebAssembly.Memory;
  #death: WasmformerError | null = null;
  #threads: ThreadPort[] = [];

  /** Bytes that its memory may grow to. */
  readonly memoryLimit: number;
  /** Which instructions it was compiled for. */
  readonly simd: string;

  private constructor(module: NativeModule, memory: WebAssembly.Memory, limit: number) {
    this.#module = module;
    this.#memory = memory;
    this.memoryLimit = limit;
    this.simd = module.simdLevel();
  }

  /**
   * Makes an instance with a memory of its own from the shared compiled module. With more than one thread the module's memory is
   * a shared one, and `open` starts a worker for each but this.
   */
  static async create(
    compiled: WebAssembly.Module,
    { count, cores }: Pick<Threads, 'count' | 'cores'>,
    open: () => ThreadPort,
    signal: AbortSignal,
  ): Promise<Native> {
    const { memory, limit } = makeMemory(count > 1);
    let text = '';
    const print = (line: string) => {
      text += `${line}\n`;
    };
    const module = await new Promise<NativeModule>((resolve, reject) => {
      createModule({
        instantiateWasm: (imports, done) => {
          WebAssembly.instantiate(compiled, imports).then((instance) => done(instance, compiled), reject);
          return {};
        },
        wasmMemory: memory,
        print,
        printErr: print,
        onAbort: reject,
      }).then(resolve, reject);
    }).catch((reason) => {
      throw new WasmformerError('internal', `[engine] WebAssembly did not start: ${text}${messageOf(reason)}`, {
        cause: reason,
      });
    });
    const native = new Native(module, memory, limit);
    if (count > 1) {
      const entry = native.call((module) => module.startThreads(count, cores));
      native.#threads = await startThreads(open, entry, compiled, memory, signal, (reason) => native.#die('a thread ended', reason));
    }
    return native;
  }

  /** Ends its threads. */
  close(): void {
    for (const thread of this.#threads) thread.terminate();
  }

  #die(what: string, reason: unknown): WasmformerError {
    const message = `[engine] the model's WebAssembly instance cannot be used any more, ${what}: ${messageOf(reason)}`;
    this.#death ??= new WasmformerError('dead', message, { cause: reason });
    return this.#death;
  }

  /** Why the instance can no longer be used, if so. */
  get death(): WasmformerError | null {
    return this.#death;
  }

  /**
   * Calls into the instance and unwraps what it returns. Its errors become `WasmformerError`s; anything else that comes
   * out (a trap, an exhausted stack) leaves memory in an unknown state, so the instance is dead from then on.
   */
  call<T>(run: (module: NativeModule) => Guarded<T>): T {
    if (this.#death) throw this.#death;
    let result: Guarded<T>;
    try {
      result = run(this.#module);
    } catch (reason) {
      throw this.#die('it trapped', reason);
    }
    if (result.error?.code === 'dead') throw this.#die('a thread ended', result.error.message);
    if (result.error) throw new WasmformerError(result.error.code as ErrorCode, result.error.message);
    return result.value as T;
  }

  /** Copies bytes to an address that `stage` returned. */
  write(bytes: Uint8Array, pointer: number): void {
    // The view is made anew each time: growing the memory detaches the old one, or leaves it short.
    new Uint8Array(this.#memory.buffer).set(bytes, pointer >>> 0);
  }

  /** Bytes of the whole wasm memory. */
  get memoryBytes(): number {
    return this.#memory.buffer.byteLength;
  }
}

function messageOf(reason: unknown): string {
  return reason instanceof Error ? reason.message : String(reason);
}
