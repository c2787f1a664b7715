import { WasmformerError } from '../errors.ts';
import type { Offsets } from '../task-types.ts';

/** A letter, mark or digit of a script that puts spaces between words. */
const kLetter = '(?![\\p{sc=Han}\\p{sc=Hira}\\p{sc=Kana}\\p{sc=Thai}\\p{sc=Lao}\\p{sc=Khmr}\\p{sc=Mymr}])[\\p{L}\\p{M}\\p{N}]';
const kInWord = new RegExp(`(?<=${kLetter})(?=${kLetter})`, 'uy');

/** Whether a word goes on across a place in a text. */
export function isInWord(text: string, at: number): boolean {
  kInWord.lastIndex = at;
  // Between the halves of a surrogate pair a match would begin at its first.
  return at > 0 && at < text.length && ((text.charCodeAt(at) & 0xfc00) === 0xdc00 || kInWord.test(text));
}

const kUnspaced = '[\\p{sc=Han}\\p{sc=Hira}\\p{sc=Kana}]';
const kSpacedWord = `(?:(?!${kUnspaced})[\\p{L}\\p{M}\\p{N}])+`;

/** Whether a text is mostly in a script that puts spaces between sentences: more of its words than Chinese or Japanese characters. */
export function isSpaced(text: string): boolean {
  const [words, characters] = [kSpacedWord, kUnspaced].map((pattern) => text.match(new RegExp(pattern, 'gu'))?.length ?? 0);
  return words > characters;
}

/** A stretch of a text without the white space around it. */
export function trimmed(text: string, begin: number, end: number): Offsets {
  const inner = text.slice(begin, end);
  return [end - inner.trimStart().length, begin + inner.trimEnd().length];
}

/** The words that tokens make up, white space and empty tokens left out: where each stands, and which tokens it is made of. */
export function wordsOf(text: string, tokens: readonly Offsets[]): { offsets: Offsets; tokens: number[] }[] {
  const words: { offsets: Offsets; tokens: number[] }[] = [];
  for (const [t, [from, to]] of tokens.entries()) {
    const [begin, end] = trimmed(text, from, to);
    if (begin >= end) continue;
    const last = words.at(-1);
    if (last && (begin < last.offsets[1] || (begin === last.offsets[1] && isInWord(text, begin)))) {
      last.tokens.push(t);
      last.offsets[1] = Math.max(end, last.offsets[1]);
    } else {
      words.push({ offsets: [begin, end], tokens: [t] });
    }
  }
  return words;
}

/** A point after which no sentence ends: initials and abbreviations, titles, the number of a list's entry. */
const kNoEnd =
  /(?:^|[\s(])(?:(?:\p{L}\.\s?)*\p{L}|Mrs?|Ms|Drs?|Profs?|Rev|Gen|Capt|Lt|Col|Sgt|St|Sra?|Srta|Mme|Mlle|Hr|Fr|Nr|No|Str|Fig|vs|cf|bzw|ca)\.\s*$|^\s*\p{N}+[.)]\s*$/u;

/**
 * The stretches of a text, from `at` on, that are translated one by one, without the white space around them; what has neither a
 * letter nor a digit is none. Sentences are those of Unicode's annex 29 by the rules of a language, abbreviations apart.
 */
export function* sentencesOf(text: string, at: number, split: boolean | 'lines', language = 'en'): Generator<Offsets> {
  let segmenter: Intl.Segmenter | undefined;
  for (const { 0: line, index } of split ? text.slice(at).matchAll(/[^\n-\r\x85\u2028\u2029]+/g) : [{ 0: text.slice(at), index: 0 }]) {
    let begin = at + index;
    let end = begin;
    const take = function* (): Generator<Offsets> {
      if (/[\p{L}\p{N}]/u.test(text.slice(begin, end))) yield trimmed(text, begin, end);
      begin = end;
    };
    if (split === true) {
      if (!Intl.Segmenter)
        throw new WasmformerError('unsupported', "[translate] split: this engine has no Intl.Segmenter: pass 'lines' or false");
      segmenter ??= new Intl.Segmenter(localeOf(language), { granularity: 'sentence' });
      for (const segment of segmentsOf(segmenter, line)) {
        end += segment.length;
        // The end of a long stretch says enough; all of it each time would take quadratic time.
        if (!kNoEnd.test(text.slice(Math.max(begin, end - 200), end))) yield* take();
      }
    }
    end = at + index + line.length;
    yield* take();
  }
}

/**
 * The segments of a text, a stretch at a time: engines take a time that grows with the square of what they are given. The last segment of
 * a stretch is begun again in the next.
 */
function* segmentsOf(segmenter: Intl.Segmenter, text: string): Generator<string> {
  const most = 4096;
  for (let at = 0; at < text.length; ) {
    const found = Array.from(segmenter.segment(text.slice(at, at + most)), ({ segment }) => segment);
    if (at + most < text.length && found.length > 1) found.pop();
    for (const segment of found) {
      yield segment;
      at += segment.length;
    }
  }
}

/** A model's code of a language as Intl has it, where it has it. */
function localeOf(language: string): string {
  try {
    return Intl.getCanonicalLocales(language.replace(/_XX$/, '').replaceAll('_', '-'))[0];
  } catch {
    return 'en';
  }
}

/** Where a stretch that is too long is best cut: after a comma or the like, else after white space, else between two characters; the nearest to its middle. 0 for one character. */
export function splitNear(text: string, begin: number, end: number): number {
  const inner = text.slice(begin, end);
  const off = (at: number) => Math.abs(2 * at - inner.length);
  for (const pattern of [/[,;:\u060c\u061b]\s+|[\uff0c\uff1b\uff1a\u3001]\s*|\s[-\u2013\u2014]\s/g, /\s+/g, /.(?!\p{M})/gsu]) {
    let best = 0;
    for (const { 0: match, index } of inner.matchAll(pattern)) {
      const at = index + match.length;
      if (at < inner.length && off(at) < off(best)) best = at;
    }
    if (best > 0) return begin + best;
  }
  return 0;
}
