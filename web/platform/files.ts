import type { Output } from '../files/save.ts';
import type { ByteSource } from '../files/source.ts';

/**
 * What a platform offers for files: the network, local folders (Node only) and a place to keep downloads. Chosen by
 * the entry point that was imported, never by looking at globals.
 */
export interface FilePlatform {
  readonly fetch: typeof fetch;
  /**
   * True where headers beyond the safelisted ones cost a preflight request that a CDN may refuse (browsers). A changed
   * file is then noticed by comparing ETags instead of by `If-Range`.
   */
  readonly preflighted: boolean;
  readonly local?: LocalFiles;
  /** The cache at `directory` (a folder; in a browser a plain name), by default the shared one; null where nothing can be kept. */
  openCache(directory?: string): Promise<CacheStore | null>;
}

/** Folders of the machine the program runs on. */
export interface LocalFiles {
  /** What is at a path, or null for nothing. */
  kind(path: string): Promise<'file' | 'folder' | null>;
  /** The folder a file is in, and its name there. */
  split(path: string): { folder: string; file: string };
  list(folder: string): Promise<string[]>;
  open(folder: string, file: string): Promise<ByteSource>;
  /**
   * Writes files into a folder, which is made where there is none: each under a name for the time being, all renamed, in their order, at
   * the end. Then those named by `stale` are removed.
   */
  write(folder: string, files: readonly Output[], stale: readonly string[]): Promise<undefined>;
}

/** A small JSON document kept beside the blobs: which blob is which file of which model. */
export type CacheRecord = Record<string, unknown>;

/**
 * Blobs under keys, with small records that name them. A blob is written front to back, so that what an interrupted
 * run leaves is always a prefix, and becomes visible to `openBlob` only when it is whole.
 */
export interface CacheStore {
  /** Where it is, for people: a folder or `opfs:/...`. */
  readonly location: string;
  readRecord(path: readonly string[]): Promise<CacheRecord | null>;
  writeRecord(path: readonly string[], record: CacheRecord): Promise<void>;
  removeRecord(path: readonly string[]): Promise<void>;
  /** Every record, with its path. */
  records(): Promise<{ path: string[]; record: CacheRecord }[]>;
  /** A whole blob of exactly `size` bytes, or null. */
  openBlob(key: string, size: number): Promise<ByteSource | null>;
  /**
   * The right to write a blob, resuming what an earlier run left. Waits up to `wait` ms while somebody else who is
   * alive is writing it.
   * @returns a writer, or the blob when the other finished it meanwhile
   * @throws WasmformerError `busy` when the other did not finish in time, `quota` when there is no room
   */
  writeBlob(
    key: string,
    size: number | null,
    options: { wait: number; signal?: AbortSignal | undefined },
  ): Promise<BlobWriter | ByteSource>;
  /** Removes a blob and what is left of one; the bytes freed. */
  removeBlob(key: string): Promise<number>;
  /** Keys of all blobs, whole or not, with the bytes they take. */
  blobs(): Promise<{ key: string; size: number }[]>;
}

/** Writes one blob front to back. */
export interface BlobWriter {
  readonly kind: 'writer';
  /** Bytes written so far, by earlier runs too. */
  readonly length: number;
  /** @throws WasmformerError `quota` when there is no room; nothing of `bytes` counts then */
  append(bytes: Uint8Array): Promise<void>;
  /** Fills `target` with what is written from `begin` on. */
  read(target: Uint8Array, begin: number): Promise<void>;
  /** Makes the blob, now `length` bytes, visible. */
  commit(): Promise<ByteSource>;
  /** Gives the right back; the bytes stay for a later run, unless `discard`. */
  release(discard?: boolean): Promise<void>;
}
