// The programs of examples/node, run as their first lines say: on the shipped models, and on tiny ones against what Python makes of the
// same texts (fixtures/tasks/expected.json).
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { folderOf, readJson } from './support/fixtures.mjs';

const examples = fileURLToPath(new URL('../examples/node/', import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), 'wasmformer-examples-'));
after(() => rmSync(scratch, { recursive: true }));

const expected = readJson('tasks', 'expected.json');

/** Runs an example; it must end by itself with code 0. The lines it printed, and what it said beside them. */
function run(name, ...args) {
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [join(examples, name), ...args], {
    cwd: scratch,
    encoding: 'utf8',
    timeout: 120_000,
  });
  assert.equal(status, 0, `${name} ended with ${signal ?? status}\n${stdout}\n${stderr}`);
  return { lines: stdout.replace(/\n$/, '').split('\n'), stderr };
}

/** A folder with the files of several fixtures. */
function model(...names) {
  const folder = join(scratch, names[0]);
  for (const name of names) cpSync(folderOf(`tasks/${name}`), folder, { recursive: true });
  return folder;
}

test('each has at most 39 lines, the first of which say how to start it', () => {
  const names = readdirSync(examples);
  for (const name of ['classify.mjs', 'generate.mjs', 'search.mjs', 'translate-file.mjs']) assert.ok(names.includes(name), name);
  for (const name of names) {
    const text = readFileSync(join(examples, name), 'utf8');
    assert.ok(text.trimEnd().split('\n').length < 40, name);
    assert.match(text, /^\/\/ /, name);
  }
});

test('each says how to start it', () => {
  for (const name of readdirSync(examples)) {
    for (const flag of ['--help', '-h']) {
      const { lines, stderr } = run(name, flag);
      assert.equal(lines.length, 1, name);
      assert.ok(lines[0].startsWith(`Usage: node examples/node/${name}`), lines[0]);
      assert.equal(stderr, '');
    }
  }
});

test('generate', () => {
  const { lines, stderr } = run('generate.mjs', 'Call me');
  assert.match(lines[0], /^Call me/);
  assert.equal(lines.at(-1), '300 tokens, ended by length');
  assert.equal(stderr, '');
});

test('score', () => {
  const perplexities = run('score.mjs').lines.flatMap((line) => /perplexity ([\d.]+);/.exec(line)?.[1] ?? []);
  const [words, order, letters] = perplexities.map(Number);
  assert.ok(words < order && order < letters, `${perplexities}`);
});

test('look inside', () => {
  const { lines } = run('look-inside.mjs', '1', '2');
  assert.match(lines[0], /^Layer 1, head 2/);
  assert.equal(lines.filter((line) => /^ . [ ░▒▓█]+$/u.test(line)).length, 'Call me Ishmael. Some years ago'.length);
});

test('translate a file line by line: the shipped model, and one as Python has it', () => {
  const { lines, stderr } = run('translate-file.mjs');
  assert.deepEqual(lines, ['yín háng háng zhǎng yě shuō ， hái zi men dōu zhǎng dà le 。', '', 'tā hái méi yǒu huán wǒ nà běn shū 。']);
  assert.match(stderr, /^\d+ tokens in [\d.]+ seconds\n$/);

  const sentences = expected.translate.sentences.filter(({ numBeams }) => numBeams === undefined);
  assert.ok(sentences.length > 2);
  writeFileSync(join(scratch, 'lines.txt'), sentences.map(({ text }) => `${text}\n`).join('\n'));
  assert.deepEqual(
    run('translate-file.mjs', 'lines.txt', model('marian')).lines,
    sentences.flatMap(({ translation }) => [translation.trim(), '']).slice(0, -1),
  );
});

test('search a folder: the order and cosines of sentence-transformers', () => {
  const { model: encoder, tokenizer, texts, cases } = expected.embed;
  const { vectors } = cases.find(({ pooling, prompt }) => pooling === 'mean' && prompt === '');
  const folder = join(scratch, 'texts');
  mkdirSync(join(folder, 'deep'), { recursive: true });
  const passages = texts.flatMap((text, i) => (text === '' || texts.indexOf(text) < i ? [] : [{ text, vector: vectors[i] }]));
  const [first, second, ...others] = passages.map(({ text }) => text);
  writeFileSync(join(folder, 'a.md'), `${first}\n\n\n${second}\n`);
  writeFileSync(join(folder, 'deep', 'b.txt'), others.join('\n \n'));
  writeFileSync(join(folder, 'c.json'), '{}');
  const length = (vector) => Math.hypot(...vector);
  const cosine = (a, b) => a.reduce((sum, value, d) => sum + value * b[d], 0) / length(a) / length(b);
  const wanted = passages
    .map(({ text, vector }) => ({ text: text.trim(), score: cosine(vector, passages[0].vector) }))
    .sort((a, b) => b.score - a.score);
  const { lines } = run('search.mjs', folder, first, model(encoder, tokenizer));
  assert.equal(lines.length, 2 * passages.length);
  for (const [i, { text, score }] of wanted.entries()) {
    const [, found, name] = /^([\d.-]+) {2}(.+)$/.exec(lines[2 * i]);
    assert.ok(Math.abs(found - score) < 0.0011, `${found} for ${score}`);
    assert.equal(name, text === first || text === second ? 'a.md' : join('deep', 'b.txt'));
    assert.equal(lines[2 * i + 1].trim(), text);
  }
});

test("classify texts and find names: transformers' pipelines' labels and scores", () => {
  const percent = (score) => `${(100 * score).toFixed(1).padStart(5)} %`;
  const [moods] = expected.classify;
  const { input, expected: labels } = moods.runs[0];
  assert.deepEqual(
    run('classify.mjs', input, model(moods.model, moods.tokenizer)).lines,
    labels.map(({ label, score }) => `${percent(score)}  ${label}`),
  );
  const [names] = expected.tokens;
  const { text, expected: entities } = names.runs.find(({ aggregation, window }) => aggregation === 'simple' && !window);
  assert.deepEqual(
    run('classify.mjs', text, model(names.model, names.tokenizer)).lines,
    entities.map(({ label, score, text, offsets: [begin, end] }) => `${percent(score)}  ${label}  ${text} (${begin} to ${end})`),
  );
});
