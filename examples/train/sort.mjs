// Teaches a decoder from nothing to sort digits: after 31415926= comes 11234569. A minute or two.
// node examples/train/sort.mjs [--steps 1500] [--threads 2] [--out folder]
import { parseArgs } from 'node:util';
import { create } from 'wasmformer';
import { draws } from './draws.mjs';

const number = (text) => ({ type: 'string', default: text });
const { values } = parseArgs({ options: { steps: number('1500'), threads: number('2'), out: { type: 'string' } } });

// A digit is its own id; the eleventh stands between the digits and what becomes of them. Only the latter count.
const equals = 10;
const length = 8;
/** Sequences without end, each time the same: of those that are held out, a tenth by their digits, or of all others. */
function* sequences(seed, held) {
  for (const random = draws(seed); ; ) {
    // Of few different digits as often as of many: else it would hardly ever see one five times.
    const pool = Array.from({ length: 3 + Math.floor(8 * random()) }, () => Math.floor(10 * random()));
    const digits = Array.from({ length }, () => pool[Math.floor(pool.length * random())]);
    if (draws(...digits)() < 0.1 !== held) continue;
    const sorted = digits.toSorted();
    yield { inputIds: [...digits, equals, ...sorted], labels: [...digits.map(() => -100), -100, ...sorted] };
  }
}
function some(count, seed, held) {
  const source = sequences(seed, held);
  return Array.from({ length: count }, () => source.next().value);
}

const config = { model_type: 'gpt2', vocab_size: 11, n_embd: 64, n_layer: 2, n_head: 4, n_positions: 2 * length + 1 };
const model = await create(config, { seed: 1, threads: Number(values.threads) });
const steps = Number(values.steps);
const schedule = { schedule: 'cosine', learningRate: 3e-3, warmup: Math.ceil(steps / 10) };
const options = { steps, batchTokens: 2048, dropout: 0, ...schedule, evalData: some(100, 2, true), evalEvery: 50 };
const data = { [Symbol.iterator]: () => sequences(3, false) };
const began = performance.now();
for await (const { step, loss, evalLoss } of model.train(data, options))
  if (evalLoss !== undefined) console.log(`step ${step}  loss ${loss.toFixed(5)}  held out ${evalLoss.toFixed(5)}`);
const seconds = (performance.now() - began) / 1000;

const test = some(1000, 4, true).map(({ inputIds }) => inputIds);
const prompts = test.map((ids) => ({ inputIds: ids.slice(0, length + 1) }));
const results = await model.generate(prompts, { maxNewTokens: length, doSample: false, eosTokenId: null }).result;
const right = test.filter((ids, i) => results[i].tokenIds.join() === ids.slice(length + 1).join()).length;
console.log(`${test[0].slice(0, length).join('')} -> ${results[0].tokenIds.join('')}`);
console.log(`${right / 10} % of 1000 sequences that were held out, after ${seconds.toFixed(0)} s of training`);
if (values.out) await model.save(values.out);
await model.dispose();
