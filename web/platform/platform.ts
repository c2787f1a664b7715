import type { EnginePort } from '../engine/protocol.ts';
import type { Threads } from '../engine/threads.ts';

/** What the caller's side needs of where it runs: a page or Node. */
export interface Platform {
  /** Compiles the module, at `url` or beside this script; `shared`: with a shared memory, for threads. */
  compile(url: string | URL | undefined, relaxed: boolean, shared: boolean): Promise<WebAssembly.Module>;
  /** The threads of an engine, `asked` for or as many as are of use; `worker`: it is to have a worker. */
  threads(asked: number | undefined, worker: boolean): Threads;
  /** Starts a worker with the engine, from the script at `url` or the one beside this script. */
  spawn(url: string | URL | undefined): EnginePort;
  /** A source as something that can be sent to the worker and means the same there. */
  portable(source: unknown): unknown;
  /** An engine in this very thread. */
  inProcess(): Promise<EnginePort>;
}
