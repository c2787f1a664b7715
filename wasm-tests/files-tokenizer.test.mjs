// Tokenizers and chat templates, against what transformers makes of the same files.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { files } from './support/bundle.mjs';
import { fixtures } from './support/fixtures.mjs';

const api = await files();
const root = join(fixtures, 'files');
const read = (...path) => JSON.parse(readFileSync(join(root, ...path), 'utf8'));
const names = readdirSync(root).filter((name) => readdirSync(root).includes(name) && existsIn(name, 'expected.json'));

function existsIn(name, file) {
  try {
    return readdirSync(join(root, name)).includes(file);
  } catch {
    return false;
  }
}

/** A folder with just enough of a model for its tokenizer to be loaded. */
function modelOf(name, more = {}) {
  const record = { 'model.safetensors': Buffer.from('\x02\0\0\0\0\0\0\0{}', 'latin1') };
  for (const file of readdirSync(join(root, name))) record[file] = new Uint8Array(readFileSync(join(root, name, file)));
  for (const [file, text] of Object.entries(more)) {
    if (text === null) delete record[file];
    else record[file] = new TextEncoder().encode(typeof text === 'string' ? text : JSON.stringify(text));
  }
  return record;
}

async function tokenizerOf(name, more) {
  const checkpoint = await api.openCheckpoint(modelOf(name, more), { cacheDir: false }, api.nodeFiles);
  return api.loadTokenizer(checkpoint);
}

const joined = (tokenizer, ids, options) => {
  const decoder = tokenizer.createDecoder(options);
  return ids.map((id) => decoder.push(id)).join('') + decoder.end();
};

for (const name of names) {
  test(`${name}: texts to ids and back as in Python`, async () => {
    const expected = read(name, 'expected.json');
    const tokenizer = await tokenizerOf(name);
    assert.equal(tokenizer.vocabSize, expected.vocabSize);
    for (const { text, ids, plain, decoded, skipped } of expected.texts) {
      assert.deepEqual(tokenizer.encode(text), ids, JSON.stringify(text));
      assert.deepEqual(tokenizer.encode(text, { addSpecialTokens: false }), plain, JSON.stringify(text));
      assert.equal(tokenizer.decode(ids), decoded, JSON.stringify(text));
      assert.equal(tokenizer.decode(ids, { skipSpecialTokens: true }), skipped, JSON.stringify(text));
      assert.equal(joined(tokenizer, ids), decoded);
    }
    for (const { ids, decoded } of expected.ids) {
      assert.equal(tokenizer.decode(ids), decoded, JSON.stringify(ids));
      assert.equal(joined(tokenizer, ids), decoded);
    }
    assert.deepEqual(
      expected.special.filter((id) => !tokenizer.specials.all.includes(id)),
      [],
    );
  });
}

for (const name of readdirSync(join(fixtures, 'tokenizers'))) {
  test(`tokenizers/${name}: texts to ids and back as in Python`, async () => {
    const { cases } = read('..', 'tokenizers', name, 'expected.json');
    const tokenizer = await tokenizerOf(`../tokenizers/${name}`, { 'config.json': { model_type: 'llama' } });
    for (const { text, ids, idsWithoutSpecials, decoded, decodedWithSpecials } of cases) {
      assert.deepEqual(tokenizer.encode(text), ids, JSON.stringify(text));
      assert.deepEqual(tokenizer.encode(text, { addSpecialTokens: false }), idsWithoutSpecials, JSON.stringify(text));
      assert.equal(tokenizer.decode(ids, { skipSpecialTokens: true }), decoded);
      assert.equal(tokenizer.decode(ids), decodedWithSpecials);
      assert.equal(joined(tokenizer, ids, { skipSpecialTokens: true }), decoded);
    }
  });
}

test('the chat templates of well-known models as in Python', async () => {
  const { cases } = read('..', 'chat', 'expected.json');
  const settings = read('gpt2', 'tokenizer_config.json');
  for (const { template, bosToken, eosToken, messages, addGenerationPrompt, text, error } of cases) {
    const tokenizer = await tokenizerOf('gpt2', {
      'tokenizer_config.json': { ...settings, bos_token: bosToken, eos_token: eosToken },
      'chat_template.jinja': readFileSync(join(fixtures, 'chat', `${template}.jinja`), 'utf8'),
    });
    const apply = () => tokenizer.applyChatTemplate(messages, { addGenerationPrompt });
    if (error === undefined || error === null) assert.equal(apply(), text, template);
    else assert.throws(apply, { code: 'invalid-argument' }, template);
  }
});

test('words that every JavaScript object knows are words like any other', async () => {
  const words = ['constructor', '__proto__', 'toString', 'hasOwnProperty', 'valueOf', '__defineGetter__', 'length', 'end', 'prototype'];
  for (const name of ['gpt2', 'gpt2-vocab-merges', 'llama', 'unigram', 'word-piece']) {
    const tokenizer = await tokenizerOf(name);
    for (const word of words) {
      const ids = tokenizer.encode(word, { addSpecialTokens: false });
      assert.ok(ids.length > 0 && ids.every(Number.isSafeInteger), `${name}: ${word}: ${ids}`);
    }
  }
  // As whole tokens of a vocabulary, and as merges.
  const letters = [...new Set([...words.join('')])];
  const tokens = [...letters, '__', 'proto', '__proto', '__proto__', 'pr', 'pro', 'prot', 'constructor', 'toString'];
  const vocab = `{${tokens.map((token, id) => `${JSON.stringify(token)}:${id}`)}}`;
  const merges = ['_ _', 'p r', 'pr o', 'pro t', 'prot o', '__ proto', '__proto __'];
  const json = JSON.stringify({
    ...read('gpt2', 'tokenizer.json'),
    added_tokens: [{ id: tokens.length - 1, content: 'toString' }],
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, use_regex: false },
    model: { type: 'BPE', vocab: {}, merges },
  }).replace('"vocab":{}', `"vocab":${vocab}`);
  const tokenizer = await tokenizerOf('gpt2', { 'tokenizer.json': json });
  assert.deepEqual(
    tokenizer.encode('__proto__toString').map((id) => tokenizer.idToToken(id)),
    ['__proto__', 'toString'],
  );
  assert.equal(tokenizer.decode(tokenizer.encode('__proto__toString')), '__proto__toString');
  assert.equal(tokenizer.tokenToId('valueOf'), null);
  assert.equal(tokenizer.tokenToId('constructor'), tokens.indexOf('constructor'));
});

test('text comes only in whole characters: an emoji of several tokens at once, Chinese character by character', async () => {
  for (const name of ['gpt2', 'llama', 'gemma']) {
    const tokenizer = await tokenizerOf(name);
    const bytes = (text) =>
      [...new TextEncoder().encode(text)].map((byte) => {
        const key = `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
        return (
          tokenizer.tokenToId(key) ??
          [...Array(tokenizer.vocabSize).keys()].find((id) => tokenizer.tokenBytes(id).length === 1 && tokenizer.tokenBytes(id)[0] === byte)
        );
      });
    const decoder = tokenizer.createDecoder({ after: tokenizer.encode('x') });
    assert.deepEqual(
      bytes('😀').map((id) => decoder.push(id)),
      ['', '', '', '😀'],
      name,
    );
    assert.deepEqual(
      bytes('你好').map((id) => decoder.push(id)),
      ['', '', '你', '', '', '好'],
    );
    assert.deepEqual(
      bytes('\ufffd').map((id) => decoder.push(id)),
      ['', '', '\ufffd'],
    );
    const [first, second] = bytes('é');
    assert.equal(decoder.push(first), '');
    assert.equal(decoder.push(second), 'é');
    assert.equal(decoder.push(first), '');
    assert.equal(decoder.end(), '\ufffd');
    const broken = tokenizer.createDecoder({ after: tokenizer.encode('x') });
    assert.equal(
      bytes('😀')
        .slice(0, 2)
        .map((id) => broken.push(id))
        .join(''),
      '',
    );
    assert.match(broken.push(tokenizer.encode('y').at(-1)), /^\ufffd+.*y$/);
  }
});

test('what comes after a prompt keeps its leading space', async () => {
  const tokenizer = await tokenizerOf('llama');
  const prompt = tokenizer.encode('The quick');
  const rest = tokenizer.encode('The quick brown fox').slice(prompt.length);
  assert.equal(tokenizer.decode(rest), 'brown fox');
  assert.equal(tokenizer.decode(rest, { after: prompt }), ' brown fox');
  assert.equal(joined(tokenizer, rest, { after: prompt }), ' brown fox');
  assert.equal(tokenizer.decode([1, ...rest], { after: prompt, skipSpecialTokens: true }), ' brown fox');
});

test('a decoder takes the same time for each token however many came', async () => {
  const tokenizer = await tokenizerOf('llama');
  const ids = tokenizer.encode('The quick brown fox jumps over the lazy dog. ', { addSpecialTokens: false });
  const time = (count) => {
    const decoder = tokenizer.createDecoder();
    const start = process.cpuUsage().user / 1000;
    for (let i = 0; i < count; ++i) decoder.push(ids[i % ids.length]);
    return process.cpuUsage().user / 1000 - start;
  };
  time(20_000);
  const ratio = Math.max(time(160_000), 1) / Math.max(time(20_000), 1);
  assert.ok(ratio < 24, `8 times the tokens took ${ratio.toFixed(1)} times as long`);
});

test('the clean-up of spaces on a stream is the one on the whole text', () => {
  const alphabet = [' ', ' ', "'", '.', ',', 'n', 't', "n't", 'v', 'e', 's', 'x', '?', ' '];
  let state = 12345;
  const next = (n) => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  for (let round = 0; round < 20_000; ++round) {
    const pieces = Array.from({ length: next(12) }, () => alphabet[next(alphabet.length)]);
    const stream = new api.TokenStream(api.compileDecoder({ config: { type: 'Fuse' }, cleanUp: true }, 'test')());
    const text = pieces.map((piece) => stream.push(piece)).join('') + stream.end();
    assert.equal(text, api.cleanUp(pieces.join('')), JSON.stringify(pieces));
  }
});

test('decoders in odd orders', () => {
  const run = (config, tokens) => {
    const stream = new api.TokenStream(api.compileDecoder({ config, cleanUp: false }, 'test')());
    return tokens.map((token) => stream.push(token)).join('') + stream.end();
  };
  const fused = (...steps) => ({ type: 'Sequence', decoders: [{ type: 'Fuse' }, ...steps] });
  assert.equal(run(fused({ type: 'Replace', pattern: { String: 'abc' }, content: 'X' }), ['a', 'b', 'ca', 'ab', 'cab', 'c']), 'XaXX');
  assert.equal(run(fused({ type: 'Strip', content: ' ', start: 2, stop: 1 }), [' ', '  a ', ' b', '  ']), ' a  b ');
  assert.equal(run({ type: 'BPEDecoder', suffix: '</w>' }, ['he', 'llo</w>', 'you</w>']), 'hello you');
  assert.equal(run({ type: 'Metaspace', replacement: '▁', prepend_scheme: 'never' }, ['▁a', '▁b']), ' a b');
  assert.equal(run(null, ['a', 'b']), 'a b');
  assert.throws(
    () => run({ type: 'CTC' }, []),
    (error) => error.code === 'unsupported' && /CTC/.test(error.message),
  );
});

test('llama2.c: ids as the SentencePiece library gives them', () => {
  const tokenizer = api.readLlama2cTokenizer(new Uint8Array(readFileSync(join(root, 'llama2c/tokenizer.bin'))), 'tokenizer.bin');
  for (const { text, ids, decoded } of read('llama2c', 'tokenizer_expected.json')) {
    assert.deepEqual(tokenizer.encode(text, { addSpecialTokens: false }), ids, JSON.stringify(text));
    assert.equal(tokenizer.decode(ids), decoded, JSON.stringify(text));
    assert.deepEqual(tokenizer.encode(text), [1, ...ids]);
  }
  const start = process.cpuUsage().user / 1000;
  tokenizer.encode('The quick brown fox. '.repeat(2000));
  assert.ok(process.cpuUsage().user / 1000 - start < 2000);
  const other = api.readLlama2cTokenizer(new Uint8Array(readFileSync(join(fixtures, 'llama2c/tokenizer.bin'))), 'tokenizer.bin');
  for (const { text, ids } of read('..', 'llama2c', 'expected.json').cases) assert.deepEqual(other.encode(text), ids, JSON.stringify(text));
  for (const cut of [0, 3, 9, 100, 4000]) {
    assert.throws(() => api.readLlama2cTokenizer(new Uint8Array(readFileSync(join(root, 'llama2c/tokenizer.bin'))).subarray(0, cut), 't'), {
      code: 'invalid-file',
    });
  }
});

test('chat templates as in Python', async () => {
  const { messages, cases } = read('chats.json');
  for (const { name, template, variables, text } of cases) {
    const { add_generation_prompt: addGenerationPrompt, tools, ...more } = variables;
    const tokenizer = await tokenizerOf('llama', { 'chat_template.jinja': template });
    assert.ok(tokenizer.hasChatTemplate);
    assert.equal(tokenizer.applyChatTemplate(messages, { addGenerationPrompt, tools, ...more }), text, name);
    assert.equal(tokenizer.applyChatTemplate(messages, { addGenerationPrompt, tools, template, ...more }), text, name);
  }
});

test('where chat templates stand', async () => {
  const messages = [{ role: 'user', content: 'hi' }];
  const settings = read('llama', 'tokenizer_config.json');
  const apply = async (more, options) => (await tokenizerOf('llama', more)).applyChatTemplate(messages, options);
  assert.equal(
    await apply({ 'tokenizer_config.json': { ...settings, chat_template: 'A{{ messages[0].content }}{{ bos_token }}' } }),
    'Ahi<s>',
  );
  const several = {
    'tokenizer_config.json': {
      ...settings,
      chat_template: [
        { name: 'default', template: 'D' },
        { name: 'tool_use', template: 'T' },
      ],
    },
  };
  assert.equal(await apply(several), 'D');
  assert.equal(await apply(several, { tools: [] }), 'T');
  assert.equal(await apply(several, { template: 'tool_use' }), 'T');
  assert.equal(await apply({ 'chat_template.json': { chat_template: 'J' } }), 'J');
  assert.equal(await apply({ 'chat_template.jinja': 'F', 'tokenizer_config.json': { ...settings, chat_template: 'A' } }), 'F');
  await assert.rejects(apply({}), { code: 'unsupported', message: /no chat template/ });
  await assert.rejects(apply({ 'chat_template.jinja': '{% if %}' }), { code: 'invalid-file' });
  await assert.rejects(apply({ 'chat_template.jinja': "{{ raise_exception('only one') }}" }), {
    code: 'invalid-argument',
    message: /only one/,
  });
  const tokenizer = await tokenizerOf('llama', { 'chat_template.jinja': 'x' });
  assert.throws(() => tokenizer.applyChatTemplate('hello'), { code: 'invalid-argument' });
  assert.match(await apply({ 'chat_template.jinja': "{{ strftime_now('%d %b %Y') }}" }), /^\d\d [A-Z][a-z]{2} \d{4}$/);
  assert.equal(
    api.strftime(new Date(2024, 6, 26, 15, 4, 5), '%A %a %B %b %d %j %H %I %p %M %S %m %y %Y %% %Q'),
    'Friday Fri July Jul 26 208 15 03 PM 04 05 07 24 2024 % %Q',
  );
});

test('special tokens that only the settings name, and roles', async () => {
  const tokenizer = await tokenizerOf('added');
  const { specials } = tokenizer;
  assert.equal(tokenizer.idToToken(specials.eos), '<|endoftext|>');
  assert.equal(tokenizer.idToToken(specials.pad), '<|pad|>');
  assert.equal(specials.bos, null);
  const plain = await tokenizerOf('gpt2-vocab-merges');
  assert.equal(plain.idToToken(plain.specials.eos), '<|endoftext|>', 'GPT-2 names none in its files');
});

test('folders without a tokenizer, or with one of another kind', async () => {
  const bare = { 'tokenizer.json': null, 'tokenizer_config.json': null };
  assert.equal(await tokenizerOf('llama', bare), null);
  await assert.rejects(tokenizerOf('llama', { ...bare, 'tokenizer.model': 'x' }), { code: 'invalid-file', message: /tokenizer.model/ });
  await assert.rejects(tokenizerOf('llama', { ...bare, 'vocab.txt': 'x' }), { code: 'invalid-file', message: /vocab.txt.*unk_token/ });
  await assert.rejects(tokenizerOf('llama', { ...bare, 'tekken.json': 'x' }), {
    code: 'unsupported',
    message: /tekken.json.*tokenizer.json/,
  });
  const model = readFileSync(join(fixtures, 'sentencepiece/unigram-t5.model'));
  const folder = { ...modelOf('llama', bare), 'spiece.model': new Uint8Array(model) };
  await assert.rejects(
    api.openCheckpoint(folder, { cacheDir: false }, api.nodeFiles).then((checkpoint) => api.loadTokenizer(checkpoint)),
    { code: 'unsupported', message: /spiece.model.*tokenizer_class/ },
  );
});

test('malformed tokenizers', async () => {
  const good = read('gpt2', 'tokenizer.json');
  const broken = {
    'no JSON': '{',
    'an array': '[]',
    'no model': { ...good, model: undefined },
    'ids that are none': { ...good, model: { ...good.model, vocab: { a: -1 } } },
    'ids too large': { ...good, model: { ...good.model, vocab: { a: 1e12 } } },
    'an unknown model': { ...good, model: { type: 'Quantum' } },
    'an unknown normalizer': { ...good, normalizer: { type: 'Quantum' } },
    'an unknown decoder': { ...good, decoder: { type: 'Quantum' } },
    'a normalizer nested beyond the stack': JSON.stringify({ ...good, normalizer: 0 }).replace(
      '"normalizer":0',
      `"normalizer":${'{"type":"Sequence","normalizers":['.repeat(5000)}${']}'.repeat(5000)}`,
    ),
    'a pattern that is none': { ...good, pre_tokenizer: { type: 'Split', pattern: { Regex: '(' }, behavior: 'Isolated' } },
    'a behaviour that is none': { ...good, pre_tokenizer: { type: 'Split', pattern: { String: 'a' }, behavior: 'Backwards' } },
    'merges of what is no token': { ...good, model: { ...good.model, merges: ['\ud83d\ude00 x'] } },
    'a template without what it names': {
      ...good,
      post_processor: { type: 'TemplateProcessing', single: [{ SpecialToken: { id: '<none>', type_id: 0 } }], pair: [] },
    },
    'a template of a second text for one': {
      ...good,
      post_processor: { type: 'TemplateProcessing', single: [{ Sequence: { id: 'B', type_id: 0 } }], pair: [] },
    },
    'unigrams without scores': { ...good, model: { type: 'Unigram', unk_id: 0, vocab: [['a']] } },
    'an unknown unigram beyond the vocabulary': { ...good, model: { type: 'Unigram', unk_id: 5, vocab: [['a', 0]] } },
    'a charsmap that is none': { ...good, normalizer: { type: 'Precompiled', precompiled_charsmap: '!' } },
    'added tokens without ids': { ...good, added_tokens: [{ content: 'x' }] },
  };
  for (const [what, text] of Object.entries(broken)) {
    const start = process.cpuUsage().user / 1000;
    await assert.rejects(
      tokenizerOf('gpt2', { 'tokenizer.json': text }),
      (error) => ['invalid-file', 'unsupported'].includes(error.code),
      what,
    );
    assert.ok(process.cpuUsage().user / 1000 - start < 300);
  }
});
