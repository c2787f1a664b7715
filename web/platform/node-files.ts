import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, readFile, rename, rm, rmdir, stat, statfs, utimes, writeFile } from 'node:fs/promises';
import { homedir, hostname } from 'node:os';
import { basename, dirname, join, resolve, sep } from 'node:path';
import { threadId } from 'node:worker_threads';
import { WasmformerError } from '../errors.ts';
import { sleep } from '../files/http.ts';
import { type ByteSource, checkRange } from '../files/source.ts';
import type { BlobWriter, CacheRecord, CacheStore, FilePlatform, LocalFiles } from './files.ts';

const kPiece = 1 << 20;
/** A lock whose holder has not been heard of for this long is taken over; if it lives after all, both write the same. */
const kStaleLock = 10_000;
const kHeartbeat = 2_000;
/** A file that is being saved is not written to for at most this long before it gets its name. */
const kStaleDraft = 3_600_000;
/** Left free on the disk. */
const kSpare = 16 * 2 ** 20;

function codeOf(reason: unknown): string {
  return (reason as { code?: string } | null)?.code ?? '';
}

function missing(reason: unknown): boolean {
  return codeOf(reason) === 'ENOENT' || codeOf(reason) === 'ENOTDIR';
}

/** A file on disk. It is opened for each read, so that nothing stays open behind a source nobody closes. */
class DiskSource implements ByteSource {
  readonly name: string;
  readonly size: number;
  readonly #path: string;

  constructor(name: string, path: string, size: number) {
    this.name = name;
    this.#path = path;
    this.size = size;
  }

  async *stream(begin: number, end: number, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    checkRange(this, begin, end);
    if (begin === end) return;
    const handle = await this.#open();
    try {
      for (let at = begin; at < end; ) {
        const chunk = new Uint8Array(Math.min(kPiece, end - at));
        await this.#fill(handle, chunk, at, signal);
        yield chunk;
        at += chunk.length;
      }
    } finally {
      await handle.close();
    }
  }

  async read(begin: number, end: number, signal?: AbortSignal): Promise<Uint8Array> {
    checkRange(this, begin, end);
    const bytes = new Uint8Array(end - begin);
    await this.readInto(bytes, begin, signal);
    return bytes;
  }

  async readInto(target: Uint8Array, begin: number, signal?: AbortSignal): Promise<void> {
    checkRange(this, begin, begin + target.length);
    if (target.length === 0) return;
    const handle = await this.#open();
    try {
      for (let at = 0; at < target.length; at += kPiece) {
        await this.#fill(handle, target.subarray(at, at + kPiece), begin + at, signal);
      }
    } finally {
      await handle.close();
    }
  }

  async #open(): Promise<FileHandle> {
    try {
      return await open(this.#path, 'r');
    } catch (cause) {
      throw new WasmformerError('not-found', `[${this.#path}] file: could not be opened (${codeOf(cause) || String(cause)})`, { cause });
    }
  }

  async #fill(handle: FileHandle, target: Uint8Array, position: number, signal: AbortSignal | undefined): Promise<void> {
    for (let at = 0; at < target.length; ) {
      signal?.throwIfAborted();
      const { bytesRead } = await handle.read(target, at, target.length - at, position + at);
      if (bytesRead === 0) {
        throw new WasmformerError(
          'invalid-file',
          `[${this.#path}] length: expected ${this.size} bytes, got ${position + at} (changed while being read?)`,
        );
      }
      at += bytesRead;
    }
  }
}

const local: LocalFiles = {
  async kind(path) {
    try {
      const entry = await stat(path);
      return entry.isDirectory() ? 'folder' : entry.isFile() ? 'file' : null;
    } catch {
      return null;
    }
  },
  split(path) {
    const whole = resolve(path);
    return { folder: dirname(whole), file: basename(whole) };
  },
  async list(folder) {
    return (await readdir(folder, { withFileTypes: true })).filter((entry) => !entry.isDirectory()).map((entry) => entry.name);
  },
  async open(folder, file) {
    const path = join(folder, ...file.split('/'));
    const { size } = await stat(path);
    return new DiskSource(file, path, size);
  },
  async write(folder, files, stale) {
    const drafts: [draft: string, target: string][] = [];
    try {
      await makeFolder(folder);
      const isDraft = (found: string) => /\.\d+\.[a-z\d]+\.tmp$/.test(found) && files.some(({ name }) => found.startsWith(`${name}.`));
      await removeDrafts(folder, isDraft, kStaleDraft);
      for (const name of [...files.map(({ name }) => name), ...stale]) {
        if ((await local.kind(join(folder, name))) === 'folder') {
          throw new WasmformerError('invalid-argument', `[save] ${join(folder, name)}: expected a file, got a folder`);
        }
      }
      for (const { name, chunks } of files) {
        const target = join(folder, name);
        const draft = `${target}${draftOf(threadId)}${Math.random().toString(36).slice(2)}.tmp`;
        drafts.push([draft, target]);
        const handle = await open(draft, 'wx');
        try {
          for (const chunk of chunks()) await handle.writeFile(chunk);
          await handle.sync();
        } finally {
          await handle.close();
        }
      }
      for (const [draft, target] of drafts) await rename(draft, target);
      for (const name of stale) await rm(join(folder, name), { force: true });
    } catch (cause) {
      for (const [draft] of drafts) await rm(draft, { force: true }).catch(() => {});
      if (cause instanceof WasmformerError) throw cause;
      const code = codeOf(cause) === 'ENOSPC' ? 'quota' : 'invalid-argument';
      throw new WasmformerError(code, `[save] ${folder}: could not be written (${codeOf(cause) || String(cause)})`, { cause });
    }
  },
};

/** The folder of this system's user caches. */
function defaultFolder(): string {
  const { env, platform } = process;
  const base =
    env.XDG_CACHE_HOME ??
    (platform === 'win32'
      ? (env.LOCALAPPDATA ?? join(homedir(), 'AppData', 'Local'))
      : platform === 'darwin'
        ? join(homedir(), 'Library', 'Caches')
        : join(homedir(), '.cache'));
  return env.WASMFORMER_CACHE ?? join(base, 'wasmformer', 'models');
}

function noRoom(reason: unknown, what: string): WasmformerError {
  const code = codeOf(reason);
  if (reason instanceof WasmformerError) return reason;
  if (code === 'ENOSPC' || code === 'EDQUOT' || code === 'EFBIG') {
    return new WasmformerError('quota', `[cache] ${what}: no room left on the disk (${code}); cache.clear() frees some`, { cause: reason });
  }
  return new WasmformerError('busy', `[cache] ${what}: ${code || String(reason)}`, { cause: reason });
}

/** What stands in the names of a thread's drafts. */
const draftOf = (thread: number) => `.${process.pid}.${thread}x`;

/** Removes drafts that a save has left whose worker or process ended in it, and which are as old as that. */
async function removeDrafts(folder: string, isDraft: (name: string) => boolean, age: number): Promise<void> {
  for (const found of await readdir(folder).catch(() => [])) {
    if (!isDraft(found)) continue;
    const path = join(folder, found);
    const entry = await stat(path).catch(() => null);
    if (entry && Date.now() - entry.mtimeMs > age) await rm(path, { force: true }).catch(() => {});
  }
}

/** Removes what a thread that has ended was writing. */
export function removeDraftsOf(thread: number, folder: string): Promise<void> {
  return removeDrafts(folder, (found) => found.endsWith('.tmp') && found.includes(draftOf(thread)), -Infinity);
}

/** A folder and those above it. Node's own recursive `mkdir` never ends where a parent exists but takes no folders, as in /proc. */
export async function makeFolder(path: string, deeper = true): Promise<void> {
  try {
    await mkdir(path);
  } catch (reason) {
    const parent = dirname(path);
    if (codeOf(reason) === 'ENOENT' && deeper && parent !== path) {
      await makeFolder(parent);
      await makeFolder(path, false);
    } else if (!(await stat(path).catch(() => null))?.isDirectory()) {
      throw reason;
    }
  }
}

/**
 * A folder of blobs named by their content and small records that name them. A blob grows under `<key>.partial` and is
 * renamed when it is whole; both are written at explicit positions with bytes that depend on the key alone, so two
 * processes writing one blob write the same bytes. A lock file only keeps them from fetching it twice.
 */
class DiskCache implements CacheStore {
  readonly location: string;
  readonly #blobs: string;
  readonly #records: string;

  constructor(folder: string) {
    this.location = folder;
    this.#blobs = join(folder, 'blobs');
    this.#records = join(folder, 'records');
  }

  async prepare(): Promise<void> {
    try {
      await makeFolder(this.#blobs);
      await makeFolder(this.#records);
    } catch (reason) {
      throw noRoom(reason, this.location);
    }
  }

  #record(path: readonly string[]): string {
    return `${join(this.#records, ...path)}.json`;
  }

  async readRecord(path: readonly string[]): Promise<CacheRecord | null> {
    try {
      const value: unknown = JSON.parse(await readFile(this.#record(path), 'utf8'));
      return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as CacheRecord) : null;
    } catch {
      return null;
    }
  }

  async writeRecord(path: readonly string[], record: CacheRecord): Promise<void> {
    const target = this.#record(path);
    const draft = `${target}.${process.pid}.${Math.random().toString(36).slice(2)}.tmp`;
    try {
      await makeFolder(dirname(target));
      await writeFile(draft, `${JSON.stringify(record, null, 1)}\n`);
      await rename(draft, target);
    } catch (reason) {
      await rm(draft, { force: true }).catch(() => {});
      throw noRoom(reason, `record ${path.join('/')}`);
    }
  }

  async removeRecord(path: readonly string[]): Promise<void> {
    await rm(this.#record(path), { force: true });
    // Folders that became empty go too; the first that is not ends it.
    for (let folder = dirname(this.#record(path)); folder.length > this.#records.length; folder = dirname(folder)) {
      try {
        await rmdir(folder);
      } catch {
        return;
      }
    }
  }

  async records(): Promise<{ path: string[]; record: CacheRecord }[]> {
    const found: { path: string[]; record: CacheRecord }[] = [];
    const walk = async (folder: string, path: string[]): Promise<void> => {
      for (const entry of await readdir(folder, { withFileTypes: true }).catch(() => [])) {
        if (entry.isDirectory()) {
          await walk(join(folder, entry.name), [...path, entry.name]);
        } else if (entry.name.endsWith('.json')) {
          const own = [...path, entry.name.slice(0, -5)];
          const record = await this.readRecord(own);
          if (record !== null) found.push({ path: own, record });
        }
      }
    };
    await walk(this.#records, []);
    return found;
  }

  async openBlob(key: string, size: number): Promise<ByteSource | null> {
    const path = this.#blob(key);
    const entry = await stat(path).catch(() => null);
    return entry?.isFile() && entry.size === size ? new DiskSource(key, path, size) : null;
  }

  #blob(key: string): string {
    if (!/^[\w-]{1,100}$/.test(key))
      throw new WasmformerError('internal', `[cache] key: expected letters and digits, got ${JSON.stringify(key)}`);
    return join(this.#blobs, key);
  }

  async writeBlob(
    key: string,
    size: number | null,
    options: { wait: number; signal?: AbortSignal | undefined },
  ): Promise<BlobWriter | ByteSource> {
    const path = this.#blob(key);
    const until = Date.now() + options.wait;
    for (;;) {
      const whole = await stat(path).catch(() => null);
      if (whole?.isFile() && (size === null || whole.size === size)) return new DiskSource(key, path, whole.size);
      const lock = await takeLock(`${path}.lock`);
      if (lock !== null) {
        try {
          // It may have been finished between the look and the lock.
          const now = await stat(path).catch(() => null);
          if (now?.isFile() && (size === null || now.size === size)) {
            await lock.release();
            return new DiskSource(key, path, now.size);
          }
          return await DiskWriter.open(key, path, size, lock);
        } catch (reason) {
          await lock.release();
          throw noRoom(reason, `blob ${key}`);
        }
      }
      if (Date.now() >= until) {
        throw new WasmformerError('busy', `[cache] blob ${key}: another process is still writing it`);
      }
      await sleep(Math.min(200, Math.max(1, until - Date.now())), options.signal);
    }
  }

  async removeBlob(key: string): Promise<number> {
    let freed = 0;
    for (const path of [this.#blob(key), `${this.#blob(key)}.partial`, `${this.#blob(key)}.lock`]) {
      const entry = await stat(path).catch(() => null);
      if (entry === null) continue;
      await rm(path, { force: true });
      freed += entry.size;
    }
    return freed;
  }

  async blobs(): Promise<{ key: string; size: number }[]> {
    const sizes = new Map<string, number>();
    for (const name of await readdir(this.#blobs).catch(() => [])) {
      const key = name.replace(/\.(partial|lock|lock\..*)$/, '');
      const entry = await stat(join(this.#blobs, name)).catch(() => null);
      sizes.set(key, (sizes.get(key) ?? 0) + (entry?.size ?? 0));
    }
    return [...sizes].map(([key, size]) => ({ key, size }));
  }
}

interface Lock {
  release(): Promise<void>;
}

/** The lock, or null while somebody who is alive holds it. */
async function takeLock(path: string): Promise<Lock | null> {
  for (let attempt = 0; attempt < 3; ++attempt) {
    let handle: FileHandle;
    try {
      handle = await open(path, 'wx');
    } catch (reason) {
      if (codeOf(reason) !== 'EEXIST') throw noRoom(reason, 'lock');
      if (!(await abandoned(path))) return null;
      // Renaming is atomic: of several that find it abandoned, one gets it out of the way.
      const aside = `${path}.${process.pid}.${Math.random().toString(36).slice(2)}`;
      await rename(path, aside).catch(() => {});
      await rm(aside, { force: true });
      continue;
    }
    try {
      await handle.writeFile(JSON.stringify({ pid: process.pid, host: hostname() }));
    } finally {
      await handle.close();
    }
    const heart = setInterval(() => {
      const now = new Date();
      utimes(path, now, now).catch(() => {});
    }, kHeartbeat);
    heart.unref();
    return {
      async release() {
        clearInterval(heart);
        await rm(path, { force: true });
      },
    };
  }
  return null;
}

async function abandoned(path: string): Promise<boolean> {
  try {
    const { mtimeMs } = await stat(path);
    if (Date.now() - mtimeMs > kStaleLock) return true;
    const owner = JSON.parse(await readFile(path, 'utf8')) as { pid?: unknown; host?: unknown };
    if (owner.host !== hostname() || typeof owner.pid !== 'number') return false;
    process.kill(owner.pid, 0);
    return false;
  } catch (reason) {
    // ESRCH: the process is gone. ENOENT: so is the lock. A half-written lock is somebody's who is just starting.
    return codeOf(reason) === 'ESRCH' || missing(reason);
  }
}

class DiskWriter implements BlobWriter {
  readonly kind = 'writer';
  #length: number;
  readonly #key: string;
  readonly #path: string;
  readonly #handle: FileHandle;
  readonly #lock: Lock;
  #open = true;

  private constructor(key: string, path: string, handle: FileHandle, lock: Lock, length: number) {
    this.#key = key;
    this.#path = path;
    this.#handle = handle;
    this.#lock = lock;
    this.#length = length;
  }

  static async open(key: string, path: string, size: number | null, lock: Lock): Promise<DiskWriter> {
    const handle = await open(`${path}.partial`, constants.O_RDWR | constants.O_CREAT, 0o644);
    try {
      let { size: length } = await handle.stat();
      if (size !== null && length > size) {
        await handle.truncate(0);
        length = 0;
      }
      if (size !== null) {
        const disk = await statfs(dirname(path)).catch(() => null);
        const free = disk === null ? Number.POSITIVE_INFINITY : disk.bavail * disk.bsize;
        if (free < size - length + kSpare) {
          throw new WasmformerError(
            'quota',
            `[cache] ${dirname(path)}: expected room for ${size - length} bytes, got ${free}; cache.clear() frees some`,
          );
        }
      }
      return new DiskWriter(key, path, handle, lock, length);
    } catch (reason) {
      await handle.close();
      throw reason;
    }
  }

  get length(): number {
    return this.#length;
  }

  async append(bytes: Uint8Array): Promise<void> {
    try {
      for (let at = 0; at < bytes.length; ) {
        const { bytesWritten } = await this.#handle.write(bytes, at, bytes.length - at, this.#length + at);
        at += bytesWritten;
      }
    } catch (reason) {
      throw noRoom(reason, `blob ${this.#key}`);
    }
    this.#length += bytes.length;
  }

  async read(target: Uint8Array, begin: number): Promise<void> {
    for (let at = 0; at < target.length; ) {
      const { bytesRead } = await this.#handle.read(target, at, target.length - at, begin + at);
      if (bytesRead === 0) throw new WasmformerError('internal', `[cache] blob ${this.#key}: shorter than what was written`);
      at += bytesRead;
    }
  }

  async commit(): Promise<ByteSource> {
    try {
      await this.#handle.datasync();
      await this.#close();
      try {
        await rename(`${this.#path}.partial`, this.#path);
      } catch (reason) {
        // Another process that wrote the same bytes was first.
        const there = await stat(this.#path).catch(() => null);
        if (there?.size !== this.#length) throw reason;
      }
    } catch (reason) {
      throw noRoom(reason, `blob ${this.#key}`);
    } finally {
      await this.#lock.release();
    }
    return new DiskSource(this.#key, this.#path, this.#length);
  }

  async release(discard = false): Promise<void> {
    if (!this.#open) return;
    await this.#close();
    if (discard) await rm(`${this.#path}.partial`, { force: true });
    await this.#lock.release();
  }

  async #close(): Promise<void> {
    if (!this.#open) return;
    this.#open = false;
    await this.#handle.close();
  }
}

/** Files in Node: its own `fetch`, the disk, and a cache folder under the user's caches. */
export const nodeFiles: FilePlatform = {
  fetch: (input, init) => fetch(input, init),
  preflighted: false,
  local,
  async openCache(directory) {
    const folder = resolve(directory ?? defaultFolder());
    const cache = new DiskCache(folder.endsWith(sep) ? folder.slice(0, -1) : folder);
    await cache.prepare();
    return cache;
  },
};
