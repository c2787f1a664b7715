// Tokenizers of GGUF files, as `save` writes them, against the tokenizers library and transformers: ids, texts and the chat template.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { bundle } from '../support/bundle.mjs';
import { fixtures } from '../support/fixtures.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const place = join(root, 'build/proof/saved-tokenizers');
rmSync(place, { recursive: true, force: true });
const api = await bundle(`
  export { readGguf } from './web/files/gguf.ts';
  export { BytesSource } from './web/files/source.ts';
  export { openTokenizer } from './web/files/tokenizer.ts';
`);
const pieces = [
  '',
  ' ',
  '\n',
  '\t',
  '  ',
  'Grüße',
  '世界',
  'Привет',
  'مرحبا',
  '👩‍👩‍👧‍👦',
  'नमस्ते',
  '한국어',
  'cafe\u0301',
  "don't",
  '12345',
  '\u2581',
  'x = y;',
];
const tokens = ['<s>', '</s>', '<unk>', '[MASK]', '[CLS]', '<|endoftext|>', '<extra_id_3>', '<|begin_of_text|>'];
const texts = [...pieces, ...tokens, ' '.repeat(41), 'a'.repeat(40)];
for (const one of pieces) for (const two of [...pieces, ...tokens]) texts.push(`${one}${two} and${one}`);

const types = { bert: 'bert', t5: 't5', llama: 'llama', gemma: 'gemma', llama3: 'llama', qwen2: 'qwen2', smollm: 'llama', 'gpt-2': 'gpt2' };
const folder = { name: 'vocabulary', list: async () => [], find: async () => null };
const written = {};
for (const [name, type] of Object.entries(types)) {
  const file = readFileSync(join(fixtures, 'gguf', `vocab-${name === 'qwen2' ? 'gpt-2' : name}.gguf`));
  const { metadata } = await api.readGguf(new api.BytesSource(name, new Uint8Array(file)));
  if (name === 'qwen2') metadata['tokenizer.ggml.pre'] = 'qwen2';
  const kept = new Map();
  written[name] = await api.openTokenizer(folder, 'gguf', null, undefined, metadata, kept);
  mkdirSync(join(place, name), { recursive: true });
  for (const [part, make] of kept) writeFileSync(join(place, name, part), make());
  writeFileSync(join(place, name, 'config.json'), JSON.stringify({ model_type: type }));
}
writeFileSync(join(place, 'texts.json'), JSON.stringify(texts));
const answers = join(place, 'answers.json');
execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [join(root, 'wasm-tests/python/ask_saved_tokenizers.py'), place, answers], {
  stdio: ['ignore', 'inherit', 'ignore'],
});

for (const [name, { ids, auto, decoded, chat }] of Object.entries(JSON.parse(readFileSync(answers, 'utf8')))) {
  test(`${name}: ${texts.length} texts`, () => {
    const tokenizer = written[name];
    texts.forEach((text, i) => {
      assert.deepEqual(ids[i], tokenizer.encode(text), JSON.stringify(text));
      assert.deepEqual(auto[i], ids[i], JSON.stringify(text));
      assert.equal(decoded[i], tokenizer.decode(ids[i]), JSON.stringify(text));
    });
    assert.equal(chat, tokenizer.hasChatTemplate ? tokenizer.applyChatTemplate([{ role: 'user', content: 'hi' }]) : null);
  });
}
