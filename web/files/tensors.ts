import { WasmformerError } from '../errors.ts';
import { brief } from './json.ts';
import type { ByteSource } from './source.ts';

/** Bytes of one element. Formats of blocks are in `blockFormats`; others are absent: the error that refuses them names them. */
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

/** GGUF's formats of quantised numbers: elements and bytes of a block (ggml-common.h). */
export const blockFormats: ReadonlyMap<string, readonly [elements: number, bytes: number]> = new Map([
  ['Q8_0', [32, 34]],
  ['Q4_0', [32, 18]],
  ['Q4_1', [32, 20]],
  ['Q5_0', [32, 22]],
  ['Q5_1', [32, 24]],
  ['Q2_K', [256, 84]],
  ['Q3_K', [256, 110]],
  ['Q4_K', [256, 144]],
  ['Q5_K', [256, 176]],
  ['Q6_K', [256, 210]],
]);

/** Bytes of `count` elements, which are whole blocks; undefined for a format that is not known. */
export function storedBytes(dtype: string, count: number): number | undefined {
  const [elements, bytes] = blockFormats.get(dtype) ?? [1, dtypeBytes.get(dtype)];
  return bytes === undefined ? undefined : (count / elements) * bytes;
}

/** Where one tensor lies: row-major, little endian. */
export interface TensorEntry {
  readonly name: string;
  /** A key of `dtypeBytes` or `blockFormats`; a row is whole blocks. */
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly source: ByteSource;
  /** Bytes [begin, end) of `source`. */
  readonly begin: number;
  readonly end: number;
  /** For a view that is not contiguous (transposed, expanded, sliced): the step of each dimension, in elements. */
  readonly strides?: readonly number[];
  /** The file has it transposed, in blocks that cannot be turned: slabs hold columns of `shape`. */
  readonly columns?: boolean;
  /** Rows of a head, which the file has in the order 0, n/2, 1, n/2 + 1 ...: slabs have them put right. */
  readonly headRows?: number;
  /** What is added to each element; of F32 alone. */
  readonly add?: number;
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
