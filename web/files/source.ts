import { WasmformerError } from '../errors.ts';

/** Random access to one file. */
export interface ByteSource {
  readonly name: string;
  /** Bytes. */
  readonly size: number;
  /**
   * Bytes [begin, end) in order, in chunks of any length; exactly `end - begin` bytes or a WasmformerError. A chunk is
   * valid until the next is asked for.
   */
  stream(begin: number, end: number, signal?: AbortSignal): AsyncIterable<Uint8Array>;
  /** Bytes [begin, end) in one piece, the caller's to keep. */
  read(begin: number, end: number, signal?: AbortSignal): Promise<Uint8Array>;
  /** Fills `target` from `begin` on, without an array in between. */
  readInto?(target: Uint8Array, begin: number, signal?: AbortSignal): Promise<void>;
  /** Fetches what is still missing from the cache, so that the file need never be fetched again. */
  complete?(signal?: AbortSignal): Promise<void>;
  /** Where in which file on disk or on the server this one lies, when it is a part of it: decides the reading order. */
  readonly within?: { source: ByteSource; offset: number };
  /** Reads what a connection still brings of the file's head, so that it is not held open while others are waited for. */
  settle?(signal?: AbortSignal): Promise<void>;
  /** With `discard`, what the cache has of an unfinished download goes too. */
  close?(discard?: boolean): Promise<void>;
}

/** A model's files, wherever they are: a Hub repository, a URL, a folder, a list of files, bytes. */
export interface ModelFolder {
  /** What error messages call it. */
  readonly name: string;
  /** The one file the source pointed at, where it pointed at a file rather than a folder. */
  readonly focus?: string;
  /** The commit the files are of, where it is known. */
  readonly commit?: string | undefined;
  /** Whether there is such a file. May ask the server once a commit. */
  has(file: string, signal?: AbortSignal): Promise<boolean>;
  /** The file, or null if there is none. */
  find(file: string, signal?: AbortSignal): Promise<ByteSource | null>;
  /** @throws WasmformerError `not-found` naming the file and the folder */
  open(file: string, signal?: AbortSignal): Promise<ByteSource>;
  /** All file names where they can be known without asking for each. */
  list(): Promise<string[] | null>;
  /** Lets go of a file that was read whole. */
  release(file: string): void;
  /** Forgets a cached copy that proved malformed. */
  discard(file: string): Promise<void>;
  close(): Promise<void>;
}

/**
 * The path of a file inside a model folder, unchanged.
 * @throws WasmformerError `invalid-file` for one that would lead out of the folder
 */
export function safePath(file: string, where: string): string {
  const parts = file.split('/');
  if (file === '' || /[\\\0]/.test(file) || /^[a-z]:/i.test(file) || parts.some((part) => part === '' || part === '.' || part === '..')) {
    throw new WasmformerError(
      'invalid-file',
      `[${where}] file name: expected a path inside the model's folder, got ${JSON.stringify(file.slice(0, 200))}`,
    );
  }
  return file;
}

/** Checks a byte range against a size. */
export function checkRange(source: { name: string; size: number }, begin: number, end: number): void {
  if (!(Number.isSafeInteger(begin) && Number.isSafeInteger(end) && begin >= 0 && begin <= end && end <= source.size)) {
    throw new WasmformerError(
      'invalid-file',
      `[${source.name}] byte range: expected one inside ${source.size} bytes, got ${begin} to ${end}`,
    );
  }
}

/** Joins the chunks of a stream of known length. */
export async function gather(chunks: AsyncIterable<Uint8Array>, length: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(length);
  let at = 0;
  for await (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}

/** Fills `target` with the bytes of `source` from `begin` on. */
export async function fill(source: ByteSource, target: Uint8Array, begin: number, signal?: AbortSignal): Promise<void> {
  if (source.readInto !== undefined) return source.readInto(target, begin, signal);
  let at = 0;
  for await (const chunk of source.stream(begin, begin + target.length, signal)) {
    target.set(chunk, at);
    at += chunk.length;
  }
}

/** A file that is already in memory. */
export class BytesSource implements ByteSource {
  readonly name: string;
  readonly size: number;
  readonly #bytes: Uint8Array;

  constructor(name: string, bytes: Uint8Array) {
    this.name = name;
    this.size = bytes.length;
    this.#bytes = bytes;
  }

  async *stream(begin: number, end: number): AsyncGenerator<Uint8Array> {
    checkRange(this, begin, end);
    if (end > begin) yield this.#bytes.subarray(begin, end);
  }

  async read(begin: number, end: number): Promise<Uint8Array> {
    checkRange(this, begin, end);
    return this.#bytes.slice(begin, end);
  }

  async readInto(target: Uint8Array, begin: number): Promise<void> {
    checkRange(this, begin, begin + target.length);
    target.set(this.#bytes.subarray(begin, begin + target.length));
  }
}

const kPiece = 1 << 18;

/**
 * The chunks of a body. Where streams allow it, all come in one buffer that goes back and forth, so that a download
 * leaves no garbage behind: a chunk is valid until the next is asked for.
 */
export function chunkReader(body: ReadableStream<Uint8Array>): { next(): Promise<Uint8Array | null>; cancel(): Promise<void> } {
  let reader: ReadableStreamBYOBReader;
  try {
    reader = body.getReader({ mode: 'byob' });
  } catch {
    const plain = body.getReader();
    return { next: async () => (await plain.read()).value ?? null, cancel: () => plain.cancel() };
  }
  let buffer = new ArrayBuffer(kPiece);
  return {
    async next() {
      const { done, value } = await reader.read(new Uint8Array(buffer));
      if (done || value === undefined) return null;
      buffer = value.buffer as ArrayBuffer;
      return value;
    },
    cancel: () => reader.cancel(),
  };
}

/** A `File` or `Blob`: dropped on the page, picked, or kept in the browser's file system. */
export class BlobSource implements ByteSource {
  readonly name: string;
  readonly size: number;
  readonly #blob: Blob;

  constructor(name: string, blob: Blob) {
    this.name = name;
    this.size = blob.size;
    this.#blob = blob;
  }

  async *stream(begin: number, end: number, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    checkRange(this, begin, end);
    signal?.throwIfAborted();
    const reader = chunkReader(this.#blob.slice(begin, end).stream());
    let at = begin;
    try {
      while (at < end) {
        const chunk = await this.#next(reader);
        signal?.throwIfAborted();
        if (chunk === null) throw new WasmformerError('invalid-file', `[${this.name}] length: expected ${this.size} bytes, got ${at}`);
        at += chunk.length;
        yield chunk;
      }
    } finally {
      await reader.cancel().catch(() => {});
    }
  }

  async read(begin: number, end: number, signal?: AbortSignal): Promise<Uint8Array> {
    checkRange(this, begin, end);
    return gather(this.stream(begin, end, signal), end - begin);
  }

  async #next(reader: ReturnType<typeof chunkReader>): Promise<Uint8Array | null> {
    try {
      return await reader.next();
    } catch (cause) {
      throw new WasmformerError('not-found', `[${this.name}] file: could not be read (moved or changed since it was chosen?)`, { cause });
    }
  }
}
