import type { CacheStore, FilePlatform } from '../platform/files.ts';

/** One file in the cache. */
export interface CacheEntry {
  /** The Hub id, or the folder's URL. */
  id: string;
  revision?: string;
  commit?: string;
  file: string;
  /** Bytes. */
  size: number;
  /** The cache it is in. */
  location: string;
}

/** What a user may do with the cache. */
export interface CacheApi {
  /** The files it holds. */
  list(): Promise<CacheEntry[]>;
  /** Removes one model's files, or with no `id` everything, interrupted downloads too. Returns the bytes freed. */
  clear(id?: string): Promise<number>;
  /** Its folder, or null where there is none. */
  location(): Promise<string | null>;
}

/** The cache of a platform: the default one, or the one in `directory`. */
export function createCacheApi(platform: FilePlatform, options: { cacheDir?: string } = {}): CacheApi {
  const open = (): Promise<CacheStore | null> => platform.openCache(options.cacheDir);
  return {
    async list() {
      const cache = await open();
      if (cache === null) return [];
      const entries: CacheEntry[] = [];
      for (const { record } of await cache.records()) {
        const { id, file, key, size, revision, commit } = record;
        if (typeof id !== 'string' || typeof file !== 'string' || typeof key !== 'string' || typeof size !== 'number') continue;
        entries.push({
          id,
          file,
          size,
          location: cache.location,
          ...(typeof revision === 'string' ? { revision } : {}),
          ...(typeof commit === 'string' ? { commit } : {}),
        });
      }
      return entries.sort((a, b) => (a.id === b.id ? (a.file < b.file ? -1 : 1) : a.id < b.id ? -1 : 1));
    },
    async clear(id) {
      const cache = await open();
      if (cache === null) return 0;
      const kept = new Set<unknown>();
      const gone = new Set<unknown>();
      for (const { path, record } of await cache.records()) {
        const own = record.id;
        if (id !== undefined && own !== id && !(typeof own === 'string' && own.startsWith(`${id}/`))) {
          kept.add(record.key);
          continue;
        }
        gone.add(record.key);
        await cache.removeRecord(path);
      }
      let freed = 0;
      for (const { key } of await cache.blobs()) {
        // Two models may share a blob, and what has no record is an interrupted download.
        if (id === undefined || (gone.has(key) && !kept.has(key))) freed += await cache.removeBlob(key);
      }
      return freed;
    },
    async location() {
      return (await open())?.location ?? null;
    },
  };
}
