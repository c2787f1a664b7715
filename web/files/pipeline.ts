import type { Normalizer } from './normalizer.ts';
import { kWord } from './oniguruma.ts';
import { offsetsOf, type Piece, slice } from './piece.ts';
import type { Part, PostProcessor } from './post-processor.ts';
import type { PreTokenizer } from './pre-tokenizer.ts';
import type { Subwords } from './subword.ts';
import { Trie } from './tables.ts';

/** A token that is found in the text before the model sees it. */
export interface AddedToken {
  id: number;
  content: string;
  special: boolean;
  /** Takes the white space before it, and after it. */
  lstrip: boolean;
  rstrip: boolean;
  /** Is looked for in the normalised text. */
  normalized: boolean;
  /** Only where no letter, digit or mark stands beside it. */
  single_word: boolean;
}

/** Ids of one or two texts, with what each stands for; one entry a token in each list. */
export interface Encoding {
  ids: number[];
  /** Which segment a token belongs to, as BERT's models want it. */
  typeIds: number[];
  /** UTF-16 begin and end in the text it came from; [0, 0] for added special tokens. */
  offsets: [number, number][];
  /** 0: of the first text; 1: of the second; -1: added. */
  sequence: number[];
}

/** What turns text into tokens. */
export interface Stages {
  added: Iterable<AddedToken>;
  normalize: Normalizer;
  preTokenize: PreTokenizer;
  subwords: Subwords;
  /** A token's text by its id. */
  tokenOf(id: number): string;
  postProcess: PostProcessor;
  /** The token a stretch of text begins with whatever comes after, and how long it is. */
  lead?: (text: string) => { id: number; length: number } | null;
  /** Whether no token reaches over a place where a space follows something else, or depends on what is beyond it. */
  apart?: boolean;
}

/** What steps lead to. */
export function finished<T>(steps: Generator<undefined, T>): T {
  for (;;) {
    const { value, done } = steps.next();
    if (done) return value;
  }
}

/** UTF-16 units, or tokens, between two steps. */
const kStride = 8192;

/** A stretch of text, or the token that it is. */
interface Section {
  piece: Piece;
  token: AddedToken | null;
}

const kStartsWithWord = new RegExp(`^[${kWord}\\p{Join_Control}]`, 'u');
const kEndsWithWord = new RegExp(`[${kWord}\\p{Join_Control}]$`, 'u');

class Finder {
  readonly #trie = new Trie();
  readonly #tokens: AddedToken[] = [];

  add(text: string, token: AddedToken): void {
    if (text !== '') this.#trie.add(text, this.#tokens.push(token) - 1);
  }

  /** Cuts a piece at its tokens, the leftmost and longest first. */
  split(piece: Piece): Section[] {
    const { text } = piece;
    if (this.#tokens.length === 0) return [{ piece, token: null }];
    const sections: Section[] = [];
    let done = 0;
    for (let at = 0; at < text.length; ++at) {
      const match = this.#trie.longest(text, at);
      if (match === null) continue;
      const token = this.#tokens[match.value] as AddedToken;
      let [begin, end] = [at, match.end];
      at = end - 1;
      // A window is enough: the classes look at one character.
      if (
        token.single_word &&
        (kEndsWithWord.test(text.slice(Math.max(0, begin - 2), begin)) || kStartsWithWord.test(text.slice(end, end + 2)))
      )
        continue;
      while (token.lstrip && begin > done && /\p{White_Space}/u.test(text[begin - 1] as string)) --begin;
      while (token.rstrip && end < text.length && /\p{White_Space}/u.test(text[end] as string)) ++end;
      if (begin > done) sections.push({ piece: slice(piece, done, begin), token: null });
      sections.push({ piece: slice(piece, begin, end), token });
      done = end;
      at = Math.max(at, end - 1);
    }
    if (done < text.length) sections.push({ piece: slice(piece, done), token: null });
    return sections;
  }
}

/**
 * The way from text to ids, in the steps of the tokenizers library: added tokens, normalisation, pre-tokenisation, the
 * model, and what stands around.
 */
export class Pipeline {
  readonly #stages: Stages;
  readonly #raw = new Finder();
  readonly #normalized = new Finder();

  constructor(stages: Stages) {
    this.#stages = stages;
    for (const token of stages.added) {
      if (!token.normalized) this.#raw.add(token.content, token);
      else this.#normalized.add(stages.normalize({ text: token.content, at: 0, from: null }).text, token);
    }
  }

  encode(texts: readonly string[], addSpecialTokens: boolean, postProcess?: PostProcessor): Encoding {
    return finished(this.steps(texts, addSpecialTokens, postProcess));
  }

  /**
   * `encode` in steps, between which other work can be done.
   * @param postProcess instead of the tokenizer's own
   */
  *steps(texts: readonly string[], addSpecialTokens: boolean, postProcess = this.#stages.postProcess): Generator<undefined, Encoding> {
    const tokenized: Part[] = [];
    for (const text of texts) tokenized.push(yield* this.#tokenize(text, tokenized.length));
    const parts = postProcess(tokenized, addSpecialTokens);
    const encoding: Encoding = { ids: [], typeIds: [], offsets: [], sequence: [] };
    for (const { ids, typeIds, offsets, sequence } of parts) {
      for (let i = 0; i < ids.length; ++i) {
        encoding.ids.push(ids[i] as number);
        encoding.typeIds.push(typeIds[i] as number);
        encoding.offsets.push(offsets[i] as [number, number]);
        encoding.sequence.push(sequence);
        if (i % kStride === 0) yield;
      }
    }
    return encoding;
  }

  *#tokenize(given: string, sequence: number): Generator<undefined, Part> {
    const { normalize, preTokenize, subwords, tokenOf, lead, apart } = this.#stages;
    // Half a surrogate pair is no character; it keeps its place.
    const text = given.replace(/\p{Surrogate}/gu, '\ufffd');
    const part: Part = { ids: [], typeIds: [], offsets: [], sequence, tokens: [], text };
    const emit = (id: number, token: string, offsets: [number, number]): void => {
      part.ids.push(id);
      part.typeIds.push(sequence);
      part.offsets.push(offsets);
      part.tokens.push(token);
    };
    const take = ({ piece, token }: Section): boolean => {
      if (token !== null) emit(token.id, piece.text, offsetsOf(piece, 0, piece.text.length, text));
      return token !== null;
    };
    const space = /\P{White_Space}(?=[ \n])/gu;
    let begin = 0;
    do {
      space.lastIndex = begin + kStride;
      const end = apart && space.test(text) ? space.lastIndex : text.length;
      for (const section of this.#raw.split(slice({ text, at: 0, from: null }, begin, end))) {
        if (take(section)) continue;
        let { piece } = section;
        const first = lead?.(piece.text) ?? null;
        if (first !== null) {
          emit(first.id, piece.text.slice(0, first.length), offsetsOf(piece, 0, first.length, text));
          piece = slice(piece, first.length);
        }
        let told = 0;
        for (const inner of this.#normalized.split(normalize(piece))) {
          if (take(inner)) continue;
          for (const piece of preTokenize(inner.piece)) {
            if (piece.text === '') continue;
            const tokens = subwords(piece.text);
            for (let i = 0; i < tokens.length; i += 3) {
              const id = tokens[i] as number;
              emit(id, tokenOf(id), offsetsOf(piece, tokens[i + 1] as number, tokens[i + 2] as number, text));
            }
            if (part.ids.length - told < kStride) continue;
            told = part.ids.length;
            yield;
          }
        }
      }
      begin = end;
      yield;
    } while (begin < text.length);
    return part;
  }
}
