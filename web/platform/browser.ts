import type { EnginePort, Request, Response } from '../engine/protocol.ts';
import { WasmformerError } from '../errors.ts';

/** Compiles the module while it arrives; engines without a right MIME type for it get the bytes in one go. */
export async function compile(url: string | URL = new URL('./wasmformer.wasm', import.meta.url)): Promise<WebAssembly.Module> {
  let response: globalThis.Response;
  try {
    response = await fetch(url);
  } catch (reason) {
    throw new WasmformerError('network', `[load] ${url}: ${reason}`, { cause: reason });
  }
  if (!response.ok)
    throw new WasmformerError('not-found', `[load] ${url}: expected the WebAssembly module, got HTTP status ${response.status}`);
  try {
    if (response.headers.get('content-type')?.startsWith('application/wasm')) return await WebAssembly.compileStreaming(response);
    return await WebAssembly.compile(await response.arrayBuffer());
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
