import { Engine } from './engine/engine.ts';
import { enginePortHere, serve } from './engine/host.ts';
import type { EnginePort, Request, Response } from './engine/protocol.ts';
import { serveThread, type ThreadStart } from './engine/threads.ts';
import { openThread, turn } from './platform/browser.ts';
import { browserFiles } from './platform/browser-files.ts';

/** An engine in the importing thread. */
export function createEngine(): EnginePort {
  return enginePortHere(new Engine({ files: browserFiles, turn, openThread }));
}

interface WorkerScope {
  name?: string;
  postMessage(message: Response | string | null, transfer?: Transferable[]): void;
  onmessage: ((event: { data: any }) => void) | null;
  onmessageerror: (() => void) | null;
}

// The same file is a worker's script and a module to import; only the workers that `spawn` and `openThread` start have these names.
const scope = globalThis as unknown as WorkerScope;
if (scope.name === 'wasmformer-thread' && typeof document === 'undefined') {
  scope.onmessage = ({ data }: { data: ThreadStart }) => void serveThread(data, (failure) => scope.postMessage(failure));
} else if (scope.name === 'wasmformer' && typeof document === 'undefined') {
  serve(new Engine({ files: browserFiles, turn, openThread }).methods(), {
    post: (message, transfer = []) => scope.postMessage(message, transfer),
    listen: (receive) => {
      scope.onmessage = ({ data }: { data: Request }) => receive(data);
      scope.onmessageerror = () => scope.postMessage({ fatal: 'a message could not be read' });
    },
  });
}
