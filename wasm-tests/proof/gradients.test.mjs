// Loss and gradients of every family that predicts tokens, in every weight, against PyTorch's in double, over the fixtures' models.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load } from '../../dist/node.js';
import { folderOf, readTensors } from '../support/fixtures.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const place = join(root, 'build/proof/gradients');
rmSync(place, { recursive: true, force: true });
mkdirSync(place, { recursive: true });

const decoders = ['gpt2', 'llama-gqa', 'mistral', 'qwen2-sliding', 'qwen3', 'gemma', 'gpt_neox', 'gpt_neox-sequential'];
const more = ['opt', 'opt-post-norm', 'bloom', 'bart', 'mbart', 'marian', 'pegasus', 'm2m_100', 't5', 'mt5'];
const masked = ['bert-masked-lm', 'distilbert-masked-lm', 'roberta-masked-lm', 'albert-masked-lm'];

const found = {};
const batches = {};
for (const name of [...decoders, ...more, ...masked]) {
  const lm = await load(folderOf(name), { trainable: true, worker: false });
  const { encoderDecoder, encoderOnly, vocabSize } = lm.info();
  // The fourth is the padding token, whose row some of the models do not train by looking it up.
  const padding = lm.config.pad_token_id ?? 1;
  const ids = (length, from) =>
    Array.from({ length }, (_, i) => (i === 3 ? padding : 5 + ((from * 11 + i * 37 + ((i * i) % 13)) % (Math.min(vocabSize, 90) - 6))));
  const lists = (from) => [ids(9, from), ids(17, from + 1)];
  const inputIds = lists(1);
  const batch = encoderDecoder
    ? { inputIds, decoderInputIds: [ids(11, 3), ids(6, 4)], labels: [ids(11, 5), ids(6, 6)] }
    : { inputIds, labels: encoderOnly ? lists(7) : inputIds };
  batches[name] = { kind: encoderDecoder ? 'seq2seq' : encoderOnly ? 'masked' : 'causal', folder: folderOf(name), ...batch };
  found[name] = await lm.gradients(batch);
  await lm.dispose();
}
writeFileSync(join(place, 'batches.json'), JSON.stringify(batches));
execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [join(root, 'wasm-tests/python/ask_gradients.py'), place], {
  stdio: ['ignore', 'inherit', 'ignore'],
});
const losses = JSON.parse(readFileSync(join(place, 'losses.json'), 'utf8'));

for (const [name, { loss, gradients }] of Object.entries(found)) {
  test(name, () => {
    assert.ok(Math.abs(loss - losses[name]) < 1e-6 * loss, `${loss} for ${losses[name]}`);
    const expected = readTensors(join(place, `${name}.safetensors`));
    assert.deepEqual(Object.keys(gradients).sort(), Object.keys(expected).sort());
    const largest = (data) => data.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const all = Math.max(...Object.values(expected).map(({ data }) => largest(data)));
    for (const [key, { shape, data }] of Object.entries(expected)) {
      const gradient = gradients[key];
      assert.deepEqual(gradient.shape, shape, key);
      // That of a key's bias is zero, and what is computed of it rounding alone.
      const most = 5e-5 * largest(data) + 1e-6 * all;
      const wrong = data.findIndex((value, i) => !(Math.abs(gradient.data[i] - value) <= most));
      assert.equal(wrong, -1, `${key}[${wrong}]: ${gradient.data[wrong]} for ${data[wrong]}`);
    }
  });
}
