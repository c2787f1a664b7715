import { Client } from './engine/client.ts';
import type { EngineStart } from './engine/engine.ts';
import type { LoadedModel } from './engine/messages.ts';
import { untilAborted } from './engine/queue.ts';
import { WasmformerError } from './errors.ts';
import { Model } from './model.ts';
import { checkCreateOptions, checkLoadOptions, fail, reading } from './options.ts';
import type { Platform } from './platform/platform.ts';
import { hasRelaxedSimd } from './platform/wasm.ts';
import type { TrainedTokenizer } from './train/tokenizer.ts';
import type { CreateOptions, Inspection, LoadOptions, Source } from './types.ts';

/** How long an abandoned load may take to tidy up (locks, files) before its worker is ended, in milliseconds. */
const patience = 2000;

/** The compiled modules, by address: all models of a program share one. */
const modules = new Map<string, Promise<WebAssembly.Module>>();

/** The compiled module; a failure is not remembered. */
function compiled(platform: Platform, url: string | URL | undefined, relaxed: boolean, shared: boolean): Promise<WebAssembly.Module> {
  const key = `${url ?? relaxed} ${shared}`;
  let module = modules.get(key);
  if (!module) {
    module = platform.compile(url, relaxed, shared);
    modules.set(key, module);
    module.catch(() => modules.delete(key));
  }
  return module;
}

/** What an engine is started with: the module compiled for its threads, and why it is this one. */
export async function start(
  platform: Platform,
  { threads: asked, deterministic, worker = true, wasmUrl }: LoadOptions,
): Promise<[WebAssembly.Module, EngineStart]> {
  const threads = platform.threads(asked, worker);
  const relaxed = !deterministic && hasRelaxedSimd();
  const simdReason = wasmUrl
    ? 'wasmUrl names it'
    : deterministic
      ? 'deterministic: true'
      : `the engine has ${relaxed ? '' : 'no '}relaxed SIMD`;
  return [await compiled(platform, wasmUrl, relaxed, threads.count > 1), { threads, deterministic, simdReason }];
}

/** Makes `load` for a platform. */
export function createLoad(platform: Platform) {
  return async function load(source: Source | ArrayLike<File>, options?: LoadOptions): Promise<Model> {
    const checked = checkLoadOptions(options);
    const { client, value } = await run<LoadedModel>(platform, 'load', checkSource(platform, source), checked);
    return new Model(client, value);
  };
}

/** Makes `create` for a platform. */
export function createCreate(platform: Platform) {
  return async function create(config: Readonly<Record<string, unknown>>, options?: CreateOptions): Promise<Model> {
    return saying('create', async () => {
      const { tokenizer, ...rest } = checkCreateOptions(options);
      const settings = {
        ...rest,
        ...(tokenizer === undefined
          ? {}
          : { tokenizer: checkSource(platform, (tokenizer as TrainedTokenizer | null)?.files ?? tokenizer) }),
      };
      const { client, value } = await run<LoadedModel>(platform, 'create', checkConfig(config), settings);
      return new Model(client, value);
    });
  };
}

/** Makes `inspect` for a platform. */
export function createInspect(platform: Platform) {
  return async function inspect(source: Source | ArrayLike<File>, options?: LoadOptions): Promise<Inspection> {
    return saying('inspect', async () => {
      const checked = checkLoadOptions(options);
      const { client, value } = await run<Inspection>(platform, 'inspect', checkSource(platform, source), checked);
      await client.dispose();
      return value;
    });
  };
}

/** Errors of what others share with `load` speak of that: this puts their own name there. */
async function saying<T>(where: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (reason) {
    if (!(reason instanceof WasmformerError)) throw reason;
    throw new WasmformerError(reason.code, reason.message.replace(/^\[load]/, `[${where}]`), reason);
  }
}

/** Starts an engine and calls a method of it with what the model is made from; nothing is left behind if that fails. */
async function run<T>(platform: Platform, method: string, from: unknown, options: LoadOptions): Promise<{ client: Client; value: T }> {
  const { onProgress, signal, worker = true, wasmUrl: _, workerUrl, threads, deterministic: __, ...files } = options;
  signal?.throwIfAborted();
  const looks = method === 'inspect';
  // Looking at headers takes no threads, only their number.
  const started = await untilAborted(start(platform, looks ? { ...options, threads: 1 } : options), signal);
  const given = looks ? { ...files, threads: platform.threads(threads, worker).count } : files;
  const port = worker ? platform.spawn(workerUrl) : await platform.inProcess();
  const client = new Client(port);
  // The engine is told of an abort and given time to tidy up; the caller does not wait for that.
  const settings = { signal, onEvent: onProgress, endsEarly: true };
  const answer = client.call('start', started, settings).then(() => client.call<T>(method, [from, given], settings));
  try {
    return { client, value: await untilAborted(answer, signal) };
  } catch (reason) {
    const dispose = () => client.dispose();
    const timer = setTimeout(dispose, patience);
    answer
      .catch(() => {})
      .then(() => clearTimeout(timer))
      .then(dispose);
    throw reason;
  }
}

/** A source as it can be sent to a worker. */
function checkSource(platform: Platform, source: unknown): unknown {
  if (source instanceof URL) return source.href;
  if (typeof source === 'string' || (typeof source === 'object' && source !== null))
    return reading('load', () => platform.portable(source));
  throw new WasmformerError(
    'invalid-argument',
    `[load] source: expected a Hub id, URL, folder, files or bytes, got ${source === null ? 'null' : typeof source}`,
  );
}

/** A configuration as config.json would have it, as a copy. */
function checkConfig(config: unknown): unknown {
  return reading('create', () => {
    const text = JSON.stringify(config, (key, value) => {
      if (typeof value === 'number' && !Number.isFinite(value)) fail('create', key, 'a finite number', value);
      return value;
    });
    const copy: unknown = JSON.parse(text ?? 'null');
    if (typeof (copy as { model_type?: unknown } | null)?.model_type === 'string') return copy;
    throw new WasmformerError('invalid-argument', '[create] config: expected an object with model_type, as in a config.json');
  });
}
