/**
 * A stretch of text on its way through a tokenizer, which remembers where it came from: the character of its unit i
 * begins at `from[at + i]` in the original text, or at `at + i` where nothing was rewritten. All positions are UTF-16's.
 */
export interface Piece {
  text: string;
  at: number;
  from: readonly number[] | null;
  /** Whether each unit stands for all up to where the next one came from, rather than for a character. */
  gapless?: boolean;
}

export function slice(piece: Piece, begin: number, end = piece.text.length): Piece {
  return begin === 0 && end === piece.text.length ? piece : { ...piece, text: piece.text.slice(begin, end), at: piece.at + begin };
}

/** Where in the original a piece's unit came from. */
export function origin(piece: Piece, unit: number): number {
  return piece.from === null ? piece.at + unit : (piece.from[piece.at + unit] ?? 0);
}

/** The stretch of the original that units of a piece stand for. */
export function offsetsOf(piece: Piece, begin: number, end: number, original: string): [number, number] {
  if (piece.from === null || piece.gapless || begin >= end) return [origin(piece, begin), origin(piece, end)];
  const last = origin(piece, end - 1);
  return [origin(piece, begin), last + ((original.codePointAt(last) as number) > 0xffff ? 2 : 1)];
}

/** Writes a piece's text anew, keeping track of origins. */
export class Rewriter {
  #text = '';
  readonly #from: number[] = [];
  readonly #source: Piece;

  constructor(source: Piece) {
    this.#source = source;
  }

  copy(begin: number, end: number): void {
    const { text, from, at } = this.#source;
    this.#text += text.slice(begin, end);
    for (let i = begin; i < end; ++i) this.#from.push(from === null ? at + (isTrail(text, i) ? i - 1 : i) : (from[at + i] as number));
  }

  /** Text that stands for the character of the source's unit `unit`. */
  put(text: string, unit: number): void {
    const place = origin(this.#source, isTrail(this.#source.text, unit) ? unit - 1 : unit);
    this.#text += text;
    for (let i = 0; i < text.length; ++i) this.#from.push(place);
  }

  /** @param end where the source's last unit ends, for a piece without gaps */
  done(end?: number): Piece {
    if (end !== undefined) this.#from.push(origin(this.#source, end));
    return { text: this.#text, at: 0, from: this.#from, gapless: end !== undefined };
  }
}

/** Whether a unit is the second of a surrogate pair. */
export const isTrail = (text: string, unit: number): boolean => (text.charCodeAt(unit) & 0xfc00) === 0xdc00;

/** A piece with every match of a pattern written anew by `each`. */
export function rewrite(piece: Piece, pattern: RegExp, each: (out: Rewriter, match: string, begin: number) => void): Piece {
  let out: Rewriter | null = null;
  let done = 0;
  for (const match of piece.text.matchAll(pattern)) {
    out ??= new Rewriter(piece);
    out.copy(done, match.index);
    each(out, match[0], match.index);
    done = match.index + match[0].length;
  }
  if (out === null) return piece;
  out.copy(done, piece.text.length);
  return out.done();
}
