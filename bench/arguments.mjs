// What the bench is asked for. Nothing here needs what is installed or built.
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Refusal, root } from '../scripts/run.mjs';
import { libraries } from './contenders.mjs';
import { rows } from './rows.mjs';
import { shapes } from './training.mjs';

const peers = Object.keys(libraries).filter((name) => name !== 'wasmformer' && name !== 'kernels');
const ids = rows.map(({ id }) => id);

export const usage = `Usage: npm run bench [-- options]            everything, interleaved with the peers; writes docs/benchmarks.md and .svg and README's table
       npm run bench -- kernels [ROUNDS [NAME]]             the kernels alone, under both SIMD levels
       npm run bench -- training [ROUNDS [SHAPE]]           training, beside its forward, PyTorch, TensorFlow.js, jax-js; five minutes
       npm run bench -- quality [options] [FOLDER ...]      what few bits cost in perplexity and divergence

Installs what is missing and builds first. NAME is a part of the names of what is measured, SHAPE of '4 x 128' and '6 x 384'.

  --quick            most of it in two minutes, after what it needs has been installed and made
  --rows LIST        some of ${ids.join(', ')}
  --peers LIST       some of ${peers.join(', ')}
  --runs N           repetitions of each, 7 (with --quick 3)
  --out FOLDER       where the results go
  --dist FOLDER      this library as another build has it
Of quality:
  --dtypes LIST      f16,q8,q4
  --tokens N         of a held-out text, 2048`;

function parse(config) {
  try {
    return parseArgs(config);
  } catch (error) {
    throw new Refusal(`${error.message.split('. ')[0]}; npm run bench -- --help lists the options`);
  }
}

function choose(text, known, what) {
  const chosen = text?.split(',') ?? known;
  const wrong = chosen.find((name) => !known.includes(name));
  if (wrong !== undefined) throw new Refusal(`--${what}: expected some of ${known.join(', ')}, got ${wrong}`);
  return chosen;
}

function positive(text, what) {
  if (!/^[1-9]\d*$/.test(text)) throw new Refusal(`${what}: expected a whole number from 1 on, got ${text}`);
  return Number(text);
}

/** Of the comparison with peers. */
export function readArguments(args) {
  const { values: options } = parse({
    args,
    options: {
      quick: { type: 'boolean', default: false },
      rows: { type: 'string' },
      peers: { type: 'string' },
      runs: { type: 'string' },
      out: { type: 'string' },
      dist: { type: 'string', default: join(root, 'dist') },
      python: { type: 'string' },
      'no-peers': { type: 'boolean', default: false }, // they could not be installed
    },
  });
  return {
    options,
    peers,
    chosenPeers: choose(options.peers, peers, 'peers').filter(() => !options['no-peers']),
    chosenRows: choose(options.rows, ids, 'rows'),
    runs: positive(options.runs ?? (options.quick ? '3' : '7'), '--runs'),
  };
}

/** Of bench/quality.mjs. */
export function readQualityArguments(args) {
  const { values, positionals } = parse({
    args,
    allowPositionals: true,
    options: { dtypes: { type: 'string' }, tokens: { type: 'string', default: '2048' } },
  });
  const dtypes = values.dtypes ? choose(values.dtypes, ['f32', 'f16', 'bf16', 'q8', 'q4'], 'dtypes') : ['f16', 'q8', 'q4'];
  return { dtypes, tokens: positive(values.tokens, '--tokens'), folders: positionals };
}

/** Of what takes no options: rounds and a name. */
function checkProgram(name, args) {
  const option = args.find((arg) => arg.startsWith('-'));
  if (option !== undefined || args.length > 2)
    throw new Refusal(`${name}: expected at most 2 arguments and no options, got ${option ?? args.join(' ')}`);
  if (args.length > 0) positive(args[0], `${name}: rounds`);
  if (name === 'training') shapesLike(args[1] ?? '');
}

/** The shapes of training whose names contain a text. */
export function shapesLike(text) {
  const chosen = shapes.filter(({ name }) => name.includes(text));
  if (!chosen.length) throw new Refusal(`training: expected a part of ${shapes.map(({ name }) => name).join(', ')}, got ${text}`);
  return chosen;
}

/** What is to be run, of `kernels`, `training`, `quality` and `peers`; refuses whatever it would refuse later. */
export function chooseBench(args) {
  const [name, ...rest] = args;
  if (name === 'kernels' || name === 'training') checkProgram(name, rest);
  else if (name === 'quality') readQualityArguments(rest);
  else if (name !== undefined && !name.startsWith('-'))
    throw new Refusal(`No bench is named ${name}; there are: kernels, training, quality; npm run bench -- --help says more`);
  else {
    readArguments(args);
    return { name: 'peers', rest: args };
  }
  return { name, rest };
}
