import { WasmformerError } from '../errors.ts';
import { untilAborted } from './queue.ts';

/** How many threads compute, the engine's own included, and how many cores there are for them. */
export interface Threads {
  count: number;
  cores: number;
  reason: string;
}

/** Indices in the module's table of functions, and where the stacks of the threads begin. */
export interface ThreadEntry {
  setStack: number;
  serve: number;
  lose: number;
  stacks: number[];
}

/** What makes a worker a thread of an engine. */
export interface ThreadStart extends ThreadEntry {
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  /** Its number, from 1 on. */
  number: number;
}

/** An engine's end of a worker that is to become a thread. It answers with null once it is about to compute, or with what went wrong. */
export interface ThreadPort {
  post(start: ThreadStart): void;
  listen(answer: (failure: string | null) => void): void;
  /** From now on the worker does not keep a script alive. */
  release(): void;
  terminate(): void;
}

/**
 * How long none of the threads may have got ready for, in seconds: far more than a busy machine needs. It is counted in ticks, so
 * that a process that was stopped, or a starved one, does not take its own absence for theirs.
 */
const patience = 20;

/** The most threads that are started unless more are asked for; beyond, a model of a page's size gains nothing. */
const most = 8;

/** How many threads to have, and why. `obstacle`: what stands in the way of more than one. */
export function chooseThreads(asked: number | undefined, cores: number, obstacle?: string): Threads {
  if (asked === 1) return { count: 1, cores, reason: 'asked for' };
  if (obstacle) return { count: 1, cores, reason: obstacle };
  if (asked) return { count: asked, cores, reason: 'asked for' };
  return { count: Math.min(cores, most), cores, reason: `the machine has ${cores} core${cores > 1 ? 's' : ''}` };
}

/** Starts the threads of an instance; `lost` is told when one is gone later. Rejects, leaving none behind, if one does not start. */
export async function startThreads(
  open: () => ThreadPort,
  { stacks, ...entry }: ThreadEntry,
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  signal: AbortSignal,
  lost: (reason: string) => void,
): Promise<ThreadPort[]> {
  const ports: ThreadPort[] = [];
  let timer: ReturnType<typeof setInterval> | undefined;
  try {
    signal.throwIfAborted();
    const started = new Promise<void>((resolve, reject) => {
      let ready = 0;
      let waited = 0;
      let failed = (reason: string) =>
        reject(new WasmformerError('dead', `[threads] expected ${stacks.length + 1} to start, ${ready + 1} did: ${reason}`));
      timer = setInterval(() => {
        if (++waited === patience * 10) failed(`no answer for ${patience} s`);
      }, 100);
      stacks.forEach((stack, i) => {
        const port = open();
        ports.push(port);
        port.listen((failure) => {
          if (failure !== null) return failed(failure);
          waited = 0;
          if (++ready < stacks.length) return;
          failed = lost;
          resolve();
        });
        port.post({ ...entry, stacks: [stack], module, memory, number: i + 1 });
      });
    });
    await untilAborted(started, signal);
    for (const port of ports) port.release();
    return ports;
  } catch (reason) {
    for (const port of ports) port.terminate();
    throw reason;
  } finally {
    clearInterval(timer);
  }
}

/** A thread's life: returns only if its engine says so, or when something went wrong. */
export async function serveThread(
  { module, memory, setStack, serve, lose, stacks, number }: ThreadStart,
  answer: (failure: string | null) => void,
): Promise<void> {
  try {
    const imports: WebAssembly.Imports = {};
    // A thread only computes: it calls nothing outside its module.
    const outside = () => {
      throw new Error('a thread called JavaScript');
    };
    for (const { module: space, name, kind } of WebAssembly.Module.imports(module)) {
      imports[space] ??= {};
      imports[space][name] = kind === 'memory' ? memory : outside;
    }
    const { exports } = await WebAssembly.instantiate(module, imports);
    // The names of exports are the linker's; there is one table.
    const table = Object.values(exports).find((value) => value instanceof WebAssembly.Table) as WebAssembly.Table;
    table.get(setStack)(stacks[0]);
    answer(null);
    try {
      table.get(serve)(number);
    } catch (reason) {
      table.get(lose)();
      throw reason;
    }
  } catch (reason) {
    answer(String(reason));
  }
}
