import { boolean, checked, fail, kind, nonNegative, positiveInteger, reading, seed, signal } from '../options.ts';
import type { AdapterOptions } from '../types.ts';

/** An adapter's settings, under PEFT's names. */
export interface AdapterSettings {
  r: number;
  lora_alpha: number;
  target_modules: string[];
  use_rslora: boolean;
}

const names = kind('a list of names of linear layers', (value) => Array.isArray(value) && value.length > 0 && value.every(isName));
const isName = (value: unknown) => typeof value === 'string' && value !== '';

/** Checks `addAdapter`'s options. */
export function checkAdapter(options: AdapterOptions): { settings: AdapterSettings; seed: number; signal?: AbortSignal | undefined } {
  return reading('addAdapter', () => {
    const kinds = { r: positiveInteger, loraAlpha: nonNegative, targetModules: names, useRslora: boolean, seed, signal };
    const given = checked('addAdapter', options, kinds) as AdapterOptions;
    if (!given.targetModules) fail('addAdapter', 'targetModules', names.expected, undefined);
    const { r = 8, loraAlpha = 8, targetModules, useRslora = false } = given;
    const settings = { r, lora_alpha: loraAlpha, target_modules: [...targetModules], use_rslora: useRslora };
    return { settings, seed: given.seed ?? 0, signal: given.signal };
  });
}
