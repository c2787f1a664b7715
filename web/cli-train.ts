import { accessSync, constants, existsSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { drawLoading, listFlags, liveLine, parseFlags, readValue, UsageError, untilInterrupted } from './cli-flags.ts';
import { create, load, trainTokenizer } from './node.js';
import { boolean, checkCreateOptions, checkLoadOptions, describeOptions, type OptionWords, positiveInteger } from './options.ts';
import { makeFolder } from './platform/node-files.ts';
import { checkTrain, trainKinds } from './train/options.ts';
import type { TokenizerType } from './train/tokenizer-trainer.ts';
import type { LoadOptions, ModelInfo, TokenizerInfo, TrainOptions, TrainStep } from './types.ts';

type Family = 'gpt2' | 'llama' | 'bert' | 'transformer';

/** The flags that give a model its size. */
interface Size {
  layers: number;
  'd-model': number;
  heads: number;
  /** Tokens. */
  context: number;
}

interface Preset {
  about: string;
  family: Family;
  size: Size;
  tokenizer: TokenizerType;
  vocabSize?: number;
  training: TrainOptions;
}

const size = (layers: number, width: number, heads: number, context: number): Size => ({ layers, 'd-model': width, heads, context });
const training = (steps: number, learningRate: number, more: TrainOptions = {}): TrainOptions => ({
  steps,
  learningRate,
  schedule: 'cosine',
  warmup: 100,
  evalEvery: 100,
  sampleEvery: 200,
  ...more,
});

/** The share of a text that is held out, and how many bytes are enough to know the loss by. */
const heldShare = 0.05;
const heldBytes = 2 ** 18;

const presets: Record<string, Preset> = {
  'char-small': {
    about: 'writes character by character (GPT-2); minutes',
    family: 'gpt2',
    size: size(4, 128, 4, 128),
    tokenizer: 'char',
    training: training(2000, 1e-3),
  },
  'char-medium': {
    about: 'the same, larger; hours',
    family: 'gpt2',
    size: size(6, 384, 6, 256),
    tokenizer: 'char',
    training: training(5000, 1e-3, { batchTokens: 8192, dropout: 0.2 }),
  },
  'bpe-small': {
    about: 'writes by byte-pair encoding (GPT-2)',
    family: 'gpt2',
    size: size(4, 256, 4, 256),
    tokenizer: 'bpe',
    vocabSize: 4096,
    training: training(4000, 6e-4),
  },
  'llama-small': {
    about: 'the same as a LLaMA',
    family: 'llama',
    size: size(6, 256, 4, 256),
    tokenizer: 'bpe',
    vocabSize: 4096,
    training: training(4000, 6e-4),
  },
  'translate-small': {
    about: 'writes the target of a source: lines of pairs, apart by a tab (Vaswani et al. 2017)',
    family: 'transformer',
    size: size(2, 128, 4, 128),
    tokenizer: 'bpe',
    vocabSize: 4096,
    training: training(4000, 1e-3, { labelSmoothing: 0.1 }),
  },
  'bert-small': {
    about: 'guesses masked words (BERT); a line is a text',
    family: 'bert',
    size: size(4, 256, 4, 128),
    tokenizer: 'wordpiece',
    vocabSize: 8192,
    training: training(4000, 6e-4),
  },
};

const { load: loadWords } = describeOptions();
const { trainable: _, dtype: __, cacheDtype: ___, ...engineWords } = loadWords;
const trainWords: Record<string, OptionWords> = Object.fromEntries(
  Object.entries(trainKinds).map(([name, kind]) => [name, { expected: kind.expected, type: kind === boolean ? 'switch' : 'value' }]),
);
const sizes = ['layers', 'd-model', 'heads', 'context'] as const;
/** What belongs to a model that is made, and cannot be changed when one goes on. */
const making = ['preset', 'tokenizer', 'vocab-size', ...sizes];
const tokenizers = ['char', 'byte', 'bpe', 'wordpiece'];

function help(): string {
  const names = Object.entries(presets).map(([name, { about, size, tokenizer, training }]) => {
    const shape = `${size.layers} x ${size['d-model']}, ${size.heads} heads, ${size.context} tokens, ${tokenizer}`;
    return `  ${name.padEnd(16)} ${about}\n${' '.repeat(19)}${shape}; ${training.steps} steps at ${training.learningRate}`;
  });
  return `Usage:
  wasmformer train FILE... --out FOLDER [options]            train a new model on text files
  wasmformer train FILE... --out FOLDER --resume [options]   go on with the training saved there
  wasmformer train FILE... --out FOLDER --model SOURCE       go on training a published model

An interrupt (Ctrl-C) saves the model and its training. Loss is in nats a token.

  --out FOLDER                         where the model goes: load() and Hugging Face transformers read it
  --resume                             go on; options that are not given are as they were
  --model SOURCE                       a Hub id, address or folder to begin with
  --eval FILE                          text to look at the loss of, in place of a share of FILE
  --no-eval                            hold nothing out
  --save-every N                       steps between saves; default: those between evaluations
  --prompt TEXT                        what samples begin with
  --json                               each step as a line of JSON on standard output
  --help

A new model:
  --preset NAME                        default: char-small
${names.join('\n')}
  --layers, --d-model, --heads, --context N
  --tokenizer TYPE                     ${tokenizers.join(', ')}
  --vocab-size N                       tokens at most

Training:
  --lr N                               as --learning-rate
${listFlags(trainWords)}

Loading and running:
${listFlags(engineWords)}
`;
}

/** What would stand in the config.json of a new model. */
function configOf(
  family: Family,
  { layers, 'd-model': width, heads, context }: Size,
  vocabSize: number,
  specials: TokenizerInfo['specials'],
) {
  const { bos, eos, pad } = specials;
  const config = {
    model_type: family,
    vocab_size: vocabSize,
    ...(bos === null ? {} : { bos_token_id: bos }),
    ...(eos === null ? {} : { eos_token_id: eos }),
    ...(pad === null ? {} : { pad_token_id: pad }),
  };
  switch (family) {
    case 'gpt2':
      return { ...config, architectures: ['GPT2LMHeadModel'], n_embd: width, n_layer: layers, n_head: heads, n_positions: context };
    case 'llama':
      return {
        ...config,
        architectures: ['LlamaForCausalLM'],
        hidden_size: width,
        // Three matrices in place of two, of as many weights together; in whole panels.
        intermediate_size: Math.ceil((width * 8) / 3 / 32) * 32,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        max_position_embeddings: context,
        tie_word_embeddings: true,
      };
    case 'bert':
      return {
        ...config,
        architectures: ['BertForMaskedLM'],
        hidden_size: width,
        intermediate_size: 4 * width,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        max_position_embeddings: context,
      };
    case 'transformer':
      return {
        ...config,
        is_encoder_decoder: true,
        decoder_start_token_id: bos,
        d_model: width,
        encoder_layers: layers,
        decoder_layers: layers,
        heads,
        encoder_ffn_dim: 4 * width,
        decoder_ffn_dim: 4 * width,
        max_position_embeddings: context,
      };
  }
}

/** The texts of files, to make a vocabulary of: each whole, or the two sides of each line. */
async function* textsOf(files: string[], pairs: boolean): AsyncGenerator<string> {
  for (const file of files) {
    const text = await readFile(file, 'utf8');
    if (pairs) yield* text.split(/[\t\r\n]+/);
    else yield text;
  }
}

const one = (what: string, value: unknown): number => {
  const number = Number(value);
  if (!positiveInteger.test(number)) throw new UsageError(`--${what}: expected ${positiveInteger.expected}, got '${value}'`);
  return number;
};

/** What the command line asks for, checked. */
function parse(argv: string[]) {
  const text = { type: 'string' } as const;
  const flag = { type: 'boolean' } as const;
  const { positionals, own, given } = parseFlags(
    argv,
    { ...trainWords, ...engineWords },
    {
      out: text,
      resume: flag,
      model: { ...text, short: 'm' },
      eval: text,
      'no-eval': flag,
      'save-every': text,
      prompt: text,
      json: flag,
      preset: text,
      tokenizer: text,
      'vocab-size': text,
      lr: text,
      ...Object.fromEntries(sizes.map((name) => [name, text])),
    },
  );
  if (own.help) return null;
  const { out, resume = false, model, json = false } = own as { out?: string; resume?: boolean; model?: string; json?: boolean };
  if (positionals.length === 0) throw new UsageError('expected a text file to learn from');
  if (!out) throw new UsageError('expected --out FOLDER, where the model goes');
  const from = resume ? '--resume' : model === undefined ? null : '--model';
  const extra = from && making.find((name) => own[name] !== undefined);
  if (extra) throw new UsageError(`--${extra} belongs to a new model: it cannot be given with ${from}`);
  if (resume && model !== undefined) throw new UsageError('--model cannot be given with --resume');
  if (own.lr !== undefined && given.learningRate !== undefined) throw new UsageError('expected --lr or --learning-rate, not both');
  if (own['no-eval'] && (own.eval !== undefined || given.evalEvery !== undefined || given.evalFraction !== undefined))
    throw new UsageError('--no-eval cannot be given with what it leaves out');
  if (own.lr !== undefined) given.learningRate = readValue(own.lr);
  const name: string = own.preset ?? 'char-small';
  if (!Object.hasOwn(presets, name)) throw new UsageError(`--preset: expected one of ${Object.keys(presets).join(', ')}, got '${name}'`);
  const preset = { ...presets[name] };
  const pick = (from: object) => Object.fromEntries(Object.entries(given).filter(([name]) => name in from));
  const chosen: TrainOptions = pick(trainWords);
  const engine: LoadOptions = pick(engineWords);

  const { family } = preset;
  preset.size = { ...preset.size };
  for (const key of sizes) if (own[key] !== undefined) preset.size[key] = one(key, own[key]);
  if (own['vocab-size'] !== undefined) preset.vocabSize = one('vocab-size', own['vocab-size']);
  if (own.tokenizer !== undefined) {
    const fitting = tokenizers.filter((type) => (type === 'wordpiece') === (family === 'bert'));
    if (!fitting.includes(own.tokenizer))
      throw new UsageError(`--tokenizer: expected ${fitting.join(', ')} for ${name}, got '${own.tokenizer}'`);
    preset.tokenizer = own.tokenizer;
    if (own['vocab-size'] === undefined && (own.tokenizer === 'char' || own.tokenizer === 'byte')) preset.vocabSize = undefined;
  }
  let options: TrainOptions = chosen;
  if (!resume) {
    const { steps, warmup = 0, evalEvery, sampleEvery, ...rest } = preset.training;
    const defaults: TrainOptions = model === undefined ? { ...rest, sampleEvery } : { schedule: 'cosine', sampleEvery };
    if (chosen.epochs === undefined) defaults.steps = steps;
    const bytes = positionals.reduce((sum, file) => sum + (statSync(file, { throwIfNoEntry: false })?.size ?? 0), 0);
    // A short run has a short rise. Passes have about as many steps as there are tokens of four bytes for.
    const { epochs = 0, batchTokens = preset.training.batchTokens ?? 4096 } = chosen;
    const total = chosen.steps ?? defaults.steps ?? (epochs * bytes) / 4 / batchTokens;
    defaults.warmup = Math.min(warmup, Math.floor(total / 10));
    if (!own['no-eval']) defaults.evalEvery = evalEvery;
    if (!own['no-eval'] && own.eval === undefined) defaults.evalFraction = Math.min(heldShare, heldBytes / bytes);
    if (chosen.schedule === 'paper') delete defaults.learningRate;
    options = { ...defaults, ...chosen };
  }
  options.resume = resume;
  if (own.prompt !== undefined) options.sample = { prompt: own.prompt };
  if (own.eval !== undefined) options.evalData = { file: own.eval };
  try {
    checkTrain({ files: positionals }, options, {});
    if (from) checkLoadOptions(engine);
    else checkCreateOptions(engine);
  } catch (reason) {
    throw new UsageError((reason as Error).message);
  }
  const saveEvery = own['save-every'] === undefined ? null : one('save-every', own['save-every']);
  return {
    out,
    resume,
    model,
    json,
    files: positionals,
    preset,
    engine,
    options,
    wantsSamples: chosen.sampleEvery !== undefined || own.prompt !== undefined,
    saveEvery,
    evalFile: own.eval as string | undefined,
  };
}

/** Seconds as minutes, or hours and minutes, and seconds. */
function duration(seconds: number): string {
  const whole = Math.ceil(seconds);
  const two = (number: number) => String(number % 60).padStart(2, '0');
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes}:${two(whole)}` : `${Math.floor(minutes / 60)}:${two(minutes)}:${two(whole)}`;
}

const say = (line: string) => {
  liveLine.clear();
  process.stderr.write(`${line}\n`);
};

/** Tells of the steps as they come: a live line on a terminal, else some lines. */
function reporter(first: number, total: number | undefined, json: boolean) {
  const began = performance.now();
  let loss = 0;
  let speed = 0;
  let held: number | undefined;
  let told = first;
  return (step: TrainStep): string => {
    // What goes up and down from step to step, smoothed.
    const keep = Math.min(0.9, 1 - 1 / (step.step - first));
    loss = keep * loss + (1 - keep) * step.loss;
    speed = keep * speed + (1 - keep) * step.tokensPerSecond;
    held = step.evalLoss ?? held;
    const left = total && ((performance.now() - began) / 1000 / (step.step - first)) * (total - step.step);
    const losses = `loss ${loss.toFixed(3)}${held === undefined ? '' : `, held out ${held.toFixed(3)}`}`;
    const line = `step ${step.step}${total ? `/${total}` : ''}, ${losses}, ${Math.round(speed).toLocaleString('en')} tokens/s`;
    const whole = `${line}${left ? `, ${duration(left)} left` : ''}`;
    if (json) process.stdout.write(`${JSON.stringify(step)}\n`);
    const often = Math.ceil((total ?? 1000) / 50);
    const news = step.evalLoss !== undefined || step.sample !== undefined || step.step === total;
    if (liveLine.shown) liveLine.draw(total ? step.step / total : 0, whole);
    else if (news || step.step - told >= often || step.step === first + 1) {
      say(whole);
      told = step.step;
    }
    if (step.sample !== undefined && !json) {
      liveLine.clear();
      process.stdout.write(`--- step ${step.step}\n${step.sample}\n---\n`);
    }
    return losses;
  };
}

/** The options with what depends on the model: one that guesses masked words writes nothing, one that continues texts is sampled from. */
function optionsFor({ encoderOnly, encoderDecoder }: ModelInfo, options: TrainOptions, wantsSamples: boolean): TrainOptions {
  if (encoderOnly && wantsSamples) throw new UsageError('--sample-every, --prompt: a model that guesses masked words writes no samples');
  if (encoderOnly) return { ...options, sampleEvery: undefined };
  if (encoderDecoder) return options;
  return { ...options, sample: { temperature: 0.8, maxNewTokens: 200, ...(options.sample as object | undefined) } };
}

/** `wasmformer train`: the exit code. */
export async function train(argv: string[]): Promise<number> {
  const asked = parse(argv);
  if (!asked) {
    process.stdout.write(help());
    return 0;
  }
  const { out, resume, model: source, json, files, preset, engine, evalFile } = asked;
  for (const file of [...files, ...(evalFile === undefined ? [] : [evalFile])])
    if (!statSync(file, { throwIfNoEntry: false })?.isFile()) throw new UsageError(`${file}: no such file`);
  const state = join(out, 'trainer_state.json');
  if (resume && !existsSync(state)) throw new UsageError(`--resume: expected a folder that a training was saved in, got ${out}`);
  if (!resume && existsSync(join(out, 'config.json')))
    throw new UsageError(`--out: ${out} holds a model already; --resume goes on with it`);

  try {
    await makeFolder(resolve(out));
    accessSync(out, constants.W_OK);
  } catch (reason) {
    throw new UsageError(`--out: expected a folder that can be written to, got ${out} (${(reason as { code?: string }).code})`);
  }

  const { signal } = untilInterrupted();
  let before = { step: 0, settings: {} as Pick<TrainOptions, 'steps' | 'evalEvery'> };
  if (resume) before = JSON.parse(await readFile(state, 'utf8'));
  const model = await open(source ?? (resume ? out : null), { ...engine, signal }, preset, files, asked.options.seed).catch((reason) => {
    if (signal.aborted) return null;
    throw reason;
  });
  liveLine.clear();
  if (!model) return 130;
  try {
    const info: ModelInfo = model.info();
    const tokens = info.vocabSize.toLocaleString('en');
    say(`${info.architecture}, ${info.parameters.toLocaleString('en')} weights, ${tokens} tokens, ${info.threads.count} threads`);
    const options = optionsFor(info, asked.options, asked.wantsSamples);
    const lines = info.encoderOnly ? { lines: true } : {};
    if (evalFile !== undefined) options.evalData = { file: evalFile, ...lines };
    const total = options.steps ?? (options.epochs === undefined ? before.settings.steps : undefined);
    const every = asked.saveEvery ?? options.evalEvery ?? before.settings.evalEvery ?? 100;
    const report = reporter(before.step, total, json);
    let { step: done } = before;
    let saved = done;
    let losses = '';
    const save = async () => {
      await model.save(out, { optimizer: true });
      saved = done;
    };
    try {
      for await (const step of model.train({ files, ...lines }, { ...options, signal })) {
        done = step.step;
        losses = report(step);
        if (done % every === 0) await save();
      }
    } catch (reason) {
      liveLine.clear();
      if (!signal.aborted) throw reason;
      if (done > saved) await save();
      const again = ['train', ...files, '--out', out, '--resume', ...(evalFile === undefined ? [] : ['--eval', evalFile])];
      const typed = again.map((word) => (/^[\w./:-]+$/.test(word) ? word : JSON.stringify(word)));
      say(
        done > 0 ? `${out}: saved after step ${done}. To go on: npx wasmformer ${typed.join(' ')}` : 'nothing learned yet, nothing saved',
      );
      return 130;
    }
    if (done > saved) await save();
    if (losses === '') say(`${out}: trained to its end, ${done} steps; --steps with more of them goes on`);
    else say(`${out}: ${done} steps, ${losses}`);
    if (!info.encoderOnly && !info.encoderDecoder) say(`To write: npx wasmformer PROMPT --model ${out} --temperature 0.8`);
    return 0;
  } finally {
    await model.dispose();
  }
}

/** The model to train: one that there is, or a new one with a vocabulary of the texts. */
async function open(
  source: string | null,
  engine: LoadOptions,
  { family, size, tokenizer: type, vocabSize }: Preset,
  files: string[],
  seed = 0,
) {
  if (source !== null) return load(source, { ...engine, trainable: true, onProgress: drawLoading });
  liveLine.draw(0, 'making a vocabulary');
  const pairs = family === 'transformer';
  const { tokenizer } = await trainTokenizer(textsOf(files, pairs), {
    type,
    ...(vocabSize === undefined ? {} : { vocabSize }),
    ...(pairs ? { specialTokens: ['<pad>', '<unk>', '<s>', '</s>'], addEosToken: true } : {}),
    signal: engine.signal,
  });
  return create(configOf(family, size, tokenizer.vocabSize, tokenizer.specials), { ...engine, seed, tokenizer });
}
