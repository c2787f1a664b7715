/** 32 bits that depend on all the keys, each an integer from 0 to 2^53 - 1: MurmurHash3's mixing (Appleby 2011) of their halves. */
function mix(keys: readonly number[]): number {
  let hash = 0x9e3779b9;
  const take = (half: number) => {
    hash = Math.imul(hash ^ half, 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
    hash ^= hash >>> 16;
  };
  for (const key of keys) {
    take(key | 0);
    take(key / 2 ** 32);
  }
  return hash;
}

/**
 * Random numbers that are a function of keys (a seed, an epoch, an example), so that a training that is taken up again draws what it would
 * have drawn. Returns a function giving integers from 0 to n - 1 (mulberry32, whose 32 bits are scaled).
 */
export function randomOf(...keys: number[]): (n: number) => number {
  let state = mix(keys);
  return (n) => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return Math.floor((((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32) * n);
  };
}

/** Puts a list in random order (Fisher, Yates). */
export function shuffle<T>(list: T[], random: (n: number) => number): T[] {
  for (let i = list.length - 1; i > 0; --i) {
    const j = random(i + 1);
    [list[i], list[j]] = [list[j], list[i]];
  }
  return list;
}
