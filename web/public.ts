/** What both entries of the package export beside their functions. */

export type { GenerationStream } from './engine/stream.ts';
export { type ErrorCode, errorCodes, WasmformerError } from './errors.ts';
export type { Model } from './model.ts';
export { plotAttention } from './plot.ts';
export type * from './task-types.ts';
export type { TokenizerTraining, TrainedTokenizer, TrainTokenizerOptions } from './train/tokenizer.ts';
export type { TokenizerType } from './train/tokenizer-trainer.ts';
export type * from './types.ts';
