import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import type { EnginePort, Request, Response } from '../engine/protocol.ts';
import { chooseThreads, type ThreadPort, type Threads } from '../engine/threads.ts';
import { WasmformerError } from '../errors.ts';
import { removeDraftsOf } from './node-files.ts';
import { sharing } from './wasm.ts';

/** Compiles the module from a file or an address. */
export async function compile(given: string | URL | undefined, relaxed: boolean, shared: boolean): Promise<WebAssembly.Module> {
  const url = given ?? new URL(relaxed ? './wasmformer.relaxed.wasm' : './wasmformer.wasm', import.meta.url);
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    const remote = /^https?:/.test(String(url));
    bytes = remote ? new Uint8Array(await download(url)) : new Uint8Array(await readFile(pathOf(url)));
  } catch (reason) {
    if (reason instanceof WasmformerError) throw reason;
    const code = (reason as NodeJS.ErrnoException).code === 'ENOENT' ? 'not-found' : 'network';
    throw new WasmformerError(code, `[load] ${url}: ${(reason as Error).message}`, { cause: reason });
  }
  try {
    return await WebAssembly.compile(shared ? sharing(bytes) : bytes);
  } catch (reason) {
    throw new WasmformerError('invalid-file', `[load] ${url}: expected a WebAssembly module this engine can run, got: ${reason}`, {
      cause: reason,
    });
  }
}

async function download(url: string | URL): Promise<ArrayBuffer> {
  const response = await fetch(url);
  if (!response.ok)
    throw new WasmformerError('not-found', `[load] ${url}: expected the WebAssembly module, got HTTP status ${response.status}`);
  return response.arrayBuffer();
}

function pathOf(url: string | URL): string {
  return String(url).startsWith('file:') ? fileURLToPath(url) : String(url);
}

/** Starts a worker thread. It knows by its data that it is to serve. */
export function spawn(url: string | URL = new URL('./node-worker.js', import.meta.url)): EnginePort {
  let worker: Worker;
  try {
    const script = typeof url === 'string' && url.startsWith('file:') ? new URL(url) : url;
    worker = new Worker(script, { workerData: 'wasmformer', name: 'wasmformer', execArgv: [] });
  } catch (cause) {
    const reason = (cause as Error).message;
    throw new WasmformerError(
      'invalid-argument',
      `[load] workerUrl: expected a path or file URL of a worker's script, got ${url}: ${reason}`,
      {
        cause,
      },
    );
  }
  worker.unref();
  const { threadId } = worker;
  /** Folders of saves: one that the worker's end cuts off leaves drafts there. */
  const savedTo = new Set<string>();
  return {
    post: (message: Request, transfer: ArrayBuffer[] = []) => {
      worker.postMessage(message, transfer);
      if (!('method' in message) || !message.method.startsWith('save')) return;
      const [to] = message.args;
      if (typeof to === 'string') savedTo.add(resolve(to));
    },
    listen: (receive: (message: Response) => void) => {
      worker.on('message', receive);
      // Listening holds the process up; whether it should is for `setBusy` to say.
      worker.unref();
    },
    onDeath: (report) => {
      worker.on('error', (reason) => report((reason as Error)?.message ?? String(reason)));
      worker.on('messageerror', (reason) => report(`a message could not be read: ${reason.message}`));
      worker.on('exit', (code) => report(`it exited with code ${code}`));
    },
    setBusy: (busy) => (busy ? worker.ref() : worker.unref()),
    terminate: async () => {
      await worker.terminate();
      await Promise.all([...savedTo].map((folder) => removeDraftsOf(threadId, folder)));
    },
  };
}

export function threads(asked: number | undefined): Threads {
  return chooseThreads(asked, availableParallelism());
}

/** Starts a thread from the script at `url`, the one of the worker that this is. */
export function openThread(url: string): ThreadPort {
  const worker = new Worker(new URL(url), { workerData: 'wasmformer-thread', name: 'wasmformer-thread', execArgv: [] });
  return {
    post: (start) => worker.postMessage(start),
    listen: (answer) => {
      worker.on('message', answer);
      worker.on('error', (reason) => answer(String((reason as Error)?.message ?? reason)));
      worker.on('exit', (code) => answer(`it exited with code ${code}`));
    },
    release: () => worker.unref(),
    terminate: () => void worker.terminate(),
  };
}

/** A macrotask. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Paths mean the same in a worker thread. A `File`, unlike the `Blob` it is, loses its content on the way. */
export function portable(source: unknown): unknown {
  const list = (source as ArrayLike<unknown> | null)?.[0] instanceof Blob ? Array.from(source as ArrayLike<unknown>) : [];
  if (list.length > 0 && list.every((file) => file instanceof Blob && 'name' in file)) {
    return Object.fromEntries((list as File[]).map((file) => [file.name, file.slice()]));
  }
  if (typeof source === 'object' && source !== null && Object.getPrototypeOf(source) === Object.prototype) {
    return Object.fromEntries(Object.entries(source).map(([name, value]) => [name, value instanceof Blob ? value.slice() : value]));
  }
  return source;
}
