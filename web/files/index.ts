import type { Checkpoint } from './checkpoint.ts';
import { loadTensors as loadMatched, type Slab, type TensorMatch } from './load-tensors.ts';
import { openTokenizer, type Tokenizer } from './tokenizer.ts';

export { type CacheApi, type CacheEntry, createCacheApi } from './cache.ts';
export type { ChatMessage, ChatTemplateOptions } from './chat.ts';
export { type Checkpoint, type CheckpointFormat, openCheckpoint } from './checkpoint.ts';
export { type FlatConfig, type FlatValue, flattenConfig, mergeGenerationConfig } from './config.ts';
export { defaultEndpoint, type FileOptions, type NetworkOptions, type Progress } from './context.ts';
export type { StreamDecoder } from './decoder.ts';
export type { Source } from './folder.ts';
export { matchTensors, type Parameter, type Slab, type TensorMatch } from './load-tensors.ts';
export type { ByteSource, ModelFolder } from './source.ts';
export type { TensorEntry } from './tensors.ts';
export type { DecodeOptions, SpecialTokens, Tokenizer } from './tokenizer.ts';

/** The tensors of a checkpoint, streamed; see load-tensors.ts. Progress is told to the checkpoint's listener. */
export function loadTensors(
  checkpoint: Checkpoint,
  matches: readonly TensorMatch[],
  options: { slabBytes?: number; signal?: AbortSignal } = {},
): AsyncGenerator<Slab> {
  const signal = options.signal ?? checkpoint.context.signal;
  return loadMatched(matches, { ...options, signal, context: checkpoint.context });
}

/** The checkpoint's tokenizer, or null where it has none. */
export function loadTokenizer(checkpoint: Checkpoint, options: { signal?: AbortSignal } = {}): Promise<Tokenizer | null> {
  return openTokenizer(checkpoint.folder, checkpoint.format, checkpoint.config.model_type, options.signal ?? checkpoint.context.signal);
}
