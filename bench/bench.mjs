// Load time, prefill and decode speed of the built package in this Node: medians, on the machine that is named.
import { existsSync, statSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { root, shippedModel } from '../scripts/run.mjs';
import { shapes, writeRandomModel } from './models.mjs';

const { values } = parseArgs({
  options: {
    models: { type: 'string', default: ['shipped', ...Object.keys(shapes)].join(',') },
    runs: { type: 'string', default: '5' },
    prompt: { type: 'string', default: '256' },
    tokens: { type: 'string', default: '64' },
  },
});
const runs = Number(values.runs);
const promptLength = Number(values.prompt);
const newTokens = Number(values.tokens);

const { load } = await import(join(root, 'dist/node.js'));
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

/** Milliseconds to the first token, and tokens a second after it. */
async function generateOnce(lm, inputIds) {
  const start = performance.now();
  let first;
  let count = 0;
  for await (const _ of lm.generate({ inputIds }, { maxNewTokens: newTokens, eosTokenId: null, doSample: false })) {
    first ??= performance.now();
    ++count;
  }
  return { first: first - start, rate: (count - 1) / ((performance.now() - first) / 1000) };
}

console.log(
  `${cpus()[0]?.model ?? 'unknown processor'}, ${cpus().length} cores, ${(totalmem() / 2 ** 30).toFixed(0)} GB; Node ${process.version}; ${new Date().toISOString().slice(0, 10)}`,
);
console.log(`medians of ${runs}; prefill of ${promptLength} tokens, decode of ${newTokens}, one thread\n`);
console.log('| model | parameters | weights | load | prefill | decode |\n|---|---|---|---|---|---|');
for (const name of values.models.split(',')) {
  const folder = name === 'shipped' ? shippedModel() : existsSync(name) ? name : writeRandomModel(join(root, 'build/bench'), name);
  const loads = [];
  for (let i = 0; i < runs; ++i) {
    const start = performance.now();
    const lm = await load(folder);
    loads.push(performance.now() - start);
    await lm.dispose();
  }
  const lm = await load(folder);
  const info = lm.info();
  const length = Math.min(promptLength, info.contextIsWall ? info.contextLength - newTokens : promptLength);
  const ids = Array.from({ length }, (_, i) => (i * 7919 + 13) % info.vocabSize);
  await generateOnce(lm, ids); // the engine's compilers warm up
  const results = [];
  for (let i = 0; i < runs; ++i)
    results.push(
      await generateOnce(
        lm,
        ids.map((id) => (id + i) % info.vocabSize),
      ),
    );
  await lm.dispose();
  console.log(
    `| ${basename(folder)} | ${(info.parameters / 1e6).toFixed(1)} M | ${info.dtype}, ${(info.memory.weights / 1e6).toFixed(0)} MB | ${median(loads).toFixed(0)} ms | ${(length / (median(results.map(({ first }) => first)) / 1000)).toFixed(0)} tok/s | ${median(results.map(({ rate }) => rate)).toFixed(1)} tok/s |`,
  );
}
console.log(`\nwasmformer.wasm: ${(statSync(join(root, 'dist/wasmformer.wasm')).size / 1000).toFixed(0)} KB`);
