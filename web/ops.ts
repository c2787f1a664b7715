import { WasmformerError } from './errors.ts';
import { checkIds, resolveProcessors } from './options.ts';
import type { Service } from './service.ts';
import type { Ops } from './types.ts';

/** Makes `ops` over an engine without a model. */
export function createOps(service: Service): Ops {
  return {
    async processLogits(scores, inputIds, { promptLength, ...options } = {}) {
      if (typeof scores?.length !== 'number' || scores.length === 0) {
        throw new WasmformerError('invalid-argument', '[processLogits] scores: expected an array of numbers, at least one');
      }
      const ids = checkIds('processLogits', inputIds);
      const length = promptLength ?? ids.length;
      if (!(Number.isInteger(length) && length >= 0 && length <= ids.length)) {
        throw new WasmformerError(
          'invalid-argument',
          `[processLogits] promptLength: expected an integer from 0 to ${ids.length}, got ${promptLength}`,
        );
      }
      return service.compute('processLogits', [Float32Array.from(scores), length, ids, resolveProcessors('processLogits', options)]);
    },
  };
}
