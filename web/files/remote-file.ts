import { WasmformerError } from '../errors.ts';
import type { BlobWriter } from '../platform/files.ts';
import type { FileContext } from './context.ts';
import { backoff, type Connection, LostConnection, lost, type RemoteInfo, request, requestPatiently, sleep } from './http.ts';
import { type ByteSource, checkRange, fill, gather } from './source.ts';

/** What the first request asks for: enough for the header of a large checkpoint, little enough to throw away. */
export const headBytes = 512 * 1024;
const kCacheRead = 1 << 18;
/** A gap this small is read over rather than asked around. */
const kSkip = 256 * 1024;

const kNothing: { begin: number; bytes: Uint8Array } = { begin: 0, bytes: new Uint8Array(0) };

export interface RemotePlace {
  url: string;
  file: string;
  folder: string;
  /** The content under the URL can never change, so differing ETags (of two servers of a CDN) mean nothing. */
  immutable: boolean;
  /** Called once, when the cache holds the whole file. */
  onCached(info: RemoteInfo & { size: number }): Promise<void>;
}

/**
 * A file on a server. Read front to back, it costs one connection (and one more for each time it drops), and is
 * written to the cache on the way; what the cache already holds is not fetched again. Reads elsewhere ask for their
 * range alone.
 */
export class RemoteFile implements ByteSource {
  readonly name: string;
  readonly size: number;
  readonly etag: string | null;
  readonly #context: FileContext;
  readonly #place: RemotePlace;
  #info: RemoteInfo & { size: number };
  #writer: BlobWriter | null = null;
  #blob: ByteSource | null = null;
  #connection: Connection | null = null;
  /** The last chunk that came, and the first bytes of the file: both are often asked for again. */
  #last = kNothing;
  #head = kNothing;
  /** What the cache is read through, where the caller brings no memory. */
  #scratch: Uint8Array | null = null;
  #turn: Promise<unknown> = Promise.resolve();
  #closed = false;

  private constructor(context: FileContext, place: RemotePlace, info: RemoteInfo & { size: number }, connection: Connection | null) {
    this.#context = context;
    this.#place = place;
    this.#info = info;
    this.#connection = connection;
    this.name = place.file;
    this.size = info.size;
    this.etag = info.etag;
  }

  /**
   * Asks the server for the file.
   * @param keep opens the cache's entry for it once the server has named the content; null keeps nothing
   * @returns null for 404, `unsized` where the server does not say how long the file is
   */
  static async open(
    context: FileContext,
    place: RemotePlace,
    keep: (info: RemoteInfo & { size: number }) => Promise<BlobWriter | ByteSource | null>,
    signal: AbortSignal | undefined,
  ): Promise<RemoteFile | 'unsized' | null> {
    const connection = await requestPatiently(context, { ...place, range: { begin: 0, end: headBytes } }, signal);
    if (connection === null) return null;
    const { info } = connection;
    if (info.size === null) {
      connection.close();
      return 'unsized';
    }
    const sized = { ...info, size: info.size };
    const file = new RemoteFile(context, place, sized, connection);
    try {
      const kept = await keep(sized);
      if (kept !== null && 'append' in kept) {
        if (kept.length > sized.size) {
          await kept.release(true);
        } else {
          file.#writer = kept;
          if (kept.length > 0) file.#drop();
          if (kept.length === sized.size) await file.#commit();
        }
      } else if (kept !== null) {
        file.#drop();
        file.#blob = kept;
        await place.onCached(sized);
      }
    } catch (reason) {
      connection.close();
      throw reason;
    }
    context.report(place.file, file.#writer?.length ?? 0, sized.size, file.#blob !== null);
    return file;
  }

  async *stream(begin: number, end: number, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    checkRange(this, begin, end);
    let at = begin;
    while (at < end) {
      const chunk = await this.#exclusively(() => this.#next(at, end, signal));
      yield chunk;
      at += chunk.length;
    }
  }

  async read(begin: number, end: number, signal?: AbortSignal): Promise<Uint8Array> {
    checkRange(this, begin, end);
    if (begin === end) return new Uint8Array(0);
    if (this.#blob) return this.#blob.read(begin, end, signal);
    const reachable = this.#writer ? this.#writer.length : (this.#connection?.at ?? 0);
    if (begin <= reachable + kSkip || this.#inMemory(begin, end)) return gather(this.stream(begin, end, signal), end - begin);
    return this.#exclusively(() => this.#aside(begin, end, signal));
  }

  async readInto(target: Uint8Array, begin: number, signal?: AbortSignal): Promise<void> {
    checkRange(this, begin, begin + target.length);
    if (this.#blob) return fill(this.#blob, target, begin, signal);
    let at = 0;
    for await (const chunk of this.stream(begin, begin + target.length, signal)) {
      target.set(chunk, at);
      at += chunk.length;
    }
  }

  async settle(signal?: AbortSignal): Promise<void> {
    const connection = this.#connection;
    if (connection === null) return;
    if (!connection.ranged) {
      // All of the file would come. It is asked for again when its turn comes.
      this.#drop();
      return;
    }
    await this.#exclusively(async () => {
      while (this.#connection === connection && connection.end !== null && connection.at < connection.end) {
        await this.#advance(this.#writer?.length ?? connection.at, signal);
      }
      if (this.#connection === connection) this.#drop();
    });
  }

  async complete(signal?: AbortSignal): Promise<void> {
    while (this.#writer) {
      const { length } = this.#writer;
      if (length === this.size) return;
      await this.#exclusively(() => this.#next(length, this.size, signal));
    }
  }

  async close(discard = false): Promise<void> {
    this.#closed = true;
    this.#drop();
    await this.#exclusively(async () => {
      this.#drop();
      const writer = this.#writer;
      this.#writer = null;
      await writer?.release(discard);
      await this.#blob?.close?.();
    });
  }

  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#turn.then(work, work);
    this.#turn = done.catch(() => {});
    return done;
  }

  #drop(): void {
    this.#connection?.close();
    this.#connection = null;
  }

  #inMemory(begin: number, end: number): boolean {
    return [this.#head, this.#last].some((part) => begin >= part.begin && end <= part.begin + part.bytes.length);
  }

  /** Some bytes from `at` on, at least one and none from `end` on. */
  async #next(at: number, end: number, signal: AbortSignal | undefined): Promise<Uint8Array> {
    for (;;) {
      signal?.throwIfAborted();
      if (this.#closed) throw new WasmformerError('disposed', `[${this.name}] file: already closed`);
      for (const part of [this.#last, this.#head]) {
        const stop = part.begin + part.bytes.length;
        if (at >= part.begin && at < stop) return part.bytes.subarray(at - part.begin, Math.min(end, stop) - part.begin);
      }
      const kept = this.#blob?.size ?? this.#writer?.length ?? 0;
      if (at < kept) {
        this.#scratch ??= new Uint8Array(kCacheRead);
        const chunk = this.#scratch.subarray(0, Math.min(end, kept, at + kCacheRead) - at);
        if (this.#blob) await fill(this.#blob, chunk, at, signal);
        else await this.#writer?.read(chunk, at);
        return chunk;
      }
      await this.#advance(this.#writer ? this.#writer.length : at, signal);
    }
  }

  /** Pulls the next chunk, which begins at `wanted` or, read over, somewhere before it. */
  async #advance(wanted: number, signal: AbortSignal | undefined): Promise<void> {
    const stop = (): void => this.#drop();
    signal?.addEventListener('abort', stop, { once: true });
    try {
      await this.#pull(wanted, signal);
    } finally {
      signal?.removeEventListener('abort', stop);
    }
  }

  async #pull(wanted: number, signal: AbortSignal | undefined): Promise<void> {
    for (let attempt = 0; ; ) {
      try {
        const connection = await this.#connected(wanted, signal);
        const begin = connection.at;
        // The chunk before lies in the buffer that the next one comes in.
        this.#last = kNothing;
        const chunk = await connection.pull();
        if (chunk === null) {
          const finished = connection.end !== null && connection.at >= connection.end && connection.at > connection.start;
          this.#drop();
          if (!finished) throw new LostConnection('the server closed it early');
          continue;
        }
        const bytes = begin + chunk.length > this.size ? chunk.subarray(0, this.size - begin) : chunk;
        if (begin + bytes.length <= wanted) continue;
        await this.#arrived(begin, bytes, wanted);
        return;
      } catch (reason) {
        this.#drop();
        if (!(reason instanceof LostConnection)) throw reason;
        if (++attempt > this.#context.network.retries) throw lost(this.#place, reason, attempt, `at byte ${wanted} of ${this.size}`);
        await sleep(backoff(this.#context, attempt), signal);
      }
    }
  }

  /** A connection whose next byte is at `wanted` or a little before. */
  async #connected(wanted: number, signal: AbortSignal | undefined): Promise<Connection> {
    const open = this.#connection;
    // A server that ignores Range starts at 0; reading over what we have is then the only way.
    if (open && open.at <= wanted && (wanted - open.at <= kSkip || !open.ranged)) {
      if (open.end === null || open.at < open.end) return open;
    }
    this.#drop();
    const range = { begin: wanted, end: null };
    const fresh = await request(this.#context, { ...this.#place, range, validator: this.#info.validator }, signal);
    if (fresh === null) {
      throw new WasmformerError('not-found', `[${this.#place.folder}] ${this.name}: no longer on the server`);
    }
    await this.#checkSame(fresh);
    this.#connection = fresh;
    return fresh;
  }

  async #checkSame(fresh: Connection): Promise<void> {
    const { etag, size } = fresh.info;
    const changed = !this.#place.immutable && etag !== null && this.#info.etag !== null && etag !== this.#info.etag;
    if (changed || (size !== null && size !== this.size)) {
      fresh.close();
      await this.#writer?.release(true);
      this.#writer = null;
      const what = changed ? `ETag was ${this.#info.etag}, now ${etag}` : `length was ${this.size}, now ${size}`;
      throw new WasmformerError(
        'network',
        `[${this.#place.folder}] ${this.name}: changed on the server during the download (${what}); load it again`,
      );
    }
  }

  async #arrived(begin: number, bytes: Uint8Array, wanted: number): Promise<void> {
    const fresh = bytes.subarray(wanted - begin);
    this.#last = { begin: wanted, bytes: fresh };
    if (this.#head.bytes.length === wanted && wanted < headBytes) {
      const head = new Uint8Array(Math.min(headBytes, wanted + fresh.length));
      head.set(this.#head.bytes);
      head.set(fresh.subarray(0, head.length - wanted), wanted);
      this.#head = { begin: 0, bytes: head };
    }
    if (this.#writer) {
      try {
        await this.#writer.append(fresh);
        if (this.#writer.length === this.size) await this.#commit();
      } catch (reason) {
        await this.#giveUpCaching(reason);
      }
    }
    this.#context.report(this.name, wanted + fresh.length, this.size, false);
  }

  async #commit(): Promise<void> {
    const writer = this.#writer as BlobWriter;
    this.#blob = await writer.commit();
    this.#writer = null;
    this.#drop();
    await this.#place.onCached(this.#info);
  }

  /** The model still loads; it is only not kept. */
  async #giveUpCaching(reason: unknown): Promise<void> {
    const writer = this.#writer;
    this.#writer = null;
    await writer?.release(true).catch(() => {});
    this.#context.warn(reason, 'quota', `cache: ${this.name} could not be written and will not be kept`);
  }

  /** A range of its own, past the connection that reads front to back. */
  async #aside(begin: number, end: number, signal: AbortSignal | undefined): Promise<Uint8Array> {
    for (let attempt = 0; ; ) {
      try {
        const fresh = await request(this.#context, { ...this.#place, range: { begin, end }, validator: this.#info.validator }, signal);
        if (fresh === null) throw new WasmformerError('not-found', `[${this.#place.folder}] ${this.name}: no longer on the server`);
        await this.#checkSame(fresh);
        if (!fresh.ranged && this.#writer) {
          // The server ignores Range: the bytes must pass anyway, so let them pass into the cache.
          fresh.close();
          while (this.#writer && this.#writer.length < end) await this.#advance(this.#writer.length, signal);
          const kept = new Uint8Array(end - begin);
          if (this.#writer) await this.#writer.read(kept, begin);
          else if (this.#blob) await fill(this.#blob, kept, begin, signal);
          else continue;
          return kept;
        }
        const bytes = new Uint8Array(end - begin);
        try {
          for (;;) {
            const at = fresh.at;
            if (at >= end) return bytes;
            const chunk = await fresh.pull();
            if (chunk === null) throw new LostConnection('the server closed it early');
            if (at + chunk.length <= begin) continue;
            const from = Math.max(begin - at, 0);
            bytes.set(chunk.subarray(from, end - at), at + from - begin);
          }
        } finally {
          fresh.close();
        }
      } catch (reason) {
        if (!(reason instanceof LostConnection)) throw reason;
        if (++attempt > this.#context.network.retries) throw lost(this.#place, reason, attempt, `at byte ${begin} of ${this.size}`);
        await sleep(backoff(this.#context, attempt), signal);
      }
    }
  }
}
