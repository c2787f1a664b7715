import { WasmformerError } from '../errors.ts';
import type { FilePlatform } from '../platform/files.ts';
import { type Checkpoint, readObject } from './checkpoint.ts';
import { FileContext, type FileOptions } from './context.ts';
import { openFolder, type Source } from './folder.ts';
import { sentenceOfGguf } from './gguf-config.ts';
import type { JsonObject } from './json.ts';
import { loadTensors as loadMatched, type Slab, type TensorMatch } from './load-tensors.ts';
import { readSafetensors } from './safetensors.ts';
import { readSentenceSettings, type SentenceSettings } from './sentence.ts';
import { type ByteSource, BytesSource, type ModelFolder } from './source.ts';
import { type Kept, openTokenizer, type Tokenizer } from './tokenizer.ts';

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
export { bytesFile, type Destination, jsonFile, type Output, safetensorsFile, writeFiles } from './save.ts';
export { plainSettings, type SentenceSettings } from './sentence.ts';
export type { ByteSource, ModelFolder } from './source.ts';
export type { TensorEntry } from './tensors.ts';
export type { DecodeOptions, EncodeOptions, Kept, SpecialTokens, Tokenizer } from './tokenizer.ts';

/** The tensors of a checkpoint, streamed; see load-tensors.ts. Progress is told to the checkpoint's listener. */
export function loadTensors(
  checkpoint: Checkpoint,
  matches: readonly TensorMatch[],
  options: { slabBytes?: number; signal?: AbortSignal } = {},
): AsyncGenerator<Slab> {
  const signal = options.signal ?? checkpoint.context.signal;
  return loadMatched(matches, { ...options, signal, context: checkpoint.context });
}

/** A saved training: its state, and where the moments of its weights are; null where the folder has none. */
export async function openTraining(
  source: Source,
  options: FileOptions,
  platform: FilePlatform,
): Promise<{ state: JsonObject; moments: Map<string, Float32Array> } | null> {
  const folder = await openFolder(new FileContext(platform, options), source);
  try {
    const state = await readObject(folder, 'trainer_state.json', options.signal);
    if (!state) return null;
    const file = await folder.open('optimizer.safetensors', options.signal);
    const moments = new Map<string, Float32Array>();
    for (const { name, begin, end } of (await readSafetensors(file, options.signal)).values()) {
      moments.set(name, new Float32Array((await file.read(begin, end, options.signal)).slice().buffer));
    }
    return { state, moments };
  } finally {
    await folder.close();
  }
}

/** A folder of PEFT's: adapter_config.json, and the tensors of adapter_model.safetensors as they lie there. */
export async function openAdapter(
  source: Source,
  options: FileOptions,
  platform: FilePlatform,
): Promise<{ config: JsonObject; tensors: Map<string, { dtype: string; shape: readonly number[]; bytes: Uint8Array }> }> {
  const folder = await openFolder(new FileContext(platform, options), source);
  try {
    const config = await readObject(folder, 'adapter_config.json', options.signal);
    if (!config) throw new WasmformerError('not-found', `[${folder.name}] adapter_config.json: no such file`);
    const file = await folder.open('adapter_model.safetensors', options.signal);
    const tensors = new Map();
    for (const { name, dtype, shape, begin, end } of (await readSafetensors(file, options.signal)).values()) {
      tensors.set(name, { dtype, shape, bytes: await file.read(begin, end, options.signal) });
    }
    return { config, tensors };
  } finally {
    await folder.close();
  }
}

/** The checkpoint's tokenizer, or null where it has none. `kept` gets the files it is made of, or others that say the same. */
export function loadTokenizer(
  checkpoint: Checkpoint,
  { kept, signal }: { signal?: AbortSignal; kept?: Kept } = {},
): Promise<Tokenizer | null> {
  const { folder, format, config, metadata, context } = checkpoint;
  return openTokenizer(keeping(folder, kept), format, config.model_type, signal ?? context.signal, metadata, kept);
}

/** A folder that keeps what is read of it. */
function keeping(folder: ModelFolder, kept: Kept | undefined): ModelFolder {
  if (!kept) return folder;
  const keep = async (file: string, source: ByteSource, signal: AbortSignal | undefined) => {
    const bytes = kept.get(file)?.() ?? (await source.read(0, source.size, signal));
    kept.set(file, () => bytes);
    return new BytesSource(file, bytes);
  };
  const reading: Pick<ModelFolder, 'find' | 'open'> = {
    find: async (file, signal) => {
      const source = await folder.find(file, signal);
      return source && keep(file, source, signal);
    },
    open: async (file, signal) => keep(file, await folder.open(file, signal), signal),
  };
  return new Proxy(folder, {
    get: (of: any, name) => (reading as any)[name] ?? (of[name]?.bind ? of[name].bind(of) : of[name]),
  });
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
  options: FileOptions & { kept?: Kept },
  platform: FilePlatform,
): Promise<Tokenizer | null> {
  const context = new FileContext(platform, options);
  const folder = await openFolder(context, source);
  try {
    return await openTokenizer(keeping(folder, options.kept), 'safetensors', modelType, context.signal);
  } finally {
    await folder.close();
  }
}
