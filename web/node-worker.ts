import { parentPort, workerData } from 'node:worker_threads';
import { Engine } from './engine/engine.ts';
import { enginePortHere, serve } from './engine/host.ts';
import type { EnginePort } from './engine/protocol.ts';
import { turn } from './platform/node.ts';
import { nodeFiles } from './platform/node-files.ts';

/** An engine in the importing thread. */
export function createEngine(): EnginePort {
  return enginePortHere(new Engine({ files: nodeFiles, turn }));
}

// The same file is a worker's script and a module to import; only the worker that `spawn` starts has this data.
if (parentPort && workerData === 'wasmformer') {
  const port = parentPort;
  serve(new Engine({ files: nodeFiles, turn }).methods(), {
    post: (message, transfer = []) => port.postMessage(message, transfer),
    listen: (receive) => {
      port.on('message', receive);
      port.on('messageerror', () => port.postMessage({ fatal: 'a message could not be read' }));
    },
  });
}
