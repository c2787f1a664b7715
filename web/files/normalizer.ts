import { Charsmap } from './charsmap.ts';
import { byteAlphabet } from './decoder.ts';
import { isObject, type JsonObject, kindOf, own } from './json.ts';
import { compileRegex, escapeRegex, fromOniguruma } from './oniguruma.ts';
import { type Piece, Rewriter, rewrite, slice } from './piece.ts';

export type Normalizer = (piece: Piece) => Piece;
/** Makes an `invalid-file` or `unsupported` error. */
export type Fail = (message: string, code?: 'unsupported') => Error;

/**
 * Punctuation, non-spacing marks and format characters younger than Unicode 8, on whose tables the tokenizers library
 * stands: gaps and lengths in base 36, with other characters between them counted in.
 */
const kLater =
  '17h 0 dc 0 43 2a 7v 1 3c 0 3o 5 2e 0 4v 1k 1n 0 d 0 3g 0 1n 1 1x 0 8p 0 k 0 1tt 3b ft 18 2r 1 1a 2 hj 5 37s q o27 0 49 0 1m 0 5a 0 jmv h1 6f 4 26 b 70 0 6 0 33 3 6y 0 3k 4j ea c 25 0 ae 1jk 35e 9q6 2f2 de 43 2 isc 1y 3ay 1dh gf r';
const later = ((): string => {
  let place = 0;
  const ends = kLater.split(' ').map((gap) => `\\u{${((place += Number.parseInt(gap, 36))).toString(16)}}`);
  return `[${ends.map((end, i) => (i % 2 === 0 ? `${end}-` : end)).join('')}]`;
})();

/** What BERT's pre-tokenizer and `Punctuation` call punctuation, as an alternative of a pattern. */
export const kPunctuation = `(?:[!-/:-@[-\`{-~\\u166d\\u{111c9}]|\\p{P}(?<!${later}))`;
const kUnclean = new RegExp(`[\\t\\n\\r\\p{Z}]|[\\p{Cc}\\p{Cf}\\p{Co}\\ufffd](?<!${later})`, 'gu');
const kAccent = new RegExp(`[\\p{Mn}\\u1734\\u{1171e}](?<!${later})`, 'gu');
const kMark = new RegExp(`\\p{M}(?<!${later})`, 'gu');
/** The eighth range misses its first 256 characters, as it does in the tokenizers library. */
const kChinese =
  /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;
/** Graphemes of several characters (of those that can be shorter than 6 bytes). */
const kCluster = '\\r\\n|[^\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]?[\\p{Grapheme_Extend}\\p{Mc}\\u200d]+';

const remove =
  (pattern: RegExp): Normalizer =>
  (piece) =>
    rewrite(piece, pattern, () => {});

const lowercase: Normalizer = (piece) => rewrite(piece, /[A-Z\u0080-\u{10ffff}]/gu, (out, char, at) => out.put(char.toLowerCase(), at));

/**
 * What is normalised together: nothing composes with what comes before an ASCII character or after marks. Engines sort
 * marks in quadratic time; a thousand in a row are no text.
 */
const kRun = /[\0-\x7f]?(?:[^\0-\x7f\p{M}]+\p{M}{0,1000}|\p{M}{1,1000})/gu;

/** One of the forms of Unicode's Annex 15. */
function unicodeForm(form: 'NFC' | 'NFD' | 'NFKC' | 'NFKD'): Normalizer {
  const decomposition = form.includes('K') ? 'NFKD' : 'NFD';
  return (piece) =>
    rewrite(piece, kRun, (out, run, begin) => {
      const made = run.normalize(form);
      if (made === run) return out.copy(begin, begin + run.length);
      // Marks may change places: what is made takes a source's place with the part that the source begins with. Same
      // parts keep their order.
      const begins = new Map<string, boolean[]>();
      const sources: number[] = [];
      let at = begin;
      for (const char of run) {
        sources.push(at);
        at += char.length;
        [...char.normalize(decomposition)].forEach((part, i) => {
          const known = begins.get(part);
          if (known) known.push(i === 0);
          else begins.set(part, [i === 0]);
        });
      }
      for (const known of begins.values()) known.reverse();
      let source = 0;
      for (const char of made) {
        let taken = 0;
        for (const part of form.endsWith('C') ? char.normalize('NFD') : char) taken += Number(begins.get(part)?.pop() ?? false);
        out.put(char, sources[taken > 0 ? source : source - 1] ?? begin);
        source += taken;
      }
    });
}

const chain =
  (all: readonly Normalizer[]): Normalizer =>
  (piece) =>
    all.reduce((made, one) => one(made), piece);

/** A precompiled charsmap as the tokenizers library applies it: graphemes below 6 bytes as wholes, all else by characters. */
function precompiled(map: Charsmap): Normalizer {
  const made = new Map<string, string | null>();
  const rule = (text: string): string | null => {
    let found = made.get(text);
    if (found === undefined) {
      found = map.shortest(text);
      if (made.size < 10_000) made.set(text, found);
    }
    return found;
  };
  const plain = Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i)).filter((char) => rule(char) === null);
  const pattern = new RegExp(`${kCluster}|[^${plain.map((char) => `\\x${char.charCodeAt(0).toString(16)}`).join('')}]`, 'gu');
  return (piece) =>
    rewrite(piece, pattern, (out, cluster, begin) => {
      const whole = cluster.length < 6 && new TextEncoder().encode(cluster).length < 6 ? rule(cluster) : null;
      if (whole !== null) return out.put(whole, begin);
      let at = begin;
      for (const char of cluster) {
        const text = rule(char);
        if (text === null) out.copy(at, at + char.length);
        else out.put(text, at);
        at += char.length;
      }
    });
}

/** The pattern of a `Split` or `Replace`. */
export function patternOf(config: JsonObject, fail: Fail): RegExp {
  const pattern = own(config, 'pattern');
  const regex = isObject(pattern) ? own(pattern, 'Regex') : undefined;
  const text = isObject(pattern) ? (regex ?? own(pattern, 'String')) : pattern;
  if (typeof text !== 'string') throw fail(`${own(config, 'type')}.pattern: expected { Regex } or { String }, got ${kindOf(text)}`);
  if (regex === undefined) return new RegExp(escapeRegex(text), 'gu');
  let source: string;
  try {
    source = fromOniguruma(text);
    return compileRegex(source);
  } catch (cause) {
    throw fail((cause as Error).message, 'unsupported');
  }
}

/** Each character as those that GPT-2 writes its bytes as. */
export const toByteLevel: Normalizer = (piece) =>
  rewrite(piece, /[^!-~]/gu, (out, char, at) => {
    let made = alphabet.get(char);
    if (made === undefined) {
      made = Array.from(new TextEncoder().encode(char), (byte) => byteAlphabet[byte]).join('');
      if (alphabet.size < 10_000) alphabet.set(char, made);
    }
    out.put(made, at);
  });
const alphabet = new Map<string, string>();

/** A component's configuration, null for none. */
export function componentOf(config: unknown, what: string, fail: Fail): JsonObject | null {
  if (!isObject(config ?? {})) throw fail(`${what}: expected an object, got ${kindOf(config)}`);
  return (config ?? null) as JsonObject | null;
}

/** What a `Sequence` holds, or another list of a configuration. */
export function listOf(config: JsonObject, key: string, fail: Fail): unknown[] {
  const list = own(config, key);
  if (!Array.isArray(list)) throw fail(`${key}: expected a list, got ${kindOf(list)}`);
  return list;
}

export const prepend = (piece: Piece, text: string): Piece => {
  if (piece.text === '') return piece;
  const out = new Rewriter(piece);
  out.put(text, 0);
  out.copy(0, piece.text.length);
  return out.done();
};

/** The `normalizer` of a tokenizer.json. */
export function compileNormalizer(given: unknown, fail: Fail): Normalizer {
  const config = componentOf(given, 'normalizer', fail);
  if (config === null) return (piece) => piece;
  const type = own(config, 'type');
  const flag = (key: string, preset = true): boolean => (own(config, key) as boolean | null | undefined) ?? preset;
  switch (type) {
    case 'Sequence':
      return chain(listOf(config, 'normalizers', fail).map((one) => compileNormalizer(one, fail)));
    case 'BertNormalizer': {
      const lower = flag('lowercase');
      return chain([
        ...(flag('clean_text')
          ? [(piece: Piece) => rewrite(piece, kUnclean, (out, char, at) => out.put(/[\t\n\r\p{Z}]/u.test(char) ? ' ' : '', at))]
          : []),
        ...(flag('handle_chinese_chars') ? [(piece: Piece) => rewrite(piece, kChinese, (out, char, at) => out.put(` ${char} `, at))] : []),
        ...(flag('strip_accents', lower) ? [unicodeForm('NFD'), remove(kAccent)] : []),
        ...(lower ? [lowercase] : []),
      ]);
    }
    case 'NFC':
    case 'NFD':
    case 'NFKC':
    case 'NFKD':
      return unicodeForm(type);
    case 'Lowercase':
      return lowercase;
    case 'StripAccents':
      return remove(kMark);
    case 'Strip': {
      const [left, right] = [flag('strip_left'), flag('strip_right')];
      return (piece) => {
        const begin = left ? (/^\p{White_Space}*/u.exec(piece.text) as RegExpExecArray)[0].length : 0;
        let end = piece.text.length;
        while (right && end > begin && /\p{White_Space}/u.test(piece.text[end - 1] as string)) --end;
        return slice(piece, begin, end);
      };
    }
    case 'Nmt':
      return chain([
        // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
        remove(/[\x01-\x08\v\x0e-\x1f\x7f\x8f\x9f]/g),
        (piece) => rewrite(piece, /[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]/g, (out, _, at) => out.put(' ', at)),
      ]);
    case 'Prepend': {
      const text = String(own(config, 'prepend'));
      return (piece) => prepend(piece, text);
    }
    case 'Replace': {
      const pattern = patternOf(config, fail);
      const content = String(own(config, 'content'));
      return (piece) => rewrite(piece, pattern, (out, match, at) => out.put(content, at + Math.max(match.length - 1, 0)));
    }
    case 'ByteLevel':
      return toByteLevel;
    case 'Precompiled': {
      const given = own(config, 'precompiled_charsmap');
      if (typeof given !== 'string' && !(given instanceof Uint8Array))
        throw fail(`normalizer: precompiled_charsmap: expected text in base64, got ${kindOf(given)}`);
      try {
        const bytes = typeof given === 'string' ? Uint8Array.from(atob(given), (char) => char.charCodeAt(0)) : given;
        return precompiled(new Charsmap(bytes));
      } catch (cause) {
        throw fail(`normalizer: precompiled_charsmap: ${(cause as Error).message}`);
      }
    }
    default:
      throw fail(`normalizer: ${kindOf(type)} is not supported`, 'unsupported');
  }
}
