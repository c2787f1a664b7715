import { WasmformerError } from '../errors.ts';
import { isObject, type JsonObject, kindOf, own } from './json.ts';

/** What C++ takes: keys with dots for nesting. */
export type FlatValue = number | boolean | string | null | number[] | string[];
export type FlatConfig = Record<string, FlatValue>;

/** Parts of a config.json that describe no weights and come in any shape. */
const kSkipped = new Set([
  'auto_map',
  'custom_pipelines',
  'id2label',
  'label2id',
  'task_specific_params',
  'quantization_config',
  'pruned_heads',
  'bad_words_ids',
  'sequence_bias',
]);

/**
 * A parsed config.json with nested objects spread over dotted keys (`rope_scaling.factor`). What no model reads is left
 * out: the sections of `kSkipped`, objects in arrays, arrays of arrays or of mixed kinds, empty arrays keep nothing but
 * their key. `num_labels` is the number of `id2label`'s entries, where there is one.
 * @throws WasmformerError `invalid-file` for two keys that flatten to one, or nesting deeper than 8
 */
export function flattenConfig(config: JsonObject): FlatConfig {
  const flat: FlatConfig = Object.create(null);
  const visit = (object: JsonObject, prefix: string, depth: number): void => {
    if (depth > 8) throw new WasmformerError('invalid-file', `[config.json] ${prefix}: expected at most 8 levels of nesting`);
    for (const [key, value] of Object.entries(object)) {
      if (depth === 0 && kSkipped.has(key)) continue;
      const name = prefix + key;
      if (isObject(value)) {
        visit(value, `${name}.`, depth + 1);
        continue;
      }
      const kept = flatValue(value);
      if (kept === undefined) continue;
      if (Object.hasOwn(flat, name)) throw new WasmformerError('invalid-file', `[config.json] ${name}: expected one value, got two`);
      flat[name] = kept;
    }
  };
  visit(config, '', 0);
  const labels = own(config, 'id2label');
  if (isObject(labels)) flat.num_labels = Object.keys(labels).length;
  return flat;
}

function flatValue(value: unknown): FlatValue | undefined {
  if (value === null || typeof value === 'boolean' || typeof value === 'string' || typeof value === 'number') return value;
  if (!Array.isArray(value)) return undefined;
  if (value.every((item) => typeof item === 'number')) return value as number[];
  if (value.every((item) => typeof item === 'string')) return value as string[];
  return undefined;
}

/**
 * The generation settings transformers looks for in a config.json without a generation_config.json beside it, with its
 * defaults: a value that is the default says nothing.
 */
const kLegacy: [string, unknown][] = [
  ['max_length', 20],
  ['min_length', 0],
  ['do_sample', false],
  ['early_stopping', false],
  ['num_beams', 1],
  ['num_beam_groups', 1],
  ['diversity_penalty', 0],
  ['temperature', 1],
  ['top_k', 50],
  ['top_p', 1],
  ['typical_p', 1],
  ['repetition_penalty', 1],
  ['length_penalty', 1],
  ['no_repeat_ngram_size', 0],
  ['encoder_no_repeat_ngram_size', 0],
  ['encoder_repetition_penalty', 1],
  ['remove_invalid_values', false],
  ['bad_words_ids', null],
  ['num_return_sequences', 1],
  ['forced_bos_token_id', null],
  ['forced_eos_token_id', null],
  ['exponential_decay_length_penalty', null],
  ['suppress_tokens', null],
  ['begin_suppress_tokens', null],
];
const kTokens = ['bos_token_id', 'eos_token_id', 'pad_token_id', 'decoder_start_token_id'];

/**
 * A model's own generation settings, in snake_case: generation_config.json where there is one (and then nothing else,
 * as in transformers), else what an older config.json carries among its other keys. `eos_token_id` may be a list.
 * @throws WasmformerError `invalid-file` naming a token id that is none
 */
export function mergeGenerationConfig(config: JsonObject, generation: JsonObject | null): JsonObject {
  const merged: JsonObject = Object.create(null);
  if (generation !== null) {
    for (const [key, value] of Object.entries(generation)) {
      if (value !== null && key !== 'transformers_version' && !key.startsWith('_')) merged[key] = value;
    }
  } else {
    const inner = ['decoder', 'generator', 'text_config'].map((key) => own(config, key)).find(isObject);
    for (const [key, preset] of [...kLegacy, ...kTokens.map((key) => [key, null] as const)]) {
      const value = own(config, key) ?? (inner && own(inner, key));
      if (value !== undefined && value !== null && value !== preset) merged[key] = value;
    }
  }
  for (const key of [...kTokens, 'forced_bos_token_id', 'forced_eos_token_id']) {
    const value = merged[key];
    if (value === undefined) continue;
    const ids = Array.isArray(value) ? value : [value];
    if (!ids.every((id) => Number.isSafeInteger(id))) {
      const file = generation === null ? 'config.json' : 'generation_config.json';
      throw new WasmformerError('invalid-file', `[${file}] ${key}: expected a token id or a list of them, got ${kindOf(value)}`);
    }
    // -1 stands for none in some old files.
    const real = ids.filter((id: number) => id >= 0);
    if (real.length === 0) delete merged[key];
    else merged[key] = Array.isArray(value) ? real : real[0];
  }
  return merged;
}
