// Trains the model of examples/models/moby-dick-char: a LLaMA that writes one character at a time. npm run train:char [-- options]
// What is stopped, by Ctrl-C or --minutes, is gone on with by the same command. Hours.
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { create, load, trainTokenizer } from 'wasmformer';
import { bitsPerCharacter, chapters } from '../models/moby-dick-char/check.mjs';
import { draws } from './draws.mjs';
import { commandLine, publish, train } from './shipped.mjs';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const settings = commandLine(
  `Usage: npm run train:char -- [--steps 4500] [--minutes N] [--threads 2] [--work FOLDER] [--out FOLDER] [--export]
  --export writes the model as it is after the last saved step`,
  { steps: 4500, work: here('../models/moby-dick-char/.work/training'), out: here('../../build/train/moby-dick-char') },
);

// Short contexts are cheap, long ones come last: the share of the run at which each begins.
const stages = [
  [0, 128],
  [0.33, 256],
  [0.75, 512],
];
const batchTokens = 4096;
const seed = 1851;
const book = chapters();
const { tokenizer } = await trainTokenizer([...book.train, ...book.held], { type: 'char', specialTokens: ['<unk>', '<s>', '</s>'] });
const { bos, eos } = tokenizer.specials;
const encode = async (texts) => (await tokenizer.encode(texts)).map((ids) => [bos, ...ids, eos]);
const ids = Int32Array.from((await encode(book.train)).flat());
const held = await encode(book.held);

/** Windows from places that the seed and a window's number tell. */
class Windows {
  constructor(first = 0) {
    this.first = first;
  }
  skip(count) {
    return new Windows(count);
  }
  *[Symbol.iterator]() {
    let before = 0;
    for (const [i, [, context]] of stages.entries()) {
      const steps = Math.round((stages[i + 1]?.[0] ?? 1) * settings.steps) - Math.round(stages[i][0] * settings.steps);
      const end = before + (steps * batchTokens) / context;
      for (let n = Math.max(this.first, before); n < end; ++n) {
        const start = Math.floor(draws(seed, n)() * (ids.length - context));
        yield { inputIds: ids.slice(start, start + context) };
      }
      before = end;
    }
  }
}

const config = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  vocab_size: tokenizer.vocabSize,
  hidden_size: 128,
  intermediate_size: 320,
  num_hidden_layers: 6,
  num_attention_heads: 4,
  num_key_value_heads: 4,
  head_dim: 32,
  hidden_act: 'silu',
  max_position_embeddings: 512,
  rms_norm_eps: 1e-5,
  tie_word_embeddings: true,
  bos_token_id: bos,
  eos_token_id: eos,
};
const evalData = held.flatMap((chapter) =>
  Array.from({ length: Math.ceil((chapter.length - 1) / 511) }, (_, i) => ({ inputIds: chapter.slice(511 * i, 511 * i + 512) })),
);
const { model, finished } = await train(settings, {
  make: (threads) => create(config, { seed, tokenizer, threads }),
  data: new Windows(),
  options: {
    batchTokens,
    shuffle: false,
    optimizer: 'muon',
    learningRate: 6e-3,
    schedule: 'cosine',
    warmup: Math.min(100, settings.steps >> 3),
    beta2: 0.98,
    weightDecay: 0.2,
    dropout: 0.05,
    seed,
    evalEvery: 500,
  },
  evalData,
});
if (finished) {
  await publish(model, settings.out, {
    'config.json': { ...config, dtype: 'float16' },
    'generation_config.json': { bos_token_id: bos, eos_token_id: eos, do_sample: true, temperature: 0.8 },
  });
  const lm = await load(settings.out, { threads: settings.threads });
  console.log(`${settings.out}: held out ${(await bitsPerCharacter(lm, book.held)).toFixed(4)} bits per character`);
  console.log(`node ${join('examples/models/moby-dick-char', 'check.mjs')} --model ${settings.out} judges what it writes`);
  await lm.dispose();
}
await model.dispose();
