// Teaches an encoder-decoder from nothing to write dates one way: 'March 3rd, 1999' becomes 1999-03-03. Some minutes.
// node examples/train/dates.mjs [--steps 1500] [--threads 2] [--out folder]
import { parseArgs } from 'node:util';
import { create, trainTokenizer } from 'wasmformer';
import { draws } from './draws.mjs';

const number = (text) => ({ type: 'string', default: text });
const { values } = parseArgs({ options: { steps: number('1500'), threads: number('2'), out: { type: 'string' } } });

const months = 'January February March April May June July August September October November December'.split(' ');
const weekdays = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ');
const formats = [
  ...['{month} {nth}, {year}', '{month} {d}, {year}', '{d} {month} {year}', 'the {nth} of {month}, {year}', "{month} {nth}, '{yy}"],
  ...['{weekday}, {month} {d}, {year}', '{wed} {d} {mar}. {year}', '{mar} {d} {year}', '{d}-{MAR}-{year}', '{nth} {mar} {yy}'],
  ...['{m}/{d}/{year}', '{dd}.{mm}.{year}', '{d}.{m}.{yy}', '{year}{mm}{dd}', '{d} {month}, anno {year}'],
];
const two = (number) => String(number).padStart(2, '0');
const endings = { 1: 'st', 2: 'nd', 3: 'rd', 21: 'st', 22: 'nd', 23: 'rd', 31: 'st' };
const first = Date.UTC(1950, 0, 1);
const days = (Date.UTC(2050, 0, 1) - first) / 864e5;

/** Day number n of a century, in one of the formats, and as it should be written. */
function pair(n, format) {
  const date = new Date(first + n * 864e5);
  const target = date.toISOString().slice(0, 10);
  const [year, m, d] = target.split('-').map(Number);
  const [month, weekday] = [months[m - 1], weekdays[date.getUTCDay()]];
  const short = { mar: month.slice(0, 3), MAR: month.slice(0, 3).toUpperCase(), wed: weekday.slice(0, 3), nth: d + (endings[d] ?? 'th') };
  const parts = { year, yy: two(year % 100), month, m, mm: two(m), d, dd: two(d), weekday, ...short };
  return { source: format.replace(/\{(\w+)\}/g, (_, name) => parts[name]), target };
}

/** Pairs without end, each time the same: of the days that are held out, every tenth, or of all others. */
function* pairs(seed, held) {
  for (const random = draws(seed); ; ) {
    const [n, format] = [Math.floor(days * random()), formats[Math.floor(formats.length * random())]];
    if ((n % 10 === 0) === held) yield pair(n, format);
  }
}
function some(count, seed, held) {
  const source = pairs(seed, held);
  return Array.from({ length: count }, () => source.next().value);
}

const texts = some(2000, 1, false).flatMap(({ source, target }) => [source, target]);
const { tokenizer } = await trainTokenizer(texts, { type: 'char', addEosToken: true });
const { bos, eos } = tokenizer.specials;
const sizes = { d_model: 128, heads: 4, encoder_layers: 2, decoder_layers: 2, encoder_ffn_dim: 256, decoder_ffn_dim: 256 };
const ids = { bos_token_id: bos, eos_token_id: eos, decoder_start_token_id: bos };
const config = { model_type: 'transformer', is_encoder_decoder: true, normalize_before: true, vocab_size: tokenizer.vocabSize };
const model = await create({ ...config, ...sizes, ...ids }, { seed: 1, tokenizer, threads: Number(values.threads) });

const steps = Number(values.steps);
const schedule = { schedule: 'cosine', learningRate: 2e-3, warmup: Math.ceil(steps / 10) };
const looks = { evalData: some(200, 2, true), evalEvery: 100, sampleEvery: 100, sample: { prompt: 'March 3rd, 1999', doSample: false } };
const data = { [Symbol.iterator]: () => pairs(3, false) };
const began = performance.now();
for await (const step of model.train(data, { steps, batchTokens: 2048, dropout: 0, ...schedule, ...looks })) {
  const { loss, evalLoss, sample } = step;
  if (evalLoss === undefined) continue;
  console.log(`step ${step.step}  loss ${loss.toFixed(4)}  held out ${evalLoss.toFixed(4)}  March 3rd, 1999 -> ${sample}`);
}
const seconds = (performance.now() - began) / 1000;

const test = some(1000, 4, true);
const sources = test.map(({ source }) => source);
const results = await model.generate(sources, { maxNewTokens: 12, doSample: false }).result;
const wrong = test.flatMap(({ source, target }, i) =>
  results[i].text === target ? [] : [`${source} is ${target}, not ${results[i].text}`],
);
if (wrong.length > 0) console.log(wrong.slice(0, 5).join('\n'));
console.log(`${(100 - wrong.length / 10).toFixed(1)} % of 1000 dates that were held out, after ${seconds.toFixed(0)} s of training`);
if (values.out) await model.save(values.out);
await model.dispose();
