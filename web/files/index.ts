import type { FilePlatform } from '../platform/files.ts';
import type { Checkpoint } from './checkpoint.ts';
import { FileContext, type FileOptions } from './context.ts';
import { openFolder, type Source } from './folder.ts';
import { sentenceOfGguf } from './gguf-config.ts';
import { loadTensors as loadMatched, type Slab, type TensorMatch } from './load-tensors.ts';
import { readSentenceSettings, type SentenceSettings } from './sentence.ts';
import { openTokenizer, type Tokenizer } from './tokenizer.ts';

export { type CacheApi, type CacheEntry, createCacheApi } from './cache.ts';
export type { ChatMessage, ChatTemplateOptions } from './chat.ts';
export { type Checkpoint, type CheckpointFormat, openCheckpoint } from './checkpoint.ts';
export { type FlatConfig, type FlatValue, flattenConfig, mergeGenerationConfig } from './config.ts';
export { defaultEndpoint, type FileOptions, type NetworkOptions, type Progress } from './context.ts';
export type { StreamDecoder } from './decoder.ts';
export type { Source } from './folder.ts';
export type { JsonObject } from './json.ts';
export { matchTensors, type Parameter, rowsASlab, type Slab, type TensorMatch } from './load-tensors.ts';
export type { Encoding } from './pipeline.ts';
export { plainSettings, type SentenceSettings } from './sentence.ts';
export type { ByteSource, ModelFolder } from './source.ts';
export type { TensorEntry } from './tensors.ts';
export type { DecodeOptions, EncodeOptions, SpecialTokens, Tokenizer } from './tokenizer.ts';

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
  const { folder, format, config, metadata, context } = checkpoint;
  return openTokenizer(folder, format, config.model_type, options.signal ?? context.signal, metadata);
}

/** How a sentence encoder pools, or null where its files do not say; see sentence.ts. */
export async function loadSentenceSettings(
  checkpoint: Checkpoint,
  likely: boolean,
  signal?: AbortSignal,
): Promise<SentenceSettings | null> {
  const { folder, metadata } = checkpoint;
  return (metadata && sentenceOfGguf(metadata)) ?? (await readSentenceSettings(folder, likely && metadata === undefined, signal));
}

/** The tokenizer of a folder that may have no weights, or null. */
export async function openTokenizerOf(
  source: Source,
  modelType: unknown,
  options: FileOptions,
  platform: FilePlatform,
): Promise<Tokenizer | null> {
  const context = new FileContext(platform, options);
  const folder = await openFolder(context, source);
  try {
    return await openTokenizer(folder, 'safetensors', modelType, context.signal);
  } finally {
    await folder.close();
  }
}
