// Numbers and errors as a visitor reads them.
import type { ErrorCode } from 'wasmformer';

const count = new Intl.NumberFormat('en');

export function whole(value: number): string {
  return count.format(value);
}

/** 1234567 -> '1.2 million'. */
export function about(value: number): string {
  if (value >= 1e9) return `${(value / 1e9).toPrecision(3)} billion`;
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} million`;
  return whole(value);
}

/** Bytes in units of 1000: '4.6 MB'. */
export function bytes(value: number): string {
  const units = ['bytes', 'KB', 'MB', 'GB'];
  let unit = 0;
  for (; value >= 999.5 && unit < units.length - 1; ++unit) value /= 1000;
  return `${unit > 0 && value < 9.95 ? Number(value.toFixed(1)) : Math.round(value)} ${units[unit]}`;
}

export function plural(number: number, noun: string): string {
  return `${whole(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** Milliseconds: '34 ms', '1.2 seconds'. */
export function duration(value: number): string {
  return value < 999.5 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} seconds`;
}

export function percent(share: number): string {
  return share > 0 && share < 0.005 ? 'less than 1 %' : `${Math.round(100 * share)} %`;
}

/** What a code means, and what may help. */
const meanings: Partial<Record<ErrorCode | 'elsewhere', [string, string?]>> = {
  elsewhere: ['This model is of another kind.'],
  'invalid-argument': ['Something that was asked for is not possible.'],
  unsupported: ['This needs something that is not built yet.'],
  'invalid-file': ['A file of this model is not what it should be.'],
  'missing-tensor': ['Some of the weights are missing.'],
  'shape-mismatch': ["The weights do not fit the model's configuration."],
  'not-found': ['There is no such model, or a file of it is missing.'],
  unauthorized: [
    'The Hub did not let us in.',
    'The model may be private or gated, and an access token may help. A mistyped name is answered in the same way.',
  ],
  network: ['The download failed.', 'Check the connection and try again: it goes on where it stopped.'],
  offline: ['There is no connection, and this model has not been kept in this browser.'],
  quota: ["The browser's storage is full.", 'The model works, but will be downloaded again next time.'],
  'out-of-memory': ["This does not fit in a browser tab's memory."],
  disposed: ['The model has been put away.', 'Choose it again.'],
  dead: ['The model stopped working.', 'Choose it again to start afresh.'],
  diverged: ['The training went out of hand: its loss is no number any more, or far too large.', 'Start again with a lower learning rate.'],
  busy: ['Another tab is using this just now.'],
};

/** An error for a visitor: what it means, what may help, and what the library said. */
export function explain(error: unknown): { meaning: string; advice: string; detail: string } {
  const { code = '', message = String(error) } = (error ?? {}) as { code?: string; message?: string };
  const [meaning, advice = ''] = meanings[code as ErrorCode] ?? ['Something went wrong.'];
  return { meaning, advice, detail: message };
}
