// A step of training: beside its forward pass and the matrix product (training.cpp), on two threads beside one, and beside other
// libraries that train the same shapes. Contenders take a step each in turn. Arguments: rounds, a part of the shapes' names, and
// what scripts/bench.mjs found: the programs' folder, the package, a Python, whether there are npm's peers.
import { readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { root, run } from '../scripts/run.mjs';
import { openInNode } from './contenders.mjs';
import { between, floorsTable, judge } from './report.mjs';
import { median, ratio } from './stats.mjs';

export const shapes = [
  { layers: 4, D: 128, H: 4, V: 96, sequences: 32, length: 64 },
  { layers: 6, D: 384, H: 6, V: 96, sequences: 8, length: 256 },
].map((shape) => ({ ...shape, name: `${shape.layers} x ${shape.D} x (${shape.sequences} x ${shape.length})` }));

/** Contenders, in the form of contenders.mjs, and their files in peers/. */
const contenders = {
  'wasmformer f32': 'wasmformer',
  'wasmformer f32 x2': 'wasmformer',
  'PyTorch-AVX2 f32': 'pytorch',
  'PyTorch f32': 'pytorch',
  'TensorFlow.js f32': 'tensorflow',
  'jax-js f32': 'jax',
};

/** A contender whose first step takes longer takes one more and no others. */
const patience = 30_000;

/** What training.cpp printed: `{ [name]: { ms, speed } }`, milliseconds and GFLOP/s. */
export function parseProgram(text) {
  const lines = text.matchAll(/^(\S.*?) +([\d.]+) ms +([\d.]+) GFLOP\/s/gm);
  return Object.fromEntries([...lines].map(([, name, ms, speed]) => [name, { ms: Number(ms), speed: Number(speed) }]));
}

/** The floors of every shape, for report.mjs. */
export function floors() {
  const speed = (what, ours, theirs, floor) => ({
    what,
    ours,
    theirs,
    ...floor,
    value: (results) => ratio(results, 'training', ours, theirs),
  });
  const programs = ['simd128', 'relaxed'].flatMap((level) => {
    const figure = (results, metric) => results[level]?.[metric]?.[0];
    return [
      {
        what: 'time of a step over that of its forward',
        ours: level,
        theirs: 'itself',
        atMost: 3.5,
        value: (results) => figure(results, 'step') / figure(results, 'forward'),
      },
      {
        what: 'GFLOP/s of a step over those of a product of 512 x 512',
        ours: level,
        theirs: 'itself',
        atLeast: 0.5,
        value: (results) => figure(results, 'GFLOP/s of a step') / figure(results, 'GFLOP/s of a product'),
      },
    ];
  });
  const beside = Object.keys(contenders).filter((name) => contenders[name] !== 'wasmformer' && !name.includes('AVX2'));
  return [
    ...programs,
    speed('2 threads over 1', 'wasmformer f32 x2', 'wasmformer f32', { atLeast: 1.6 }),
    speed('tokens a second', 'wasmformer f32', 'PyTorch-AVX2 f32', { atLeast: 0.4 }),
    ...beside.map((theirs) => speed('tokens a second', 'wasmformer f32', theirs, {})),
  ];
}

/** Tokens that can be learned, and what follows each. */
export function dataOf({ V, sequences, length }) {
  const ids = Array.from({ length: sequences * length }, (_, i) => {
    const [row, t] = [Math.floor(i / length), i % length];
    return (row * 7 + t * 3 + ((t * row) % 5)) % V;
  });
  return { ids, targets: ids.map((_, i) => ids[(i + 1) % ids.length]) };
}

/** Steps of every contender in turn, into `row`. Losses must fall. */
async function train({ row, results, facts, errors }, shape, rounds, { dist, python, peers }) {
  const missing = { pytorch: !python && 'no Python', tensorflow: !peers && 'not installed', jax: !peers && 'not installed' };
  const running = [];
  const fail = (name, error) => {
    errors[name] = String(error.message ?? error).split('\n')[0];
    delete results[name];
    console.log(`   ${name}: ${errors[name]}`);
  };
  const tokens = shape.sequences * shape.length;
  const step = async ({ contender, losses }) => {
    const start = performance.now();
    losses.push(await contender.call('step'));
    return performance.now() - start;
  };
  for (const name of row.contenders) {
    let contender;
    try {
      const file = contenders[name];
      if (missing[file]) throw new Error(missing[file]);
      const isa = name.includes('AVX2') ? 'avx2' : undefined;
      contender = await openInNode({}, name, { file: `training/${file}`, shape, ...dataOf(shape), learningRate: 1e-3, dist, python, isa });
      const entry = { name, contender, losses: [] };
      entry.slow = (await step(entry)) > patience;
      running.push(entry);
    } catch (error) {
      await contender?.close();
      fail(name, error);
    }
  }
  for (let round = 0; round < rounds; ++round) {
    for (const entry of running) {
      if (errors[entry.name] || (round > 0 && entry.slow)) continue;
      try {
        const ms = await step(entry);
        results[entry.name] ??= { training: [] };
        results[entry.name].training.push((tokens / ms) * 1000);
      } catch (error) {
        fail(entry.name, error);
      }
    }
  }
  for (const { name, contender, losses } of running) {
    facts[name] = { peakMemory: contender.peakMemory(), losses };
    await contender.close();
    const [first, last] = [losses[0], losses.at(-1)];
    if (!errors[name] && !(last < first)) fail(name, new Error(`the loss went from ${first} to ${last}`));
  }
}

/** A line a contender: tokens a second, the losses of the first and last step, and how many there were. */
function lossTable({ row, results, facts }) {
  const lines = row.contenders
    .filter((name) => results[name])
    .map((name) => {
      const { losses } = facts[name];
      const speed = Math.round(median(results[name].training));
      return `| ${name} | ${speed} | ${losses[0].toFixed(3)} | ${losses.at(-1).toFixed(3)} | ${losses.length} |`;
    });
  return ['| | tokens/s | loss of the first step | of the last | steps |', '|---|---|---|---|---|', ...lines].join('\n');
}

async function main([rounds, part, given]) {
  const { folder, ...found } = JSON.parse(given);
  const measured = [];
  const programs = {};
  const chosen = shapes.filter(({ name }) => name.includes(part));
  for (const [level, suffix] of [
    ['simd128', ''],
    ['relaxed', '_relaxed'],
  ]) {
    console.log(`\n${level}`);
    const only = chosen.length === 1 ? `${chosen[0].name} V 96` : 'V 96';
    const text = await run(process.execPath, [join(folder, `bench_training${suffix}.js`), rounds, '1', only], { capture: true });
    programs[level] = parseProgram(text);
  }
  for (const shape of chosen) {
    console.log(`\n${shape.name}`);
    const row = { id: shape.name, title: shape.name, contenders: Object.keys(contenders), floors: floors() };
    const entry = { row, results: {}, facts: {}, errors: {} };
    for (const [level, figures] of Object.entries(programs)) {
      const [product, forward, step] = ['gemm 512', `${shape.name} V 96 forward`, `${shape.name} V 96 step`].map((name) => figures[name]);
      entry.results[level] = {
        forward: [forward.ms],
        step: [step.ms],
        'GFLOP/s of a step': [step.speed],
        'GFLOP/s of a product': [product.speed],
      };
    }
    await train(entry, shape, Number(rounds), found);
    measured.push(entry);
  }
  const machine = `${cpus()[0]?.model.trim() ?? 'unknown processor'}, ${cpus().length} cores`;
  const day = new Date().toISOString().slice(0, 10);
  const text = [
    `${machine}; ${day}; Node ${process.version}, medians of ${rounds} steps of each in turn.\n`,
    floorsTable(judge(measured)),
    ...measured.map((entry) => `\n${entry.row.title}:\n\n${lossTable(entry)}`),
  ].join('\n');
  console.log(`\n${text}`);
  // Only a run of everything replaces what the documentation shows.
  if (chosen.length < shapes.length || !found.peers || !found.python) return;
  const docs = join(root, 'docs/training.md');
  writeFileSync(docs, between(readFileSync(docs, 'utf8'), 'bench', `\n${text}\n`));
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) await main(process.argv.slice(2));
