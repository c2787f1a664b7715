import { WasmformerError } from './errors.ts';
import { createCreate, createInspect, createLoad } from './load.ts';
import { createOps } from './ops.ts';
import { checkOptions } from './options.ts';
import type { Platform } from './platform/platform.ts';
import { Service } from './service.ts';
import { createTrainTokenizer } from './train/tokenizer.ts';
import type { Files } from './types.ts';

/** Makes the functions of the package for a platform. */
export function createApi(platform: Platform) {
  const service = new Service(platform);
  const cache: Files = {
    list: async (options) => service.call('listFiles', [checkOptions('cache', options, ['cacheDir']).cacheDir]),
    clear: async (id, options) => {
      if (id !== undefined && typeof id !== 'string') {
        throw new WasmformerError('invalid-argument', `[cache] id: expected a model's id, or none for all, got ${typeof id}`);
      }
      return service.call('clearFiles', [id, checkOptions('cache', options, ['cacheDir']).cacheDir]);
    },
  };
  return {
    load: createLoad(platform),
    create: createCreate(platform),
    inspect: createInspect(platform),
    ops: createOps(service),
    cache,
    trainTokenizer: createTrainTokenizer(service),
  };
}
