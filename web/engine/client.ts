import { type ErrorCode, fromPlainError, WasmformerError } from '../errors.ts';
import { onAbort } from './abort.ts';
import type { EnginePort, Response } from './protocol.ts';

interface Pending {
  resolve(value: unknown): void;
  reject(reason: unknown): void;
  onEvent?: (event: any) => unknown;
  /** What the listener threw. */
  failure?: { reason: unknown };
  settle(): void;
}

export interface CallOptions {
  signal?: AbortSignal;
  /** Called with whatever the engine reports on the way; if it throws, or its promise rejects, so does the call. */
  onEvent?: (event: any) => unknown;
  /** An abort asks the engine to end early and waits for its answer, instead of rejecting at once. */
  endsEarly?: boolean;
}

/** Calls methods of an engine behind a port. No call is ever left unsettled: if the engine goes, all of them reject. */
export class Client {
  #port: EnginePort;
  #pending = new Map<number, Pending>();
  #next = 1;
  #end: WasmformerError | null = null;
  #terminated: Promise<void> | null = null;

  constructor(port: EnginePort) {
    this.#port = port;
    port.listen((response) => this.#receive(response));
    port.onDeath((reason) => this.#die(reason));
  }

  /** Why no call can succeed any more, if so. */
  get end(): WasmformerError | null {
    return this.#end;
  }

  /** Asks the engine to run a method. Rejects with the engine's error, or with the signal's reason when that aborts. */
  call<T>(method: string, args: unknown[], { signal, onEvent, endsEarly = false }: CallOptions = {}): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#end) throw this.#end.code === 'disposed' ? disposed() : this.#end;
      if (signal?.aborted && !endsEarly) throw signal.reason;
      const id = this.#next++;
      let stop = () => {};
      const cancel = () => {
        this.#port.post({ id, cancel: true });
        if (!endsEarly) {
          this.#settle(id);
          reject(signal?.reason);
        }
      };
      this.#pending.set(id, {
        resolve: resolve as (value: unknown) => void,
        reject,
        onEvent,
        settle: () => stop(),
      });
      try {
        this.#port.post({ id, method, args, ...(signal?.aborted ? { cancelled: true } : {}) });
      } catch (reason) {
        this.#pending.delete(id);
        throw new WasmformerError('invalid-argument', `[engine] arguments cannot be sent to the worker: ${reason}`, {
          cause: reason,
        });
      }
      this.#port.setBusy(true);
      if (signal && !signal.aborted) stop = onAbort(signal, cancel);
    });
  }

  /** Ends the engine. Pending calls reject with `disposed`, and so does every later one. */
  dispose(): Promise<void> {
    this.#fail('disposed', disposed().message);
    return this.#terminated ?? Promise.resolve();
  }

  #settle(id: number): Pending | undefined {
    const pending = this.#pending.get(id);
    if (!pending) return undefined;
    this.#pending.delete(id);
    pending.settle();
    if (this.#pending.size === 0) this.#port.setBusy(false);
    return pending;
  }

  #receive(response: Response): void {
    if ('fatal' in response) {
      this.#die(response.fatal);
    } else if ('event' in response) {
      this.#report(response.id, response.event);
    } else if ('value' in response) {
      const pending = this.#settle(response.id);
      if (pending?.failure) pending.reject(pending.failure.reason);
      else pending?.resolve(response.value);
    } else {
      const { code, message } = response.error;
      const pending = this.#settle(response.id);
      pending?.reject(pending.failure ? pending.failure.reason : fromPlainError(response.error));
      if (code === 'dead') this.#fail('dead', message);
    }
  }

  /** Hands on what the engine reports. A listener that throws, or whose promise rejects, ends its call early with that error. */
  #report(id: number, event: unknown): void {
    const pending = this.#pending.get(id);
    if (!pending) return;
    const fail = (reason: unknown) => {
      if (this.#pending.get(id) !== pending || pending.failure) return;
      pending.failure = { reason };
      this.#port.post({ id, cancel: true });
    };
    try {
      const result: unknown = pending.onEvent?.(event);
      if (result instanceof Promise) result.catch(fail);
    } catch (reason) {
      fail(reason);
    }
  }

  #die(reason: string): void {
    this.#fail('dead', `[engine] the model's worker is gone: ${reason}`);
  }

  #fail(code: ErrorCode, message: string): void {
    if (this.#end) {
      if (code === 'disposed') this.#end = new WasmformerError(code, message);
      return;
    }
    this.#end = new WasmformerError(code, message);
    for (const id of [...this.#pending.keys()]) this.#settle(id)?.reject(this.#end);
    this.#terminated = Promise.resolve(this.#port.terminate());
    this.#terminated.catch(() => {});
  }
}

function disposed(): WasmformerError {
  return new WasmformerError('disposed', '[engine] the model has been disposed of');
}
