// GGUF files: what gguf-py writes is read as it stands; hostile headers are named at once; texts become the ids of the tokenizers they hold.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { bundle } from './support/bundle.mjs';
import { fixtures, readJson } from './support/fixtures.mjs';
import { startHub } from './support/hub.mjs';

const api = await bundle(`
  export * from './web/files/index.ts';
  export { errorCodes } from './web/errors.ts';
  export { nodeFiles } from './web/platform/node-files.ts';
  export { readGguf } from './web/files/gguf.ts';
  export { BytesSource } from './web/files/source.ts';
  export { openTokenizer } from './web/files/tokenizer.ts';
`);
const root = join(fixtures, 'gguf');
const bytesOf = (name) => new Uint8Array(readFileSync(join(root, name)));
const read = (bytes) => api.readGguf(new api.BytesSource('test.gguf', new Uint8Array(bytes)));
const open = (source, options = {}) => api.openCheckpoint(source, { cacheDir: false, ...options }, api.nodeFiles);

const kinds = { u8: 0, i8: 1, u16: 2, i16: 3, u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9, u64: 10, i64: 11, f64: 12 };

/** Little-endian numbers and strings, as a GGUF has them. */
const u32 = (value) => Buffer.from(new Uint32Array([value]).buffer);
const u64 = (value) => Buffer.from(new BigUint64Array([BigInt(value)]).buffer);
const string = (text) => Buffer.concat([u64(Buffer.byteLength(text)), Buffer.from(text)]);
const key = (name, kind, ...value) => Buffer.concat([string(name), u32(kinds[kind] ?? kind), ...value]);
const tensor = (name, { shape = [4], type = 0, offset = 0, rank = shape.length } = {}) =>
  Buffer.concat([string(name), u32(rank), ...shape.map(u64), u32(type), u64(offset)]);

/** A file: keys and tensors as given, padded to 32 bytes before its data. */
function file({
  version = 3,
  tensors = [],
  keys = [],
  tensorCount = tensors.length,
  keyCount = keys.length,
  data = 64,
  magic = 'GGUF',
} = {}) {
  const header = Buffer.concat([Buffer.from(magic), u32(version), u64(tensorCount), u64(keyCount), ...keys, ...tensors]);
  return Buffer.concat([header, Buffer.alloc((32 - (header.length % 32)) % 32), Buffer.alloc(data)]);
}

/** Fails unless `work` rejects with a named error in under 100 ms of the processor. */
async function refuses(work, code, pattern, what) {
  const start = process.cpuUsage();
  await assert.rejects(work, (error) => {
    assert.equal(error.code, code, `${what}: ${error.code ?? error.stack}: ${error.message}`);
    assert.match(error.message, pattern, what);
    assert.ok(error.message.length < 600, 'a message for people');
    return true;
  });
  const { user, system } = process.cpuUsage(start);
  assert.ok(user + system < 100_000, `${what}: ${(user + system) / 1000} ms`);
}

test('every kind of value, and where the tensors lie', async () => {
  const { metadata, tensors } = await read(
    file({
      keys: [
        key('u8', 'u8', Buffer.of(200)),
        key('i8', 'i8', Buffer.of(200)),
        key('i32', 'i32', u32(0xffffffff)),
        key('f32', 'f32', Buffer.from(new Float32Array([0.5]).buffer)),
        key('yes', 'bool', Buffer.of(1)),
        key('text', 'string', string('Grüße \u2581')),
        key('u64', 'u64', u64(2n ** 40n)),
        key('i64', 'i64', u64(2n ** 64n - 5n)),
        key('f64', 'f64', Buffer.from(new Float64Array([Math.PI]).buffer)),
        key('texts', 'array', u32(kinds.string), u64(2), string('a'), string('')),
        key('numbers', 'array', u32(kinds.i16), u64(2), Buffer.from(new Int16Array([-3, 7]).buffer)),
        key('flags', 'array', u32(kinds.bool), u64(2), Buffer.of(0, 1)),
        key('bytes', 'array', u32(kinds.u8), u64(3), Buffer.of(1, 2, 3)),
        key('none', 'array', u32(kinds.f64), u64(0)),
        key('__proto__', 'u8', Buffer.of(7)),
        key('general.alignment', 'u32', u32(64)),
      ],
      tensors: [tensor('b', { shape: [32, 2], type: 8, offset: 64 }), tensor('a', { shape: [4, 2] })],
      data: 300,
    }),
  );
  assert.deepEqual(
    { ...metadata },
    {
      u8: 200,
      i8: -56,
      i32: -1,
      f32: 0.5,
      yes: true,
      text: 'Grüße \u2581',
      u64: 2 ** 40,
      i64: -5,
      f64: Math.PI,
      texts: ['a', ''],
      numbers: [-3, 7],
      flags: [false, true],
      bytes: Uint8Array.of(1, 2, 3),
      none: [],
      ['__proto__']: 7,
      'general.alignment': 64,
    },
  );
  assert.deepEqual(
    [...tensors.values()].map(({ name, dtype, shape, begin, end }) => [name, dtype, shape, begin % 64, end - begin]),
    [
      ['a', 'F32', [2, 4], 0, 32],
      ['b', 'Q8_0', [2, 32], 0, 68],
    ],
  );
});

test('hostile headers are refused at once', async () => {
  const bad = (options, pattern, what, code = 'invalid-file') =>
    refuses(read(Buffer.isBuffer(options) ? options : file(options)), code, pattern, what);
  await bad(Buffer.alloc(0), /magic.*cut short/, 'nothing');
  await bad(Buffer.from('GG'), /magic.*cut short/, 'two bytes');
  await bad({ magic: 'GGML' }, /magic/, 'another format');
  await bad({ version: 1 }, /version.*2 or 3.*got 1/, 'version 1', 'unsupported');
  await bad({ version: 0x03000000 }, /big endian/, 'big endian', 'unsupported');
  for (const count of [2n ** 63n, 2n ** 64n - 1n, 2n ** 32n, 5000n]) {
    const got = (what) => new RegExp(`${what}: expected at most .* hold, got ${count}$`);
    await bad({ tensorCount: count }, got('number of tensors'), `${count} tensors`);
    await bad({ keyCount: count }, got('number of keys'), `${count} keys`);
    await bad({ keys: [Buffer.concat([u64(count), Buffer.from('key')])] }, got('length'), `a name of ${count} bytes`);
    await bad({ keys: [key('k', 'string', u64(count))] }, got('k\\] value: length'), `a string of ${count} bytes`);
    for (const of of [0, 4, 8, 12])
      await bad({ keys: [key('k', 'array', u32(of), u64(count))] }, got('k\\] elements'), `${count} elements of type ${of}`);
    await bad({ tensors: [tensor('t', { shape: [count, count] })] }, got('t\\] dimension'), `a shape of ${count}`);
    await bad({ tensors: [tensor('t', { offset: count })] }, got('t\\] offset'), `an offset of ${count}`);
  }
  await bad({ keys: [key('k', 'array', u32(9), u64(1), u32(9), u64(1))] }, /k\] element type.*arrays in an array/, 'nested arrays');
  await bad({ keys: [key('k', 'array', u32(99), u64(1))] }, /k\] element type/, 'elements of no type');
  await bad({ keys: [key('k', 13)] }, /k\] type: expected 0 to 12, got 13/, 'a value of no type');
  await bad({ keys: [key('k', 'u8', Buffer.of(1)), key('k', 'u8', Buffer.of(2))] }, /k\] expected each key once/, 'a key twice');
  for (const value of [0, 3, 33])
    await bad({ keys: [key('general.alignment', 'u32', u32(value))] }, /alignment.*power of two/, `alignment ${value}`);
  await bad({ keys: [key('general.alignment', 'string', string('32'))] }, /alignment.*power of two/, 'an alignment of text');
  for (const rank of [0, 5, 2 ** 32 - 1]) await bad({ tensors: [tensor('t', { shape: [], rank })] }, /t\] dimensions/, `rank ${rank}`);
  await bad({ tensors: [tensor('t', { type: 300 })] }, /t\] type/, 'a format of no number');
  await bad({ tensors: [tensor('t', { type: 16 })] }, /t\] format: IQ2_XXS/, 'IQ2_XXS', 'unsupported');
  await bad({ tensors: [tensor('t', { type: 4 })] }, /t\] format.*4/, 'a format that is no more', 'unsupported');
  await bad({ tensors: [tensor('t', { shape: [48, 4], type: 8 })] }, /t\] shape.*whole blocks of Q8_0/, 'rows of no whole blocks');
  await bad({ tensors: [tensor('t', { offset: 4 })] }, /t\] offset.*multiple of 32/, 'an offset between');
  await bad({ tensors: [tensor('t'), tensor('t', { offset: 32 })] }, /t\] expected each tensor once/, 'a tensor twice');
  await bad({ tensors: [tensor('a', { shape: [16] }), tensor('b', { offset: 32 })] }, /b\] offset.*overlap/, 'overlapping tensors');
  await bad({ tensors: [tensor('a'), tensor('b')] }, /\] offset.*overlap/, 'two tensors in one place');
  await bad({ tensors: [tensor('a', { shape: [17] })] }, /a\] offset.*cut short/, 'a tensor beyond the end');
  const whole = file({ keys: [key('k', 'string', string('value'))], tensors: [tensor('t')], data: 16 });
  for (let length = 0; length < whole.length; ++length) await bad(whole.subarray(0, length), /cut short|hold/, `cut to ${length}`);
});

test('a header longer than what is read at first', async () => {
  const texts = Array.from({ length: 60_000 }, (_, i) => string(`token ${i} of many`));
  const { metadata } = await read(
    file({ keys: [key('k', 'array', u32(kinds.string), u64(texts.length), ...texts), key('last', 'u8', Buffer.of(9))] }),
  );
  assert.equal(metadata.k.length, 60_000);
  assert.equal(metadata.k[59_999], 'token 59999 of many');
  assert.equal(metadata.last, 9);
});

test('bent bytes never do more than fail by name', async () => {
  let seed = 1;
  const random = (below) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * below);
  };
  const wide = [0, 1, 127, 128, 255];
  for (const name of ['llama.gguf', 'vocab-llama.gguf', 'vocab-t5.gguf', 'vocab-bert.gguf', 'gpt2.gguf', 't5.gguf']) {
    const good = bytesOf(name);
    const header = Math.min(good.length, name.startsWith('vocab') ? 20_000 : 4000);
    for (let round = 0; round < 120; ++round) {
      const bytes = good.slice();
      for (let i = 0; i <= random(4); ++i) bytes[random(header)] = random(2) === 0 ? wide[random(5)] : random(256);
      try {
        const checkpoint = await open({ [name]: bytes });
        (await api.loadTokenizer(checkpoint))?.encode('Hello, world 42!');
      } catch (error) {
        assert.ok(api.errorCodes.includes(error.code), `${name}, round ${round}: ${error.stack}`);
      }
    }
  }
});

test('architectures, and what a model lacks', async () => {
  const arch = (name, ...more) => ({ keys: [key('general.architecture', 'string', string(name)), ...more] });
  await refuses(open({ 'a.gguf': file({}) }), 'invalid-file', /general.architecture/, 'no architecture');
  await refuses(open({ 'a.gguf': file(arch('mamba')) }), 'unsupported', /llama, qwen2.*"mamba"/, 'mamba');
  await refuses(open({ 'a.gguf': file(arch('constructor')) }), 'unsupported', /general.architecture/, 'what every object has');
  await refuses(open({ 'a.gguf': file(arch('llama')) }), 'missing-tensor', /token_embd.weight/, 'no tensors');
  const embedding = { tensors: [tensor('token_embd.weight', { shape: [4, 4] })] };
  await refuses(
    open({ 'a.gguf': file({ ...arch('llama'), ...embedding }) }),
    'invalid-file',
    /llama.embedding_length.*nothing/,
    'no sizes',
  );
  await refuses(
    open({ 'a.gguf': file({ ...arch('llama', key('llama.embedding_length', 'string', string('4'))), ...embedding }) }),
    'invalid-file',
    /llama.embedding_length.*"4"/,
    'a size in words',
  );
  await refuses(
    open({ 'a.gguf': bytesOf('llama.gguf'), 'b.gguf': bytesOf('gpt2.gguf') }),
    'invalid-argument',
    /one .gguf.*a.gguf, b.gguf/,
    'two files',
  );
});

test('bytes, a path, a folder, Files, a URL and a Hub id are the same model', async () => {
  const bytes = bytesOf('llama.gguf');
  const expected = (await open(bytes)).tensors;
  assert.ok(expected.has('model.layers.1.self_attn.q_proj.weight'));
  const hub = await startHub({
    'org/name': { commit: 'a'.repeat(40), files: { 'llama.gguf': bytes, 'other.gguf': bytesOf('gpt2.gguf') } },
  });
  try {
    for (const [source, options] of [
      [join(root, 'llama.gguf')],
      [{ 'model-q8.gguf': bytes, 'config.json': new TextEncoder().encode('{"model_type":"mistral","extra":1}') }],
      [[new File([bytes], 'llama.gguf')]],
      [`${hub.url}/org/name/resolve/main/llama.gguf`],
      ['org/name/llama.gguf', { endpoint: hub.url }],
    ]) {
      const checkpoint = await open(source, options);
      assert.equal(checkpoint.format, 'gguf');
      assert.equal(checkpoint.config.model_type, 'llama');
      assert.deepEqual([...checkpoint.tensors.keys()], [...expected.keys()]);
      await checkpoint.close();
    }
    await refuses(open('org/name', { endpoint: hub.url }), 'invalid-argument', /llama.gguf, other.gguf/, 'a repository of several');
  } finally {
    await hub.close();
  }
});

test('split files', async () => {
  const parts = readdirSync(root).filter((name) => name.startsWith('split-'));
  assert.ok(parts.length > 2);
  const record = Object.fromEntries(parts.map((name) => [name, bytesOf(name)]));
  const expected = [...(await open(bytesOf('llama.gguf'))).tensors.keys()];
  for (const source of [record, join(root, parts[0]), join(root, parts[2])])
    assert.deepEqual([...(await open(source)).tensors.keys()].sort(), expected.toSorted());
  await refuses(
    open({ ...record, [parts[1]]: record[parts[2]] }),
    'invalid-file',
    /split.count: expected part 2/,
    'parts in the wrong order',
  );
  const { [parts[1]]: _, ...without } = record;
  await refuses(open(without), 'not-found', /00002-of/, 'a part missing');
  await refuses(open(record[parts[0]]), 'invalid-file', /split.count: expected part 1 of 1/, 'one part alone');
  await refuses(open({ 'a-00001-of-00000.gguf': record[parts[0]] }), 'invalid-file', /number of parts/, 'no parts');
});

/** What stands around a text differs: it is compared without. */
for (const [name, texts, type = 'gpt2'] of [
  ['smollm', readJson('files/smollm', 'expected.json').texts],
  ['gpt-2', readJson('files/gpt2', 'expected.json').texts],
  ['llama', readJson('files/llama', 'expected.json').texts, 'llama'],
  ['gemma', readJson('files/gemma', 'expected.json').texts, 'gemma'],
  ['bert', readJson('files/word-piece', 'expected.json').texts, 'bert'],
  ['llama3', readJson('tokenizers/llama3-bpe', 'expected.json').cases, 'llama'],
  ['t5', readJson('sentencepiece', 'classes.json').find(({ name }) => name === 't5').cases, 't5'],
]) {
  test(`the tokenizer of vocab-${name}.gguf`, async () => {
    const { metadata } = await read(bytesOf(`vocab-${name}.gguf`));
    const kept = new Map();
    const tokenizer = await api.openTokenizer(
      { name: 'vocabulary', list: async () => [], find: async () => null },
      'gguf',
      null,
      undefined,
      metadata,
      kept,
    );
    assert.ok(texts.length > 20);
    const written = Object.fromEntries(Array.from(kept, ([file, make]) => [file, make()]));
    assert.deepEqual(Object.keys(written), ['tokenizer.json', 'tokenizer_config.json']);
    const again = await api.openTokenizerOf(written, type, { cacheDir: false }, api.nodeFiles);
    const { all, ...roles } = tokenizer.specials;
    assert.deepEqual({ ...again.specials, all: again.specials.all.toSorted() }, { ...roles, all: all.toSorted() });
    for (const of of ['vocabSize', 'maxLength', 'subwordPrefix']) assert.equal(again[of], tokenizer[of], of);
    const turns = [{ role: 'user', content: 'hi' }];
    if (name === 't5') assert.equal(again.hasChatTemplate, false);
    else assert.equal(again.applyChatTemplate(turns), tokenizer.applyChatTemplate(turns));
    for (const { text, pair, ids, decoded } of texts) {
      const options = pair === undefined ? {} : { pair };
      assert.deepEqual(tokenizer.encode(text, options), ids, JSON.stringify([text, pair]));
      assert.deepEqual(again.encode(text, options), ids, JSON.stringify([text, pair]));
      assert.equal(again.decode(ids), tokenizer.decode(ids), JSON.stringify(text));
      if (name !== 'llama3') assert.equal(tokenizer.decode(ids), decoded, JSON.stringify(text));
    }
  });
}

test('a tokenizer.json says what SentencePiece merges, or is not written', async () => {
  const { metadata } = await read(bytesOf('vocab-llama.gguf'));
  const folder = { name: 'vocabulary', list: async () => [], find: async () => null };
  const texts = ['a', ' a  b ', '\n\n\n\n\nx', `to${' '.repeat(9)}the${' '.repeat(4)}`, 'one<tool>two', '世界 🌱', '   ', ' x\n  y '];
  const runs = ['\u2581\u2581', '\u2581\u2581\u2581', '\u2581\u2581\u2581\u2581'];
  const all = ['tokens', 'scores', 'token_type'].map((name) => metadata[`tokenizer.ggml.${name}`]);
  const writing = async (prefix, trims, more) => {
    // The runs are pieces of their own, and what else is there keeps its place.
    const kinds = [(text) => text, () => 0, (_, type) => type];
    const [tokens, scores, types] = all.map((list, i) => [...list, ...more.map(([text, type]) => kinds[i](text, type))]);
    const known = new Map(all[0].map((token, id) => [token, id]));
    for (const [text] of more) if (known.has(text)) tokens[known.get(text)] = `[old ${text}]`;
    const changed = {
      ...metadata,
      'tokenizer.ggml.tokens': tokens,
      'tokenizer.ggml.scores': scores,
      'tokenizer.ggml.token_type': types,
      'tokenizer.ggml.add_space_prefix': prefix,
      'tokenizer.ggml.remove_extra_whitespaces': trims,
    };
    const kept = new Map();
    const tokenizer = await api.openTokenizer(folder, 'gguf', null, undefined, changed, kept);
    const files = Object.fromEntries(Array.from(kept, ([file, make]) => [file, make()]));
    return [tokenizer, await api.openTokenizerOf(files, 'llama', { cacheDir: false }, api.nodeFiles)];
  };
  const user = 4;
  for (const prefix of [true, false]) {
    for (const trims of [true, false]) {
      const [tokenizer, again] = await writing(prefix, trims, [...runs.map((run) => [run, user]), ['<tool>', user]]);
      for (const text of texts) {
        const ids = tokenizer.encode(text);
        assert.deepEqual(again.encode(text), ids, JSON.stringify([prefix, trims, text]));
        assert.equal(again.decode(ids), tokenizer.decode(ids));
      }
    }
  }
  await refuses(
    writing(true, false, [['\u2581'.repeat(7), user]]),
    'unsupported',
    /tokenizer: expected pieces that merges make as SentencePiece does, got/,
    'a run without shorter ones',
  );
  const pair = all[0].flatMap((one) => all[0].map((two) => one + two)).find((text) => /^[a-z]{5,}$/.test(text) && !all[0].includes(text));
  await refuses(
    writing(true, false, [[pair, 5]]),
    'unsupported',
    /tokenizer: expected pieces that merges make as SentencePiece does, got/,
    'an unused piece',
  );
});

test('scalings of the frequencies', async () => {
  const of = async (name) => (await open(join(root, `${name}.gguf`))).config.rope_scaling;
  assert.equal(await of('llama'), undefined);
  assert.deepEqual({ ...(await of('llama-linear')) }, { rope_type: 'linear', factor: 2.5 });
  assert.deepEqual({ ...(await of('llama-yarn')) }, { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 16 });
  const { short_factor: factors, ...rest } = await of('llama3');
  assert.deepEqual({ ...rest }, { rope_type: 'longrope', long_factor: factors, attention_factor: 1 });
  assert.ok(factors.length === 8 && factors[0] === 1 && factors[7] === 8, 'short waves stay, long ones are stretched');
  assert.ok(![...(await open(join(root, 'llama3.gguf'))).tensors.keys()].includes('rope_freqs.weight'));
});

test('a sentence encoder pools as its file says', async () => {
  const pooling = async (name) => (await api.loadSentenceSettings(await open(join(root, name)), true))?.pooling;
  assert.deepEqual(await pooling('bert.gguf'), ['cls']);
  assert.equal(await pooling('llama.gguf'), undefined);
});

test('Qwen2 sees composed characters, as transformers’ Qwen2Tokenizer does; GPT-2 sees what is there', async () => {
  const { metadata } = await read(bytesOf('vocab-gpt-2.gguf'));
  const folder = { name: 'vocabulary', list: async () => [], find: async () => null };
  for (const [pre, same] of [
    ['qwen2', true],
    ['gpt-2', false],
  ]) {
    const tokenizer = await api.openTokenizer(folder, 'gguf', null, undefined, { ...metadata, 'tokenizer.ggml.pre': pre });
    const [composed, apart] = ['café', 'cafe\u0301'].map((text) => tokenizer.encode(text).join());
    assert.equal(composed === apart, same, pre);
  }
});

test('roles, the chat template, and kinds of tokenizers', async () => {
  const { metadata } = await read(bytesOf('vocab-llama.gguf'));
  const folder = { name: 'vocabulary', list: async () => [], find: async () => null };
  const tokenizer = await api.openTokenizer(folder, 'gguf', null, undefined, metadata);
  const { bos, eos, unk } = tokenizer.specials;
  assert.deepEqual([bos, eos, unk], [1, 2, 0]);
  assert.equal(tokenizer.applyChatTemplate([{ role: 'user', content: 'hi' }]), '<s>hi');
  assert.equal(tokenizer.maxLength, 512);
  const of = (change) => api.openTokenizer(folder, 'gguf', null, undefined, { ...metadata, ...change });
  assert.deepEqual((await of({ 'tokenizer.ggml.add_bos_token': false, 'tokenizer.ggml.add_eos_token': true })).encode('Hello').at(-1), 2);
  const more = (key, ...values) => [...metadata[`tokenizer.ggml.${key}`], ...values];
  const wider = await of({
    'tokenizer.ggml.tokens': more('tokens', '<tool>', '   '),
    'tokenizer.ggml.scores': more('scores', 0, 0),
    'tokenizer.ggml.token_type': more('token_type', 4, 4),
  });
  const count = tokenizer.vocabSize;
  const plain = { addSpecialTokens: false };
  assert.deepEqual(wider.encode('one<tool>two', plain), [...tokenizer.encode('one', plain), count, ...tokenizer.encode('two', plain)]);
  assert.ok(wider.encode('one    two').includes(count + 1));
  await refuses(of({ 'tokenizer.ggml.model': 'rwkv' }), 'unsupported', /tokenizer.ggml.model.*"rwkv"/, 'rwkv');
  await refuses(
    of({ 'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'new' }),
    'unsupported',
    /tokenizer.ggml.pre.*"new"/,
    'a way to cut',
  );
  await refuses(of({ 'tokenizer.ggml.scores': [1] }), 'invalid-file', /scores/, 'one score');
  await refuses(of({ 'tokenizer.ggml.tokens': [1] }), 'invalid-file', /tokens/, 'a number for a token');
  await refuses(of({ 'tokenizer.ggml.bos_token_id': 1e6 }), 'invalid-file', /bos_token_id/, 'an id beyond');
  assert.equal(await of({ 'tokenizer.ggml.model': 'no_vocab' }), null);
});
