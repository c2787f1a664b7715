import { PairTable } from '../files/tables.ts';

/** Words, how often each occurs, and what they are made of. */
export interface Corpus {
  /** Token ids of each word. */
  words: readonly (readonly number[])[];
  counts: readonly number[];
  /** Strings by id; what is joined is added. */
  tokens: string[];
  /** What a token that continues a word begins with, and loses where it is joined. */
  prefix: string;
}

/** A pair that may be next: how often it occurred when it was queued, and the words in which it came up then. */
interface Candidate {
  pair: number;
  count: number;
  places: number[];
}

/**
 * The merges of byte-pair encoding (Sennrich et al. 2016, algorithm 1): again and again the most frequent pair of neighbours becomes
 * a token. Which of equally frequent pairs comes first (that of the smaller ids), what becomes of a pair that comes up anew and the
 * order of merges are those of the tokenizers library's `BpeTrainer`. Counts are kept up to date in the words that a merge touches.
 * @param vocabSize ends when there are so many tokens
 * @param minFrequency ends when no pair is as frequent
 * @param breathe called before each merge; what it throws ends the work
 * @returns the pairs of token ids, the earliest first
 */
export async function learnMerges(
  { words, counts, tokens, prefix }: Corpus,
  vocabSize: number,
  minFrequency: number,
  breathe: () => Promise<void> | void,
): Promise<[number, number][]> {
  // The symbols of all words, end to end. A word shrinks in its place.
  const symbols = Int32Array.from(words.flat());
  const begins: number[] = [];
  const ends: number[] = [];
  let total = 0;
  for (const { length } of words) {
    begins.push(total);
    ends.push((total += length));
  }
  // Pairs are numbered as they are seen.
  const numbers = new PairTable();
  const lefts: number[] = [];
  const rights: number[] = [];
  const totals: number[] = [];
  const fresh = new Map<number, number[]>();
  const change = (left: number, right: number, word: number, sign: 1 | -1): void => {
    let pair = numbers.get(left, right);
    if (pair < 0) {
      pair = lefts.push(left) - 1;
      rights.push(right);
      totals.push(0);
      numbers.set(left, right, pair);
    }
    totals[pair] += sign * counts[word];
    if (sign < 0) return;
    const places = fresh.get(pair);
    if (!places) fresh.set(pair, [word]);
    else if (places.at(-1) !== word) places.push(word);
  };

  const heap: Candidate[] = [];
  const before = (a: Candidate, b: Candidate): boolean =>
    a.count !== b.count
      ? a.count > b.count
      : lefts[a.pair] !== lefts[b.pair]
        ? lefts[a.pair] < lefts[b.pair]
        : rights[a.pair] < rights[b.pair];
  const push = (one: Candidate): void => {
    let i = heap.push(one) - 1;
    for (let parent: number; i > 0 && before(one, heap[(parent = (i - 1) >> 1)]); i = parent) heap[i] = heap[parent];
    heap[i] = one;
  };
  const pop = (): Candidate => {
    const [top] = heap;
    const last = heap.pop()!;
    const size = heap.length;
    if (size === 0) return top;
    let i = 0;
    for (let child = 1; child < size; child = 2 * i + 1) {
      if (child + 1 < size && before(heap[child + 1], heap[child])) ++child;
      if (!before(heap[child], last)) break;
      heap[i] = heap[child];
      i = child;
    }
    heap[i] = last;
    return top;
  };
  const queueFresh = (): void => {
    for (const [pair, places] of fresh) if (totals[pair] > 0) push({ pair, count: totals[pair], places });
    fresh.clear();
  };

  for (let word = 0; word < begins.length; ++word)
    for (let i = begins[word] + 1; i < ends[word]; ++i) change(symbols[i - 1], symbols[i], word, 1);
  queueFresh();

  const ids = new Map(tokens.map((token, id) => [token, id]));
  const merges = new Map<number, [number, number]>();
  while (tokens.length < vocabSize && heap.length > 0) {
    await breathe();
    const top = pop();
    const { pair, count, places } = top;
    if (count !== totals[pair]) {
      top.count = totals[pair];
      push(top);
      continue;
    }
    if (count < 1 || count < minFrequency) break;
    const [left, right] = [lefts[pair], rights[pair]];
    const tail = tokens[right];
    const token = tokens[left] + (tail.startsWith(prefix) ? tail.slice(prefix.length) : tail);
    let made = ids.get(token);
    if (made === undefined) {
      made = tokens.push(token) - 1;
      ids.set(token, made);
    }
    // A pair that is joined a second time, in words where it came up since, has the later place.
    merges.delete(pair);
    merges.set(pair, [left, right]);
    for (const word of places) {
      const [begin, end] = [begins[word], ends[word]];
      let to = begin;
      for (let from = begin; from < end; ++from, ++to) {
        if (symbols[from] !== left || from + 1 >= end || symbols[from + 1] !== right) {
          symbols[to] = symbols[from];
          continue;
        }
        if (to > begin) {
          change(symbols[to - 1], left, word, -1);
          change(symbols[to - 1], made, word, 1);
        }
        symbols[to] = made;
        if (++from + 1 < end) {
          change(right, symbols[from + 1], word, -1);
          change(made, symbols[from + 1], word, 1);
        }
      }
      ends[word] = to;
    }
    queueFresh();
  }
  return [...merges.values()];
}
