// Teaches a decoder from nothing to sort digits: '3141592=' goes on '1123459'. Some minutes.
// node examples/train/sort.mjs [--steps 600] [--out folder]
import { parseArgs } from 'node:util';
import { create } from 'wasmformer';

const { values } = parseArgs({
  options: { steps: { type: 'string', default: '600' }, threads: { type: 'string' }, out: { type: 'string' } },
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

// A digit is its own token; the tenth id stands between the digits and what becomes of them. Only the latter count.
const equals = 10;
const count = 10;
function* sequences(seed, held) {
  for (const random = dice(seed); ; ) {
    const digits = Array.from({ length: count }, () => random(10));
    // What is held out: sequences whose digits, read as one number, leave no rest by 7. Training never sees one of them.
    if ((Number(digits.join('')) % 7 === 0) !== held) continue;
    const sorted = digits.toSorted();
    yield { inputIds: [...digits, equals, ...sorted], labels: [...digits.map(() => -100), -100, ...sorted] };
  }
}
function some(number, seed, held) {
  const source = sequences(seed, held);
  return Array.from({ length: number }, () => source.next().value);
}

const config = { model_type: 'gpt2', vocab_size: 11, n_embd: 64, n_layer: 2, n_head: 4, n_positions: 2 * count + 1 };
const model = await create(config, { seed: 1, threads: Number(values.threads ?? 2) });
const steps = Number(values.steps);
const schedule = { schedule: 'cosine', learningRate: 3e-3, warmup: Math.min(50, steps >> 2) };
const data = { [Symbol.iterator]: () => sequences(2, false) };
const options = { steps, batchTokens: 2048, dropout: 0, ...schedule, evalData: some(100, 3, true), evalEvery: 50 };
const began = performance.now();
for await (const { step, loss, evalLoss } of model.train(data, options))
  if (evalLoss !== undefined) console.log(`step ${step}  loss ${loss.toFixed(5)}  held out ${evalLoss.toFixed(5)}`);

const seconds = (performance.now() - began) / 1000;
const test = some(1000, 4, true).map(({ inputIds }) => inputIds);
const prompts = test.map((ids) => ({ inputIds: ids.slice(0, count + 1) }));
const results = await model.generate(prompts, { maxNewTokens: count, doSample: false, eosTokenId: null }).result;
const right = test.filter((ids, i) => results[i].tokenIds.join() === ids.slice(count + 1).join()).length;
console.log(`${test[0].slice(0, count).join('')} -> ${results[0].tokenIds.join('')}`);
console.log(`${right / 10} % of 1000 sequences that were held out, after ${seconds.toFixed(0)} s`);
if (values.out) await model.save(values.out);
await model.dispose();
