/** A map from pairs of small integers to integers of 0 and above: merges of a vocabulary, and the edges of a trie. */
export class PairTable {
  #size = 0;
  #keys = new Int32Array(512);
  #values = new Int32Array(256).fill(-1);

  /** The pair's value, or -1. */
  get(a: number, b: number): number {
    return this.#values[this.#slot(a, b)] as number;
  }

  set(a: number, b: number, value: number): void {
    const slot = this.#slot(a, b);
    if (this.#values[slot] === -1 && 2 * ++this.#size > this.#values.length) {
      this.#grow();
      this.set(a, b, value);
      return;
    }
    this.#keys[2 * slot] = a;
    this.#keys[2 * slot + 1] = b;
    this.#values[slot] = value;
  }

  #slot(a: number, b: number): number {
    const mask = this.#values.length - 1;
    let hash = Math.imul(a, 0x9e3779b1) ^ Math.imul(b, 0x85ebca6b);
    hash ^= hash >>> 15;
    for (let slot = hash & mask; ; slot = (slot + 1) & mask) {
      if (this.#values[slot] === -1 || (this.#keys[2 * slot] === a && this.#keys[2 * slot + 1] === b)) return slot;
    }
  }

  #grow(): void {
    const [keys, values] = [this.#keys, this.#values];
    this.#keys = new Int32Array(2 * keys.length);
    this.#values = new Int32Array(2 * values.length).fill(-1);
    this.#size = 0;
    values.forEach((value, slot) => {
      if (value !== -1) this.set(keys[2 * slot] as number, keys[2 * slot + 1] as number, value);
    });
  }
}

/** Strings with a number each, found as prefixes of a text in time that depends on the longest match alone. */
export class Trie {
  readonly #edges = new PairTable();
  readonly #values: number[] = [-1];

  add(text: string, value: number): void {
    let node = 0;
    for (let i = 0; i < text.length; ++i) {
      let next = this.#edges.get(node, text.charCodeAt(i));
      if (next < 0) {
        next = this.#values.push(-1) - 1;
        this.#edges.set(node, text.charCodeAt(i), next);
      }
      node = next;
    }
    this.#values[node] = value;
  }

  /** Calls `found` for each string that begins at `at`, shortest first. */
  prefixes(text: string, at: number, found: (value: number, end: number) => void): void {
    let node = 0;
    for (let i = at; i < text.length; ) {
      node = this.#edges.get(node, text.charCodeAt(i++));
      if (node < 0) return;
      const value = this.#values[node] as number;
      if (value >= 0) found(value, i);
    }
  }

  /** The longest string that begins at `at`, as its number and its end; null for none. */
  longest(text: string, at: number): { value: number; end: number } | null {
    let best: { value: number; end: number } | null = null;
    this.prefixes(text, at, (value, end) => {
      best = { value, end };
    });
    return best;
  }
}

/** Symbols of a word, to be joined. */
export interface Symbols {
  ids: number[];
  /** UTF-16 ends of the stretch each stands for. */
  begins: number[];
  ends: number[];
}

/** How neighbours join. */
export interface Merging {
  /** What two neighbours make, or -1. */
  pair(symbols: Symbols, left: number, right: number): number;
  /** The smaller, the earlier; equal ones are joined from the left. */
  rank(made: number): number;
  id(made: number): number;
}

/** Positions a heap's key has room for; ranks stay below 2^24. */
const kPositions = 2 ** 28;

/**
 * Byte-pair encoding: joins the two neighbours of the smallest rank, the leftmost of equals, until none join
 * (Sennrich et al. 2016), in O(n log n).
 */
export function mergeSymbols(symbols: Symbols, merging: Merging): Symbols {
  const { ids, begins, ends } = symbols;
  const count = ids.length;
  const next = ids.map((_, i) => i + 1);
  const previous = ids.map((_, i) => i - 1);
  const heap: number[] = [];
  const consider = (left: number): void => {
    const right = left < 0 ? count : (next[left] as number);
    if (right >= count) return;
    const made = merging.pair(symbols, left, right);
    if (made < 0) return;
    const key = merging.rank(made) * kPositions + left;
    let i = heap.push(key) - 1;
    for (; i > 0 && (heap[(i - 1) >> 1] as number) > key; i = (i - 1) >> 1) heap[i] = heap[(i - 1) >> 1] as number;
    heap[i] = key;
  };
  const pop = (): number => {
    const top = heap[0] as number;
    const last = heap.pop() as number;
    const size = heap.length;
    for (let i = 0, child = 1; size > 0; i = child, child = 2 * i + 1) {
      if (child + 1 < size && (heap[child + 1] as number) < (heap[child] as number)) ++child;
      if (child >= size || (heap[child] as number) >= last) {
        heap[i] = last;
        break;
      }
      heap[i] = heap[child] as number;
    }
    return top;
  };
  for (let i = 0; i + 1 < count; ++i) consider(i);
  while (heap.length > 0) {
    const key = pop();
    const left = key % kPositions;
    const right = next[left] as number;
    if (right >= count || right < 0) continue;
    const made = merging.pair(symbols, left, right);
    // An entry is out of date when one of its two has been joined with something else since.
    if (made < 0 || merging.rank(made) !== (key - left) / kPositions) continue;
    ids[left] = merging.id(made);
    ends[left] = ends[right] as number;
    next[left] = next[right] as number;
    next[right] = -1;
    if ((next[left] as number) < count) previous[next[left] as number] = left;
    consider(previous[left] as number);
    consider(left);
  }
  const kept: Symbols = { ids: [], begins: [], ends: [] };
  for (let i = 0; i < count; i = next[i] as number) {
    kept.ids.push(ids[i] as number);
    kept.begins.push(begins[i] as number);
    kept.ends.push(ends[i] as number);
  }
  return kept;
}
