import createModule from 'wasmformer-glue';
import { type ErrorCode, WasmformerError } from '../errors.ts';
import type { Flat } from './flat.ts';

/** What every native function returns: nothing is thrown across. */
export type Guarded<T> = { value: T; error?: undefined } | { value?: undefined; error: { code: string; message: string } };

export interface NativeParameter {
  name: string;
  shape: number[];
  prefix?: string;
  alias?: string;
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
  simd: string;
}

export interface NativeStep {
  done: boolean;
  prefilled: number;
  tokens: {
    sequence: number;
    index: number;
    token: number;
    logprob: number;
    top?: { ids: Int32Array; logprobs: Float32Array };
  }[];
  finished: { sequence: number; reason: string }[];
}

interface Deletable {
  delete(): void;
}

export interface NativeGeneration extends Deletable {
  advance(): Guarded<NativeStep>;
  stop(sequence: number, reason: string): Guarded<unknown>;
}

export interface NativeForward extends Deletable {
  advance(): Guarded<{ done: boolean }>;
  result(): Guarded<Record<string, NativeTensor | NativeTensor[]>[]>;
}

export interface NativeScore extends Deletable {
  advance(): Guarded<{ done: boolean }>;
  result(): Guarded<Float32Array[]>;
}

export interface NativeSession extends Deletable {
  parameters(): Guarded<NativeParameter[]>;
  plan(dtypes: string[]): Guarded<Plan>;
  allocate(): Guarded<unknown>;
  stage(bytes: number): Guarded<number>;
  loadRows(parameter: number, rowBegin: number, rowCount: number): Guarded<unknown>;
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
    },
    request: Flat,
  ): Guarded<NativeForward>;
  startScore(sequences: Int32Array[]): Guarded<NativeScore>;
  createCache(): Guarded<number>;
  cloneCache(id: number): Guarded<number>;
  truncateCache(id: number, length: number): Guarded<unknown>;
  cacheLength(id: number): Guarded<number>;
  deleteCache(id: number): Guarded<unknown>;
  gradients(batch: Record<string, Int32Array[]>): Guarded<{ loss: number; gradients: Record<string, NativeTensor> }>;
}

export interface NativeModule {
  HEAPU8: Uint8Array;
  createSession(config: Flat, options: Flat): Guarded<NativeSession>;
  processLogits(scores: Float32Array, promptLength: number, ids: Int32Array, options: Flat): Guarded<Float32Array>;
}

/** One instance of the WebAssembly module, and whether it is still to be trusted. */
export class Native {
  #module: NativeModule;
  #death: WasmformerError | null = null;

  private constructor(module: NativeModule) {
    this.#module = module;
  }

  /** Makes an instance with a memory of its own from the shared compiled module. */
  static async create(compiled: WebAssembly.Module): Promise<Native> {
    let text = '';
    let failed: (reason: unknown) => void = () => {};
    const failure = new Promise<never>((_, reject) => {
      failed = reject;
    });
    failure.catch(() => {});
    const module = await Promise.race([
      failure,
      createModule({
        instantiateWasm: (imports, done) => {
          WebAssembly.instantiate(compiled, imports).then((instance) => done(instance, compiled), failed);
          return {};
        },
        print: (line) => {
          text += `${line}\n`;
        },
        printErr: (line) => {
          text += `${line}\n`;
        },
        onAbort: failed,
      }),
    ]).catch((reason) => {
      throw new WasmformerError('internal', `[engine] WebAssembly did not start: ${text}${messageOf(reason)}`, {
        cause: reason,
      });
    });
    return new Native(module);
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
      this.#death = new WasmformerError(
        'dead',
        `[engine] the model's WebAssembly instance trapped and cannot be used any more: ${messageOf(reason)}`,
        { cause: reason },
      );
      throw this.#death;
    }
    if (result.error) throw new WasmformerError(result.error.code as ErrorCode, result.error.message);
    return result.value as T;
  }

  /** Copies bytes to an address that `stage` returned. */
  write(bytes: Uint8Array, pointer: number): void {
    // The view is fetched anew each time: growing the memory detaches the old one.
    this.#module.HEAPU8.set(bytes, pointer >>> 0);
  }

  /** Bytes of the whole wasm memory. */
  get memoryBytes(): number {
    return this.#module.HEAPU8.byteLength;
  }
}

function messageOf(reason: unknown): string {
  return reason instanceof Error ? reason.message : String(reason);
}
