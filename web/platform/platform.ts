import type { EnginePort } from '../engine/protocol.ts';

/** What the caller's side needs of where it runs: a page or Node. */
export interface Platform {
  /** Compiles `wasmformer.wasm`, at `url` or beside this script. */
  compile(url: string | URL | undefined): Promise<WebAssembly.Module>;
  /** Starts a worker with the engine, from the script at `url` or the one beside this script. */
  spawn(url: string | URL | undefined): EnginePort;
  /** A source as something that can be sent to the worker and means the same there. */
  portable(source: unknown): unknown;
  /** An engine in this very thread. */
  inProcess(): Promise<EnginePort>;
}
