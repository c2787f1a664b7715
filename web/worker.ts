import { Engine } from './engine/engine.ts';
import { enginePortHere, serve } from './engine/host.ts';
import type { EnginePort, Request, Response } from './engine/protocol.ts';
import { turn } from './platform/browser.ts';
import { browserFiles } from './platform/browser-files.ts';

/** An engine in the importing thread. */
export function createEngine(): EnginePort {
  return enginePortHere(new Engine({ files: browserFiles, turn }));
}

interface WorkerScope {
  name?: string;
  postMessage(message: Response, transfer?: Transferable[]): void;
  onmessage: ((event: { data: Request }) => void) | null;
  onmessageerror: (() => void) | null;
}

// The same file is a worker's script and a module to import; only the worker that `spawn` starts has this name.
const scope = globalThis as unknown as WorkerScope;
if (scope.name === 'wasmformer' && typeof document === 'undefined') {
  serve(new Engine({ files: browserFiles, turn }).methods(), {
    post: (message, transfer = []) => scope.postMessage(message, transfer),
    listen: (receive) => {
      scope.onmessage = ({ data }) => receive(data);
      scope.onmessageerror = () => scope.postMessage({ fatal: 'a message could not be read' });
    },
  });
}
