import type { PlainError } from '../errors.ts';

/** To the engine: do something (`cancelled`: having stopped before it began), or stop doing it. */
export type Request = { id: number; method: string; args: unknown[]; cancelled?: boolean } | { id: number; cancel: true };

/** From the engine: an answer, something on the way to it, or that it cannot go on. */
export type Response =
  | { id: number; value: unknown }
  | { id: number; error: PlainError }
  | { id: number; event: unknown }
  | { fatal: string };

/** The two ends of a message channel; `post` delivers in order. */
export interface Port<Out, In> {
  post(message: Out, transfer?: ArrayBuffer[]): void;
  listen(receive: (message: In) => void): void;
}

/** A client's end: the engine behind it can die, be ended, and hold up the end of the process. */
export interface EnginePort extends Port<Request, Response> {
  /** Tells once why the engine is gone: its script did not load, it threw outside any call, it exited. */
  onDeath(report: (reason: string) => void): void;
  /** Whether a call is pending. In Node an idle worker does not keep a script alive, a busy one does. */
  setBusy(busy: boolean): void;
  /** Ends the engine; its memory is given back. */
  terminate(): void | Promise<void>;
}

/** The buffers in a value that only this value refers to, to be moved rather than copied. */
export function buffersIn(value: unknown, found: ArrayBuffer[] = []): ArrayBuffer[] {
  if (ArrayBuffer.isView(value)) {
    const { buffer } = value;
    if (buffer instanceof ArrayBuffer && !found.includes(buffer)) found.push(buffer);
  } else if (Array.isArray(value)) {
    // A list of numbers, of which there are long ones, holds none.
    if (typeof value[0] === 'object') for (const item of value) buffersIn(item, found);
  } else if (value !== null && typeof value === 'object' && Object.getPrototypeOf(value) === Object.prototype) {
    for (const item of Object.values(value)) buffersIn(item, found);
  }
  return found;
}
