import { WasmformerError } from '../errors.ts';
import type { FilePlatform } from '../platform/files.ts';
import { mergeGenerationConfig } from './config.ts';
import { FileContext, type FileOptions } from './context.ts';
import { openFolder, type Source } from './folder.ts';
import { readGgufParts } from './gguf.ts';
import { modelOfGguf } from './gguf-config.ts';
import { decodeText, type JsonObject, own, parseObject, shortened } from './json.ts';
import { readLlama2c } from './llama2c.ts';
import { readPytorch } from './pytorch.ts';
import { parseIndex, readSafetensors } from './safetensors.ts';
import type { ByteSource, ModelFolder } from './source.ts';
import type { TensorEntry } from './tensors.ts';

export type CheckpointFormat = 'safetensors' | 'pytorch' | 'gguf' | 'llama2.c';

/** A published model: its configuration, and where its weights lie. Nothing of the weights is read yet. */
export interface Checkpoint {
  /** What messages call it. */
  readonly name: string;
  readonly format: CheckpointFormat;
  /** config.json, without prototypes. */
  readonly config: JsonObject;
  /** What a GGUF file says, by key: its tokenizer among it. */
  readonly metadata: JsonObject | undefined;
  /** The model's own generation settings, in snake_case. */
  readonly generationConfig: JsonObject;
  readonly tensors: ReadonlyMap<string, TensorEntry>;
  /** Bytes of all tensors. */
  readonly weightBytes: number;
  /** What went wrong without stopping the load; grows while weights are read. */
  readonly warnings: readonly WasmformerError[];
  readonly folder: ModelFolder;
  readonly commit: string | undefined;
  readonly context: FileContext;
  /** Gives back files, connections and the right to write the cache. Harmless twice. */
  close(): Promise<void>;
}

/** Files of weights, the first that is there. */
const kWeights = [
  ['model.safetensors', 'safetensors'],
  ['model.safetensors.index.json', 'safetensors'],
  ['pytorch_model.bin', 'pytorch'],
  ['pytorch_model.bin.index.json', 'pytorch'],
] as const;
const kLargestText = 64 * 2 ** 20;

/** A text file of the model, or null if there is none. */
export async function readText(folder: ModelFolder, file: string, signal?: AbortSignal): Promise<string | null> {
  const source = await folder.find(file, signal);
  if (source === null) return null;
  if (source.size > kLargestText) {
    throw new WasmformerError('invalid-file', `[${folder.name}] ${file}: expected at most ${kLargestText} bytes, got ${source.size}`);
  }
  const bytes = await source.read(0, source.size, signal);
  folder.release(file);
  return guarded(folder, file, async () => decodeText(bytes, `${folder.name}: ${file}`));
}

/** A JSON object of the model, or null if there is no such file. */
export async function readObject(folder: ModelFolder, file: string, signal?: AbortSignal): Promise<JsonObject | null> {
  const text = await readText(folder, file, signal);
  return text === null ? null : guarded(folder, file, async () => parseObject(text, `${folder.name}: ${file}`));
}

/** Runs `work` on a file; a cached copy that proves malformed is forgotten, so that the next load fetches it anew. */
async function guarded<T>(folder: ModelFolder, file: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (reason) {
    if (reason instanceof WasmformerError && reason.code === 'invalid-file') await folder.discard(file).catch(() => {});
    throw reason;
  }
}

/**
 * Opens a model wherever it is and reads all but its weights.
 * @throws WasmformerError `not-found`, `unauthorized`, `network`, `offline`, `invalid-file`, `unsupported`
 */
export async function openCheckpoint(source: Source, options: FileOptions, platform: FilePlatform): Promise<Checkpoint> {
  const context = new FileContext(platform, options);
  const { signal } = context;
  signal?.throwIfAborted();
  const folder = await openFolder(context, source);
  try {
    const { config, generation, tensors, format, metadata } = await readWeights(context, folder);
    let weightBytes = 0;
    for (const { begin, end } of tensors.values()) weightBytes += end - begin;
    return {
      name: folder.name,
      format,
      config,
      generationConfig: generation,
      metadata,
      tensors,
      weightBytes,
      warnings: context.warnings,
      folder,
      commit: folder.commit,
      context,
      close: () => folder.close(),
    };
  } catch (reason) {
    await folder.close().catch(() => {});
    throw folder.commit === undefined ? context.explained(reason) : reason;
  }
}

interface Opened {
  format: CheckpointFormat;
  config: JsonObject;
  generation: JsonObject;
  tensors: Map<string, TensorEntry>;
  metadata?: JsonObject;
}

async function readWeights(context: FileContext, folder: ModelFolder): Promise<Opened> {
  const { signal } = context;
  const focus = folder.focus === 'config.json' ? undefined : folder.focus;
  if (focus !== undefined) {
    if (isGguf(focus)) return readGgufFile(folder, focus, signal);
    if (focus.endsWith('.bin') && (await isLlama2c(folder, focus, signal))) {
      return readLlamaFile(folder, focus, signal);
    }
  }
  const list = (await folder.list()) ?? [];
  const gguf = focus === undefined && !list.some((file) => kWeights.some(([name]) => name === file)) ? onlyGguf(folder, list) : undefined;
  if (gguf !== undefined) return readGgufFile(folder, gguf, signal);
  const config = await readObject(folder, 'config.json', signal);
  if (config === null) {
    const bins = list.filter((file) => /\.bin$/.test(file) && !/^(tok|pytorch_model)/.test(file));
    if (bins[0] !== undefined && bins.length === 1 && (await isLlama2c(folder, bins[0], signal)))
      return readLlamaFile(folder, bins[0], signal);
    await folder.open('config.json', signal);
    throw new WasmformerError('not-found', `[${folder.name}] config.json: no such file`);
  }
  if (own(config, 'model_type') === undefined && own(config, 'architectures') === undefined) {
    throw new WasmformerError(
      'invalid-file',
      `[${folder.name}] config.json: model_type: expected the name of an architecture, got nothing`,
    );
  }
  const { file, format } = await chooseWeights(context, folder, focus);
  const read = format === 'safetensors' ? readSafetensors : readPytorch;
  let tensors: Map<string, TensorEntry>;
  if (file.endsWith('.index.json')) {
    tensors = await readShards(folder, file, read, signal);
  } else {
    const source = await folder.open(file, signal);
    tensors = await guarded(folder, file, () => read(source, signal));
  }
  const generation = mergeGenerationConfig(config, await readObject(folder, 'generation_config.json', signal));
  return { format, config, generation, tensors };
}

const isGguf = (file: string): boolean => /\.gguf$/i.test(file);

/** The GGUF file of a folder, or the first part of the one that is split; none where there is no such file. */
function onlyGguf(folder: ModelFolder, list: readonly string[]): string | undefined {
  const files = list.filter((file) => isGguf(file) && !/-(?!00001)\d{5}-of-\d{5}\.gguf$/i.test(file)).sort();
  if (files.length > 1) {
    throw new WasmformerError(
      'invalid-argument',
      `[${folder.name}] source: expected one .gguf file, or the path of one of ${files.slice(0, 8).join(', ')}${files.length > 8 ? ', ...' : ''}`,
    );
  }
  return files[0];
}

/** A GGUF file, with the parts it is split into. It says all that is needed; config.json adds what it does not say. */
async function readGgufFile(folder: ModelFolder, file: string, signal: AbortSignal | undefined): Promise<Opened> {
  const gguf = await readGgufParts(folder, file, (part, work) => guarded(folder, part, work), signal);
  const listed = (await folder.list()) ?? [];
  const beside = async (name: string): Promise<JsonObject | null> => (listed.includes(name) ? readObject(folder, name, signal) : null);
  const { config, tensors } = await guarded(folder, file, () => modelOfGguf(gguf, `${folder.name}: ${file}`, signal));
  const whole: JsonObject = Object.assign(Object.create(null), await beside('config.json'), config);
  const generation = mergeGenerationConfig(whole, await beside('generation_config.json'));
  return { format: 'gguf', config: whole, generation, tensors, metadata: gguf.metadata };
}

async function chooseWeights(
  context: FileContext,
  folder: ModelFolder,
  focus: string | undefined,
): Promise<{ file: string; format: 'safetensors' | 'pytorch' }> {
  if (focus !== undefined) {
    if (/\.safetensors(\.index\.json)?$/.test(focus)) return { file: focus, format: 'safetensors' };
    if (/\.(bin|pt|pth)(\.index\.json)?$/.test(focus)) return { file: focus, format: 'pytorch' };
    throw new WasmformerError(
      'unsupported',
      `[${folder.name}] ${focus}: expected weights as .safetensors, .bin or their index.json, or .gguf`,
    );
  }
  for (const [file, format] of kWeights) {
    if (await folder.has(file, context.signal)) return { file, format };
  }
  const list = (await folder.list()) ?? [];
  const foreign = list.find((file) => /\.(h5|msgpack|onnx|ot|ckpt)$/.test(file));
  if (foreign !== undefined) {
    throw new WasmformerError(
      'unsupported',
      `[${folder.name}] ${foreign}: expected model.safetensors, pytorch_model.bin or a .gguf file; this format is not supported`,
    );
  }
  if (context.offline)
    throw new WasmformerError('offline', `[${folder.name}] model.safetensors: not in the cache, and the network is off (offline: true)`);
  throw new WasmformerError(
    'not-found',
    `[${folder.name}] weights: expected model.safetensors or pytorch_model.bin (or their index.json), or a .gguf file, got none`,
  );
}

/** Weights in several files. Every shard is opened, and must have just what the index says of it. */
async function readShards(
  folder: ModelFolder,
  index: string,
  read: (source: ByteSource, signal?: AbortSignal) => Promise<Map<string, TensorEntry>>,
  signal: AbortSignal | undefined,
): Promise<Map<string, TensorEntry>> {
  const text = await readText(folder, index, signal);
  if (text === null) throw new WasmformerError('not-found', `[${folder.name}] ${index}: no such file`);
  const where = `${folder.name}: ${index}`;
  const map = await guarded(folder, index, async () => parseIndex(text, where));
  const tensors = new Map<string, TensorEntry>();
  for (const file of new Set(map.values())) {
    const source = await folder.open(file, signal);
    const shard = await guarded(folder, file, () => read(source, signal));
    // Browsers open few connections to one host: shards that wait for their turn must not hold them all.
    await source.settle?.(signal);
    for (const [name, entry] of shard) {
      // What a shard has beyond the index (a buffer, a copy) is nobody's.
      if (map.get(name) === file) tensors.set(name, entry);
    }
  }
  for (const [name, file] of map) {
    if (!tensors.has(name))
      throw new WasmformerError('missing-tensor', `[${where}] ${shortened(name)}: expected in ${file}, not found there`);
  }
  return tensors;
}

/** A `.bin` is PyTorch's (a zip archive, or a pickle in older ones) or llama2.c's. */
async function isLlama2c(folder: ModelFolder, file: string, signal: AbortSignal | undefined): Promise<boolean> {
  const source = await folder.open(file, signal);
  const head = await source.read(0, Math.min(4, source.size), signal);
  return !(head[0] === 0x50 && head[1] === 0x4b) && head[0] !== 0x80;
}

async function readLlamaFile(folder: ModelFolder, file: string, signal: AbortSignal | undefined): Promise<Opened> {
  const source = await folder.open(file, signal);
  const { config, generation, tensors } = await guarded(folder, file, () => readLlama2c(source, signal));
  return { format: 'llama2.c', config, generation, tensors };
}
