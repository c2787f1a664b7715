// What is measured, and what is to be reached. A contender is named 'library format', with ' x2' for two threads and ' in Node'.
import { firstByte } from './gguf.mjs';
import { crossing, exponent, median, ratio, speeds, translationTimes } from './stats.mjs';

/** Ids of printable ASCII in the vocabulary that wllama reads; rounds begin differently, so that no cache of prompts helps. */
export const prompt = (length, round) => Array.from({ length }, (_, i) => firstByte + 33 + ((i * 37 + round * 11 + (i >> 5)) % 90));

const generate = async (contender, { prompt: length, tokens }, round) => {
  const { times, tokens: said } = await contender.call('generate', prompt(length, round), tokens);
  return { values: speeds(length, times), times, said };
};

const translate = async (contender, { prompt: length, tokens }, round) => {
  const { times, tokens: said } = await contender.call('translate', prompt(length, round), tokens);
  return { values: translationTimes(times), said };
};

const forward = async (contender, { prompt: length }, round) => {
  const { ms, values: said } = await contender.call('forward', prompt(length, round));
  return { values: { forward: ms }, said };
};

const product = async (contender, { shapes }) => {
  const values = contender.library === 'kernels' ? { peak: await contender.call('peak'), reading: await contender.call('bandwidth') } : {};
  for (const [rows, size] of shapes) {
    const gflop = (2 * rows * size * size) / 1e9;
    const times = Math.ceil(0.5 / gflop);
    values[productName(rows, size)] = gflop / ((await contender.call('product', rows, size, times)) / 1000);
  }
  return { values };
};

const start = async (contender) => ({ values: { compile: await contender.compiling(), ready: contender.load } });

/** Decoding after texts of two lengths that the contender remembers: `state` holds their numbers. */
const context = async (contender, { lengths, tokens }, _round, state) => {
  const values = {};
  for (const [i, length] of [lengths[0], lengths.at(-1)].entries()) {
    const { times } = await contender.call('continue', state.caches[i], tokens);
    values[`decode at ${length}`] = speeds(1, times).decode;
  }
  return { values };
};

const prepareContext = async (contender, { lengths }) => {
  const { index: short } = await contender.call('remember', [prompt(lengths[0], 0)]);
  const texts = lengths.map((length) => prompt(length, 1));
  const { index: long, memory } = await contender.call('remember', texts);
  return { caches: [short, long], facts: { lengths, memory } };
};

/** The library shows memory, its kernels speed. */
const prepareScaling = async (contender, { lengths }) => {
  if (contender.library === 'kernels') return {};
  const { memory } = await contender.call(
    'remember',
    lengths.map((length) => prompt(length, 1)),
  );
  return { facts: { lengths, memory } };
};

const scaling = async (contender, { lengths }) => {
  const values = {};
  if (contender.library !== 'kernels') return { values };
  for (const n of lengths) {
    values[`attention at ${n}`] = await contender.call('attention', n);
    values[`feed-forward at ${n}`] = await contender.call('feedForward', n);
  }
  return { values };
};

const encoderDecoder = { 'onnxruntime-web': { files: ['encoder_model', 'decoder_model', 'decoder_with_past_model'] } };
const shapes = [64, 128].flatMap((rows) => [512, 1024, 2048].map((size) => [rows, size]));
const productName = (rows, size) => `${rows} x ${size} x ${size}`;

const all = ['wasmformer', 'onnxruntime-web', 'wllama', 'transformers.js'];

/** The least (or the largest) over several comparisons, unless one is missing. */
const least = (values) => (values.includes(undefined) ? undefined : Math.min(...values));

/** A floor that is a ratio of a metric between two contenders of the row. */
const beats = (metric, ours, times, theirs) => ({
  what: metric,
  ours,
  theirs,
  atLeast: times,
  value: (results) => ratio(results, metric, ours, theirs),
});

/**
 * Each row: its `id`, what is measured (`once`, one repetition; `prepare` before the first), on which model and sizes, by whom
 * (`options` by library), and the `floors`: `value(results)` is to be `atLeast` or `atMost` so much. `quick`: sizes of the quick run, which leaves out rows without;
 * `summary`: README shows it.
 */
export const rows = [
  {
    id: 'matmul',
    title: 'f32 matrix multiply',
    once: product,
    model: 'products',
    shapes,
    contenders: ['kernels f32', 'onnxruntime-web f32'],
    options: { 'onnxruntime-web': { files: [512, 1024, 2048].map((size) => `matmul-${size}`) } },
    quick: { shapes: [64, 128].flatMap((rows) => [512, 2048].map((size) => [rows, size])) },
    floors: [
      {
        what: 'the least ratio of all shapes',
        ours: 'kernels f32',
        theirs: 'onnxruntime-web f32',
        atLeast: 1.5,
        value: (results, row) => least(row.shapes.map(([m, n]) => ratio(results, productName(m, n), 'kernels f32', 'onnxruntime-web f32'))),
      },
      {
        what: 'the least share of the peak',
        ours: 'kernels f32',
        theirs: "the machine's peak in WebAssembly",
        atLeast: 0.7,
        value: ({ 'kernels f32': kernels }, row) =>
          kernels?.peak && least(row.shapes.map(([m, n]) => median(kernels[productName(m, n)]) / median(kernels.peak))),
      },
    ],
  },
  {
    id: 'minilm',
    summary: true,
    title: 'MiniLM-L6, 128 tokens',
    once: forward,
    model: 'minilm-l6',
    prompt: 128,
    contenders: ['wasmformer f32', 'wasmformer q8', 'onnxruntime-web f32', 'onnxruntime-web int8'],
    quick: {},
    floors: [
      beats('forward', 'wasmformer f32', 1.5, 'onnxruntime-web f32'),
      beats('forward', 'wasmformer q8', 1.2, 'onnxruntime-web int8'),
    ],
  },
  {
    id: 'gpt2',
    summary: true,
    title: 'GPT-2 124 M',
    once: generate,
    model: 'gpt2-124m',
    prompt: 128,
    tokens: 24,
    contenders: ['wasmformer f32', 'wasmformer q8', 'onnxruntime-web f32', 'onnxruntime-web int8'],
    quick: { prompt: 64, tokens: 8 },
    floors: [
      beats('prefill', 'wasmformer f32', 1.5, 'onnxruntime-web f32'),
      beats('decode', 'wasmformer f32', 1.2, 'onnxruntime-web f32'),
      beats('decode', 'wasmformer q8', 3.5, 'onnxruntime-web int8'),
    ],
  },
  {
    id: 'opus',
    summary: true,
    title: 'OPUS-MT shape, 128 tokens',
    once: translate,
    model: 'opus-mt',
    prompt: 128,
    tokens: 24,
    contenders: ['wasmformer f32', 'wasmformer q8', 'onnxruntime-web f32', 'onnxruntime-web int8'],
    options: encoderDecoder,
    quick: { tokens: 8 },
    floors: [beats('encoder', 'wasmformer f32', 1.5, 'onnxruntime-web f32'), beats('step', 'wasmformer q8', 2.5, 'onnxruntime-web int8')],
  },
  {
    id: 'smollm2-q8',
    summary: true,
    title: 'SmolLM2-135M q8',
    once: generate,
    model: 'smollm2-135m',
    prompt: 128,
    tokens: 24,
    contenders: ['wasmformer q8', 'wllama q8', 'transformers.js q8'],
    quick: { prompt: 32, tokens: 6 },
    floors: [
      beats('prefill', 'wasmformer q8', 8, 'wllama q8'),
      beats('prefill', 'wasmformer q8', 1.05, 'transformers.js q8'),
      beats('decode', 'wasmformer q8', 5.5, 'wllama q8'),
      beats('decode', 'wasmformer q8', 4, 'transformers.js q8'),
    ],
  },
  {
    id: 'smollm2-q4',
    summary: true,
    title: 'SmolLM2-135M q4',
    once: generate,
    model: 'smollm2-135m',
    prompt: 128,
    tokens: 16,
    contenders: ['wasmformer q4', 'wllama q4', 'transformers.js q4'],
    floors: [beats('prefill', 'wasmformer q4', 10, 'wllama q4'), beats('decode', 'wasmformer q4', 9, 'wllama q4')],
  },
  {
    id: 'smollm2-f32',
    summary: true,
    title: 'SmolLM2-135M f32',
    once: generate,
    model: 'smollm2-135m',
    prompt: 128,
    tokens: 24,
    contenders: ['wasmformer f32', 'wllama f32', 'transformers.js f32'],
    floors: [beats('prefill', 'wasmformer f32', 1.3, 'transformers.js f32'), beats('decode', 'wasmformer f32', 1.25, 'wllama f32')],
  },
  {
    id: 'llama-15m',
    summary: true,
    title: '15 M-parameter llama',
    once: generate,
    model: 'llama-15m',
    prompt: 128,
    tokens: 48,
    contenders: ['wasmformer q8', 'wasmformer f32', 'wllama q8', 'wllama f32'],
    quick: { prompt: 64, tokens: 24 },
    floors: [beats('decode', 'wasmformer q8', 5, 'wllama q8')],
  },
  {
    id: 'threads',
    title: '2 threads over 1, SmolLM2-135M',
    once: generate,
    model: 'smollm2-135m',
    prompt: 128,
    tokens: 24,
    contenders: ['wasmformer q8', 'wasmformer q8 x2', 'wasmformer f32', 'wasmformer f32 x2', 'wllama q8 x2', 'transformers.js q8 x2'],
    floors: ['q8', 'f32'].flatMap((dtype) => [
      beats('prefill', `wasmformer ${dtype} x2`, 1.7, `wasmformer ${dtype}`),
      beats('decode', `wasmformer ${dtype} x2`, 1.3, `wasmformer ${dtype}`),
    ]),
  },
  {
    id: 'node',
    title: 'GPT-2 124 M in Node',
    once: generate,
    model: 'gpt2-124m',
    prompt: 128,
    tokens: 24,
    contenders: ['wasmformer f32 in Node', 'wasmformer q8 in Node', 'onnxruntime-web f32 in Node', 'onnxruntime-web int8 in Node'],
    floors: [],
  },
  {
    id: 'start',
    title: 'compile + instantiate, cold',
    once: start,
    model: 'tiny',
    fresh: true,
    contenders: all.map((library) => `${library} f32`),
    quick: { runs: 1 },
    floors: [
      {
        what: 'milliseconds',
        ours: 'wasmformer f32',
        theirs: 'at most 60 ms',
        atMost: 60,
        value: ({ 'wasmformer f32': values }) => values?.compile && median(values.compile),
      },
    ],
  },
  {
    id: 'context',
    title: '4096 tokens of context, GPT-2 shape, f32',
    once: context,
    prepare: prepareContext,
    model: 'gpt2-4k',
    lengths: [128, 1024, 2048, 4096],
    tokens: 16,
    contenders: ['wasmformer f32'],
    floors: [
      {
        what: 'decode at 4096 beside 128',
        ours: 'wasmformer f32',
        theirs: 'itself at 128',
        atLeast: 0.55,
        value: ({ 'wasmformer f32': values }) =>
          values?.['decode at 128'] && median(values['decode at 4096']) / median(values['decode at 128']),
      },
      {
        what: 'memory grows with tokens to the power of',
        ours: 'wasmformer f32',
        theirs: 'linear: 1',
        atMost: 1.05,
        value: (_results, _row, { 'wasmformer f32': facts }) =>
          facts &&
          exponent(
            facts.lengths,
            facts.memory.map(({ cache }) => cache),
          ),
      },
    ],
  },
  {
    id: 'scaling',
    title: 'attention beside feed-forward, d = 512',
    once: scaling,
    prepare: prepareScaling,
    model: 'layer-8k',
    lengths: [128, 256, 512, 1024, 2048, 4096, 8192],
    contenders: ['kernels f32', 'wasmformer f32'],
    runs: 3,
    floors: [],
  },
];

/** Medians of the scaling row: `{ lengths, attention, feedForward, crossing }`, milliseconds by number of tokens. */
export function scalingCurves(row, results) {
  const values = results['kernels f32'];
  if (!values) return undefined;
  const curve = (name) => row.lengths.map((n) => median(values[`${name} at ${n}`]));
  const [attention, feedForward] = [curve('attention'), curve('feed-forward')];
  return { lengths: row.lengths, attention, feedForward, crossing: crossing(row.lengths, attention, feedForward) };
}
