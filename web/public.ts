/** What both entries of the package export beside their functions. */

export type { Files } from './api.ts';
export type { GenerationStream } from './engine/stream.ts';
export { type ErrorCode, errorCodes, WasmformerError } from './errors.ts';
export type { Model } from './model.ts';
export type { Ops } from './ops.ts';
export type * from './types.ts';
