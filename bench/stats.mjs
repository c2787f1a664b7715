// Figures out of repetitions. Pure functions.

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The unit of a metric, by its name: 'prefill', 'decode at 4096', 'step', '64 x 512 x 512'. */
export function unitOf(metric) {
  if (/^(prefill|decode|training)\b/.test(metric)) return 'tok/s';
  if (/^(\d|peak)/.test(metric)) return 'GFLOP/s';
  return metric === 'reading' ? 'GB/s' : 'ms';
}

/**
 * Tokens a second out of the milliseconds from a call to each token it gave: `prefill` of the prompt, `decode` of what follows.
 */
export function speeds(promptLength, times) {
  const rest = times.length - 1;
  return { prefill: (promptLength / times[0]) * 1000, decode: rest > 0 ? (rest / (times[rest] - times[0])) * 1000 : Number.NaN };
}

/** Tokens a second in the first second after the first token. */
export function firstSecond(times) {
  const within = times.filter((time) => time <= times[0] + 1000);
  const last = within.length - 1;
  return last > 0 ? (last / (within[last] - times[0])) * 1000 : Number.NaN;
}

/** Milliseconds of the encoder, and of a step of the decoder, out of the times of tokens: the first holds one of each. */
export function translationTimes(times) {
  const step = median(times.slice(1).map((time, i) => time - times[i]));
  return { encoder: times[0] - step, step };
}

/**
 * How many times better one median is than another: more of a speed, less of a time.
 * @param results `{ [contender]: { [metric]: values } }`
 */
export function ratio(results, metric, ours, theirs) {
  const [a, b] = [ours, theirs].map((name) => results[name]?.[metric]);
  if (!a?.length || !b?.length) return undefined;
  return unitOf(metric) === 'ms' ? median(b) / median(a) : median(a) / median(b);
}

/** Where two curves over ascending `xs` cross, by straight lines between logarithms; undefined if they do not. */
export function crossing(xs, first, second) {
  for (let i = 1; i < xs.length; ++i) {
    const [a, b] = [i - 1, i].map((j) => Math.log(first[j] / second[j]));
    if (a === 0) return xs[i - 1];
    if (a < 0 !== b < 0) return xs[i - 1] * (xs[i] / xs[i - 1]) ** (a / (a - b));
  }
  return undefined;
}

/** The slope of a straight line through logarithms: 2 where the time grows with the square. */
export function exponent(xs, ys) {
  const [lx, ly] = [xs, ys].map((list) => list.map(Math.log));
  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
  const [mx, my] = [mean(lx), mean(ly)];
  return lx.reduce((sum, x, i) => sum + (x - mx) * (ly[i] - my), 0) / lx.reduce((sum, x) => sum + (x - mx) ** 2, 0);
}

/** Three significant digits, without an exponent. */
export function digits(value) {
  if (value === undefined || !Number.isFinite(value)) return '–';
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value) || 1)));
  return value.toFixed(Math.min(places, 3));
}
