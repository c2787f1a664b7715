import { WasmformerError } from '../errors.ts';
import { sleep } from '../files/http.ts';
import { BlobSource, type ByteSource } from '../files/source.ts';
import type { BlobWriter, CacheRecord, CacheStore, FilePlatform } from './files.ts';

/** The part of `FileSystemSyncAccessHandle` used here; the DOM library of TypeScript has it in workers only. */
interface SyncHandle {
  read(buffer: Uint8Array, options: { at: number }): number;
  write(buffer: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
  /** Where there are handles that may be shared. */
  readonly mode?: string;
}

type SyncCapable = FileSystemFileHandle & { createSyncAccessHandle?(options?: { mode: string }): Promise<SyncHandle> };
type Entries = FileSystemDirectoryHandle & { entries(): AsyncIterable<[string, FileSystemHandle]> };

const kFolder = 'wasmformer';
const kTabWait = 3_000;

function nameOf(reason: unknown): string {
  return (reason as { name?: string } | null)?.name ?? '';
}

function translate(reason: unknown, what: string): WasmformerError {
  if (reason instanceof WasmformerError) return reason;
  const name = nameOf(reason);
  if (name === 'QuotaExceededError') {
    return new WasmformerError('quota', `[cache] ${what}: the browser grants no more room; cache.clear() frees some`, { cause: reason });
  }
  if (name === 'NoModificationAllowedError' || name === 'InvalidStateError') {
    return new WasmformerError('busy', `[cache] ${what}: another tab is writing it`, { cause: reason });
  }
  return new WasmformerError('busy', `[cache] ${what}: ${name || String(reason)}`, { cause: reason });
}

/**
 * The origin private file system: `blobs/<key>` beside small JSON records. A blob is whole when it has the length its
 * record gives; the access handle that writes it is exclusive, so one tab at a time does.
 */
class OpfsCache implements CacheStore {
  readonly location: string;
  readonly #blobs: FileSystemDirectoryHandle;
  readonly #records: FileSystemDirectoryHandle;

  constructor(name: string, blobs: FileSystemDirectoryHandle, records: FileSystemDirectoryHandle) {
    this.location = `opfs:/${name}`;
    this.#blobs = blobs;
    this.#records = records;
  }

  async #folder(path: readonly string[], create: boolean): Promise<FileSystemDirectoryHandle> {
    let folder = this.#records;
    for (const part of path) folder = await folder.getDirectoryHandle(part, { create });
    return folder;
  }

  async readRecord(path: readonly string[]): Promise<CacheRecord | null> {
    try {
      const folder = await this.#folder(path.slice(0, -1), false);
      const handle = await folder.getFileHandle(`${path.at(-1)}.json`);
      const value: unknown = JSON.parse(await (await handle.getFile()).text());
      return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as CacheRecord) : null;
    } catch {
      return null;
    }
  }

  async writeRecord(path: readonly string[], record: CacheRecord): Promise<void> {
    const bytes = new TextEncoder().encode(JSON.stringify(record));
    try {
      const folder = await this.#folder(path.slice(0, -1), true);
      const handle = await lockFile(await folder.getFileHandle(`${path.at(-1)}.json`, { create: true }), 2000);
      if (handle === null) return;
      try {
        // A torn record reads as none: JSON cut short does not parse.
        handle.truncate(0);
        writeAll(handle, bytes, 0);
        handle.flush();
      } finally {
        handle.close();
      }
    } catch (reason) {
      throw translate(reason, `record ${path.join('/')}`);
    }
  }

  async removeRecord(path: readonly string[]): Promise<void> {
    try {
      const folder = await this.#folder(path.slice(0, -1), false);
      await folder.removeEntry(`${path.at(-1)}.json`);
      for (let depth = path.length - 1; depth > 0; --depth) {
        // Fails, and ends here, on the first folder that is not empty.
        await (await this.#folder(path.slice(0, depth - 1), false)).removeEntry(path[depth - 1] as string);
      }
    } catch {
      return;
    }
  }

  async records(): Promise<{ path: string[]; record: CacheRecord }[]> {
    const found: { path: string[]; record: CacheRecord }[] = [];
    const walk = async (folder: FileSystemDirectoryHandle, path: string[]): Promise<void> => {
      for await (const [name, handle] of (folder as Entries).entries()) {
        if (handle.kind === 'directory') {
          await walk(handle as FileSystemDirectoryHandle, [...path, name]);
        } else if (name.endsWith('.json')) {
          const own = [...path, name.slice(0, -5)];
          const record = await this.readRecord(own);
          if (record !== null) found.push({ path: own, record });
        }
      }
    };
    await walk(this.#records, []);
    return found;
  }

  async openBlob(key: string, size: number): Promise<ByteSource | null> {
    try {
      const handle = await this.#blobs.getFileHandle(key);
      const file = await handle.getFile();
      return file.size === size ? new OpfsSource(key, handle, file) : null;
    } catch {
      return null;
    }
  }

  async writeBlob(
    key: string,
    size: number | null,
    options: { wait: number; signal?: AbortSignal | undefined },
  ): Promise<BlobWriter | ByteSource> {
    // The other tab may be asleep in the background, so no long wait for it.
    const until = Date.now() + Math.min(options.wait, kTabWait);
    try {
      if (!('createSyncAccessHandle' in FileSystemFileHandle.prototype)) {
        throw new WasmformerError('unsupported', `[cache] ${this.location}: only a worker can write here; the download is not kept`);
      }
      const file = await this.#blobs.getFileHandle(key, { create: true });
      for (;;) {
        const handle = await lockFile(file, 0);
        if (handle !== null) {
          let length = handle.getSize();
          if (size !== null && length === size) {
            handle.close();
            return new OpfsSource(key, file, await file.getFile());
          }
          if (size !== null && length > size) {
            handle.truncate(0);
            length = 0;
          }
          if (size !== null) await this.#expectRoom(handle, size - length);
          return new OpfsWriter(key, this.#blobs, file, handle, length);
        }
        if (Date.now() >= until) throw new WasmformerError('busy', `[cache] blob ${key}: another tab is writing it`);
        await sleep(Math.min(200, Math.max(1, until - Date.now())), options.signal);
      }
    } catch (reason) {
      if (options.signal?.aborted) throw options.signal.reason;
      throw translate(reason, `blob ${key}`);
    }
  }

  async #expectRoom(handle: SyncHandle, bytes: number): Promise<void> {
    const { quota, usage } = await navigator.storage.estimate();
    if (quota === undefined || usage === undefined || quota - usage >= bytes) return;
    handle.close();
    throw new WasmformerError(
      'quota',
      `[cache] ${this.location}: expected room for ${bytes} bytes, got ${quota - usage}; cache.clear() frees some`,
    );
  }

  async removeBlob(key: string): Promise<number> {
    try {
      const { size } = await (await this.#blobs.getFileHandle(key)).getFile();
      await this.#blobs.removeEntry(key);
      return size;
    } catch (reason) {
      if (nameOf(reason) === 'NotFoundError') return 0;
      throw translate(reason, `blob ${key}`);
    }
  }

  async blobs(): Promise<{ key: string; size: number }[]> {
    const found: { key: string; size: number }[] = [];
    for await (const [key, handle] of (this.#blobs as Entries).entries()) {
      if (handle.kind === 'file') found.push({ key, size: (await (handle as FileSystemFileHandle).getFile()).size });
    }
    return found;
  }
}

/**
 * A whole blob. Where the browser has handles that several tabs may share, it is read through one, straight into the
 * caller's memory; else as a `File`.
 */
class OpfsSource extends BlobSource {
  readonly #file: SyncCapable;
  #handle: Promise<SyncHandle | null> | undefined;

  constructor(name: string, handle: FileSystemFileHandle, file: File) {
    super(name, file);
    this.#file = handle;
  }

  async readInto(target: Uint8Array, begin: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.#handle ??= this.#open();
    const handle = await this.#handle;
    let at = 0;
    if (handle === null) {
      for await (const chunk of this.stream(begin, begin + target.length, signal)) {
        target.set(chunk, at);
        at += chunk.length;
      }
      return;
    }
    while (at < target.length) {
      const count = handle.read(target.subarray(at), { at: begin + at });
      if (count === 0) throw new WasmformerError('invalid-file', `[${this.name}] length: expected ${this.size} bytes, got ${begin + at}`);
      at += count;
    }
  }

  async close(): Promise<void> {
    (await this.#handle)?.close();
    this.#handle = undefined;
  }

  async #open(): Promise<SyncHandle | null> {
    try {
      const handle = (await this.#file.createSyncAccessHandle?.({ mode: 'read-only' })) ?? null;
      if (handle?.mode === 'read-only') return handle;
      // A browser that does not know the mode has locked every other tab out.
      handle?.close();
    } catch {
      // Another tab writes it, or this is no worker.
    }
    return null;
  }
}

/** The exclusive right to a file, or null while another tab or load has it. */
async function lockFile(file: SyncCapable, wait: number): Promise<SyncHandle | null> {
  const until = Date.now() + wait;
  for (;;) {
    try {
      if (file.createSyncAccessHandle === undefined) return null;
      return await file.createSyncAccessHandle();
    } catch (reason) {
      const name = nameOf(reason);
      if (name !== 'NoModificationAllowedError' && name !== 'InvalidStateError') throw reason;
      if (Date.now() >= until) return null;
      await sleep(50);
    }
  }
}

function writeAll(handle: SyncHandle, bytes: Uint8Array, position: number): void {
  for (let at = 0; at < bytes.length; ) {
    const written = handle.write(bytes.subarray(at), { at: position + at });
    // Where there is no room Chromium returns an error's negative number as if it were a count: 2^32 - 8.
    if (written === 0 || written > bytes.length - at) throw new DOMException('not all bytes were written', 'QuotaExceededError');
    at += written;
  }
}

class OpfsWriter implements BlobWriter {
  readonly kind = 'writer';
  #length: number;
  readonly #key: string;
  readonly #folder: FileSystemDirectoryHandle;
  readonly #file: FileSystemFileHandle;
  #handle: SyncHandle | null;

  constructor(key: string, folder: FileSystemDirectoryHandle, file: FileSystemFileHandle, handle: SyncHandle, length: number) {
    this.#key = key;
    this.#folder = folder;
    this.#file = file;
    this.#handle = handle;
    this.#length = length;
  }

  get length(): number {
    return this.#length;
  }

  async append(bytes: Uint8Array): Promise<void> {
    const handle = this.#handle as SyncHandle;
    try {
      writeAll(handle, bytes, this.#length);
    } catch (reason) {
      handle.truncate(this.#length);
      throw translate(reason, `blob ${this.#key}`);
    }
    this.#length += bytes.length;
  }

  async read(target: Uint8Array, begin: number): Promise<void> {
    for (let at = 0; at < target.length; ) {
      const count = (this.#handle as SyncHandle).read(target.subarray(at), { at: begin + at });
      if (count === 0) throw new WasmformerError('internal', `[cache] blob ${this.#key}: shorter than what was written`);
      at += count;
    }
  }

  async commit(): Promise<ByteSource> {
    this.#handle?.flush();
    await this.release();
    return new OpfsSource(this.#key, this.#file, await this.#file.getFile());
  }

  async release(discard = false): Promise<void> {
    this.#handle?.close();
    this.#handle = null;
    if (discard) await this.#folder.removeEntry(this.#key).catch(() => {});
  }
}

/**
 * Files in a browser: `fetch`, and the origin private file system where this is a worker of a secure page. On the main
 * thread, where no file can be written in place, what workers kept is read and nothing is added.
 */
export const browserFiles: FilePlatform = {
  fetch: (input, init) => fetch(input, init),
  preflighted: true,
  async openCache(directory = kFolder) {
    if (!/^[\w.-]+$/.test(directory) || /^\.+$/.test(directory)) {
      throw new WasmformerError(
        'invalid-argument',
        `[cache] cacheDir: expected a plain name in a browser, got ${JSON.stringify(directory)}`,
      );
    }
    if (globalThis.navigator?.storage?.getDirectory === undefined) return null;
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle(directory, { create: true });
    const folder = (name: string): Promise<FileSystemDirectoryHandle> => root.getDirectoryHandle(name, { create: true });
    return new OpfsCache(directory, await folder('blobs'), await folder('records'));
  },
};
