import type { Dtype } from './types.ts';

/** What weights can be kept in. */
export const dtypes: readonly Dtype[] = ['f32', 'f16', 'bf16', 'q8', 'q4'];

/** The name of a dtype in files and in the engine: `F16`, `Q8_0`. */
export function storeOf(dtype: Dtype): string {
  return dtype.toUpperCase() + (dtype[0] === 'q' ? '_0' : '');
}

/** The dtype of such a name. */
export function dtypeOf(store: string): Dtype {
  return store.replace('_0', '').toLowerCase() as Dtype;
}
