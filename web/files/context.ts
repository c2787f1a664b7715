import { WasmformerError } from '../errors.ts';
import type { CacheStore, FilePlatform } from '../platform/files.ts';

/** The public model hub. */
export const defaultEndpoint = 'https://huggingface.co';

/** How far a file has come, in bytes. */
export interface Progress {
  file: string;
  loaded: number;
  /** null while the server has not said. */
  total: number | null;
  /** Of all files seen so far. */
  overallLoaded: number;
  overallTotal: number;
  /** True for a file that needs no network. */
  cached: boolean;
}

/** How patient the network code is. Milliseconds. */
export interface NetworkOptions {
  /** Attempts in a row that may bring nothing new, after the first. */
  retries?: number;
  /** Wait before the first new attempt; doubles each time, up to 16 times as long. */
  retryDelay?: number;
  /** A connection that brings no byte for this long counts as dropped. */
  stallTimeout?: number;
  /** How long to wait for another process or tab that is downloading the same file, as long as it is alive. */
  cacheWait?: number;
}

/** Where a model's files come from, and how. */
export interface FileOptions {
  /** Branch, tag or commit of a Hub repository; `main` by default. */
  revision?: string;
  /** Sent as `Authorization: Bearer`, to the host asked and nobody it redirects to. */
  token?: string;
  /** A mirror of the Hub. */
  endpoint?: string;
  /** Where downloads are kept: a folder in Node, a name in a browser; `false` keeps nothing. */
  cacheDir?: string | false;
  /** Use only what is here: code `offline` where something is missing. */
  offline?: boolean;
  onProgress?: (progress: Progress) => void;
  signal?: AbortSignal;
  network?: NetworkOptions;
}

const kProgressInterval = 50;

/** What the file code shares during one load. */
export class FileContext {
  readonly platform: FilePlatform;
  readonly endpoint: string;
  readonly revision: string;
  readonly token: string | undefined;
  readonly offline: boolean;
  readonly signal: AbortSignal | undefined;
  readonly network: Required<NetworkOptions>;
  /** What went wrong without stopping the load: a full or busy cache, a server out of reach. */
  readonly warnings: WasmformerError[] = [];
  /** A name that is no local path, and so is looked for on the Hub. */
  sought = '';
  /** Keys of the blobs this load is writing: two files of the same content must not wait for each other. */
  readonly writing = new Set<string>();
  readonly #cacheDir: string | false | undefined;
  readonly #onProgress: ((progress: Progress) => void) | undefined;
  readonly #files = new Map<string, { loaded: number; total: number | null; cached: boolean; told: number }>();
  #cache: Promise<CacheStore | null> | undefined;

  constructor(platform: FilePlatform, options: FileOptions) {
    this.platform = platform;
    this.endpoint = text(options.endpoint, 'endpoint', defaultEndpoint).replace(/\/+$/, '');
    if (!(/^https?:\/\/[^/?#]/.test(this.endpoint) && isAddress(this.endpoint))) {
      throw new WasmformerError('invalid-argument', `[load] endpoint: expected an http(s) URL, got ${JSON.stringify(this.endpoint)}`);
    }
    this.revision = text(options.revision, 'revision', 'main');
    this.token = options.token === undefined ? undefined : text(options.token, 'token', '');
    this.offline = options.offline ?? false;
    this.signal = options.signal;
    const { retries = 5, retryDelay = 500, stallTimeout = 30_000, cacheWait = 600_000 } = options.network ?? {};
    this.network = { retries, retryDelay, stallTimeout, cacheWait };
    if (options.cacheDir !== undefined && options.cacheDir !== false) text(options.cacheDir, 'cacheDir', '');
    this.#cacheDir = options.cacheDir;
    this.#onProgress = options.onProgress;
  }

  /** The cache, opened at the first call; null where there is none. */
  cache(): Promise<CacheStore | null> {
    this.#cache ??= (async () => {
      if (this.#cacheDir === false) return null;
      try {
        return await this.platform.openCache(this.#cacheDir);
      } catch (reason) {
        if (reason instanceof WasmformerError && reason.code === 'invalid-argument') throw reason;
        this.warn(reason, 'busy', 'cache: could not be opened; nothing will be kept');
        return null;
      }
    })();
    return this.#cache;
  }

  warn(reason: unknown, code: WasmformerError['code'], message: string): void {
    const warning = reason instanceof WasmformerError ? reason : new WasmformerError(code, `[load] ${message}`, { cause: reason });
    if (!this.warnings.some((known) => known.message === warning.message)) this.warnings.push(warning);
  }

  /** An error as the caller is told it: what was looked for on the Hub may have been meant as a path. */
  explained(reason: unknown): unknown {
    if (!this.sought || !(reason instanceof WasmformerError) || reason.code === 'invalid-argument') return reason;
    return new WasmformerError(reason.code, `${reason.message} (and there is no local file or folder ${this.sought})`, reason);
  }

  /** Tells the listener how far `file` has come. Never goes back; an error in the listener is the listener's. */
  report(file: string, loaded: number, total: number | null, cached: boolean): void {
    if (this.#onProgress === undefined) return;
    let entry = this.#files.get(file);
    if (entry === undefined) {
      entry = { loaded: 0, total, cached, told: Number.NEGATIVE_INFINITY };
      this.#files.set(file, entry);
    } else if (loaded <= entry.loaded && total === entry.total) {
      return;
    }
    entry.loaded = Math.max(entry.loaded, loaded);
    entry.total = total ?? entry.total;
    entry.cached &&= cached;
    const now = Date.now();
    if (entry.loaded !== entry.total && now - entry.told < kProgressInterval) return;
    entry.told = now;
    let overallLoaded = 0;
    let overallTotal = 0;
    for (const one of this.#files.values()) {
      overallLoaded += one.loaded;
      overallTotal += one.total ?? one.loaded;
    }
    this.#onProgress({ file, loaded: entry.loaded, total: entry.total, overallLoaded, overallTotal, cached: entry.cached });
  }

  /** The files opened so far, but for some, have been read: they were small. */
  settle(except: ReadonlySet<string>): void {
    for (const [file, entry] of this.#files) if (!except.has(file)) entry.loaded = entry.total ?? entry.loaded;
  }

  /** Counts a file that will be read later, so that the overall total is right from the start. */
  expect(file: string, total: number): void {
    if (this.#onProgress !== undefined && !this.#files.has(file)) {
      this.#files.set(file, { loaded: 0, total, cached: true, told: Number.NEGATIVE_INFINITY });
    }
  }
}

function isAddress(text: string): boolean {
  try {
    return Boolean(new URL(text));
  } catch {
    return false;
  }
}

function text(value: unknown, option: string, fallback: string): string {
  if (value === undefined) return fallback;
  if (typeof value !== 'string' || value === '') {
    throw new WasmformerError('invalid-argument', `[load] ${option}: expected a non-empty string, got ${JSON.stringify(value)}`);
  }
  return value;
}
