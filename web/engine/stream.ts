import type { GenerateResult, Piece } from '../types.ts';
import { onAbort } from './abort.ts';

/**
 * A generation in progress: iterate it for the pieces, await `result` for the whole. It runs from the moment it is made
 * and never waits for its reader; leaving the loop ends it. It can be iterated once.
 */
export class GenerationStream<R extends GenerateResult | GenerateResult[] = GenerateResult | GenerateResult[]>
  implements AsyncIterable<Piece>
{
  /** The generated sequence, or an array of them for an array of prompts or `numReturnSequences` > 1. */
  readonly result: Promise<R>;
  #pieces: Piece[] = [];
  #read = 0;
  #ended = false;
  #error: { reason: unknown } | null = null;
  #wake: (() => void) | null = null;
  #cancel = new AbortController();

  /** `produce` starts the work: it reports pieces, and ends early when the signal it is given aborts. */
  constructor(produce: (emit: (pieces: Piece[]) => void, signal: AbortSignal) => Promise<R>, signal?: AbortSignal) {
    const forward = () => this.#cancel.abort(signal?.reason);
    let stop = () => {};
    if (signal?.aborted) forward();
    else if (signal) stop = onAbort(signal, forward);
    const end = (error: { reason: unknown } | null) => {
      stop();
      this.#ended = true;
      this.#error = error;
      this.#wake?.();
    };
    this.result = produce((pieces) => {
      if (this.#ended) return;
      for (const piece of pieces) this.#pieces.push(piece);
      this.#wake?.();
    }, this.#cancel.signal);
    // This also marks the promise as handled: nobody has to read it.
    this.result.then(
      () => end(null),
      (reason) => end({ reason }),
    );
  }

  [Symbol.asyncIterator](): AsyncIterableIterator<Piece> {
    const iterator: AsyncIterableIterator<Piece> = {
      next: async () => {
        while (this.#read === this.#pieces.length) {
          if (this.#ended) {
            const error = this.#error;
            this.#error = null;
            if (error) throw error.reason;
            return { done: true, value: undefined };
          }
          await new Promise<void>((resolve) => {
            const before = this.#wake;
            this.#wake = () => {
              this.#wake = null;
              before?.();
              resolve();
            };
          });
        }
        const value = this.#pieces[this.#read];
        // Read pieces are let go; the array itself shrinks when a batch of them has been read.
        if (++this.#read === 1024) {
          this.#pieces.splice(0, this.#read);
          this.#read = 0;
        }
        return { done: false, value };
      },
      return: async () => {
        this.#cancel.abort();
        this.#ended = true;
        this.#read = this.#pieces.length = 0;
        this.#wake?.();
        return { done: true, value: undefined };
      },
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }
}
