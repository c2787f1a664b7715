import { WasmformerError } from '../errors.ts';
import { brief } from './json.ts';
import type { ByteSource } from './source.ts';

/** Bytes of one element. Sub-byte formats are absent: they are named by the error that refuses them. */
export const dtypeBytes: ReadonlyMap<string, number> = new Map([
  ['F64', 8],
  ['F32', 4],
  ['F16', 2],
  ['BF16', 2],
  ['I64', 8],
  ['I32', 4],
  ['I16', 2],
  ['I8', 1],
  ['U64', 8],
  ['U32', 4],
  ['U16', 2],
  ['U8', 1],
  ['BOOL', 1],
  ['C64', 8],
  ['F8_E5M2', 1],
  ['F8_E4M3', 1],
  ['F8_E8M0', 1],
]);

/** Where one tensor lies: row-major, little endian. */
export interface TensorEntry {
  readonly name: string;
  /** A key of `dtypeBytes`. */
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly source: ByteSource;
  /** Bytes [begin, end) of `source`. */
  readonly begin: number;
  readonly end: number;
  /** For a view that is not contiguous (transposed, expanded, sliced): the step of each dimension, in elements. */
  readonly strides?: readonly number[];
}

/** Number of elements, or an `invalid-file` error where it is no safe integer. */
export function elementCount(shape: readonly unknown[], where: string): number {
  let count = 1;
  let zero = false;
  for (const size of shape) {
    if (typeof size !== 'number' || !Number.isSafeInteger(size) || size < 0) {
      throw new WasmformerError('invalid-file', `[${where}] shape: expected sizes of 0 and more, got ${brief(shape)}`);
    }
    // Multiplied without the zeros: [2^40, 2^40, 0] is as wrong as [2^40, 2^40].
    if (size === 0) zero = true;
    else count *= size;
    if (!Number.isSafeInteger(count)) {
      throw new WasmformerError('invalid-file', `[${where}] shape: expected fewer than 2^53 elements, got ${brief(shape)}`);
    }
  }
  return zero ? 0 : count;
}
