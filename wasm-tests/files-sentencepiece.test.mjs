// SentencePiece models against the sentencepiece library, and the files of transformers' tokenizer classes against those classes.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { files, sentencePiece } from './support/bundle.mjs';
import { fixtures } from './support/fixtures.mjs';

const root = join(fixtures, 'sentencepiece');
const bytesOf = (file) => new Uint8Array(readFileSync(join(root, file)));
const read = (file) => JSON.parse(readFileSync(join(root, file), 'utf8'));
const api = await files();
const { readSentencePiece, segmenter } = await sentencePiece();
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

const entryOf = (name) => classes.find((entry) => entry.name === name);

test('languages: codes, defaults, and errors that name what is known', async () => {
  const mbart = await tokenizerOf(entryOf('mbart50'));
  assert.equal(mbart.languages.length, 52);
  assert.equal(mbart.idToToken(mbart.languageId('de_DE')), 'de_DE');
  assert.equal(mbart.languageId('german'), null);
  const [first] = mbart.encode('x', { sourceLanguage: 'de_DE' });
  assert.equal(first, mbart.languageId('de_DE'));
  assert.equal(mbart.encode('x', { asTarget: true, targetLanguage: 'zh_CN' })[0], mbart.languageId('zh_CN'));
  assert.equal(mbart.encode('x')[0], mbart.languageId('fr_XX'), 'src_lang of the files');
  assert.throws(() => mbart.encode('x', { sourceLanguage: 'de' }), { code: 'invalid-argument', message: /sourceLanguage.*de_DE.*"de"/ });
  assert.throws(() => mbart.encode('x', { targetLanguage: 'French' }), { code: 'invalid-argument', message: /targetLanguage.*fr_XX/ });

  const m2m = await tokenizerOf(entryOf('m2m100'));
  assert.equal(m2m.languages.length, 100);
  assert.equal(m2m.idToToken(m2m.languageId('en')), '__en__');
  assert.deepEqual(m2m.encode('x', { addSpecialTokens: false, sourceLanguage: 'fr' }), m2m.encode('x').slice(1, -1));

  const marian = await tokenizerOf(entryOf('marian'));
  assert.deepEqual(marian.languages, ['fra', 'deu']);
  assert.deepEqual(marian.encode('Hello there', { targetLanguage: 'fra' }), marian.encode('>>fra<<Hello there'));
  assert.deepEqual(marian.encodeFully('>>fra<< Hello').offsets[0], [0, 7]);
  assert.ok(marian.target !== null && marian.target.target === null);

  const bert = await tokenizerOf(entryOf('bert'));
  assert.deepEqual(bert.languages, []);
  assert.equal(bert.target, null);
  assert.throws(() => bert.encode('x', { sourceLanguage: 'en' }), { code: 'invalid-argument', message: /marks no languages/ });
});

test('a folder with target_tokenizer.json has a tokenizer for what the decoder reads', async () => {
  const json = (words) =>
    JSON.stringify({
      pre_tokenizer: { type: 'WhitespaceSplit' },
      model: { type: 'WordLevel', unk_token: '<unk>', vocab: Object.fromEntries(['<unk>', ...words].map((word, id) => [word, id])) },
    });
  const files = {
    'tokenizer.json': json(['行', '长']),
    'target_tokenizer.json': json(['xíng', 'háng', 'cháng']),
    'tokenizer_config.json': '{"model_max_length":64}',
  };
  const tokenizer = await tokenizerOf({ modelType: 'transformer', copies: {}, files });
  assert.deepEqual(tokenizer.encode('行 长 x'), [1, 2, 0]);
  assert.deepEqual(tokenizer.encode('cháng xíng', { asTarget: true }), [3, 1]);
  assert.equal(tokenizer.target.decode([2, 3]), 'háng cháng');
  assert.equal(tokenizer.maxLength, 64);
});

test('a mask takes the space before it; specials of a vocabulary are found where files name none', async () => {
  const roberta = await tokenizerOf(entryOf('roberta'));
  const { cls, sep, mask, pad, unk } = roberta.specials;
  assert.deepEqual(
    [cls, sep, mask, pad, unk].map((id) => roberta.idToToken(id)),
    ['<s>', '</s>', '<mask>', '<pad>', '<unk>'],
  );
  const { ids, offsets } = roberta.encodeFully('a <mask> b');
  assert.deepEqual(offsets[ids.indexOf(mask)], [2, 8]);
  const bert = await tokenizerOf(entryOf('bert'));
  assert.equal(bert.idToToken(bert.specials.mask), '[MASK]');
  assert.deepEqual(bert.encode('[MASK]'), [bert.specials.cls, bert.specials.mask, bert.specials.sep]);
});

test('places stand in the text as JavaScript slices it, also behind characters of two units', async () => {
  const text = '😀 Übergrößen 👍🏽 naïve ½ done';
  for (const name of ['bert', 'xlm-roberta', 'roberta', 'marian']) {
    const tokenizer = await tokenizerOf(entryOf(name));
    const { offsets, sequence } = tokenizer.encodeFully(text);
    const last = offsets[sequence.lastIndexOf(0)];
    assert.match(text.slice(0, last[1]), /done$/, name);
    for (const [begin, end] of offsets) {
      assert.ok(begin <= end && end <= text.length);
      for (const at of [begin, end]) assert.notEqual(text.charCodeAt(at) & 0xfc00, 0xdc00, `${name}: ${at} is inside a character`);
    }
  }
  const half = await tokenizerOf(entryOf('t5'));
  assert.deepEqual(half.encode('a\ud800b'), half.encode('a\ufffdb'), 'half a pair');
});

test('a tokenizer.json with a precompiled charsmap', async () => {
  const map = Buffer.from(readSentencePiece(bytesOf('unigram.model'), 'unigram').charsmap).toString('base64');
  const json = {
    normalizer: { type: 'Precompiled', precompiled_charsmap: map },
    model: { type: 'WordLevel', unk_token: '<unk>', vocab: { '<unk>': 0, 'é½': 1, 'é1⁄2': 2, A: 3, 'a b': 4 } },
  };
  const tokenizer = await tokenizerOf({ modelType: 'x', copies: {}, files: { 'tokenizer.json': JSON.stringify(json) } });
  assert.deepEqual(tokenizer.encodeFully('e\u0301½'), { ids: [2], typeIds: [0], offsets: [[0, 3]], sequence: [0] });
  // By graphemes below 6 bytes: the first rule's text stands for all of one, as in the tokenizers library.
  assert.deepEqual(tokenizer.encode('Ａ\u0301'), [3]);
  assert.deepEqual(tokenizer.encode('a\r\nb'), [4]);
  const cut = { ...json, normalizer: { type: 'Precompiled', precompiled_charsmap: map.slice(0, 4000) } };
  await assert.rejects(tokenizerOf({ modelType: 'x', copies: {}, files: { 'tokenizer.json': JSON.stringify(cut) } }), {
    code: 'invalid-file',
    message: /precompiled_charsmap/,
  });
});

test('malformed SentencePiece files are refused at once', () => {
  const good = bytesOf('bpe.model');
  const refused = (bytes, message, code = 'invalid-file') => {
    const start = process.cpuUsage();
    assert.throws(
      () => readSentencePiece(bytes, 'x.model'),
      (error) => error.code === code && message.test(error.message),
    );
    assert.ok(process.cpuUsage(start).user < 100_000);
  };
  const varint = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...varint(Math.floor(value / 128))]);
  const message = (field, bytes) => [...varint(field * 8 + 2), ...varint(bytes.length), ...bytes];
  const piece = (text, type = 1, score = [0, 0, 0, 0]) => message(1, [...message(1, [...Buffer.from(text)]), 0x15, ...score, 0x18, type]);
  const unk = piece('<unk>', 2);
  const build = (...parts) => Uint8Array.from(parts.flat());
  refused(new Uint8Array(0), /unknown among 0/);
  for (const length of [1, 3, 100, 4000, good.length - 1]) refused(good.subarray(0, length), /x\.model/);
  refused(new TextEncoder().encode('<!doctype html><html></html>'), /x\.model/);
  refused(build(unk, [0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]), /field 1: expected at most 0 bytes/);
  refused(build(unk, [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), /at most 10 bytes/);
  refused(build(unk, [0x0b]), /type: expected 0, 1, 2 or 5, got 3/);
  refused(build(unk, unk), /one unknown piece/);
  refused(build(piece('a')), /unknown among 1/);
  refused(build(unk, piece('a'), piece('a')), /3 different ones, got 2/);
  refused(build(unk, piece('')), /piece 1: expected a text/);
  refused(build(unk, message(1, message(1, [0xff, 0xfe]))), /piece 1: expected UTF-8/);
  refused(build(unk, piece('a', 9)), /type: expected 1 to 6, got 9/);
  refused(build(unk, piece('a', 1, [0, 0, 0xc0, 0x7f])), /NaN/);
  refused(build(unk, message(3, message(2, [9, 9, 9, 9, 9]))), /precompiled_charsmap/);
  refused(build(unk, message(2, [0x98, 0x02, 1])), /<0x00>/);
  refused(build(unk, message(2, [0xc0, 0x01, 1])), /treat_whitespace_as_suffix/, 'unsupported');
  refused(build(unk, message(2, [0x18, 3])), /model_type/, 'unsupported');
  // A table whose entries lead anywhere ends a search, not the program.
  for (let seed = 1; seed < 200; ++seed) {
    const table = Uint8Array.from({ length: 4 + 64 + 8 }, (_, i) =>
      i < 4 ? [64, 0, 0, 0][i] : Math.imul(seed * 131 + i, 0x9e3779b1) >>> 24,
    );
    segmenter(readSentencePiece(build(unk, piece('a'), message(3, message(2, [...table]))), 'x')).encode(
      ['abc äöü 你好 \0 😀'.repeat(20)],
      true,
    );
  }
});

test('a megabyte takes seconds at most, whatever it is', async () => {
  const kinds = {
    'x of a million': 'x'.repeat(1e6),
    spaces: ' '.repeat(1e6),
    words: 'The quick naïve fox. '.repeat(50_000),
    marks: 'e\u0301\u0323'.repeat(3e5),
    ideographs: '你好世界'.repeat(1e5),
  };
  for (const name of ['marian', 't5', 'bert', 'llama', 'roberta']) {
    const tokenizer = await tokenizerOf(entryOf(name));
    for (const [kind, text] of Object.entries(kinds)) {
      const spent = seconds(() => tokenizer.encode(text));
      assert.ok(spent < 8, `${name}: ${kind}: ${spent.toFixed(1)} s`);
    }
  }
});
