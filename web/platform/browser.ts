import type { EnginePort, Request, Response } from '../engine/protocol.ts';
import { chooseThreads, type ThreadPort, type Threads } from '../engine/threads.ts';
import { WasmformerError } from '../errors.ts';
import { sharing } from './wasm.ts';

/** Compiles the module while it arrives; engines without a right MIME type for it get the bytes in one go, and so does a shared memory. */
export async function compile(given: string | URL | undefined, relaxed: boolean, shared: boolean): Promise<WebAssembly.Module> {
  // Bundlers look for exactly these forms.
  const own = relaxed ? new URL('./wasmformer.relaxed.wasm', import.meta.url) : new URL('./wasmformer.wasm', import.meta.url);
  const url = given ?? own;
  let response: globalThis.Response;
  try {
    response = await fetch(url);
  } catch (reason) {
    throw new WasmformerError('network', `[load] ${url}: ${reason}`, { cause: reason });
  }
  if (!response.ok)
    throw new WasmformerError('not-found', `[load] ${url}: expected the WebAssembly module, got HTTP status ${response.status}`);
  try {
    if (!shared && response.headers.get('content-type')?.startsWith('application/wasm'))
      return await WebAssembly.compileStreaming(response);
    const bytes = new Uint8Array(await response.arrayBuffer());
    return await WebAssembly.compile(shared ? sharing(bytes) : bytes);
  } catch (reason) {
    throw new WasmformerError('invalid-file', `[load] ${url}: expected a WebAssembly module this engine can run, got: ${reason}`, {
      cause: reason,
    });
  }
}

/** Starts a module worker. It knows by its name that it is to serve. */
export function spawn(url?: string | URL): EnginePort {
  // Bundlers look for exactly this form, with literal arguments.
  const worker = url
    ? new Worker(url, { type: 'module', name: 'wasmformer' })
    : new Worker(new URL('./worker.js', import.meta.url), { type: 'module', name: 'wasmformer' });
  return {
    post: (message: Request, transfer: ArrayBuffer[] = []) => worker.postMessage(message, transfer),
    listen: (receive: (message: Response) => void) => {
      worker.onmessage = ({ data }) => receive(data);
    },
    onDeath: (report) => {
      worker.onerror = (event) => {
        event.preventDefault();
        report(event.message || 'its script could not be loaded');
      };
      worker.onmessageerror = () => report('a message could not be read');
    },
    setBusy: () => {},
    terminate: () => worker.terminate(),
  };
}

/** The threads of an engine. A page must not wait, and without isolation there is no memory to share. */
export function threads(asked: number | undefined, worker: boolean): Threads {
  const obstacle = worker
    ? globalThis.crossOriginIsolated
      ? undefined
      : 'the page is not cross-origin isolated (docs/threads.md)'
    : 'worker: false in a page';
  return chooseThreads(asked, navigator.hardwareConcurrency || 1, obstacle);
}

/** Starts a worker from the script of the worker that this is. */
export function openThread(): ThreadPort {
  // No literal address: bundlers would bundle the script into itself without end.
  const worker = new Worker(self.location.href, { type: 'module', name: 'wasmformer-thread' });
  return {
    post: (start) => worker.postMessage(start),
    listen: (answer) => {
      worker.onmessage = ({ data }) => answer(data);
      worker.onerror = (event) => {
        event.preventDefault();
        answer(event.message || 'its script could not be loaded');
      };
    },
    release: () => {},
    terminate: () => worker.terminate(),
  };
}

/** A macrotask, without the 4 ms that nested timers wait. */
export function turn(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
    channel ??= openChannel();
    channel.postMessage(null);
  });
}

const waiting: (() => void)[] = [];
let channel: MessagePort | null = null;

function openChannel(): MessagePort {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => waiting.shift()?.();
  return port2;
}

/** A relative address is the page's, not the worker's. */
export function portable(source: unknown): unknown {
  if (typeof source === 'string' && /^\.{0,2}\//.test(source)) {
    return new URL(source, typeof document === 'undefined' ? location.href : document.baseURI).href;
  }
  return source instanceof FileList ? Array.from(source) : source;
}
