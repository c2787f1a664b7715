import { createInspect, createLoad } from './load.ts';
import { createOps } from './ops.ts';
import type { Platform } from './platform/platform.ts';
import { Service } from './service.ts';
import type { CachedFile } from './types.ts';

/** What has been downloaded and kept. */
export interface Files {
  /** Every kept file. */
  list(options?: { cacheDir?: string }): Promise<CachedFile[]>;
  /** Removes the files of one model (its Hub id or address), or all of them. Returns the bytes freed. */
  clear(id?: string, options?: { cacheDir?: string }): Promise<number>;
}

/** Makes the functions of the package for a platform. */
export function createApi(platform: Platform) {
  const service = new Service(platform);
  const cache: Files = {
    list: ({ cacheDir } = {}) => service.call('listFiles', [cacheDir]),
    clear: (id, { cacheDir } = {}) => service.call('clearFiles', [id, cacheDir]),
  };
  return { load: createLoad(platform), inspect: createInspect(platform), ops: createOps(service), cache };
}
