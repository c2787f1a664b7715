import { WasmformerError } from '../errors.ts';
import type { LocalFiles } from '../platform/files.ts';
import type { FileContext } from './context.ts';
import { kindOf } from './json.ts';
import { isFileName, RemoteFolder } from './remote-folder.ts';
import { BlobSource, type ByteSource, BytesSource, type ModelFolder, safePath } from './source.ts';

/**
 * Where a model is: a Hub id (`org/name`, or `name` for the oldest), a URL of a folder or file, a path of a folder or
 * file (Node), files the user picked, bytes of one file, or several by name.
 */
export type Source = string | URL | readonly File[] | Uint8Array | ArrayBuffer | Readonly<Record<string, Uint8Array | ArrayBuffer | Blob>>;

/** Files that are all at hand. */
class HeldFolder implements ModelFolder {
  readonly name: string;
  readonly focus?: string;
  readonly #names: () => Promise<string[]>;
  readonly #open: (file: string) => Promise<ByteSource>;
  readonly #context: FileContext;

  constructor(
    context: FileContext,
    name: string,
    names: () => Promise<string[]>,
    open: (file: string) => Promise<ByteSource>,
    focus?: string,
  ) {
    this.#context = context;
    this.name = name;
    this.#names = names;
    this.#open = open;
    if (focus !== undefined) this.focus = focus;
  }

  async has(file: string): Promise<boolean> {
    safePath(file, this.name);
    return (await this.#names()).includes(file);
  }

  async find(file: string): Promise<ByteSource | null> {
    if (!(await this.has(file))) return null;
    const source = await this.#open(file);
    this.#context.report(file, 0, source.size, true);
    return source;
  }

  async open(file: string): Promise<ByteSource> {
    const source = await this.find(file);
    if (source !== null) return source;
    const names = await this.#names();
    const some = names.length === 0 ? 'nothing' : `${names.slice(0, 8).join(', ')}${names.length > 8 ? ', ...' : ''}`;
    throw new WasmformerError('not-found', `[${this.name}] ${file}: no such file (there is ${some})`);
  }

  list(): Promise<string[]> {
    return this.#names();
  }

  release(): void {}

  async discard(): Promise<void> {}

  async close(): Promise<void> {}
}

/** Opens the folder a source stands for. */
export async function openFolder(context: FileContext, source: Source): Promise<ModelFolder> {
  if (source instanceof URL) return openAddress(context, source.href);
  if (typeof source === 'string') return openAddress(context, source);
  if (source instanceof ArrayBuffer) return bytesFolder(context, new Uint8Array(source));
  if (source instanceof Uint8Array) return bytesFolder(context, source);
  if (Array.isArray(source)) return filesFolder(context, source as readonly File[]);
  if (typeof source === 'object' && source !== null) return recordFolder(context, source as Readonly<Record<string, unknown>>);
  throw new WasmformerError('invalid-argument', `[load] source: expected a Hub id, a URL, a path, Files or bytes, got ${kindOf(source)}`);
}

async function openAddress(context: FileContext, address: string): Promise<ModelFolder> {
  const text = address.trim();
  const { local } = context.platform;
  if (/^https?:\/\//i.test(text)) {
    return RemoteFolder.url(context, text);
  }
  if (/^file:/i.test(text)) {
    if (local === undefined)
      throw new WasmformerError('invalid-argument', '[load] source: a file: URL cannot be read in a browser; let the user pick the files');
    const path = decodeURIComponent(new URL(text).pathname).replace(/^\/([a-z]:)/i, '$1');
    return localFolder(context, local, path);
  }
  const pathLike = /^(\.{0,2}[\\/]|[a-z]:[\\/])/i.test(text) || text === '.' || text === '..';
  if (local !== undefined) {
    // A repository has no name like that; deeper down it may be a file of one.
    const fileLike = isFileName(text) && text.split('/').length < 3;
    if (pathLike || fileLike || (await local.kind(text)) !== null) return localFolder(context, local, text);
    context.sought = text;
  } else if (pathLike) {
    throw new WasmformerError(
      'invalid-argument',
      `[load] source: expected a Hub id or a whole URL, got ${JSON.stringify(text)}; new URL(${JSON.stringify(text)}, location.href) makes one`,
    );
  }
  if (text === '') throw new WasmformerError('invalid-argument', '[load] source: expected a Hub id, a URL or a path, got an empty string');
  return RemoteFolder.hub(context, text).catch((reason) => {
    throw context.explained(reason);
  });
}

async function localFolder(context: FileContext, local: LocalFiles, path: string): Promise<ModelFolder> {
  const kind = await local.kind(path);
  if (kind === null) throw new WasmformerError('not-found', `[load] source: no such file or folder: ${path}`);
  const { folder, file } = kind === 'file' ? local.split(path) : { folder: path, file: undefined };
  let names: Promise<string[]> | undefined;
  return new HeldFolder(
    context,
    path,
    () => {
      names ??= local.list(folder);
      return names;
    },
    (name) => local.open(folder, name),
    file,
  );
}

function filesFolder(context: FileContext, files: readonly File[]): ModelFolder {
  const paths = files.map((file) => {
    if (!(file instanceof Blob) || typeof file.name !== 'string')
      throw new WasmformerError('invalid-argument', `[load] source: expected a list of Files, got ${kindOf(file)} in it`);
    return (file.webkitRelativePath || file.name).replace(/\\/g, '/');
  });
  // A picked folder's own name stands before each of its files.
  const top =
    paths.length > 0 && paths.every((path) => path.includes('/'))
      ? (paths[0] as string).slice(0, (paths[0] as string).indexOf('/') + 1)
      : '';
  const strip = top !== '' && paths.every((path) => path.startsWith(top)) ? top.length : 0;
  const byName = new Map(files.map((file, i) => [(paths[i] as string).slice(strip), file]));
  const only = byName.size === 1 ? [...byName.keys()][0] : undefined;
  return new HeldFolder(
    context,
    strip > 0 ? top.slice(0, -1) : 'files',
    async () => [...byName.keys()],
    async (name) => new BlobSource(name, byName.get(name) as File),
    only,
  );
}

function recordFolder(context: FileContext, record: Readonly<Record<string, unknown>>): ModelFolder {
  const held = new Map<string, ByteSource>();
  for (const [name, value] of Object.entries(record)) {
    if (value instanceof Uint8Array) held.set(name, new BytesSource(name, value));
    else if (value instanceof ArrayBuffer) held.set(name, new BytesSource(name, new Uint8Array(value)));
    else if (value instanceof Blob) held.set(name, new BlobSource(name, value));
    else throw new WasmformerError('invalid-argument', `[load] source: ${name}: expected bytes or a Blob, got ${kindOf(value)}`);
  }
  const only = held.size === 1 ? [...held.keys()][0] : undefined;
  return new HeldFolder(
    context,
    'files',
    async () => [...held.keys()],
    async (name) => held.get(name) as ByteSource,
    only,
  );
}

/** One file without a name: its first bytes say what it is. */
function bytesFolder(context: FileContext, bytes: Uint8Array): ModelFolder {
  const starts = (text: string, at = 0): boolean => [...text].every((char, i) => bytes[at + i] === char.charCodeAt(0));
  const name = starts('GGUF')
    ? 'model.gguf'
    : starts('PK\x03\x04')
      ? 'pytorch_model.bin'
      : starts('{', 8)
        ? 'model.safetensors'
        : 'model.bin';
  return recordFolder(context, { [name]: bytes });
}
