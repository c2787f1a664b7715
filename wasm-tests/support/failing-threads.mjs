// A worker's script whose threads, started from this same script, fail.
import { writeSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import threads from 'node:worker_threads';

const { parentPort, workerData, Worker } = threads;
const engine = '../../dist/node-worker.js';

/** The address of a worker's script; `how` its threads fail: throws, silent, late (they do not fail), exit, trap. */
export function failing(how) {
  const text = `const { run } = await import(${JSON.stringify(import.meta.url)});\nawait run(${JSON.stringify(how)}, import.meta.url);\n`;
  return new URL(`data:text/javascript,${encodeURIComponent(text)}`);
}

export async function run(how, script) {
  if (workerData === 'wasmformer') {
    threads.Worker = class extends Worker {
      constructor(_, options) {
        super(new URL(script), options);
      }
    };
    syncBuiltinESMExports();
    await import(engine);
  } else if (how === 'throws') {
    throw new Error('no thread today');
  } else if (how === 'silent') {
    parentPort.on('message', () => {});
  } else if (how === 'late') {
    writeSync(1, 'late');
    const once = parentPort.once.bind(parentPort);
    // Two waits: while the process is stopped only one of them can run out.
    const later = (work) => setTimeout(() => setTimeout(work, 500), 500);
    parentPort.once = (name, listener) => once(name, (start) => later(() => listener(start)));
    await import(engine);
  } else if (how === 'exit') {
    parentPort.on('message', () => {
      parentPort.postMessage(null);
      setTimeout(() => process.exit(3), 400);
    });
  } else {
    // With next to no stack, whatever it computes runs out of the memory's bounds, a part of some work in its hands.
    const once = parentPort.once.bind(parentPort);
    parentPort.once = (name, listener) => once(name, (start) => listener({ ...start, stacks: [0] }));
    await import(engine);
  }
}
