// What is lost when a part of the Transformer is left out: each row of the table trains a small model, and the rows of a group differ in
// nothing else. node examples/train/ablations/run.mjs [--only TEXT] [--steps N] [--threads 2] [--out table.md]. Seconds to a minute a row.
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { create } from 'wasmformer';
import { draws } from '../draws.mjs';

const text = { type: 'string' };
const { values } = parseArgs({ options: { only: { ...text, default: '' }, steps: text, threads: { ...text, default: '2' }, out: text } });

// Ids: what begins a target, what ends one, and 16 others.
const [start, end, first, kinds] = [1, 2, 3, 16];
const symbols = (random, count) => Array.from({ length: count }, () => first + Math.floor(kinds * random()));
/** Tasks: a source of 8 ids becomes the target. */
const tasks = {
  // Only the order tells the one answer from the others.
  reverse: (source) => source.toReversed(),
  // To each id its neighbour, the last one's being the first: look-ups by place, added up modulo 16.
  pairs: (source) => source.map((id, i) => first + ((id + source[(i + 1) % source.length] - 2 * first) % kinds)),
};

const base = { d_model: 64, heads: 4, encoder_layers: 2, decoder_layers: 2, encoder_ffn_dim: 128, decoder_ffn_dim: 128 };
const deep = (layers, residual) => ({ encoder_layers: layers, decoder_layers: layers, residual });
const runs = [
  ['sinusoidal positions', 'reverse', {}, 800],
  ['learned positions', 'reverse', { position_embedding_type: 'learned', max_position_embeddings: 16 }, 800],
  ['no positions', 'reverse', { position_embedding_type: 'none' }, 800],
  ['8 heads of 8', 'pairs', { heads: 8 }, 1500],
  ['1 head of 64', 'pairs', { heads: 1 }, 1500],
  ['6 layers, residuals', 'reverse', deep(6, true), 600],
  ['6 layers, no residuals', 'reverse', deep(6, false), 600],
  ['12 layers, residuals', 'reverse', deep(12, true), 600],
  ['12 layers, no residuals', 'reverse', deep(12, false), 600],
];

/** Sequences without end; those of another seed are others but for chance (16^8 there are). */
function* sequences(task, seed) {
  for (let n = 0; ; ++n) {
    const source = symbols(draws(seed, n), 8);
    yield { inputIds: source, labels: [...tasks[task](source), end] };
  }
}
function some(task, seed, count) {
  const all = sequences(task, seed);
  return Array.from({ length: count }, () => all.next().value);
}

async function run([name, task, change, usual]) {
  const steps = Number(values.steps ?? usual);
  const roles = { pad_token_id: 0, bos_token_id: start, eos_token_id: end, decoder_start_token_id: start };
  const config = { model_type: 'transformer', is_encoder_decoder: true, normalize_before: true, vocab_size: first + kinds, ...roles };
  const model = await create({ ...config, ...base, ...change }, { seed: 1, threads: Number(values.threads) });
  const schedule = { schedule: 'cosine', learningRate: 2e-3, warmup: Math.ceil(steps / 10) };
  const options = { steps, batchTokens: 544, shuffle: false, dropout: 0, ...schedule, evalData: some(task, 2, 200), evalEvery: steps };
  const began = process.cpuUsage();
  let heldOut;
  for await (const { evalLoss } of model.train({ [Symbol.iterator]: () => sequences(task, 1) }, options)) heldOut = evalLoss;
  const { user } = process.cpuUsage(began);
  const test = some(task, 3, 200);
  const results = await model.generate(
    test.map(({ inputIds }) => ({ inputIds })),
    { maxNewTokens: 9 },
  ).result;
  const right = test.filter(({ labels }, i) => results[i].tokenIds.join() === labels.join()).length;
  const { parameters } = model.info();
  await model.dispose();
  return [name, task, parameters, steps, heldOut.toFixed(3), `${right / 2} %`, (user / 1e6).toFixed(0)];
}

const rows = [['model', 'task', 'weights', 'steps', 'held-out loss', 'all right', 'CPU seconds']];
for (const one of runs.filter(([name]) => name.includes(values.only))) {
  rows.push(await run(one));
  console.log(rows.at(-1).join(' | '));
}
const [head, ...body] = rows.map((row) => `| ${row.join(' | ')} |`);
const table = [head, `|${'---|'.repeat(rows[0].length)}`, ...body].join('\n');
if (values.out) writeFileSync(values.out, `${table}\n`);
else console.log(`\n${table}`);
