/** Every value `WasmformerError.code` can have. The set only grows. */
export const errorCodes = [
  'invalid-argument',
  'unsupported',
  'invalid-file',
  'missing-tensor',
  'shape-mismatch',
  'not-found',
  'unauthorized',
  'network',
  'offline',
  'quota',
  'out-of-memory',
  'disposed',
  'dead',
  'busy',
  'diverged',
  'internal',
] as const;

/**
 * What went wrong, in one word:
 * `invalid-argument` a bad option or input; `unsupported` something known to exist that is not built;
 * `invalid-file` a malformed checkpoint, JSON file or tokenizer; `missing-tensor`, `shape-mismatch` the weights do not
 * fit the configuration; `not-found` no such file or repository; `unauthorized` 401 or 403; `network` the connection
 * failed for good; `offline` the network was needed while offline; `quota` the cache is full; `out-of-memory`;
 * `disposed` the model was disposed of; `dead` a trap ended its instance; `busy` something is held by somebody else; `diverged` a
 * training whose loss or gradient is no number any more, or explodes; `internal` a fault of this library.
 */
export type ErrorCode = (typeof errorCodes)[number];

/** The only error this library throws on purpose. Messages read `[where] what: expected X, got Y`, or `[where] what is the matter`. */
export class WasmformerError extends Error {
  static {
    // What Node prints of an uncaught error is the class's name, which minifying would shorten.
    Object.defineProperty(WasmformerError, 'name', { value: 'WasmformerError' });
  }

  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'WasmformerError';
    this.code = code;
  }
}

/** What an error becomes on its way through `postMessage`, which would strip a class and its fields. */
export interface PlainError {
  name: string;
  message: string;
  code?: ErrorCode;
  stack?: string;
}

/** Flattens any thrown value into something `postMessage` can carry. */
export function toPlainError(reason: unknown): PlainError {
  if (reason instanceof WasmformerError) {
    return { name: reason.name, message: reason.message, code: reason.code, ...(reason.stack ? { stack: reason.stack } : {}) };
  }
  if (reason instanceof Error || (typeof DOMException !== 'undefined' && reason instanceof DOMException)) {
    const { name, message, stack } = reason as Error;
    return { name, message, ...(stack ? { stack } : {}) };
  }
  return { name: 'Error', message: String(reason) };
}

/** The error `toPlainError` came from: a `WasmformerError` where it has a code, an `AbortError` stays one. */
export function fromPlainError(plain: PlainError): Error {
  if (plain.code !== undefined) {
    const error = new WasmformerError(plain.code, plain.message);
    if (plain.stack !== undefined) error.stack = plain.stack;
    return error;
  }
  if (plain.name === 'AbortError' || plain.name === 'TimeoutError') return new DOMException(plain.message, plain.name);
  const error = new Error(plain.message);
  error.name = plain.name;
  if (plain.stack !== undefined) error.stack = plain.stack;
  return error;
}
