import { onAbort } from './abort.ts';

/** Lets one call in at a time, in order of arrival. */
export class Queue {
  #tail: Promise<void> = Promise.resolve();

  /**
   * Waits for its turn and runs `work`. An abort while waiting rejects at once with the signal's reason; the place in
   * the queue is then skipped.
   */
  async run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const before = this.#tail;
    let release = () => {};
    const turn = new Promise<void>((resolve) => {
      release = resolve;
    });
    this.#tail = before.then(() => turn);
    try {
      await untilAborted(before, signal);
      return await work();
    } finally {
      release();
    }
  }
}

/** Settles like `promise`, or rejects with the signal's reason if that aborts first. Leaves no listener behind. */
export function untilAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  if (signal.aborted) {
    promise.catch(() => {});
    return Promise.reject(signal.reason);
  }
  return new Promise<T>((resolve, reject) => {
    const stop = onAbort(signal, () => reject(signal.reason));
    promise.then(resolve, reject).finally(stop);
  });
}
