import type { Example } from './examples.ts';
import { randomOf, shuffle } from './random.ts';

/** What one step of the optimiser learns from: micro-batches, each one forward and backward pass. */
export type Update = Example[][];

export interface BatchSizes {
  /** Tokens of an update at most. */
  batchTokens: number;
  /** Of a micro-batch. */
  microBatchTokens: number;
}

/** Updates that are sorted by length among themselves. */
export const poolUpdates = 16;

/** Cuts a list, in order, into groups of at most `most` tokens; with `even` of about as many each. */
function group(examples: readonly Example[], most: number, even: boolean): Example[][] {
  const total = tokensOf(examples);
  const wanted = even ? total / Math.ceil(total / most) : most;
  const groups: Example[][] = [];
  let size = 0;
  let before = 0;
  for (const example of examples) {
    const last = groups.at(-1);
    // A group ends where the next example would lead further from an even share than the end before it.
    if (last && size + example.tokens <= most && before + example.tokens / 2 < groups.length * wanted) last.push(example);
    else {
      groups.push([example]);
      size = 0;
    }
    size += example.tokens;
    before += example.tokens;
  }
  return groups;
}

export function tokensOf(examples: readonly Example[]): number {
  return examples.reduce((sum, { tokens }) => sum + tokens, 0);
}

/** Passes over examples in order, of at most `most` tokens each. */
export function inOrder(examples: readonly Example[], most: number): Example[][] {
  return group(examples, most, false);
}

/**
 * The updates of one pool of examples. Shuffled, neighbours in length share an update (attention over a long sequence costs more a token
 * than over a short one), all updates are about equally full, and their order is random; else they come as they stand.
 */
export function updatesOf(pool: readonly Example[], sizes: BatchSizes, keys: readonly number[] | null): Update[] {
  let batches: Example[][];
  if (keys) {
    const random = randomOf(...keys);
    const sorted = shuffle([...pool], random).sort((a, b) => a.tokens - b.tokens);
    batches = shuffle(group(sorted, sizes.batchTokens, true), random);
  } else {
    batches = group(pool, sizes.batchTokens, false);
  }
  return batches.map((batch) => group(batch, sizes.microBatchTokens, true));
}
