// bench/machine.cpp: this library's kernels by themselves, and what the machine can do at all.

export async function open({ base }) {
  const { default: make } = await import(`${base}/build/bench/bench_machine_relaxed.mjs`);
  const machine = await make();
  const time = (work) => {
    const start = performance.now();
    work();
    return performance.now() - start;
  };
  let prepared = '';
  const prepare = (name, ...sizes) => {
    const key = `${name} ${sizes}`;
    if (prepared !== key) machine[`_prepare_${name}`](...sizes);
    prepared = key;
  };
  return {
    /** GFLOP/s of multiplications and additions in registers. */
    peak: () => 96e3 * 1e-6 * (2000 / time(() => machine._multiply_add(2000))),
    /** GB/s of reading 64 MB. */
    bandwidth: () => 2 ** 26 / 1e6 / time(() => machine._read_memory()),
    /** Milliseconds of x (rows, size) W (size, size). */
    async product(rows, size, times) {
      prepare('product', rows, size, size);
      return (
        time(() => {
          for (let i = 0; i < times; ++i) machine._product();
        }) / times
      );
    },
    attention(n) {
      prepare('attention', n);
      return time(() => machine._attention());
    },
    feedForward(n) {
      prepare('attention', n);
      return time(() => machine._feed_forward());
    },
    close: () => {},
  };
}
