// Random numbers that are the same on every machine.

/** Numbers from 0 to below 1, told by the keys alone (mulberry32 over keys that are mixed as in MurmurHash3). */
export function draws(...keys) {
  let state = 0;
  for (const key of keys) {
    state = Math.imul(state ^ key, 0xcc9e2d51);
    state = Math.imul((state << 15) | (state >>> 17), 0x1b873593) + 0xe6546b64;
  }
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
