import { kindOf, own } from './json.ts';
import { componentOf, type Fail, kPunctuation, listOf, patternOf, prepend, toByteLevel } from './normalizer.ts';
import { escapeRegex, kWord } from './oniguruma.ts';
import { origin, type Piece, rewrite, slice } from './piece.ts';

export type PreTokenizer = (piece: Piece) => Piece[];

const kBehaviors = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'] as const;
type Behavior = (typeof kBehaviors)[number];

/** GPT-2's pattern (Radford et al. 2019, encoder.py). */
export const kGpt2 =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const kSpace = /\p{White_Space}/gu;

/** The stretches between and of a pattern's matches, joined as `behavior` says. */
function split(piece: Piece, pattern: RegExp, behavior: Behavior, invert = false): Piece[] {
  const parts: { begin: number; end: number; match: boolean }[] = [];
  let done = 0;
  const add = (begin: number, end: number, match: boolean): void => {
    if (begin < end) parts.push({ begin, end, match: match !== invert });
  };
  for (const match of piece.text.matchAll(pattern)) {
    add(done, match.index, false);
    done = match.index + match[0].length;
    add(match.index, done, true);
  }
  add(done, piece.text.length, false);
  if (behavior === 'Removed') return parts.filter((part) => !part.match).map(({ begin, end }) => slice(piece, begin, end));
  const backwards = behavior === 'MergedWithNext';
  const joined: typeof parts = [];
  let previous = false;
  for (const part of backwards ? parts.reverse() : parts) {
    const last = joined.at(-1);
    const join = behavior === 'Contiguous' ? part.match === previous : behavior !== 'Isolated' && part.match && !previous;
    if (join && last !== undefined) {
      if (backwards) last.begin = part.begin;
      else last.end = part.end;
    } else joined.push({ ...part });
    previous = part.match;
  }
  if (backwards) joined.reverse();
  return joined.map(({ begin, end }) => slice(piece, begin, end));
}

/** The `pre_tokenizer` of a tokenizer.json. */
export function compilePreTokenizer(parsed: unknown, fail: Fail): PreTokenizer {
  const config = componentOf(parsed, 'pre_tokenizer', fail);
  if (config === null) return (piece) => [piece];
  const type = own(config, 'type');
  const by =
    (pattern: RegExp, behavior: Behavior, invert = false): PreTokenizer =>
    (piece) =>
      split(piece, pattern, behavior, invert);
  const behavior = (preset?: Behavior): Behavior => {
    const given = own(config, 'behavior') ?? preset;
    const known = kBehaviors.find((one) => one === given);
    if (known === undefined) throw fail(`${type}.behavior: expected one of ${kBehaviors.join(', ')}, got ${kindOf(given)}`);
    return known;
  };
  switch (type) {
    case 'Sequence': {
      const all = listOf(config, 'pretokenizers', fail).map((one) => compilePreTokenizer(one, fail));
      return (piece) => all.reduce((pieces, one) => pieces.flatMap(one), [piece]);
    }
    case 'ByteLevel': {
      const prefixed = own(config, 'add_prefix_space') !== false;
      const plain = own(config, 'use_regex') === false;
      return (piece) => {
        const begun = prefixed && !piece.text.startsWith(' ') ? prepend(piece, ' ') : piece;
        return (plain ? [begun] : split(begun, kGpt2, 'Isolated')).map(toByteLevel);
      };
    }
    case 'BertPreTokenizer':
      return by(new RegExp(`${kPunctuation}|(?:[\\p{L}\\p{N}]|(?!${kPunctuation})\\P{White_Space})+`, 'gu'), 'Removed', true);
    case 'Whitespace':
      return by(new RegExp(`[${kWord}\\p{Join_Control}]+|[^${kWord}\\p{Join_Control}\\p{White_Space}]+`, 'gu'), 'Removed', true);
    case 'WhitespaceSplit':
      return by(kSpace, 'Removed');
    case 'Punctuation':
      return by(new RegExp(kPunctuation, 'gu'), behavior('Isolated'));
    case 'Digits':
      return by(/\p{N}/gu, own(config, 'individual_digits') === true ? 'Isolated' : 'Contiguous');
    case 'CharDelimiterSplit':
      return by(new RegExp(escapeRegex(String(own(config, 'delimiter'))), 'gu'), 'Removed');
    case 'Split':
      return by(patternOf(config, fail), behavior(), own(config, 'invert') === true);
    case 'Metaspace': {
      const mark = String(own(config, 'replacement') ?? '\u2581');
      const scheme = own(config, 'prepend_scheme') ?? (own(config, 'add_prefix_space') === false ? 'never' : 'always');
      const pattern = own(config, 'split') === false ? null : new RegExp(escapeRegex(mark), 'gu');
      return (piece) => {
        let made = rewrite(piece, / /g, (out, _, at) => out.put(mark, at));
        if (!made.text.startsWith(mark) && (scheme === 'always' || (scheme === 'first' && origin(piece, 0) === 0)))
          made = prepend(made, mark);
        return pattern === null ? [made] : split(made, pattern, 'MergedWithNext');
      };
    }
    default:
      throw fail(`pre_tokenizer: ${kindOf(type)} is not supported`, 'unsupported');
  }
}
