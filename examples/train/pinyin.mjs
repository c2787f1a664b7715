// Trains the model of examples/models/pinyin: an encoder-decoder that reads Chinese. npm run train:pinyin [-- options]
// What is stopped, by Ctrl-C or --minutes, is gone on with by the same command. Hours.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { create } from 'wasmformer';
import { dictionaries, heldOut, isHeldOut, measure, polyphones, report } from '../models/pinyin/check.mjs';
import { draws } from './draws.mjs';
import { commandLine, publish, train } from './shipped.mjs';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const settings = commandLine(
  `Usage: npm run train:pinyin -- [--steps 11800] [--minutes N] [--threads 2] [--work FOLDER] [--out FOLDER] [--export]
  --export writes the model as it is after the last saved step`,
  { steps: 11800, work: here('../models/pinyin/.work/training'), out: here('../../build/train/pinyin') },
);

const seed = 1958;
const specials = ['<pad>', '<s>', '</s>', '<unk>'];
const [start, end, unknown] = [1, 2, 3];
// Each stands for itself in the target.
const stops = [...'，。！？、；：'];
const symbols = [
  ...Array.from({ length: 94 }, (_, i) => String.fromCharCode(33 + i)),
  ...stops,
  ...'“”‘’（）《》〈〉【】「」『』…—·～￥％',
];
const longest = 64;

// Phrases of a step, and of which kind from which share of the run on: passes over all, over those with a character of several readings,
// over those with one of the eight polyphones, over `alone`; and drawn by frequency to a power: 1, as text has them, comes last.
const mixtures = [
  [0, { all: 600, unsure: 0, polyphones: 0, alone: 0, frequent: 200, power: 0.75 }],
  [0.08, { all: 400, unsure: 240, polyphones: 0, alone: 0, frequent: 160, power: 0.75 }],
  [0.34, { all: 360, unsure: 240, polyphones: 80, alone: 0, frequent: 120, power: 0.75 }],
  [0.81, { all: 380, unsure: 180, polyphones: 60, alone: 24, frequent: 156, power: 1 }],
];
// Polyphones that are words by themselves, which hardly a phrase of the dictionary shows.
const alone = '都了还';
const perStep = 800;
// Phrases in a source, and how often: the long ones teach the positions of whole sentences.
const joined = [
  [1, 0.35],
  [2, 0.2],
  [3, 0.15],
  [4, 0.15],
  [8, 0.1],
  [16, 0.05],
];

const { modern, complete } = dictionaries();
const all = Object.entries({ ...modern, ...complete }).map(([text, [reading, rate]]) => ({
  text: [...text],
  reading: reading.split(' '),
  rate,
}));
const byCode = (texts) => [...texts].sort((a, b) => a.codePointAt(0) - b.codePointAt(0));
const characters = new Set(all.filter(({ text }) => text.length > 1).flatMap(({ text }) => text));
for (const text of Object.keys(modern)) if ([...text].length === 1) characters.add(text);
const entries = all
  .filter(({ text }) => text.every((character) => characters.has(character)) && !(text.length > 1 && isHeldOut(text.join(''))))
  .sort((a, b) => (a.text.join('') < b.text.join('') ? -1 : 1));
const syllables = new Set(entries.flatMap(({ reading }) => reading));
const numbered = (tokens) => new Map(tokens.map((token, id) => [token, id]));
const source = numbered([...specials, ...symbols, ...byCode(characters)]);
const target = numbered([...specials, ...symbols, ...[...syllables].filter((syllable) => !symbols.includes(syllable)).sort()]);
const phrases = entries.map(({ text, reading }) => [text.map((c) => source.get(c)), reading.map((s) => target.get(s))]);

/** The numbers of the phrases that have more than one character, one of them among these. */
const holding = (wanted) => [...entries.keys()].filter((i) => entries[i].text.length > 1 && entries[i].text.some((c) => wanted.has(c)));

/** Characters of several readings, of which none makes up 95 %. */
function unsure() {
  const counts = new Map();
  for (const { text, reading } of entries) {
    text.forEach((character, i) => {
      const of = counts.get(character) ?? counts.set(character, new Map()).get(character);
      of.set(reading[i], (of.get(reading[i]) ?? 0) + 1);
    });
  }
  const sure = (of) => Math.max(...of.values()) >= 0.95 * [...of.values()].reduce((a, b) => a + b);
  return new Set([...counts].filter(([, of]) => !sure(of)).map(([character]) => character));
}

/** Number `position` of endless passes over `list`, each in an order of its own. */
function passes(list, key) {
  let epoch = -1;
  let order = [];
  return (position) => {
    if (epoch !== Math.floor(position / list.length)) {
      epoch = Math.floor(position / list.length);
      order = [...list];
      shuffle(order, draws(seed, key, epoch));
    }
    return order[position % list.length];
  };
}

function shuffle(list, random) {
  for (let i = list.length - 1; i > 0; --i) {
    const j = Math.floor(random() * (i + 1));
    [list[i], list[j]] = [list[j], list[i]];
  }
}

/** Where in a list of sums, rising, a number falls. */
function place(sums, number) {
  let [low, high] = [0, sums.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sums[middle] > number) high = middle;
    else low = middle + 1;
  }
  return low;
}
const sumsOf = (weights) => {
  let sum = 0;
  return weights.map((weight) => (sum += weight));
};

/** The sequences of the whole run, each time the same. */
function* sequences() {
  const inOrder = {
    all: passes([...entries.keys()], 1),
    unsure: passes(holding(unsure()), 2),
    polyphones: passes(holding(new Set(polyphones)), 3),
    alone: passes(
      [...entries.keys()].filter((i) => entries[i].text.length === 1 && alone.includes(entries[i].text[0])),
      5,
    ),
  };
  const positions = { all: 0, unsure: 0, polyphones: 0, alone: 0 };
  // A lone 得 or 地 in running text is the particle de, which the package's reading of the character is not.
  const rates = entries.map(({ text, rate }) => (text.length === 1 && '得地'.includes(text[0]) ? 0 : rate));
  const frequencies = new Map([0.75, 1].map((power) => [power, sumsOf(rates.map((rate) => rate ** power))]));
  const frequent = (random, power) => place(frequencies.get(power), random() * frequencies.get(power).at(-1));
  const lengths = sumsOf(joined.map(([, share]) => share));
  for (let step = 0; ; ++step) {
    const random = draws(seed, 4, step);
    const pick = (list) => list[Math.floor(random() * list.length)];
    const mixture = mixtures.findLast(([from]) => step >= from * settings.steps)[1];
    const chosen = [];
    for (const [kind, next] of Object.entries(inOrder)) for (let i = 0; i < mixture[kind]; ++i) chosen.push(next(positions[kind]++));
    while (chosen.length < perStep) chosen.push(frequent(random, mixture.power));
    shuffle(chosen, random);
    while (chosen.length > 0) {
      const [characters, reading] = [[], []];
      const add = (symbol) => {
        characters.push(source.get(symbol));
        reading.push(target.get(symbol));
      };
      for (let left = joined[place(lengths, random())][0]; left > 0 && chosen.length > 0; --left) {
        if (characters.length + phrases[chosen.at(-1)][0].length > longest - 2) break;
        const [s, t] = phrases[chosen.pop()];
        characters.push(...s);
        reading.push(...t);
        const what = random();
        if (what < 0.12) add(pick(stops));
        else if (what < 0.18) for (let n = 1 + Math.floor(4 * random()); n > 0 && characters.length < longest - 1; --n) add(pick(symbols));
      }
      for (let i = 0; i < characters.length; ++i) if (random() < 0.005) characters[i] = reading[i] = unknown;
      yield { inputIds: [...characters, end], labels: [...reading, end] };
    }
  }
}

const special = (names) =>
  names.map((content) => {
    const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
    return { id: specials.indexOf(content), content, ...flags };
  });
const words = { type: 'WhitespaceSplit' };
const base = { version: '1.0', truncation: null, padding: null, normalizer: null };
const model = (ids) => ({ type: 'WordLevel', vocab: Object.fromEntries(ids), unk_token: '<unk>' });
const [sequence, ending] = [{ Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: '</s>', type_id: 0 } }];
const tokenizers = {
  // A token a character, white space none, and the end after them.
  'tokenizer.json': {
    ...base,
    added_tokens: special(specials),
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [words, { type: 'Split', pattern: { Regex: '[\\s\\S]' }, behavior: 'Isolated', invert: false }],
    },
    post_processor: {
      type: 'TemplateProcessing',
      single: [sequence, ending],
      pair: [sequence, { Sequence: { id: 'B', type_id: 0 } }, ending],
      special_tokens: { '</s>': { id: '</s>', ids: [end], tokens: ['</s>'] } },
    },
    decoder: { type: 'Fuse' },
    model: model(source),
  },
  // A token a word. What is unknown is one like the others: decoding shows it.
  'target_tokenizer.json': {
    ...base,
    added_tokens: special(specials.slice(0, 3)),
    pre_tokenizer: words,
    post_processor: null,
    decoder: null,
    model: model(target),
  },
  'tokenizer_config.json': {
    tokenizer_class: 'PreTrainedTokenizerFast',
    bos_token: '<s>',
    eos_token: '</s>',
    pad_token: '<pad>',
    model_max_length: longest,
    clean_up_tokenization_spaces: false,
  },
};

const roles = { pad_token_id: 0, bos_token_id: start, eos_token_id: end, decoder_start_token_id: start };
const shape = JSON.parse(readFileSync(here('../models/pinyin/config.json'), 'utf8'));
const config = { ...shape, ...roles, vocab_size: target.size, encoder_vocab_size: source.size };
const bytes = (value) => new TextEncoder().encode(JSON.stringify(value));
const files = Object.fromEntries(Object.entries(tokenizers).map(([name, value]) => [name, bytes(value)]));
const held = heldOut().filter((_, i) => i % 20 === 0);
const { model: mt, finished } = await train(settings, {
  make: (threads) => create(config, { seed, tokenizer: files, threads }),
  data: { [Symbol.iterator]: sequences },
  options: {
    // About 800 phrases, each on both sides.
    batchTokens: 6144,
    microBatchTokens: 3072,
    learningRate: 2e-3,
    schedule: 'cosine',
    warmup: Math.min(200, settings.steps >> 3),
    beta2: 0.98,
    weightDecay: 0.1,
    dropout: 0.05,
    seed,
    evalEvery: 500,
  },
  evalData: held.map(([text, reading]) => ({
    inputIds: [...Array.from(text, (c) => source.get(c) ?? unknown), end],
    labels: [...reading.map((s) => target.get(s) ?? unknown), end],
  })),
});
if (finished) {
  await publish(mt, settings.out, {
    ...tokenizers,
    'config.json': { ...config, dtype: 'float16' },
    'generation_config.json': { ...roles, do_sample: false, max_new_tokens: longest },
  });
  console.log(`${settings.out}: each 20th held-out phrase: ${report(await measure(mt, held))}`);
  console.log(`node examples/models/pinyin/check.mjs --model ${settings.out} takes all of them`);
}
await mt.dispose();
