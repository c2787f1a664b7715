import { isObject, type JsonObject, kindOf, own } from './json.ts';
import { type Fail, listOf } from './normalizer.ts';
import { mergeSymbols, PairTable, type Symbols, Trie } from './tables.ts';

/** Tokens of a text: id, begin and end (in UTF-16 units of the text), and so on, three numbers each. */
export type Subwords = (text: string) => number[];

const utf8 = new TextEncoder();
/** The tokens SentencePiece has for bytes. */
export const byteToken = (byte: number): string => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;

/** The ids of a text's bytes, or null where one has none. */
export function byteIds(text: string, ids: ReadonlyMap<string, number>): number[] | null {
  const found = Array.from(utf8.encode(text), (byte) => ids.get(byteToken(byte)));
  return found.every((id) => id !== undefined) ? (found as number[]) : null;
}

/** Remembers the tokens of words that come again. */
function remembered(make: Subwords): Subwords {
  const cache = new Map<string, number[]>();
  return (text) => {
    let tokens = cache.get(text);
    if (tokens === undefined) {
      tokens = make(text);
      if (text.length <= 64) {
        if (cache.size >= 20_000) cache.clear();
        cache.set(text, tokens);
      }
    }
    return tokens;
  };
}

/** Strings of a config's keys; `preset` where they are absent. */
const textOf = (config: JsonObject, key: string, preset: string): string => String(own(config, key) ?? preset);

/** Greedily the longest token that begins each rest of a word (Schuster and Nakajima 2012; Devlin et al. 2019). */
function wordPiece(config: JsonObject, ids: ReadonlyMap<string, number>, fail: Fail): Subwords {
  const unknown = ids.get(textOf(config, 'unk_token', '[UNK]'));
  if (unknown === undefined) throw fail(`model.unk_token: expected a token of the vocabulary, got ${kindOf(own(config, 'unk_token'))}`);
  const prefix = textOf(config, 'continuing_subword_prefix', '##');
  const most = own(config, 'max_input_chars_per_word') ?? 100;
  if (typeof most !== 'number') throw fail(`model.max_input_chars_per_word: expected a number, got ${kindOf(most)}`);
  let longest = 0;
  for (const token of ids.keys()) longest = Math.max(longest, token.length);
  return (word) => {
    const whole = [unknown, 0, word.length];
    if (word.length > most && [...word].length > most) return whole;
    const tokens: number[] = [];
    for (let begin = 0; begin < word.length; ) {
      let end = Math.min(word.length, begin + longest);
      let id: number | undefined;
      for (; end > begin; --end) {
        id = ids.get(begin > 0 ? prefix + word.slice(begin, end) : word.slice(begin, end));
        if (id !== undefined) break;
      }
      if (id === undefined) return whole;
      tokens.push(id, begin, end);
      begin = end;
    }
    return tokens;
  };
}

/** Byte-pair encoding by a list of merges (Sennrich et al. 2016), as the tokenizers library applies it. */
function bpe(config: JsonObject, ids: ReadonlyMap<string, number>, fail: Fail): Subwords {
  const [prefix, suffix] = [textOf(config, 'continuing_subword_prefix', ''), textOf(config, 'end_of_word_suffix', '')];
  const unknown = ids.get(String(own(config, 'unk_token')));
  const flag = (key: string): boolean => own(config, key) === true;
  const [fuse, fallback, wholes] = [flag('fuse_unk'), flag('byte_fallback'), flag('ignore_merges')];
  const ranks = new PairTable();
  const made = listOf(config, 'merges', fail).map((merge, rank) => {
    const [left, right] = typeof merge === 'string' ? merge.split(' ') : Array.isArray(merge) ? merge : [];
    const parts = [left, right, `${left}${String(right).slice(prefix.length)}`].map((token) => ids.get(token) ?? -1);
    if (parts.includes(-1)) throw fail(`model.merges: expected two tokens that make a third, got ${kindOf(`${left} ${right}`)}`);
    ranks.set(parts[0] as number, parts[1] as number, rank);
    return parts[2] as number;
  });
  const merging = {
    pair: ({ ids }: Symbols, left: number, right: number) => ranks.get(ids[left] as number, ids[right] as number),
    rank: (rank: number) => rank,
    id: (rank: number) => made[rank] as number,
  };
  return (word) => {
    const whole = wholes ? ids.get(word) : undefined;
    if (whole !== undefined) return [whole, 0, word.length];
    const symbols: Symbols = { ids: [], begins: [], ends: [] };
    let unknownBefore = false;
    const add = (id: number, begin: number, end: number): void => {
      symbols.ids.push(id);
      symbols.begins.push(begin);
      symbols.ends.push(end);
    };
    for (let at = 0; at < word.length; ) {
      const begin = at;
      const char = String.fromCodePoint(word.codePointAt(at) as number);
      at += char.length;
      const symbol = `${begin > 0 ? prefix : ''}${char}${at === word.length ? suffix : ''}`;
      const id = ids.get(symbol);
      const bytes = id === undefined && fallback ? byteIds(symbol, ids) : null;
      const known = id !== undefined || bytes !== null;
      if (id !== undefined) add(id, begin, at);
      else if (bytes !== null) for (const byte of bytes) add(byte, begin, at);
      else if (unknown !== undefined) {
        if (fuse && unknownBefore) symbols.ends[symbols.ends.length - 1] = at;
        else add(unknown, begin, at);
      }
      unknownBefore = !known;
    }
    const { ids: joined, begins, ends } = mergeSymbols(symbols, merging);
    return joined.flatMap((id, i) => [id, begins[i] as number, ends[i] as number]);
  };
}

/** A unigram language model's pieces. */
export interface UnigramPieces {
  /** Texts that may be used, with their id and score. */
  pieces: Iterable<readonly [text: string, id: number, score: number]>;
  unknown: number | undefined;
  /** The score of a character that is no piece. */
  unknownScore: number;
  /** Whether sums of scores are kept as float32, as the sentencepiece library does; the tokenizers library keeps float64. */
  single: boolean;
}

/**
 * The likeliest segmentation by a unigram language model (Kudo 2018), found by dynamic programming over ends; of equal
 * ones the first found, from the left and the shortest. Neighbouring unknown characters are one token.
 * @returns tokens with `unknown` as their id where they are
 */
export function viterbi({ pieces, unknown, unknownScore, single }: UnigramPieces, fail: Fail): Subwords {
  const trie = new Trie();
  const ids: number[] = [];
  const scores: number[] = [];
  for (const [text, id, score] of pieces) {
    trie.add(text, ids.length);
    ids.push(id);
    scores.push(score);
  }
  const kept = single ? Math.fround : (score: number): number => score;
  return (text) => {
    const size = text.length;
    const best = new Float64Array(size + 1);
    const begins = new Int32Array(size + 1).fill(-1);
    const chosen = new Int32Array(size + 1);
    for (let at = 0; at < size; ) {
      const next = at + ((text.codePointAt(at) as number) > 0xffff ? 2 : 1);
      const till = best[at] as number;
      const offer = (score: number, end: number, piece: number): void => {
        const sum = kept(score + till);
        if (begins[end] !== -1 && sum <= (best[end] as number)) return;
        best[end] = sum;
        begins[end] = at;
        chosen[end] = piece;
      };
      let alone = false;
      trie.prefixes(text, at, (piece, end) => {
        offer(scores[piece] as number, end, piece);
        alone ||= end === next;
      });
      if (!alone) offer(unknownScore, next, -1);
      at = next;
    }
    const tokens: number[] = [];
    for (let end = size, after = -2; end > 0; end = begins[end] as number) {
      const piece = chosen[end] as number;
      // Written from the end: begin, end and id turned round make id, begin, end.
      const id = piece < 0 ? unknown : (ids[piece] as number);
      if (id === undefined) throw fail('model.unk_id: expected the id of an unknown token, as the text has unknown characters');
      if (id === unknown && after === id) tokens[tokens.length - 2] = begins[end] as number;
      else tokens.push(end, begins[end] as number, id);
      after = id;
    }
    return tokens.reverse();
  };
}

function unigram(config: JsonObject, ids: ReadonlyMap<string, number>, fail: Fail): Subwords {
  const vocab = own(config, 'vocab') as [string, number][];
  const given = own(config, 'unk_id');
  if (given != null && !(Number.isInteger(given) && (given as number) >= 0 && (given as number) < vocab.length))
    throw fail(`model.unk_id: expected an index below ${vocab.length}, got ${kindOf(given)}`);
  const unknown = (given ?? undefined) as number | undefined;
  const fallback = own(config, 'byte_fallback') === true;
  let least = Number.POSITIVE_INFINITY;
  for (const [text, score] of vocab) {
    if (typeof score !== 'number') throw fail(`model.vocab: ${text}: expected a score, got ${kindOf(score)}`);
    least = Math.min(least, score);
  }
  const pieces = vocab.map(([text, score], id) => [text, ids.get(text) ?? id, score] as const);
  const segment = viterbi({ pieces, unknown, unknownScore: least - 10, single: false }, fail);
  if (!fallback) return segment;
  return (text) => {
    const tokens = segment(text);
    const made: number[] = [];
    for (let i = 0; i < tokens.length; i += 3) {
      const [id, begin, end] = tokens.slice(i, i + 3) as [number, number, number];
      const bytes = id === unknown ? byteIds(text.slice(begin, end), ids) : null;
      for (const one of bytes ?? [id]) made.push(one, begin, end);
    }
    return made;
  };
}

/** The `model` of a tokenizer.json. `ids` are those of its vocabulary, without added tokens. */
export function compileModel(config: JsonObject, ids: ReadonlyMap<string, number>, fail: Fail): Subwords {
  const type =
    own(config, 'type') ?? (Array.isArray(own(config, 'merges')) ? 'BPE' : isObject(own(config, 'vocab')) ? 'WordPiece' : 'Unigram');
  switch (type) {
    case 'BPE':
      return remembered(bpe(config, ids, fail));
    case 'WordPiece':
      return remembered(wordPiece(config, ids, fail));
    case 'Unigram':
      return remembered(unigram(config, ids, fail));
    case 'WordLevel': {
      const unknown = ids.get(textOf(config, 'unk_token', '<unk>'));
      return (word) => {
        const id = ids.get(word) ?? unknown;
        return id === undefined ? [] : [id, 0, word.length];
      };
    }
    default:
      throw fail(`model.type: ${kindOf(type)} is not supported`, 'unsupported');
  }
}
