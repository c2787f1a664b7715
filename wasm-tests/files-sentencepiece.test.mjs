// SentencePiece models against the sentencepiece library, and the files of transformers' tokenizer classes against those classes.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { bundle, files } from './support/bundle.mjs';
import { fixtures } from './support/fixtures.mjs';

const root = join(fixtures, 'sentencepiece');
const bytesOf = (file) => new Uint8Array(readFileSync(join(root, file)));
const read = (file) => JSON.parse(readFileSync(join(root, file), 'utf8'));
const api = await files();
const { readSentencePiece, segmenter } = await bundle(`
  import { Pipeline } from './web/files/pipeline.ts';
  import { sentencePieceNormalizer, sentencePieceSubwords } from './web/files/sentencepiece.ts';
  export { readSentencePiece } from './web/files/sentencepiece.ts';
  export const segmenter = (model) => new Pipeline({
    added: [],
    normalize: sentencePieceNormalizer(model),
    preTokenize: (piece) => [piece],
    subwords: sentencePieceSubwords(model),
    tokenOf: () => '',
    postProcess: (parts) => parts,
  });
`);
const seconds = (work) => {
  const before = process.cpuUsage();
  work();
  return process.cpuUsage(before).user / 1e6;
};

const { texts, models } = read('expected.json');
for (const [name, expected] of Object.entries(models)) {
  test(`${name}: the sentencepiece library's ids and places`, () => {
    const model = readSentencePiece(bytesOf(`${name}.model`), name);
    const tokenizer = segmenter(model);
    // Here each character of a symbol keeps its place, and each byte of a character has the character's.
    const places = !model.byteFallback && model.pieces.every(({ type }) => type !== 4);
    texts.forEach((text, i) => {
      const { ids, offsets } = tokenizer.encode([text], true);
      assert.deepEqual(ids, expected[i].ids, JSON.stringify(text));
      if (places) assert.deepEqual(offsets, expected[i].offsets, JSON.stringify(text));
    });
  });
}

async function tokenizerOf({ modelType, copies, files }) {
  const record = {
    'model.safetensors': Buffer.from('\x02\0\0\0\0\0\0\0{}', 'latin1'),
    'config.json': new TextEncoder().encode(JSON.stringify({ model_type: modelType })),
  };
  for (const [file, model] of Object.entries(copies)) record[file] = bytesOf(model);
  for (const [file, text] of Object.entries(files)) record[file] = new TextEncoder().encode(text);
  const checkpoint = await api.openCheckpoint(record, { cacheDir: false }, api.nodeFiles);
  return api.loadTokenizer(checkpoint);
}

const classes = read('classes.json');
for (const entry of classes) {
  test(`${entry.name}: as its class in transformers reads its files`, async () => {
    const tokenizer = await tokenizerOf(entry);
    for (const { text, pair, ids, typeIds, offsets, sequence, decoded, skipped } of entry.cases) {
      const what = JSON.stringify(pair === undefined ? text : [text, pair]);
      const made = tokenizer.encodeFully(text, { pair });
      assert.deepEqual(made.ids, ids, what);
      assert.deepEqual(tokenizer.encode(text, { pair }), ids);
      if (typeIds) {
        assert.deepEqual(made.typeIds, typeIds, what);
        assert.deepEqual(made.sequence, sequence, what);
        if (offsets) assert.deepEqual(made.offsets, offsets, what);
      }
      if (decoded !== undefined) {
        assert.equal(tokenizer.decode(ids), decoded, what);
        assert.equal(tokenizer.decode(ids, { skipSpecialTokens: true }), skipped, what);
      }
    }
    for (const { text, ids, skipped } of entry.targets ?? []) {
      assert.deepEqual(tokenizer.encode(text, { asTarget: true }), ids, JSON.stringify(text));
      if (skipped !== undefined)
        assert.equal((tokenizer.target ?? tokenizer).decode(ids, { skipSpecialTokens: true }), skipped, JSON.stringify(text));
    }
    if (entry.language) {
      const { code, ids } = entry.language;
      assert.deepEqual(tokenizer.encode('Hello, world!', { sourceLanguage: code }), ids);
      assert.ok(tokenizer.languages.includes(code));
      assert.ok(ids.includes(tokenizer.languageId(code)));
    }
  });
}
