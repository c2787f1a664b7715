// What few bits cost: perplexity, and the divergence from the float32 model's distribution of the next token (Kullback-Leibler, mean
// over positions, in nats), of the shipped models and of the folders named.
//   npm run bench -- quality [options] [FOLDER ...]
// Texts are held-out ones: chapters of Moby-Dick that the character model was not trained on, and phrases the pinyin model has not seen.
import { existsSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { chapters } from '../examples/models/moby-dick-char/check.mjs';
import { heldOut } from '../examples/models/pinyin/check.mjs';
import { root, shippedModel } from '../scripts/run.mjs';
import { readQualityArguments } from './arguments.mjs';

const chunk = 256;

/** Token sequences to judge a language model by, of `tokens` tokens together. */
async function passages(lm, tokens) {
  const text = chapters().held.join('\n');
  const [ids] = await lm.tokenize([text.slice(0, 8 * tokens)]);
  const sequences = [];
  for (let at = 0; at + chunk <= Math.min(tokens, ids.length); at += chunk) sequences.push({ inputIds: [ids.slice(at, at + chunk)] });
  return sequences;
}

/** Sources and their readings, as the decoder sees them. */
async function readings(lm, tokens) {
  const cases = heldOut(join(root, 'examples/models/pinyin/.work'));
  const every = Math.ceil((cases.length * 5) / tokens);
  return forcedReadings(
    lm,
    cases.filter((_, i) => i % every === 0),
  );
}

/** What `forward` takes for pairs of a phrase and its reading. */
export async function forcedReadings(lm, cases) {
  const sources = await lm.tokenize(cases.map(([phrase]) => phrase));
  const vocabulary = JSON.parse(readFileSync(join(root, 'examples/models/pinyin/target_tokenizer.json'), 'utf8')).model.vocab;
  const { decoder_start_token_id: start, eos_token_id: end } = lm.config;
  return cases.map(([, syllables], i) => ({
    inputIds: [sources[i]],
    decoderInputIds: [[start, ...syllables.map((syllable) => vocabulary[syllable]), end]],
  }));
}

/** Logarithms of the softmax of one row of logits. */
export function logSoftmax(row) {
  let most = Number.NEGATIVE_INFINITY;
  for (const value of row) if (value > most) most = value;
  let sum = 0;
  for (const value of row) sum += Math.exp(value - most);
  const shift = most + Math.log(sum);
  return Float64Array.from(row, (value) => value - shift);
}

/** Adds up what two models say of the tokens that follow. `logits` (T, V) of each, `ids` (T). */
export function compare(reference, tested, ids, totals) {
  const [T, V] = reference.shape;
  for (let t = 0; t + 1 < T; ++t) {
    const p = logSoftmax(reference.data.subarray(t * V, (t + 1) * V));
    const q = logSoftmax(tested.data.subarray(t * V, (t + 1) * V));
    let divergence = 0;
    for (let i = 0; i < V; ++i) divergence += Math.exp(p[i]) * (p[i] - q[i]);
    totals.divergence += divergence;
    totals.reference -= p[ids[t + 1]];
    totals.tested -= q[ids[t + 1]];
    totals.same += likeliest(p) === likeliest(q) ? 1 : 0;
    ++totals.count;
  }
  return totals;
}

function likeliest(row) {
  let best = 0;
  for (let i = 1; i < row.length; ++i) if (row[i] > row[best]) best = i;
  return best;
}

/**
 * Compares a model kept in some dtypes with itself in float32.
 * @param inputs makes what `forward` takes, from the float32 model: one sequence each
 * @returns by dtype: perplexity of both, their ratio, the mean divergence in nats, the share of positions with the same likeliest token
 */
export async function quality(load, source, dtypes, inputs) {
  const exact = await load(source, { dtype: 'f32' });
  const sequences = await inputs(exact);
  const results = {};
  for (const dtype of dtypes) {
    const small = await load(source, { dtype });
    const totals = { divergence: 0, reference: 0, tested: 0, same: 0, count: 0 };
    for (const input of sequences) {
      const [[a], [b]] = [await exact.forward(input), await small.forward(input)];
      compare(a.logits, b.logits, (input.decoderInputIds ?? input.inputIds)[0], totals);
    }
    const { count } = totals;
    const [reference, perplexity] = [Math.exp(totals.reference / count), Math.exp(totals.tested / count)];
    results[dtype] = {
      tokens: count,
      reference,
      perplexity,
      ratio: perplexity / reference,
      divergence: totals.divergence / count,
      same: totals.same / count,
      bytes: small.info().memory.weights,
    };
    await small.dispose();
  }
  await exact.dispose();
  return results;
}

export async function main(args) {
  const { dtypes, tokens, folders: named } = readQualityArguments(args);
  const { load } = await import(join(root, 'dist/node.js'));
  const real = process.env.WASMFORMER_SMOLLM2 ?? join(root, 'build/proof/SmolLM2-135M-Instruct');
  const folders = named.length > 0 ? named : [shippedModel(), join(root, 'examples/models/pinyin')];
  if (named.length === 0 && existsSync(real)) folders.push(real);
  console.log('| model | dtype | weights | perplexity | of float32 | ratio | divergence | same token |\n|---|---|---|---|---|---|---|---|');
  for (const folder of folders) {
    const inputs = (lm) => (lm.info().encoderDecoder ? readings : passages)(lm, tokens);
    const results = await quality(load, folder, dtypes, inputs);
    for (const [dtype, one] of Object.entries(results)) {
      console.log(
        `| ${basename(folder)} | ${dtype} | ${(one.bytes / 1e6).toFixed(1)} MB | ${one.perplexity.toFixed(4)} | ${one.reference.toFixed(4)} | ` +
          `${one.ratio.toFixed(4)} | ${one.divergence.toExponential(2)} | ${(100 * one.same).toFixed(1)} % |`,
      );
    }
  }
}
