// The engine's worker, in which a function the WebAssembly imports can be made to trap: tokenizing 'trap after n'
// lets the n-th call from then on run into `unreachable`.
import { parentPort } from 'node:worker_threads';
import { armTrap } from './trap.mjs';

await import('../../dist/node-worker.js');
// After the engine's own listener, which only queues the call.
parentPort.on('message', ({ method, args }) => {
  if (method === 'tokenize' && /^trap after /.test(args[0][0])) armTrap(Number(args[0][0].slice(11)));
});
