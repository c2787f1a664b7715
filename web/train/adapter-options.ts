import { boolean, checked, count, fail, kind, nonNegative, positiveInteger, reading, seed, signal } from '../options.ts';
import type { AdapterOptions } from '../types.ts';

/** What of a model an adapter changes, under PEFT's names. */
export interface AdapterTargets {
  /** Ends of paths, a regular expression of Python's that whole names match, or "all-linear". */
  target_modules: string | readonly string[];
  exclude_modules?: string | readonly string[] | null | undefined;
  layers_to_transform?: number | readonly number[] | null | undefined;
  layers_pattern?: string | readonly string[] | null | undefined;
}

/** An adapter's settings, under PEFT's names. */
export interface AdapterSettings extends AdapterTargets {
  r: number;
  lora_alpha: number;
  use_rslora: boolean;
}

const isName = (value: unknown) => typeof value === 'string' && value !== '';
const listOf = (test: (value: unknown) => boolean) => (value: unknown) => test(value) || (Array.isArray(value) && value.every(test));
const names = kind('names, or a regular expression', listOf(isName));
const layers = kind('numbers of layers', listOf(count.test));

/** Checks `addAdapter`'s options. */
export function checkAdapter(options: AdapterOptions): { settings: AdapterSettings; seed: number; signal?: AbortSignal | undefined } {
  return reading('addAdapter', () => {
    const modules = { targetModules: names, excludeModules: names, layersToTransform: layers, layersPattern: names };
    const given = checked('addAdapter', options, {
      ...modules,
      r: positiveInteger,
      loraAlpha: nonNegative,
      useRslora: boolean,
      seed,
      signal,
    });
    const { r = 8, loraAlpha = 8, targetModules = [], useRslora = false } = given as AdapterOptions;
    if (targetModules.length === 0) fail('addAdapter', 'targetModules', names.expected, given.targetModules);
    const settings = {
      r,
      lora_alpha: loraAlpha,
      target_modules: targetModules,
      exclude_modules: given.excludeModules,
      layers_to_transform: given.layersToTransform,
      layers_pattern: given.layersPattern,
      use_rslora: useRslora,
    };
    return { settings, seed: given.seed ?? 0, signal: given.signal };
  });
}
