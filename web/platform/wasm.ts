import { WasmformerError } from '../errors.ts';

/** Whether this engine has relaxed SIMD: it accepts a function with `i32x4.relaxed_dot_i8x16_i7x16_add_s`. */
export function hasRelaxedSimd(): boolean {
  return WebAssembly.validate(
    // (func (result v128) three times i8x16.splat of 0, the instruction)
    Uint8Array.of(
      ...[0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0],
      ...[65, 0, 253, 15, 65, 0, 253, 15, 65, 0, 253, 15, 253, 147, 2, 11],
    ),
  );
}

/** The import of the memory up to its limits: function and field "a", a memory, its flags; then 256 and 65536 pages. */
const before = [1, 97, 1, 97, 2];
const after = [128, 2, 128, 128, 4];

/** The module with its memory a shared one, in place: one bit of the flags in front of its limits. */
export function sharing<Bytes extends Uint8Array>(bytes: Bytes): Bytes {
  for (let i = 0; i < 4096; ++i) {
    if (before.every((byte, k) => bytes[i + k] === byte) && after.every((byte, k) => bytes[i + 6 + k] === byte)) {
      bytes[i + 5] |= 2;
      return bytes;
    }
  }
  throw new WasmformerError(
    'invalid-file',
    '[load] wasmUrl: expected a module of this package, which imports a memory of 256 to 65536 pages',
  );
}
