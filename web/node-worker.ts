import { parentPort, workerData } from 'node:worker_threads';
import { Engine } from './engine/engine.ts';
import { enginePortHere, serve } from './engine/host.ts';
import type { EnginePort } from './engine/protocol.ts';
import { serveThread, type ThreadStart } from './engine/threads.ts';
import { openThread, turn } from './platform/node.ts';
import { nodeFiles } from './platform/node-files.ts';

const newEngine = () => new Engine({ files: nodeFiles, turn, openThread: () => openThread(import.meta.url) });

/** An engine in the importing thread. */
export function createEngine(): EnginePort {
  return enginePortHere(newEngine());
}

// The same file is a worker's script and a module to import; only the workers that `spawn` and `openThread` start have these data.
if (parentPort && workerData === 'wasmformer-thread') {
  const port = parentPort;
  port.once('message', (start: ThreadStart) => serveThread(start, (failure) => port.postMessage(failure)));
} else if (parentPort && workerData === 'wasmformer') {
  const port = parentPort;
  serve(newEngine().methods(), {
    post: (message, transfer = []) => port.postMessage(message, transfer),
    listen: (receive) => {
      port.on('message', receive);
      port.on('messageerror', () => port.postMessage({ fatal: 'a message could not be read' }));
    },
  });
}
