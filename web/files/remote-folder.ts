import { WasmformerError } from '../errors.ts';
import type { BlobWriter, CacheRecord, CacheStore } from '../platform/files.ts';
import { defaultEndpoint, type FileContext } from './context.ts';
import { fetchWhole, type RemoteInfo, requestPatiently } from './http.ts';
import { RemoteFile } from './remote-file.ts';
import { type ByteSource, BytesSource, type ModelFolder, safePath } from './source.ts';

const kCommit = /^[0-9a-f]{40}$/;
/** Files read whole. Everything else is read by range, and streamed. */
const kWhole = /\.(json|jinja|txt|model)$|^tokenizer\.bin$/;

interface FileRecord extends CacheRecord {
  id: string;
  file: string;
  missing?: boolean;
  key?: string;
  size?: number;
  etag?: string | null;
  commit?: string;
  revision?: string;
  url?: string;
}

/** SHA-256 in hexadecimal, shortened to `digits`. */
async function digest(text: string, digits = 40): Promise<string> {
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text)));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, '0'))
    .join('')
    .slice(0, digits);
}

function encodePath(path: string): string {
  return path.split('/').map(encodeURIComponent).join('/');
}

/** A name a file system takes, different for different texts. */
function segment(text: string): string {
  return encodeURIComponent(text).replace(/\./g, '%2E').replace(/\*/g, '%2A');
}

/** How a folder's files are addressed and remembered. */
interface Place {
  /** What it is called, in messages and in `cache.list()`. */
  id: string;
  /** The URL of a file. */
  url(file: string): string;
  /** Where its files' records are, or null where nothing may be remembered. */
  records: string[] | null;
  commit: string | null;
  revision: string | null;
  /** All files, where the server gave a list. */
  files: Set<string> | null;
  /** Only what the cache has may be used: the server could not be reached. */
  cacheOnly: boolean;
  /** Whose word an ETag is: blobs are shared only inside one scope, or a mirror could plant files for the Hub. */
  scope: string;
}

/** A folder on a server: a Hub repository or any folder of files. */
export class RemoteFolder implements ModelFolder {
  readonly name: string;
  readonly focus?: string;
  readonly #context: FileContext;
  readonly #place: Place;
  readonly #found = new Map<string, Promise<ByteSource | null>>();

  private constructor(context: FileContext, place: Place, focus: string | undefined) {
    this.#context = context;
    this.#place = place;
    this.name = place.id;
    if (focus !== undefined) this.focus = focus;
  }

  get commit(): string | undefined {
    return this.#place.commit ?? undefined;
  }

  /** Files under a URL. A URL that ends in a file name is that file, with its siblings. */
  static async url(context: FileContext, address: string): Promise<RemoteFolder> {
    let url: URL;
    try {
      url = new URL(address);
    } catch (cause) {
      throw new WasmformerError('invalid-argument', `[load] source: expected a URL, got ${JSON.stringify(address)}`, { cause });
    }
    const hub = /^\/((?:[\w.-]+\/)?[\w.-]+)\/(?:resolve|blob|raw|tree)\/([^/]+)(?:\/(.*))?$/.exec(url.pathname);
    if (hub !== null && url.origin === new URL(context.endpoint).origin && context.endpoint === url.origin) {
      return RemoteFolder.hub(context, `${hub[1]}${hub[3] ? `/${decodeURIComponent(hub[3])}` : ''}`, decodeURIComponent(hub[2] ?? 'main'));
    }
    const last = url.pathname.slice(url.pathname.lastIndexOf('/') + 1);
    const isFile = isFileName(last);
    const base = new URL(url.href);
    base.hash = '';
    base.pathname = isFile ? url.pathname.slice(0, url.pathname.length - last.length) : `${url.pathname.replace(/\/+$/, '')}/`;
    const query = base.search;
    base.search = '';
    const folder = base.href;
    const cache = await context.cache();
    return new RemoteFolder(
      context,
      {
        id: folder,
        url: (file) => `${folder}${encodePath(file)}${query}`,
        records: cache === null ? null : ['url', await digest(folder + query)],
        commit: null,
        revision: null,
        files: null,
        cacheOnly: false,
        scope: folder + query,
      },
      isFile ? decodeURIComponent(last) : undefined,
    );
  }

  /**
   * A repository of the Hub: `name`, `org/name`, or either with a path inside it behind.
   * @throws WasmformerError `not-found`, `unauthorized`, `offline`, `network`
   */
  static async hub(context: FileContext, id: string, revision = context.revision): Promise<RemoteFolder> {
    const match = /^((?:[\w-][\w.-]*\/)?[\w-][\w.-]*)((?:\/[^/]+)*)$/.exec(id);
    const repo = match?.[1] ?? '';
    if (match === null || repo.length > 200 || repo.includes('..')) {
      throw new WasmformerError(
        'invalid-argument',
        `[load] source: expected a Hub id such as 'org/name', a URL or a folder, got ${JSON.stringify(id)}`,
      );
    }
    const inside = (match[2] ?? '').slice(1);
    if (inside !== '') safePath(inside, repo);
    const last = inside.slice(inside.lastIndexOf('/') + 1);
    const focus = inside !== '' && isFileName(last) ? last : undefined;
    const folder = focus === undefined ? inside : inside.slice(0, Math.max(0, inside.length - last.length - 1));
    const prefix = folder === '' ? '' : `${folder}/`;

    const cache = await context.cache();
    const hub = context.endpoint === defaultEndpoint ? 'hub' : `hub-${cache ? await digest(context.endpoint, 12) : ''}`;
    const reference = ['refs', hub, segment(repo), segment(revision)];
    const known = await cache?.readRecord(reference);
    const resolved = await resolveRevision(context, repo, revision, known ?? null);
    const commit = resolved.commit;
    if (cache !== null && resolved.fresh && commit !== null) {
      await remember(context, cache, reference, { id: repo, revision, commit, ...(resolved.files ? { files: resolved.files } : {}) });
    }
    const base = `${context.endpoint}/${repo}/resolve/${encodeURIComponent(commit ?? revision)}/`;
    return new RemoteFolder(
      context,
      {
        id: `${repo}${folder === '' ? '' : `/${folder}`}`,
        url: (file) => base + encodePath(prefix + file),
        records:
          cache === null
            ? null
            : [
                commit === null ? 'loose' : 'repos',
                hub,
                segment(repo),
                segment(commit ?? revision),
                ...folder.split('/').filter(Boolean).map(segment),
              ],
        commit,
        revision,
        files:
          resolved.files === null
            ? null
            : new Set(resolved.files.filter((file) => file.startsWith(prefix)).map((file) => file.slice(prefix.length))),
        cacheOnly: resolved.cacheOnly,
        scope: context.endpoint === defaultEndpoint ? '' : context.endpoint,
      },
      focus,
    );
  }

  async has(file: string, signal?: AbortSignal): Promise<boolean> {
    if (this.#place.files !== null) return this.#place.files.has(file);
    return (await this.find(file, signal)) !== null;
  }

  find(file: string, signal: AbortSignal | undefined = this.#context.signal): Promise<ByteSource | null> {
    safePath(file, this.name);
    let found = this.#found.get(file);
    if (found === undefined) {
      found = this.#find(file, signal);
      this.#found.set(file, found);
      // A failure is not an answer: the next call may try again.
      found.catch(() => this.#found.delete(file));
    }
    return found;
  }

  async open(file: string, signal?: AbortSignal): Promise<ByteSource> {
    const source = await this.find(file, signal);
    if (source !== null) return source;
    const at = this.#place.revision === null ? '' : ` (revision ${this.#place.revision})`;
    throw new WasmformerError('not-found', `[${this.name}] ${file}: no such file${at}`);
  }

  async list(): Promise<string[] | null> {
    return this.#place.files === null ? null : [...this.#place.files];
  }

  release(file: string): void {
    this.#found.delete(file);
  }

  async discard(file: string): Promise<void> {
    const cache = await this.#context.cache();
    const path = this.#path(file);
    if (cache === null || path === null) return;
    const source = await this.#found.get(file)?.catch(() => null);
    this.#found.delete(file);
    await source?.close?.(true);
    const record = (await cache.readRecord(path)) as FileRecord | null;
    await cache.removeRecord(path);
    if (typeof record?.key === 'string') await cache.removeBlob(record.key);
  }

  async close(): Promise<void> {
    const all = [...this.#found.values()];
    this.#found.clear();
    for (const found of all) await (await found.catch(() => null))?.close?.();
  }

  #path(file: string): string[] | null {
    return this.#place.records === null ? null : [...this.#place.records, ...file.split('/').map(segment)];
  }

  async #find(file: string, signal: AbortSignal | undefined): Promise<ByteSource | null> {
    const context = this.#context;
    const { commit, files } = this.#place;
    if (files !== null && !files.has(file)) return null;
    const cache = await context.cache();
    const path = this.#path(file);
    const record = cache !== null && path !== null ? ((await cache.readRecord(path)) as FileRecord | null) : null;
    // Under a commit nothing changes; under a branch or a plain URL the server is asked whether the ETag still holds.
    const settled = commit !== null || context.offline || this.#place.cacheOnly;
    if (record !== null && cache !== null) {
      if (record.missing === true) {
        if (settled) return null;
      } else if (settled || (await this.#unchanged(file, record, signal))) {
        const blob = await cache.openBlob(String(record.key), Number(record.size));
        if (blob !== null) {
          context.report(file, 0, blob.size, true);
          return renamed(blob, file);
        }
      }
    }
    if (this.#place.cacheOnly || context.offline) {
      // Unknown is not the same as absent, but a probe for an optional file must not stop an offline load.
      if (files === null && record === null && isOptional(file)) return null;
      throw new WasmformerError(
        context.offline ? 'offline' : 'network',
        `[${this.name}] ${file}: not in the cache, and ${context.offline ? 'the network is off (offline: true)' : 'the server cannot be reached'}`,
      );
    }
    return kWhole.test(file) ? this.#fetchWhole(file, cache, path, signal) : this.#openRemote(file, cache, path, signal);
  }

  async #unchanged(file: string, record: FileRecord, signal: AbortSignal | undefined): Promise<boolean> {
    if (typeof record.etag !== 'string') return false;
    try {
      const answer = await requestPatiently(this.#context, { ...this.#ask(file), method: 'HEAD' }, signal, 1);
      return answer !== null && answer.info.etag === record.etag && (answer.info.size === null || answer.info.size === record.size);
    } catch (reason) {
      if (!(reason instanceof WasmformerError) || reason.code !== 'network') throw reason;
      this.#context.warn(reason, 'network', `${file}: the server cannot be reached; the cached copy is used`);
      return true;
    }
  }

  #ask(file: string): { url: string; file: string; folder: string } {
    return { url: this.#place.url(file), file, folder: this.name };
  }

  async #absent(file: string, cache: CacheStore | null, path: string[] | null): Promise<null> {
    if (cache !== null && path !== null && this.#place.commit !== null) {
      await remember(this.#context, cache, path, { id: this.name, file, missing: true });
    }
    return null;
  }

  async #fetchWhole(
    file: string,
    cache: CacheStore | null,
    path: string[] | null,
    signal: AbortSignal | undefined,
  ): Promise<ByteSource | null> {
    let answer: Awaited<ReturnType<typeof fetchWhole>>;
    try {
      answer = await fetchWhole(this.#context, this.#ask(file), signal);
    } catch (reason) {
      // Outside the Hub there are servers that answer for what they do not have with a page or with 403.
      const refused = reason instanceof WasmformerError && (reason.code === 'unauthorized' || reason.code === 'invalid-file');
      if (refused && this.#place.revision === null && isOptional(file)) return null;
      throw reason;
    }
    if (answer === null) return this.#absent(file, cache, path);
    const { bytes, info } = answer;
    const source = new BytesSource(file, bytes);
    // A JSON file that is none is not worth keeping, and would be found again at every load.
    const broken = file.endsWith('.json') && !/^[\s\uFEFF]*[[{]/.test(new TextDecoder().decode(bytes.subarray(0, 64)));
    const key = broken ? null : await this.#key(file, info);
    if (cache !== null && path !== null && key !== null) {
      try {
        const kept = await cache.writeBlob(key, bytes.length, { wait: 2000, signal });
        if ('append' in kept) {
          try {
            if (kept.length > bytes.length) throw new WasmformerError('busy', `[${this.name}] ${file}: cache: a longer copy is there`);
            await kept.append(bytes.subarray(kept.length));
            await (await kept.commit()).close?.();
          } catch (reason) {
            await kept.release(true);
            throw reason;
          }
        } else {
          await kept.close?.();
        }
        await remember(this.#context, cache, path, this.#record(file, key, { ...info, size: bytes.length }));
      } catch (reason) {
        if (signal?.aborted) throw reason;
        this.#context.warn(reason, 'quota', `cache: ${file} could not be written and will not be kept`);
      }
    }
    return source;
  }

  async #openRemote(
    file: string,
    cache: CacheStore | null,
    path: string[] | null,
    signal: AbortSignal | undefined,
  ): Promise<ByteSource | null> {
    const context = this.#context;
    let key: string | null = null;
    const keep = async (info: RemoteInfo & { size: number }): Promise<BlobWriter | ByteSource | null> => {
      key = await this.#key(file, info);
      if (cache === null || path === null || key === null || context.writing.has(key)) return null;
      context.writing.add(key);
      try {
        return await cache.writeBlob(key, info.size, { wait: context.network.cacheWait, signal });
      } catch (reason) {
        if (signal?.aborted) throw signal.reason;
        context.warn(reason, 'busy', `cache: ${file} cannot be written and will not be kept`);
        return null;
      }
    };
    const onCached = async (info: RemoteInfo & { size: number }): Promise<void> => {
      if (cache !== null && path !== null && key !== null) await remember(context, cache, path, this.#record(file, key, info));
    };
    const place = { ...this.#ask(file), immutable: this.#place.commit !== null, onCached };
    const remote = await RemoteFile.open(context, place, keep, signal);
    if (remote === null) return this.#absent(file, cache, path);
    return remote === 'unsized' ? this.#fetchWhole(file, cache, path, signal) : remote;
  }

  #record(file: string, key: string, info: RemoteInfo & { size: number }): FileRecord {
    const { commit, revision } = this.#place;
    return {
      id: this.name,
      file,
      key,
      size: info.size,
      etag: info.etag,
      ...(commit === null ? { url: this.#place.url(file) } : { commit }),
      ...(revision === null ? {} : { revision }),
    };
  }

  /** The blob's key: the content's own hash where the ETag is one, so that two commits or repositories share it. */
  async #key(file: string, info: RemoteInfo): Promise<string | null> {
    const { commit, records, revision, scope } = this.#place;
    if (records === null) return null;
    const { etag } = info;
    if (revision !== null && etag !== null && /^(?:[0-9a-f]{40}|[0-9a-f]{64})$/.test(etag))
      return scope === '' ? etag : digest(`${scope}\n${etag}`);
    if (commit !== null) return digest(this.#place.url(file));
    return etag === null ? null : digest(`${this.#place.url(file)}\n${etag}`);
  }
}

async function remember(context: FileContext, cache: CacheStore, path: string[], record: CacheRecord): Promise<void> {
  try {
    await cache.writeRecord(path, record);
  } catch (reason) {
    context.warn(reason, 'quota', 'cache: a record could not be written');
  }
}

interface Resolved {
  commit: string | null;
  files: string[] | null;
  /** Asked of the server just now. */
  fresh: boolean;
  cacheOnly: boolean;
}

/**
 * What a revision stands for. The Hub's API gives the commit and the list of files in one answer, so that no file
 * need be probed for; a plain file server gives the commit with any file, or not at all.
 */
async function resolveRevision(context: FileContext, repo: string, revision: string, known: CacheRecord | null): Promise<Resolved> {
  const commit = typeof known?.commit === 'string' && kCommit.test(known.commit) ? known.commit : null;
  const files = Array.isArray(known?.files) && known.files.every((file) => typeof file === 'string') ? (known.files as string[]) : null;
  const kept = { commit: commit ?? (kCommit.test(revision) ? revision : null), files, fresh: false };
  if (context.offline) {
    if (commit === null && !kCommit.test(revision)) {
      // Files of a server that names no commit are remembered by revision.
      return { commit: null, files: null, fresh: false, cacheOnly: false };
    }
    return { ...kept, cacheOnly: false };
  }
  if (kCommit.test(revision) && commit === revision) return { ...kept, cacheOnly: false };
  const ask = { folder: repo, file: `revision ${revision}` };
  try {
    const api = `${context.endpoint}/api/models/${repo}/revision/${encodeURIComponent(revision)}`;
    const answer = await fetchWhole(
      context,
      { ...ask, url: api, html: true, quiet: true },
      context.signal,
      commit === null ? undefined : 1,
    );
    const parsed = answer === null ? null : parseApi(answer.bytes);
    if (parsed !== null) return { ...parsed, fresh: true, cacheOnly: false };
    if (kCommit.test(revision)) return { commit: revision, files: null, fresh: true, cacheOnly: false };
    const url = `${context.endpoint}/${repo}/resolve/${encodeURIComponent(revision)}/config.json`;
    const head = await requestPatiently(context, { ...ask, file: 'config.json', url, method: 'HEAD', html: true }, context.signal);
    const seen = head?.info.commit ?? null;
    const named = seen !== null && kCommit.test(seen) ? seen : null;
    return { commit: named, files: null, fresh: true, cacheOnly: false };
  } catch (reason) {
    if (commit === null || !(reason instanceof WasmformerError) || reason.code !== 'network') throw reason;
    context.warn(reason, 'network', `${repo}: the server cannot be reached; the cached copy is used`);
    return { ...kept, cacheOnly: true };
  }
}

function parseApi(bytes: Uint8Array): { commit: string; files: string[] } | null {
  try {
    const { sha, siblings } = JSON.parse(new TextDecoder().decode(bytes)) as { sha?: unknown; siblings?: unknown };
    if (typeof sha !== 'string' || !kCommit.test(sha) || !Array.isArray(siblings)) return null;
    const files = siblings.map((one: { rfilename?: unknown } | null) => one?.rfilename);
    return files.every((file): file is string => typeof file === 'string') ? { commit: sha, files } : null;
  } catch {
    return null;
  }
}

/** Whether the last part of a path is a file of a model rather than a folder. */
export function isFileName(name: string): boolean {
  return /\.(safetensors|bin|gguf|json|pt|pth|model|txt|h5|msgpack|onnx)$/i.test(name);
}

/** Whether a model can do without the file: all but its configuration and the parts of sharded weights. */
function isOptional(file: string): boolean {
  return file !== 'config.json' && !/-of-\d+\./.test(file);
}

/** The same file under the name the model gives it; the cache knows it by its key only. */
function renamed(source: ByteSource, name: string): ByteSource {
  const { readInto } = source;
  return {
    name,
    size: source.size,
    stream: (begin, end, signal) => source.stream(begin, end, signal),
    read: (begin, end, signal) => source.read(begin, end, signal),
    ...(readInto
      ? { readInto: (target: Uint8Array, begin: number, signal?: AbortSignal) => readInto.call(source, target, begin, signal) }
      : {}),
    ...(source.close ? { close: () => source.close?.() as Promise<void> } : {}),
  };
}
