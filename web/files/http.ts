import { WasmformerError } from '../errors.ts';
import type { FileContext } from './context.ts';
import { chunkReader } from './source.ts';

/** What a server said about a file. */
export interface RemoteInfo {
  /** Bytes, or null where it cannot be known before the end. */
  size: number | null;
  /** Names the content: `X-Linked-Etag` where the Hub gives it, else `ETag`; without quotes and `W/`. */
  etag: string | null;
  /** What `If-Range` may be sent with: a strong ETag of the very response. */
  validator: string | null;
  commit: string | null;
}

/** A response whose body can be pulled chunk by chunk. */
export interface Connection {
  info: RemoteInfo;
  /** Position in the file of the first byte ... */
  readonly start: number;
  /** ... and of the next. */
  at: number;
  /** Where the server said the body ends, or null. */
  end: number | null;
  /** Whether the server heeds Range. */
  ranged: boolean;
  /**
   * The next chunk, or null at the end of the body; a chunk of a range is valid until the next. Rejects when the
   * connection is lost or stalls.
   */
  pull(): Promise<Uint8Array | null>;
  close(): void;
}

/** The connection was lost: worth another attempt. */
export class LostConnection extends Error {}

/** Waits, or rejects with the signal's reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal?.addEventListener('abort', stop, { once: true });
  });
}

/** The wait before attempt `attempt` (1, 2, ...), longer each time, never quite the same. */
export function backoff(context: FileContext, attempt: number): number {
  return context.network.retryDelay * Math.min(16, 2 ** (attempt - 1)) * (0.75 + Math.random() / 2);
}

function bareEtag(value: string | null): string | null {
  if (value === null) return null;
  const bare = value.replace(/^W\//, '').replace(/^"|"$/g, '');
  return bare === '' ? null : bare;
}

function integer(text: string | null): number | null {
  if (text === null || !/^\d{1,16}$/.test(text)) return null;
  const value = Number(text);
  return Number.isSafeInteger(value) ? value : null;
}

/** `bytes 0-9/20`, or an asterisk for either part. */
function parseContentRange(text: string | null): { begin: number | null; end: number | null; total: number | null } | null {
  const match = /^bytes (?:(\d{1,16})-(\d{1,16})|\*)\/(\d{1,16}|\*)$/.exec(text?.trim() ?? '');
  if (match === null) return null;
  const last = integer(match[2] ?? null);
  return { begin: integer(match[1] ?? null), end: last === null ? null : last + 1, total: integer(match[3] ?? null) };
}

export interface FetchRequest {
  url: string;
  /** What error messages call the file. */
  file: string;
  /** ... and the place it should be in. */
  folder: string;
  method?: 'GET' | 'HEAD';
  /** Bytes [begin, end), or to the end of the file. */
  range?: { begin: number; end: number | null };
  validator?: string | null;
  /** Whether HTML is a right answer. */
  html?: boolean;
  /** Not a file of the model: no progress is told. */
  quiet?: boolean;
}

/**
 * One request, one answer; no attempt is repeated here.
 * @returns null for 404, and for a HEAD that the server does not know
 * @throws LostConnection where another attempt may help, WasmformerError where none will
 */
export async function request(context: FileContext, ask: FetchRequest, signal: AbortSignal | undefined): Promise<Connection | null> {
  const { url, file, folder } = ask;
  if (context.offline) {
    throw new WasmformerError('offline', `[${folder}] ${file}: not in the cache, and the network is off (offline: true)`);
  }
  const headers: Record<string, string> = {};
  if (ask.range) {
    headers.Range = `bytes=${ask.range.begin}-${ask.range.end === null ? '' : ask.range.end - 1}`;
    if (ask.validator && !context.platform.preflighted) headers['If-Range'] = ask.validator;
  }
  if (context.token !== undefined) headers.Authorization = `Bearer ${context.token}`;

  const stop = new AbortController();
  const onAbort = (): void => stop.abort(signal?.reason);
  if (signal?.aborted) throw signal.reason;
  signal?.addEventListener('abort', onAbort, { once: true });
  const close = (): void => {
    signal?.removeEventListener('abort', onAbort);
    stop.abort();
  };
  const patience = context.network.stallTimeout;
  const patiently = async <T>(work: Promise<T>, what: string): Promise<T> => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new LostConnection(`no ${what} for ${patience} ms`)), patience);
    });
    try {
      return await Promise.race([work, late]);
    } catch (reason) {
      close();
      if (signal?.aborted) throw signal.reason;
      throw reason instanceof LostConnection ? reason : new LostConnection(describe(reason), { cause: reason });
    } finally {
      clearTimeout(timer);
    }
  };

  // A cached answer could be a part of the file that the server has since replaced; our own cache does the keeping.
  const init: RequestInit = {
    method: ask.method ?? 'GET',
    headers,
    signal: stop.signal,
    redirect: 'follow',
    cache: ask.range ? 'no-store' : 'default',
  };
  const response = await patiently(context.platform.fetch(url, init), 'answer');
  const refuse = async (error: Error): Promise<never> => {
    await setAside(response);
    close();
    throw error;
  };
  const { status } = response;
  // A server that knows no HEAD has not said that the file is there.
  if (status === 404 || status === 410 || (ask.method === 'HEAD' && (status === 405 || status === 501))) {
    await setAside(response);
    close();
    return null;
  }
  if (status === 401 || status === 403) {
    const hint = context.token === undefined ? 'private, gated, or it does not exist; pass a token' : 'the token does not open it';
    return refuse(new WasmformerError('unauthorized', `[${folder}] ${file}: the server answered ${status} (${hint})`));
  }
  const range = parseContentRange(response.headers.get('content-range'));
  if (status === 416 && ask.range?.begin === 0 && range?.total === 0) {
    await response.body?.cancel().catch(() => {});
    close();
    return { info: info(response, 0), start: 0, at: 0, end: 0, ranged: true, pull: async () => null, close: () => {} };
  }
  if (status === 408 || status === 425 || status === 429 || status >= 500) {
    return refuse(new LostConnection(`the server answered ${status}`));
  }
  if (status === 416) {
    const total = range?.total ?? null;
    return refuse(
      new WasmformerError(
        'network',
        `[${folder}] ${file}: length: the server announced more than the ${total ?? ask.range?.begin} bytes it has`,
      ),
    );
  }
  if (status !== 200 && status !== 206) {
    return refuse(new WasmformerError('network', `[${folder}] ${file}: expected the file, got status ${status} from the server`));
  }
  const type = response.headers.get('content-type') ?? '';
  if (/^\s*(text\/html|application\/xhtml)/i.test(type) && !ask.html) {
    return refuse(
      new WasmformerError('invalid-file', `[${folder}] ${file}: expected the file, got an HTML page (a login, error or portal page?)`),
    );
  }
  const encoding = response.headers.get('content-encoding');
  const length = encoding === null || encoding === 'identity' ? integer(response.headers.get('content-length')) : null;
  let at = 0;
  let end: number | null;
  let size: number | null;
  if (status === 206) {
    if (range === null || range.begin === null || range.end === null || range.begin !== (ask.range?.begin ?? 0)) {
      return refuse(
        new WasmformerError(
          'network',
          `[${folder}] ${file}: expected a part from byte ${ask.range?.begin ?? 0}, got Content-Range ${JSON.stringify(response.headers.get('content-range'))}`,
        ),
      );
    }
    at = range.begin;
    end = range.end;
    size = range.total;
  } else {
    end = length;
    size = length;
  }
  const linked = integer(response.headers.get('x-linked-size'));
  if (ask.range) {
    if (linked !== null && size !== null && linked !== size) {
      return refuse(
        new WasmformerError('network', `[${folder}] ${file}: length: expected ${linked} bytes (X-Linked-Size), the server sends ${size}`),
      );
    }
    size ??= linked;
  } else {
    size = linked;
  }
  if (ask.method === 'HEAD') {
    signal?.removeEventListener('abort', onAbort);
    return { info: info(response, size), start: 0, at: 0, end: 0, ranged: true, pull: async () => null, close: () => {} };
  }
  const reader = response.body === null ? undefined : ask.range ? chunkReader(response.body) : wholeReader(response.body);
  const connection: Connection = {
    info: info(response, size),
    start: at,
    at,
    end,
    ranged: status === 206,
    async pull() {
      if (reader === undefined) return null;
      const chunk = await patiently(reader.next(), 'byte');
      if (chunk === null) signal?.removeEventListener('abort', onAbort);
      else connection.at += chunk.length;
      return chunk;
    },
    close,
  };
  return connection;
}

/** Chunks to be kept. */
function wholeReader(body: ReadableStream<Uint8Array>): { next(): Promise<Uint8Array | null> } {
  const reader = body.getReader();
  return { next: async () => (await reader.read()).value ?? null };
}

/** Done with a body nobody wants: a short one is read, since an aborted request is listed as failed in a browser's tools. */
async function setAside(response: Response): Promise<void> {
  const length = integer(response.headers.get('content-length'));
  const work = length !== null && length < 65_536 ? response.arrayBuffer() : response.body?.cancel();
  await Promise.race([work, sleep(1000)]).catch(() => {});
}

function info(response: Response, size: number | null): RemoteInfo {
  const own = response.headers.get('etag');
  return {
    size,
    etag: bareEtag(response.headers.get('x-linked-etag')) ?? bareEtag(own),
    validator: own?.startsWith('"') ? own : null,
    commit: response.headers.get('x-repo-commit'),
  };
}

function describe(reason: unknown): string {
  if (!(reason instanceof Error)) return String(reason);
  const cause = (reason as { cause?: unknown }).cause;
  return cause instanceof Error && cause.message !== '' ? `${reason.message}: ${cause.message}` : reason.message;
}

/**
 * `request`, repeated with growing waits while the connection is what fails.
 * @throws WasmformerError `network` after `network.retries` attempts more than one
 */
export async function requestPatiently(
  context: FileContext,
  ask: FetchRequest,
  signal: AbortSignal | undefined,
  retries?: number,
): Promise<Connection | null> {
  const most = retries ?? context.network.retries;
  for (let attempt = 0; ; ++attempt) {
    try {
      return await request(context, ask, signal);
    } catch (reason) {
      if (!(reason instanceof LostConnection)) throw reason;
      if (attempt >= most) throw lost(ask, reason, attempt + 1);
      await sleep(backoff(context, attempt + 1), signal);
    }
  }
}

/** The error for a file that did not come. */
export function lost(ask: { folder: string; file: string }, reason: Error, attempts: number, at?: string): WasmformerError {
  const where = at === undefined ? '' : ` ${at}`;
  return new WasmformerError(
    'network',
    `[${ask.folder}] ${ask.file}: the connection failed${where} (${reason.message}; ${attempts} attempts)`,
    { cause: reason },
  );
}

const kLargestWhole = 2 ** 30;

/**
 * A whole file of modest size, in memory. Its length is trusted only as a lower bound, since a compressed answer may
 * hide its encoding from us.
 * @returns null for 404
 */
export async function fetchWhole(
  context: FileContext,
  ask: FetchRequest,
  signal: AbortSignal | undefined,
  retries = context.network.retries,
): Promise<{ bytes: Uint8Array; info: RemoteInfo } | null> {
  for (let attempt = 0; ; ++attempt) {
    try {
      const connection = await request(context, ask, signal);
      if (connection === null) return null;
      const chunks: Uint8Array[] = [];
      let length = 0;
      for (let chunk = await connection.pull(); chunk !== null; chunk = await connection.pull()) {
        chunks.push(chunk);
        length += chunk.length;
        if (length > kLargestWhole) {
          connection.close();
          throw new WasmformerError('invalid-file', `[${ask.folder}] ${ask.file}: expected at most ${kLargestWhole} bytes`);
        }
        if (!ask.quiet) context.report(ask.file, length, connection.end, false);
      }
      if (connection.end !== null && length < connection.end) {
        throw new LostConnection(`${length} of ${connection.end} bytes came`);
      }
      if (connection.info.size !== null && length !== connection.info.size) {
        throw new LostConnection(`${length} bytes came where X-Linked-Size says ${connection.info.size}`);
      }
      if (!ask.quiet) context.report(ask.file, length, length, false);
      const bytes = new Uint8Array(length);
      let at = 0;
      for (const chunk of chunks) {
        bytes.set(chunk, at);
        at += chunk.length;
      }
      return { bytes, info: { ...connection.info, size: length } };
    } catch (reason) {
      if (!(reason instanceof LostConnection)) throw reason;
      if (attempt >= retries) throw lost(ask, reason, attempt + 1);
      await sleep(backoff(context, attempt + 1), signal);
    }
  }
}
