// The engine's worker, in which a function the WebAssembly imports can be made to trap: a message `{ trap: n }` lets the
// n-th call from then on run into `unreachable`.
import { parentPort } from 'node:worker_threads';
import { armTrap } from './trap.mjs';

await import('../../dist/node-worker.js');
// After the engine's own listener, which only queues the call.
parentPort.on('message', ({ method, args }) => {
  if (method === 'gradients' && args[0]?.trapAfter !== undefined) armTrap(args[0].trapAfter);
});
