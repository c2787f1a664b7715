import { WasmformerError } from './errors.ts';
import { checkIds, reading, resolveProcessors } from './options.ts';
import type { Service } from './service.ts';
import type { Ops } from './types.ts';

const where = 'processLogits';

/** A copy of logits. NaN and infinities are numbers too. */
function checkScores(scores: ArrayLike<number>): Float32Array {
  const length = scores?.length;
  if (!(Number.isInteger(length) && length > 0)) {
    throw new WasmformerError('invalid-argument', `[${where}] scores: expected an array of numbers, at least one`);
  }
  for (let i = 0; i < length; ++i) {
    if (typeof scores[i] !== 'number') {
      throw new WasmformerError('invalid-argument', `[${where}] scores: expected a number at ${i}, got ${typeof scores[i]}`);
    }
  }
  return Float32Array.from(scores);
}

/** Makes `ops` over an engine without a model. */
export function createOps(service: Service): Ops {
  return {
    async processLogits(scores, inputIds, given = {}) {
      const args = reading(where, () => {
        const { promptLength, ...options } = given;
        const ids = checkIds(where, inputIds);
        const length = promptLength ?? ids.length;
        if (!(Number.isInteger(length) && length >= 0 && length <= ids.length)) {
          throw new WasmformerError(
            'invalid-argument',
            `[${where}] promptLength: expected an integer from 0 to ${ids.length}, got ${promptLength}`,
          );
        }
        return [checkScores(scores), length, ids, resolveProcessors(where, options)];
      });
      return service.compute('processLogits', args);
    },
  };
}
