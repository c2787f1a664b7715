// Measures this library beside its peers, interleaved: one repetition of each contender in turn, so that a machine whose clock
// moves moves it for all. scripts/bench.mjs installs what this needs; models are made here.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { launchChromium } from '../scripts/chromium.mjs';
import { root } from '../scripts/run.mjs';
import { readArguments } from './arguments.mjs';
import { libraries, openInNode, openInPage, parseContender } from './contenders.mjs';
import { prepareModel } from './files.mjs';
import { plot } from './plot.mjs';
import { between, floorsTable, judge, report, rowTable, summaryTable } from './report.mjs';
import { rows, scalingCurves } from './rows.mjs';
import { serve } from './server.mjs';
import { firstSecond } from './stats.mjs';

const { options, peers, chosenPeers, chosenRows, runs } = readArguments(process.argv.slice(2));
const models = join(root, 'build/bench/models');
const flags = [
  '--no-sandbox',
  '--disable-dev-shm-usage',
  '--disable-gpu',
  '--disable-background-timer-throttling',
  '--disable-renderer-backgrounding',
];
const launch = () => launchChromium({ args: flags });

const measuredRows = rows.filter((row) => chosenRows.includes(row.id) && (row.quick || !options.quick));
const contendersOf = (row) =>
  row.contenders.filter((name) => ['wasmformer', 'kernels', ...chosenPeers].includes(parseContender(name).library));

// Files first: the clock runs for measuring alone.
const missing = {};
for (const row of measuredRows)
  for (const name of contendersOf(row))
    missing[`${row.id} ${name}`] = await prepareModel(models, row.model, parseContender(name), options.python);

/** The quick run starts no row after this many milliseconds, and ends the row it is in. */
const quickEnd = 100_000;
const timeOver = "the quick run's time was over";
const began = performance.now();
const late = () => options.quick && performance.now() - began > quickEnd;

const servers = {
  plain: await serve({ models, dist: options.dist, isolated: false }),
  isolated: await serve({ models, dist: options.dist, isolated: true }),
};
const browser = await launch();
const version = browser.version();
const leftOut = peers.filter((name) => !chosenPeers.includes(name)).map((name) => `${name}: not ${options.peers ? 'chosen' : 'installed'}`);

async function open(name, row, inBrowser = browser) {
  const { library, threads, node } = parseContender(name);
  const settings = { model: row.model, ...row.options?.[library], count: row.fresh, dist: options.dist };
  const server = threads > 1 ? servers.isolated : servers.plain;
  const contender = await (node ? openInNode(server, name, settings) : openInPage(inBrowser, server, name, settings));
  return Object.assign(contender, { name, library });
}

/** One line, without a stack. */
const oneLine = (error) =>
  String(error.message ?? error)
    .replace(/^(page\.evaluate: )?(\w*Error: )?/, '')
    .split('\n')[0];
const gzipped = (files) => files.reduce((sum, file) => sum + gzipSync(readFileSync(file), { level: 9 }).length, 0);

/** Measures a row: `{ row, results: { [contender]: { [metric]: values } }, facts: { [contender]: ... }, errors }`. */
async function measure(row) {
  const [results, facts, errors, said, open_] = [{}, {}, {}, {}, []];
  const fail = (name, error) => {
    errors[name] = oneLine(error);
    delete results[name];
    console.log(`   ${name}: ${errors[name]}`);
  };
  const names = contendersOf(row).filter((name) => {
    const reason = missing[`${row.id} ${name}`];
    if (reason) fail(name, reason);
    return !reason;
  });
  const keep = (name, values) => {
    results[name] ??= {};
    for (const [metric, value] of Object.entries(values)) (results[name][metric] ??= []).push(value);
  };
  for (const name of row.fresh ? [] : names) {
    try {
      if (late()) throw new Error(timeOver);
      const contender = await open(name, row);
      const state = (await row.prepare?.(contender, row)) ?? {};
      open_.push({ contender, state });
      // The first repetition is cold: it shows what a user meets first, and does not count as speed.
      const cold = await row.once(contender, row, 0, state);
      said[name] = cold.said;
      facts[name] = { load: contender.load, ...state.facts };
      if (contender.files.length) facts[name].download = gzipped(contender.files);
      if (cold.times) Object.assign(facts[name], { firstToken: contender.load + cold.times[0], firstSecond: firstSecond(cold.times) });
    } catch (error) {
      fail(name, error);
    }
  }
  for (let round = 1; round <= (row.runs ?? runs) && !(late() && round > 1); ++round) {
    if (row.fresh) {
      for (const name of names) {
        const fresh = await launch();
        try {
          const contender = await open(name, row, fresh);
          keep(name, (await row.once(contender, row)).values);
          facts[name] = { download: gzipped(contender.files) };
        } catch (error) {
          fail(name, error);
        } finally {
          await fresh.close();
        }
      }
    }
    for (const { contender, state } of open_) {
      if (errors[contender.name]) continue;
      try {
        keep(contender.name, (await row.once(contender, row, round, state)).values);
      } catch (error) {
        fail(contender.name, error);
      }
    }
  }
  for (const { contender } of open_) {
    if (facts[contender.name]) facts[contender.name].peakMemory = contender.peakMemory();
    await contender.close();
  }
  const reference = names.find((name) => said[name]);
  for (const name of names.slice(1)) if (said[name] && name !== reference) facts[name].same = agreement(said[reference], said[name]);
  return { row, results, facts, errors };
}

/** How far two outputs agree: of tokens the length of the common beginning, of numbers the largest difference. */
function agreement(a, b) {
  const different = a.findIndex((token, i) => token !== b[i]);
  if (a.every(Number.isInteger)) return `${different === -1 ? a.length : different} of ${a.length} tokens`;
  return `within ${Math.max(...a.map((value, i) => Math.abs(value - b[i]))).toPrecision(1)}`;
}

const packageVersion = (name) => {
  const file = join(root, 'bench/node_modules', name, 'package.json');
  return existsSync(file) ? `${name} ${JSON.parse(readFileSync(file, 'utf8')).version}` : undefined;
};
const machine = `${cpus()[0]?.model.trim() ?? 'unknown processor'}, ${cpus().length} cores, ${(totalmem() / 2 ** 30).toFixed(0)} GB; ${new Date().toISOString().slice(0, 10)}`;
const commit = (() => {
  try {
    return execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: root, encoding: 'utf8' }).trim();
  } catch {
    return JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version;
  }
})();
const versions = [
  `wasmformer ${commit}`,
  ...['onnxruntime-web', '@huggingface/transformers', '@wllama/wllama'].map(packageVersion).filter(Boolean),
  `Chromium ${version}`,
  `Node ${process.version}`,
].join(', ');
console.log(`${machine}\n${versions}\n`);

const measured = [];
if (options.quick) for (const row of rows) if (!row.quick) leftOut.push(`${row.title}: not in the quick run`);
for (const row of measuredRows) {
  if (late()) {
    leftOut.push(`${row.title}: ${timeOver}`);
    continue;
  }
  console.log(`== ${row.title}`);
  const start = performance.now();
  const entry = await measure(options.quick ? { ...row, ...row.quick } : row);
  measured.push(entry);
  console.log(`${rowTable(entry)}\n== ${((performance.now() - start) / 1000).toFixed(0)} s\n`);
}
await browser.close();
for (const server of Object.values(servers)) await server.close();

const scaling = measured.find(({ row }) => row.id === 'scaling');
const curves = scaling && scalingCurves(scaling.row, scaling.results);
const memory = scaling?.facts['wasmformer f32']?.memory;
const judged = judge(measured);
console.log(floorsTable(judged));
for (const line of leftOut) console.log(`left out: ${line}`);

// Only a run of everything replaces what the documentation shows.
const whole = !options.quick && measured.length === rows.length && chosenPeers.length === peers.length;
const out = options.out ?? (whole ? join(root, 'docs') : join(root, 'build/bench'));
mkdirSync(out, { recursive: true });
writeFileSync(join(out, 'benchmarks.md'), report({ machine, versions, runs, measured, leftOut, curves, memory }));
writeFileSync(join(out, 'benchmarks.svg'), plot({ judged, curves }));
writeFileSync(
  join(out === join(root, 'docs') ? join(root, 'build/bench') : out, 'benchmarks.json'),
  JSON.stringify({ machine, versions, runs, measured, leftOut }),
);
if (whole) {
  const readme = join(root, 'README.md');
  const summary = summaryTable(
    measured,
    Object.keys(libraries).filter((name) => name !== 'kernels'),
  );
  const text = `\n${summary}\n\n${machine}; ${versions}; one thread; medians of ${runs}.\n`;
  writeFileSync(readme, between(readFileSync(readme, 'utf8'), 'bench', text));
}
console.log(`\n${join(out, 'benchmarks.md')}, ${((performance.now() - began) / 1000).toFixed(0)} s`);
