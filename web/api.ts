import { createInspect, createLoad } from './load.ts';
import { createOps } from './ops.ts';
import type { Platform } from './platform/platform.ts';
import { Service } from './service.ts';
import type { Files } from './types.ts';

/** Makes the functions of the package for a platform. */
export function createApi(platform: Platform) {
  const service = new Service(platform);
  const cache: Files = {
    list: ({ cacheDir } = {}) => service.call('listFiles', [cacheDir]),
    clear: (id, { cacheDir } = {}) => service.call('clearFiles', [id, cacheDir]),
  };
  return { load: createLoad(platform), inspect: createInspect(platform), ops: createOps(service), cache };
}
