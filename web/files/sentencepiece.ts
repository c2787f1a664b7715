import { WasmformerError } from '../errors.ts';
import { Charsmap } from './charsmap.ts';
import { kindOf } from './json.ts';
import type { Normalizer } from './normalizer.ts';
import { type Piece, Rewriter, slice } from './piece.ts';
import { byteIds, byteToken, type Subwords, viterbi } from './subword.ts';
import { mergeSymbols, type Symbols, Trie } from './tables.ts';

/** What a piece is (sentencepiece_model.proto). */
export const pieceTypes = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

export interface SentencePiece {
  text: string;
  /** A float32: the logarithm of its probability (unigram), or minus its rank (BPE). */
  score: number;
  type: number;
}

/** A SentencePiece model (Kudo and Richardson 2018), as its file has it. */
export interface SentencePieceModel {
  kind: 'unigram' | 'bpe';
  pieces: SentencePiece[];
  unknown: number;
  /** Ids that the trainer gave these, -1 for none. */
  bos: number;
  eos: number;
  pad: number;
  byteFallback: boolean;
  charsmap: Uint8Array | null;
  addDummyPrefix: boolean;
  removeExtraWhitespaces: boolean;
  escapeWhitespaces: boolean;
}

type Field = (field: number, value: number, begin: number, end: number) => void;

/** Calls `visit` for each field of a protocol buffer: an integer, the bits of a float32, or the place of bytes. */
function eachField(view: DataView, begin: number, end: number, visit: Field, bad: (message: string) => Error): void {
  let at = begin;
  /** The low 32 bits, signed: negative numbers have ten bytes. */
  const varint = (): number => {
    let value = 0;
    for (let shift = 0; shift < 70 && at < end; shift += 7) {
      const byte = view.getUint8(at++);
      if (shift < 32) value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw bad('a number: expected at most 10 bytes and its end');
  };
  while (at < end) {
    const tag = varint() >>> 0;
    const wire = tag & 7;
    const value = wire === 0 || wire === 2 ? varint() : 0;
    const size = wire === 2 ? value : wire === 5 ? 4 : wire === 1 ? 8 : 0;
    if (wire === 3 || wire === 4 || wire > 5) throw bad(`a field's type: expected 0, 1, 2 or 5, got ${wire}`);
    if (size < 0 || size > end - at) throw bad(`field ${tag >>> 3}: expected at most ${end - at} bytes, got ${size}`);
    visit(tag >>> 3, wire === 5 ? view.getFloat32(at, true) : value, at, at + size);
    at += size;
  }
}

/**
 * Reads a `.model` or `.spm` file.
 * @throws WasmformerError `invalid-file`; `unsupported` for word and character models and for white space as a suffix
 */
export function readSentencePiece(bytes: Uint8Array, where: string): SentencePieceModel {
  const bad = (message: string): WasmformerError => new WasmformerError('invalid-file', `[${where}] ${message}`);
  const unsupported = (what: string): WasmformerError => new WasmformerError('unsupported', `[${where}] ${what} is not supported`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const model: SentencePieceModel = {
    kind: 'unigram',
    pieces: [],
    unknown: -1,
    bos: 1,
    eos: 2,
    pad: -1,
    byteFallback: false,
    charsmap: null,
    addDummyPrefix: true,
    removeExtraWhitespaces: true,
    escapeWhitespaces: true,
  };
  let type = 1;
  const piece = (begin: number, end: number): void => {
    const made: SentencePiece = { text: '', score: 0, type: pieceTypes.normal };
    eachField(
      view,
      begin,
      end,
      (field, value, from, to) => {
        if (field === 1) {
          try {
            made.text = decoder.decode(bytes.subarray(from, to));
          } catch (cause) {
            throw new WasmformerError('invalid-file', `[${where}] piece ${model.pieces.length}: expected UTF-8`, { cause });
          }
        } else if (field === 2) made.score = value;
        else if (field === 3) made.type = value;
      },
      bad,
    );
    const id = model.pieces.push(made) - 1;
    if (made.text === '' || made.text.includes('\0')) throw bad(`piece ${id}: expected a text without zeros, got ${kindOf(made.text)}`);
    if (Number.isNaN(made.score)) throw bad(`piece ${id}: score: expected a number, got NaN`);
    if (!(made.type >= 1 && made.type <= 6)) throw bad(`piece ${id}: type: expected 1 to 6, got ${made.type}`);
    if (made.type !== pieceTypes.unknown) return;
    if (model.unknown >= 0) throw bad(`piece ${id}: expected one unknown piece, got a second`);
    model.unknown = id;
  };
  const trainer: Field = (field, value) => {
    if (field === 3) type = value;
    else if (field === 24 && value !== 0) throw unsupported('treat_whitespace_as_suffix');
    else if (field === 35) model.byteFallback = value !== 0;
    else if (field === 41) model.bos = value;
    else if (field === 42) model.eos = value;
    else if (field === 43) model.pad = value;
  };
  const normalizer: Field = (field, value, from, to) => {
    if (field === 2 && to > from) model.charsmap = bytes.subarray(from, to);
    else if (field === 3) model.addDummyPrefix = value !== 0;
    else if (field === 4) model.removeExtraWhitespaces = value !== 0;
    else if (field === 5) model.escapeWhitespaces = value !== 0;
  };
  const denormalizer: Field = (field, _, from, to) => {
    if (field === 2 && to > from) throw unsupported('denormalizer_spec');
  };
  eachField(
    view,
    0,
    bytes.length,
    (field, _, from, to) => {
      if (field === 1) piece(from, to);
      else if (field === 2 || field === 3 || field === 5)
        eachField(view, from, to, field === 2 ? trainer : field === 3 ? normalizer : denormalizer, bad);
    },
    bad,
  );
  if (type !== 1 && type !== 2) throw unsupported(`model_type ${type}, neither 1 (unigram) nor 2 (BPE),`);
  if (type === 2) model.kind = 'bpe';
  if (model.unknown < 0) throw bad(`pieces: expected one of type unknown among ${model.pieces.length}`);
  const texts = new Set(model.pieces.map(({ text }) => text));
  if (texts.size < model.pieces.length) throw bad(`pieces: expected ${model.pieces.length} different ones, got ${texts.size}`);
  for (let byte = 0; model.byteFallback && byte < 256; ++byte)
    if (!texts.has(byteToken(byte))) throw bad(`pieces: expected ${byteToken(byte)}, as byte_fallback is set`);
  try {
    if (model.charsmap !== null) new Charsmap(model.charsmap);
  } catch (cause) {
    throw bad(`precompiled_charsmap: ${(cause as Error).message}`);
  }
  return model;
}

/** The longest user-defined pieces, which neither normalisation nor merges touch; null for none. */
function userDefined(model: SentencePieceModel): Trie | null {
  const pieces = model.pieces.filter(({ type }) => type === pieceTypes.userDefined);
  if (pieces.length === 0) return null;
  const trie = new Trie();
  for (const { text } of pieces) trie.add(text, 0);
  return trie;
}

/**
 * The sentencepiece library's normalisation (normalizer.cc): rules of the charsmap, the longest first; spaces as U+2581;
 * one before the text; extra ones left out.
 * @param prefix where the space before the text is put, if the model asks for one: before each stretch between added
 * tokens, or before the text's first alone
 */
export function sentencePieceNormalizer(model: SentencePieceModel, prefix: 'always' | 'first' = 'always'): Normalizer {
  const map = model.charsmap === null ? null : new Charsmap(model.charsmap);
  const defined = userDefined(model);
  const mark = model.escapeWhitespaces ? '\u2581' : ' ';
  const trims = model.removeExtraWhitespaces;
  return (piece: Piece): Piece => {
    const { text } = piece;
    const bytes = map === null ? null : new TextEncoder().encode(text);
    let at = 0;
    let byte = 0;
    /** What the text's next rule makes; `at` is then behind it. */
    const next = (): string => {
      const begin = at;
      const symbol = defined?.longest(text, at);
      const rule = symbol || bytes === null ? null : (map as Charsmap).longest(bytes, byte);
      const stop = byte + (rule?.length ?? 0);
      do {
        const code = text.codePointAt(at) as number;
        at += code > 0xffff ? 2 : 1;
        byte += code < 0x80 ? 1 : code < 0x800 ? 2 : code > 0xffff ? 4 : 3;
      } while (at < text.length && (symbol ? at < symbol.end : byte < stop));
      return rule?.text ?? text.slice(begin, at);
    };
    const out = new Rewriter(piece);
    let begun = false;
    let spaceBefore = trims;
    while (at < text.length) {
      const begin = at;
      let made = next();
      // Spaces before the text are left out before anything else is looked at.
      if (!begun && trims && made === ' ') continue;
      if (!begun && model.addDummyPrefix && (prefix === 'always' || piece.at === 0)) out.put(mark, begin);
      begun = true;
      if (spaceBefore) made = made.replace(/^ +/, '');
      if (made === '') continue;
      if (made === text.slice(begin, at) && at - begin > 1) {
        let from = begin;
        for (const char of made) {
          out.put(char === ' ' ? mark : char, from);
          from += char.length;
        }
      } else out.put(mark === ' ' ? made : made.replaceAll(' ', mark), begin);
      spaceBefore = trims && made.endsWith(' ');
    }
    const done = out.done(text.length);
    let end = done.text.length;
    while (trims && done.text[end - 1] === mark) --end;
    return slice(done, 0, end);
  };
}

/** Segments a text that `sentencePieceNormalizer` made. Unknown characters are one token, or one a byte. */
export function sentencePieceSubwords(model: SentencePieceModel): Subwords {
  const { pieces, unknown } = model;
  const ids = new Map(pieces.map(({ text }, id) => [text, id]));
  const segment = model.kind === 'bpe' ? bpe(model, ids) : unigram(model);
  return (text) => {
    const tokens = segment(text);
    if (!model.byteFallback) return tokens;
    const made: number[] = [];
    for (let i = 0; i < tokens.length; i += 3) {
      const [id, begin, end] = tokens.slice(i, i + 3) as [number, number, number];
      if (id !== unknown) made.push(id, begin, end);
      else {
        let at = begin;
        for (const char of text.slice(begin, end)) {
          for (const byte of byteIds(char, ids) as number[]) made.push(byte, at, at + char.length);
          at += char.length;
        }
      }
    }
    return made;
  };
}

function unigram({ pieces, unknown }: SentencePieceModel): Subwords {
  const normal = pieces.filter(({ type }) => type === pieceTypes.normal);
  const least = normal.reduce((low, { score }) => Math.min(low, score), Number.POSITIVE_INFINITY);
  // The library begins its search for the best with the smallest positive float32.
  const best = normal.reduce((high, { score }) => Math.max(high, score), 2 ** -126);
  const usable = pieces.flatMap(({ text, score, type }, id) => {
    const bonus = Math.fround(new TextEncoder().encode(text).length * best) - 0.1;
    if (type === pieceTypes.normal || type === pieceTypes.userDefined)
      return [[text, id, type === pieceTypes.normal ? score : bonus] as const];
    return [];
  });
  return viterbi({ pieces: usable, unknown, unknownScore: Math.fround(least - 10), single: true }, (message) => new Error(message));
}

/** Merges the two neighbours that make the piece of the best score, the leftmost of equals (bpe_model.cc). */
function bpe(model: SentencePieceModel, all: ReadonlyMap<string, number>): Subwords {
  const { pieces, unknown } = model;
  const ids = new Map([...all].filter(([, id]) => [1, 4, 5].includes((pieces[id] as SentencePiece).type)));
  // 0 for the best score, the same for the same.
  const order = new Map([...new Set(pieces.map(({ score }) => score))].sort((a, b) => b - a).map((score, rank) => [score, rank]));
  const defined = userDefined(model);
  return (text) => {
    const symbols: Symbols = { ids: [], begins: [], ends: [] };
    const frozen: boolean[] = [];
    for (let at = 0; at < text.length; ) {
      const symbol = defined?.longest(text, at);
      const end = symbol?.end ?? at + ((text.codePointAt(at) as number) > 0xffff ? 2 : 1);
      symbols.ids.push(ids.get(text.slice(at, end)) ?? unknown);
      symbols.begins.push(at);
      symbols.ends.push(end);
      frozen.push(symbol !== null && symbol !== undefined);
      at = end;
    }
    /** How unused pieces came about, by their text: they are taken apart again. */
    const halves = new Map<string, number>();
    const joined = mergeSymbols(symbols, {
      pair: ({ begins, ends }, left, right) => {
        if (frozen[left] || frozen[right]) return -1;
        const whole = text.slice(begins[left], ends[right]);
        const id = ids.get(whole) ?? -1;
        if (pieces[id]?.type === pieceTypes.unused) halves.set(whole, (ends[left] as number) - (begins[left] as number));
        return id;
      },
      rank: (id) => order.get((pieces[id] as SentencePiece).score) as number,
      id: (id) => id,
    });
    const tokens: number[] = [];
    const add = (begin: number, end: number): void => {
      const piece = text.slice(begin, end);
      const half = halves.get(piece);
      const found = ids.get(piece) ?? unknown;
      const id = pieces[found]?.type === pieceTypes.unused ? unknown : found;
      if (half !== undefined) {
        add(begin, begin + half);
        add(begin + half, end);
      } else if (id === unknown && tokens.at(-3) === unknown) tokens[tokens.length - 1] = end;
      else tokens.push(id, begin, end);
    };
    joined.begins.forEach((begin, i) => {
      add(begin, joined.ends[i] as number);
    });
    return tokens;
  };
}
