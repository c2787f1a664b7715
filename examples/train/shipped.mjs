// What the trainings of the two shipped models have in common: a run that can be stopped and gone on with, and the folder that is
// published.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { load } from 'wasmformer';

/** `--steps`, where the learning rate reaches zero; `--minutes` after which to stop; `--out`, where the finished model goes. */
export function commandLine(usage, defaults) {
  const text = { type: 'string' };
  const flags = {
    steps: text,
    minutes: text,
    threads: text,
    out: text,
    work: text,
    export: { type: 'boolean' },
    help: { type: 'boolean', short: 'h' },
  };
  const { values } = parseArgs({ options: flags });
  if (values.help) {
    console.log(usage);
    process.exit();
  }
  const number = (name, otherwise) => {
    const value = Number(values[name] ?? otherwise);
    if (!(value > 0)) throw new Error(`--${name}: expected a number above 0, got '${values[name]}'`);
    return value;
  };
  const { out = defaults.out, work = defaults.work } = values;
  const state = join(work, 'trainer_state.json');
  const saved = existsSync(state) ? JSON.parse(readFileSync(state, 'utf8')) : null;
  if (values.export && !saved) throw new Error(`--export: expected a training in ${work}`);
  const steps = number('steps', saved?.settings.steps ?? defaults.steps);
  if (saved && steps !== saved.settings.steps) throw new Error(`--steps: expected ${saved.settings.steps}, as the training in ${work} has`);
  return {
    steps,
    minutes: number('minutes', Infinity),
    threads: number('threads', 2),
    out,
    work,
    first: saved?.step ?? 0,
    only: values.export,
  };
}

/**
 * Trains what `make` gives, or goes on with what `work` holds, until the last step, an interrupt or the end of the minutes; saved into
 * `work` every 250 steps and then. Returns the model and whether it is trained to its end.
 */
export async function train({ work, first, steps, minutes, threads, only }, { make, data, options, evalData }) {
  const model = first ? await load(work, { trainable: true, threads }) : await make(threads);
  console.log(`${model.info().parameters} weights, step ${first} of ${steps}`);
  if (only || first === steps) return { model, finished: true };
  const interrupt = new AbortController();
  process.once('SIGINT', () => interrupt.abort());
  const began = performance.now();
  const { signal } = interrupt;
  const run = { ...(first ? { resume: true } : { ...options, steps }), evalData, signal };
  let done = first;
  let mean = 0;
  try {
    for await (const { step, loss, evalLoss, learningRate, tokensPerSecond } of model.train(data, run)) {
      const over = performance.now() - began > minutes * 60_000;
      mean += (loss - mean) / Math.min(50, step - first);
      done = step;
      if (step % 50 === 0 || evalLoss !== undefined || over) {
        const held = evalLoss === undefined ? '' : `, held out ${evalLoss.toFixed(4)}`;
        const rate = learningRate.toExponential(1);
        console.log(`step ${step}: loss ${mean.toFixed(4)}${held}, rate ${rate}, ${tokensPerSecond.toFixed(0)} tokens/s`);
      }
      if (step % 250 === 0 || over) await model.save(work, { optimizer: true });
      if (over) break;
    }
  } catch (reason) {
    if (!signal.aborted) throw reason;
  }
  if (done > first) await model.save(work, { optimizer: true });
  const finished = done === steps;
  console.log(finished ? `trained: ${steps} steps` : `stopped after step ${done}, saved in ${work}: the same command goes on`);
  return { model, finished };
}

/** The bits of the 16-bit float nearest to a number, of two as near the even one (IEEE 754, binary16). */
export function half(number) {
  const size = Math.abs(number);
  const sign = number < 0 || Object.is(number, -0) ? 0x8000 : 0;
  const exponent = Math.max(-14, Math.floor(Math.log2(size)));
  const scaled = size / 2 ** (exponent - 10);
  const whole = Math.floor(scaled);
  const rest = scaled - whole;
  const mantissa = whole + (rest > 0.5 || (rest === 0.5 && whole % 2 === 1) ? 1 : 0);
  // The mantissa's leading bit counts one up in the exponent, and numbers below 2^-14 have none.
  const bits = ((exponent + 14) << 10) + mantissa;
  if (!(bits < 0x7c00)) throw new Error(`${number} does not fit into 16 bits`);
  return sign | bits;
}

/** Writes the model as the shipped ones are: weights in 16 bits, and the given files, objects by name, over those of `save`. */
export async function publish(model, out, texts) {
  mkdirSync(out, { recursive: true });
  for (const { name, bytes } of await model.save()) {
    if (name !== 'model.safetensors') {
      writeFileSync(join(out, name), bytes);
      continue;
    }
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const begin = 8 + Number(view.readBigUInt64LE(0));
    const header = JSON.parse(view.toString('utf8', 8, begin));
    for (const [tensor, entry] of Object.entries(header))
      if (tensor !== '__metadata__') Object.assign(entry, { dtype: 'F16', data_offsets: entry.data_offsets.map((at) => at / 2) });
    const text = JSON.stringify(header);
    const names = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(names.length));
    const weights = Buffer.alloc((view.length - begin) / 2);
    for (let at = begin; at < view.length; at += 4) weights.writeUInt16LE(half(view.readFloatLE(at)), (at - begin) / 2);
    writeFileSync(join(out, name), Buffer.concat([length, names, weights]));
  }
  for (const [name, value] of Object.entries(texts)) {
    const vocabulary = name.endsWith('tokenizer.json');
    writeFileSync(join(out, name), `${JSON.stringify(value, null, vocabulary ? 0 : 2)}\n`);
  }
}
