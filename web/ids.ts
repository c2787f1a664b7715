import { WasmformerError } from './errors.ts';
import { checkIds, checkOptions, reading } from './options.ts';

/** Asks a tokenizer in a worker: a method's list, and its settings. */
type Ask<T, R> = (list: T[], settings: object) => Promise<R[]>;

/** Token ids of a text, or of each of several. */
export async function encodeTexts(
  where: string,
  ask: Ask<string, number[]>,
  text: string | readonly string[],
  options?: { addSpecialTokens?: boolean },
): Promise<number[] | number[][]> {
  const settings = checkOptions(where, options, ['addSpecialTokens']) ?? {};
  const texts = reading(where, () => (typeof text === 'string' ? [text] : Array.isArray(text) ? Array.from(text) : [null]));
  if (!texts.every((item) => typeof item === 'string')) {
    throw new WasmformerError('invalid-argument', `[${where}] text: expected a string or an array of strings, got ${typeof text}`);
  }
  const found = await ask(texts, settings);
  return typeof text === 'string' ? found[0] : found;
}

/** The text of token ids, or of each of several sequences. */
export async function decodeIds(
  where: string,
  ask: Ask<Int32Array, string>,
  ids: ArrayLike<number> | readonly ArrayLike<number>[],
  options?: { skipSpecialTokens?: boolean },
): Promise<string | string[]> {
  const settings = checkOptions(where, options, ['skipSpecialTokens']) ?? {};
  const { many, sequences } = reading(where, () => {
    const many = Array.isArray(ids) && typeof ids[0] === 'object';
    return { many, sequences: Array.from(many ? ids : [ids], (list) => checkIds(where, list)) };
  });
  const found = await ask(sequences, settings);
  return many ? found : found[0];
}
