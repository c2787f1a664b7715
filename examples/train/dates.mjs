// Teaches an encoder-decoder from nothing to write dates one way: 'March 3rd, 1999' becomes 1999-03-03. Some minutes.
// node examples/train/dates.mjs [--steps 1500] [--out folder]
import { parseArgs } from 'node:util';
import { create, trainTokenizer } from 'wasmformer';

const { values } = parseArgs({
  options: { steps: { type: 'string', default: '1500' }, threads: { type: 'string' }, out: { type: 'string' } },
});

/** Numbers below n from a seed (Marsaglia's xorshift). */
function dice(state) {
  return (n) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % n;
  };
}

const months = 'January February March April May June July August September October November December'.split(' ');
const weekdays = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ');
const ordinal = (d) => `${d}${d > 10 && d < 14 ? 'th' : (['', 'st', 'nd', 'rd'][d % 10] ?? 'th')}`;
const two = (number) => String(number).padStart(2, '0');
const formats = [
  ({ month, d, y }) => `${month} ${ordinal(d)}, ${y}`,
  ({ month, d, y }) => `${month} ${d}, ${y}`,
  ({ month, d, y }) => `${d} ${month} ${y}`,
  ({ month, d, y }) => `the ${ordinal(d)} of ${month}, ${y}`,
  ({ month, d, y, weekday }) => `${weekday}, ${month} ${d}, ${y}`,
  ({ short, d, y }) => `${short} ${d} ${y}`,
  ({ short, d, y }) => `${d}-${short.toUpperCase()}-${y}`,
  ({ short, d, y, weekday }) => `${weekday.slice(0, 3)} ${d} ${short}. ${y}`,
  ({ month, d, y }) => `${month} ${ordinal(d)}, '${two(y % 100)}`,
  ({ d, m, y }) => `${m}/${d}/${y}`,
  ({ d, m, y }) => `${two(d)}.${two(m)}.${y}`,
  ({ d, m, y }) => `${d}.${m}.${two(y % 100)}`,
  ({ d, m, y }) => `${y}${two(m)}${two(d)}`,
];
const first = Date.UTC(1950, 0, 1) / 864e5;
const days = Date.UTC(2050, 0, 1) / 864e5 - first;
/** Day number n of a century, in one of the formats, and as it should be written. */
function pair(n, format) {
  const date = new Date((first + n) * 864e5);
  const [y, m, d] = [date.getUTCFullYear(), date.getUTCMonth() + 1, date.getUTCDate()];
  const month = months[m - 1];
  const source = format({ y, m, d, month, short: month.slice(0, 3), weekday: weekdays[date.getUTCDay()] });
  return { source, target: date.toISOString().slice(0, 10) };
}
/** Pairs without end, each time the same: of the days that are held out, every tenth, or of all others. */
function* pairs(seed, held) {
  for (const random = dice(seed); ; ) {
    const n = random(days);
    const format = formats[random(formats.length)];
    if ((n % 10 === 0) === held) yield pair(n, format);
  }
}
function some(count, seed, held) {
  const source = pairs(seed, held);
  return Array.from({ length: count }, () => source.next().value);
}

const texts = some(2000, 1, false).flatMap(({ source, target }) => [source, target]);
const { tokenizer } = await trainTokenizer(texts, { type: 'char', addEosToken: true });
const sizes = { d_model: 128, heads: 4, encoder_layers: 2, decoder_layers: 2, encoder_ffn_dim: 256, decoder_ffn_dim: 256 };
const ids = { bos_token_id: tokenizer.specials.bos, eos_token_id: tokenizer.specials.eos, decoder_start_token_id: tokenizer.specials.bos };
const config = {
  model_type: 'transformer',
  is_encoder_decoder: true,
  vocab_size: tokenizer.vocabSize,
  normalize_before: true,
  ...sizes,
  ...ids,
};
const model = await create(config, { seed: 1, tokenizer, threads: Number(values.threads ?? 2) });

const steps = Number(values.steps);
const schedule = { schedule: 'cosine', learningRate: 2e-3, warmup: Math.min(100, steps >> 2) };
const options = { steps, batchTokens: 2048, dropout: 0, ...schedule, evalData: some(200, 2, true), evalEvery: 100, sampleEvery: 100 };
const data = { [Symbol.iterator]: () => pairs(3, false) };
const began = performance.now();
for await (const { step, loss, evalLoss, sample } of model.train(data, {
  ...options,
  sample: { prompt: 'March 3rd, 1999', doSample: false },
}))
  if (sample !== undefined)
    console.log(`step ${step}  loss ${loss.toFixed(4)}  held out ${evalLoss.toFixed(4)}  March 3rd, 1999 -> ${sample}`);

const seconds = (performance.now() - began) / 1000;
const test = some(1000, 4, true);
const results = await model.generate(
  test.map(({ source }) => source),
  { maxNewTokens: 12 },
).result;
const wrong = test.filter(({ target }, i) => results[i].text !== target);
for (const { source, target } of wrong.slice(0, 5)) console.log(`wrong: ${source} is ${target}`);
console.log(`${(100 - wrong.length / 10).toFixed(1)} % of 1000 dates that were held out, after ${seconds.toFixed(0)} s`);
if (values.out) await model.save(values.out);
await model.dispose();
