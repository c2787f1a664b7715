// Models in GGUF files: those of the other fixtures, under llama.cpp's names and orders, and quantised ones, against transformers.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { inspect, load as loadModel } from '../dist/node.js';
import { close } from './support/compare.mjs';
import { fixtures, folderOf, readJson, readTensors } from './support/fixtures.mjs';
import { startHub } from './support/hub.mjs';

const at = (name) => join(fixtures, 'gguf', `${name}.gguf`);
const opened = [];
async function load(source, options) {
  const lm = await loadModel(source, { worker: false, ...options });
  opened.push(lm);
  return lm;
}
after(() => Promise.all(opened.map((lm) => lm.dispose())));

/** Root mean squares: of the difference, as a share of the expected. */
const distance = (actual, expected) => {
  const squares = (of) => expected.reduce((sum, _, i) => sum + of(i) ** 2, 0);
  return Math.sqrt(squares((i) => actual[i] - expected[i]) / squares((i) => expected[i]));
};

const bits = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);

/** Files of the same model as a folder of safetensors; `rounded`: but for the last bit of some numbers. */
for (const { name, folder = name, rounded = false } of [
  { name: 'gpt2' },
  { name: 'gpt2-f16', folder: 'gpt2-minimal' },
  { name: 'llama', folder: 'llama-gqa' },
  { name: 'version2', folder: 'llama-gqa' },
  { name: 'split-00001-of-00003', folder: 'llama-gqa' },
  { name: 'llama-bias' },
  { name: 'llama-head-dim' },
  { name: 'llama-linear' },
  { name: 'llama-yarn' },
  { name: 'llama3', folder: 'llama-llama3', rounded: true },
  { name: 'qwen2' },
  { name: 'qwen3' },
  { name: 'gemma', rounded: true },
  { name: 'bert' },
  { name: 't5' },
  { name: 'flan-t5' },
]) {
  test(`${name}: the same weights and numbers as ${folder}`, async () => {
    const [lm, plain] = [await load(at(name), { dtype: 'f32' }), await load(folderOf(folder), { dtype: 'f32' })];
    assert.equal(lm.info().format, 'gguf');
    assert.equal(lm.info().architecture, plain.info().architecture);
    const names = (await lm.parameters()).map((parameter) => parameter.name);
    const wanted = (await plain.parameters())
      .map((parameter) => parameter.name)
      .filter((one) => name !== 'bert' || !one.includes('pooler'));
    assert.deepEqual(names.toSorted(), wanted.toSorted());
    for (const parameter of names) {
      const [got, expected] = [await lm.parameter(parameter), await plain.parameter(parameter)];
      assert.deepEqual(got.shape, expected.shape, parameter);
      if (name === 'gemma' && parameter.includes('norm')) close(got, expected, parameter, 1e-6);
      else assert.ok(bits(got).equals(bits(expected)), parameter);
    }
    const inputIds = [[5, 17, 33, 90, 8, 61, 2, 44]];
    const request = lm.info().encoderDecoder ? { inputIds, decoderInputIds: [[0, 9, 30]] } : { inputIds };
    const [[got], [expected]] = [await lm.forward(request), await plain.forward(request)];
    const field = name === 'bert' ? 'lastHiddenState' : 'logits';
    if (rounded) close(got[field], expected[field], field, 1e-5);
    else assert.ok(bits(got[field]).equals(bits(expected[field])), field);
  });
}

test('the list above has every file', () => {
  const models = readdirSync(join(fixtures, 'gguf')).filter((name) => /^(?!vocab).*\.gguf$/.test(name));
  assert.equal(models.length, 16 + 2 + Object.keys(readJson('gguf', 'expected.json')).length);
});

for (const [name, { inputIds, greedy, sha256 }] of Object.entries(readJson('gguf', 'expected.json'))) {
  test(`${name}: dequantised as in Python`, async () => {
    const lm = await load(at(name), { dtype: 'f32' });
    for (const [parameter, digest] of Object.entries(sha256 ?? {}))
      assert.equal(
        createHash('sha256')
          .update(bits(await lm.parameter(parameter)))
          .digest('hex'),
        digest,
        parameter,
      );
    const [{ logits }] = await lm.forward({ inputIds: [inputIds] });
    close(logits, readTensors(join(fixtures, 'gguf', 'expected.safetensors'))[`${name}.logits`], name);
    const { tokenIds } = await lm.generate({ inputIds }, { maxNewTokens: 16, doSample: false, eosTokenId: null }).result;
    assert.deepEqual(tokenIds, greedy);
  });
}

test('streamed from a server, and from a File, in a worker', async () => {
  const bytes = readFileSync(at('formats'));
  const hub = await startHub({ 'org/name': { commit: 'a'.repeat(40), files: { 'formats.gguf': bytes } } });
  try {
    const { inputIds, greedy } = readJson('gguf', 'expected.json').formats;
    for (const [source, options] of [
      ['org/name/formats.gguf', { endpoint: hub.url, cacheDir: false }],
      ['org/name', { endpoint: hub.url, cacheDir: false }],
      [[new File([bytes], 'formats.gguf')], { worker: true }],
      [new Uint8Array(bytes), { worker: true }],
    ]) {
      const lm = await load(source, { dtype: 'f32', ...options });
      const { tokenIds } = await lm.generate({ inputIds }, { maxNewTokens: 16, doSample: false, eosTokenId: null }).result;
      assert.deepEqual(tokenIds, greedy);
    }
  } finally {
    await hub.close();
  }
});

test('without a dtype Q8_0 and Q4_0 are kept number for number, and other blocks become q8', async () => {
  for (const [name, dtype] of [
    ['gpt2-q8', 'q8'],
    ['gpt2-q4', 'q4'],
    ['llama-q8', 'q8'],
    ['formats', 'q8'],
  ]) {
    const [lm, exact] = [await load(at(name)), await load(at(name), { dtype: 'f32' })];
    assert.equal(lm.info().dtype, dtype, name);
    for (const { name: parameter, dtype: kept } of await lm.parameters()) {
      const [got, expected] = [await lm.parameter(parameter), await exact.parameter(parameter)];
      const from = name === 'formats' ? 'other' : dtype;
      if (kept === from || kept === 'f32')
        assert.ok(
          expected.data.every((value, i) => value === got.data[i]),
          `${name}: ${parameter}`,
        );
      else assert.ok(distance(got.data, expected.data) < 0.005, `${name}: ${parameter}, ${kept}`);
    }
    const { format, memory } = await inspect(at(name));
    assert.equal(format, 'gguf');
    assert.ok(memory.f32.weights > memory.f16.weights);
    assert.deepEqual(memory.file, { ...lm.info().memory, fits: true });
    assert.equal(memory.file.weights, (await lm.memory()).weights);
    // What is of several kinds takes what no one dtype does.
    if (name === 'formats')
      assert.ok(
        ['f32', 'f16', 'bf16', 'q8', 'q4'].every((one) => memory[one].weights !== memory.file.weights),
        JSON.stringify(memory),
      );
  }
});
