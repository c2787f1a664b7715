import { WasmformerError } from '../errors.ts';

/** A JSON object without a prototype, so that a key such as `constructor` is there only when the file has it. */
export type JsonObject = Record<string, unknown>;

/** UTF-8, or an `invalid-file` error. A byte order mark is dropped. */
export function decodeText(bytes: Uint8Array, where: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new WasmformerError('invalid-file', `[${where}] text: expected UTF-8`, { cause });
  }
}

/**
 * Parses JSON, with Python's `NaN` and `Infinity` allowed where its writer puts them.
 * @throws WasmformerError `invalid-file` naming the file
 */
export function parseJson(text: string, where: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    const lenient = /\b(?:NaN|Infinity)\b/.test(text) ? withoutPythonNumbers(text) : null;
    if (lenient !== null) {
      try {
        return JSON.parse(lenient);
      } catch {
        // The first message is the one about the file as it is.
      }
    }
    const html = /^\s*</.test(text);
    const problem = html ? 'an HTML or XML page' : (cause as Error).message;
    throw new WasmformerError('invalid-file', `[${where}] JSON: expected a JSON document, got ${problem}`, { cause });
  }
}

/** 1e999 reads as infinity; there is no JSON for NaN, and null is what a missing value is. */
function withoutPythonNumbers(text: string): string {
  return text.replace(/"(?:[^"\\]|\\.)*"|-?Infinity\b|\bNaN\b/g, (part) =>
    part.startsWith('"') ? part : part === 'NaN' ? 'null' : part.startsWith('-') ? '-1e999' : '1e999',
  );
}

/** Whether a value is a JSON object (not an array, not null). */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A value from a parsed document's own keys; never what `Object.prototype` has. */
export function own(object: JsonObject, key: string): unknown {
  return Object.hasOwn(object, key) ? object[key] : undefined;
}

const kDeepest = 64;

/** A copy without prototypes. @throws WasmformerError `invalid-file` for a document nested too deep */
export function bare<T>(value: T, where: string, depth = 0): T {
  if (depth > kDeepest) throw new WasmformerError('invalid-file', `[${where}] JSON: expected at most ${kDeepest} levels of nesting`);
  if (Array.isArray(value)) return value.map((item) => bare(item, where, depth + 1)) as T;
  if (!isObject(value)) return value;
  const copy: JsonObject = Object.create(null);
  for (const [key, item] of Object.entries(value)) copy[key] = bare(item, where, depth + 1);
  return copy as T;
}

/** Parses a document that must be an object; without prototypes. */
export function parseObject(text: string, where: string): JsonObject {
  const value = parseJson(text, where);
  if (!isObject(value)) throw new WasmformerError('invalid-file', `[${where}] JSON: expected an object, got ${kindOf(value)}`);
  return bare(value, where);
}

/** A value as JSON, cut to what a message can bear. */
export function brief(value: unknown): string {
  const text = JSON.stringify(value) ?? 'nothing';
  return text.length > 80 ? `${text.slice(0, 80)}...` : text;
}

/** A tensor's name, cut to what a message can bear. */
export function shortened(key: string): string {
  return key.length > 120 ? `${key.slice(0, 120)}...` : key;
}

/** A word for a value in messages. */
export function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  if (typeof value === 'object') return 'an object';
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}...` : value);
  return typeof value === 'undefined' ? 'nothing' : String(value);
}

/**
 * The first key that stands twice in one object, or null. `text` must be valid JSON: `JSON.parse` keeps the last of
 * two and says nothing, which lets two readers of one checkpoint see different tensors.
 */
export function duplicateKey(text: string): string | null {
  const objects: (Set<string> | null)[] = [];
  let expectKey = false;
  for (let i = 0; i < text.length; ++i) {
    switch (text.charCodeAt(i)) {
      case 0x7b: // {
        objects.push(new Set());
        expectKey = true;
        break;
      case 0x5b: // [
        objects.push(null);
        expectKey = false;
        break;
      case 0x7d: // }
      case 0x5d: // ]
        objects.pop();
        expectKey = false;
        break;
      case 0x2c: // ,
        expectKey = objects.at(-1) !== null;
        break;
      case 0x22: {
        const begin = i;
        for (++i; text.charCodeAt(i) !== 0x22; ++i) {
          if (text.charCodeAt(i) === 0x5c) ++i;
        }
        if (!expectKey) break;
        const raw = text.slice(begin, i + 1);
        const key = raw.includes('\\') ? (JSON.parse(raw) as string) : raw.slice(1, -1);
        const seen = objects.at(-1);
        if (seen?.has(key)) return key;
        seen?.add(key);
        expectKey = false;
        break;
      }
    }
  }
  return null;
}
