import { WasmformerError } from '../errors.ts';
import { readObject, readText } from './checkpoint.ts';
import { isObject, type JsonObject, kindOf, own, parseJson } from './json.ts';
import type { ModelFolder } from './source.ts';

/** What sentence-transformers' files say of a model. */
export interface SentenceSettings {
  /** Where they were read. */
  from: 'modules.json' | 'GGUF' | 'default';
  /** Kinds of pooling, in the order in which they are joined. */
  pooling: string[];
  normalize: boolean;
  /** Tokens of a text; null where the files do not say. */
  maxLength: number | null;
  lowerCase: boolean;
  /** Texts to set before a text, by name. */
  prompts: Record<string, string>;
  promptName: string | null;
  /** Whether a prompt's tokens are pooled too. */
  includePrompt: boolean;
  /** A module that is not built. */
  foreign: string | null;
}

/** Kinds of pooling, in the order in which several are joined, and the flags that older files have for them. */
export const poolings: Readonly<Record<string, string>> = {
  cls: 'pooling_mode_cls_token',
  max: 'pooling_mode_max_tokens',
  mean: 'pooling_mode_mean_tokens',
  mean_sqrt_len_tokens: 'pooling_mode_mean_sqrt_len_tokens',
  weightedmean: 'pooling_mode_weightedmean_tokens',
  lasttoken: 'pooling_mode_lasttoken',
};

/** One kind of pooling and nothing else. */
export const plainSettings = (from: SentenceSettings['from'], pooling: string): SentenceSettings => ({
  from,
  pooling: [pooling],
  normalize: false,
  maxLength: null,
  lowerCase: false,
  prompts: {},
  promptName: null,
  includePrompt: true,
  foreign: null,
});

/**
 * Reads modules.json and the files that it names. Where the folder's files are not known, the server is asked for it only if
 * `likely`.
 * @returns null where there is none
 * @throws WasmformerError `invalid-file`
 */
export async function readSentenceSettings(folder: ModelFolder, likely: boolean, signal?: AbortSignal): Promise<SentenceSettings | null> {
  const file = 'modules.json';
  const names = await folder.list();
  if (names === null ? !likely : !names.includes(file)) return null;
  const text = await readText(folder, file, signal);
  if (text === null) return null;
  const modules = parseJson(text, `${folder.name}: ${file}`);
  const bad = (what: string, expected: string, got: unknown) =>
    new WasmformerError('invalid-file', `[${folder.name}] ${what}: expected ${expected}, got ${kindOf(got)}`);
  if (!Array.isArray(modules)) throw bad(file, 'a list of modules', modules);
  const read = async (path: string): Promise<JsonObject> =>
    (names !== null && !names.includes(path) ? null : await readObject(folder, path, signal)) ?? {};
  const settings = plainSettings(file, 'mean');
  for (const module of modules) {
    const [path, type] = ['path', 'type'].map((key) => (isObject(module) ? own(module, key) : undefined));
    if (typeof path !== 'string' || typeof type !== 'string') throw bad(file, 'a path and a type in each module', module);
    if (/^[\\/]|:|(^|[\\/])\.\.([\\/]|$)/.test(path)) throw bad(file, 'paths inside the folder', path);
    const place = path === '' ? '' : `${path}/`;
    const kind = type.split('.').pop();
    if (kind === 'Transformer') {
      const config = await read(`${place}sentence_bert_config.json`);
      const length = own(config, 'max_seq_length');
      if (typeof length === 'number' && length > 0) settings.maxLength = length;
      settings.lowerCase = own(config, 'do_lower_case') === true;
    } else if (kind === 'Pooling') {
      const config = await read(`${place}config.json`);
      const mode = own(config, 'pooling_mode');
      const chosen =
        mode === undefined ? Object.keys(poolings).filter((name) => own(config, poolings[name] as string) === true) : [mode].flat();
      for (const name of chosen) {
        if (!Object.hasOwn(poolings, name as string))
          throw bad(`${place}config.json: pooling_mode`, Object.keys(poolings).join(', '), name);
      }
      if (chosen.length > 0) settings.pooling = chosen as string[];
      settings.includePrompt = own(config, 'include_prompt') !== false;
    } else if (kind === 'Normalize') {
      settings.normalize = true;
    } else {
      settings.foreign ??= `${kind} (${path})`;
    }
  }
  const config = await read('config_sentence_transformers.json');
  const prompts = own(config, 'prompts');
  for (const [name, prompt] of isObject(prompts) ? Object.entries(prompts) : [])
    if (typeof prompt === 'string') settings.prompts[name] = prompt;
  const named = own(config, 'default_prompt_name');
  if (typeof named === 'string') settings.promptName = named;
  return settings;
}
