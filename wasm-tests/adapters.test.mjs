// LoRA: adapters of the PEFT library read, trained as PyTorch trains them, merged and written (wasm-tests/python/adapters.py).
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { create, load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { folderOf, readJson, readTensors } from './support/fixtures.mjs';

const expected = readJson('adapters', 'expected.json');
const trained = readTensors(join(folderOf('adapters'), 'trained.safetensors'));
const open = (name, options) => load(folderOf(name), { threads: 1, worker: false, ...options });
const lastLogits = async (lm, ids) => {
  const [{ logits }] = await lm.forward({ inputIds: [ids] });
  return Array.from(logits.data.subarray(logits.data.length - logits.shape[1]));
};
const distance = (a, b) => Math.max(...a.map((value, i) => Math.abs(value - b[i])));
const filesOf = (name) =>
  Object.fromEntries(
    ['adapter_config.json', 'adapter_model.safetensors'].map((file) => [file, readFileSync(join(folderOf('adapters'), name, file))]),
  );

describe('an adapter of PEFT’s', () => {
  for (const [name, { inputIds, logits, losses }] of Object.entries(expected)) {
    test(`${name}: gives its logits, beside the weights and merged into them`, async () => {
      const lm = await open(name, { dtype: 'f32' }); // in which merging rounds least
      const plain = await lastLogits(lm, inputIds);
      await lm.loadAdapter(join(folderOf('adapters'), name));
      const spread = distance(logits, Array(logits.length).fill(logits.reduce((a, b) => a + b) / logits.length));
      assert.ok(distance(plain, logits) > 0.05 * spread);
      assert.ok(distance(await lastLogits(lm, inputIds), logits) < 1e-4 * spread);
      await lm.removeAdapter();
      assert.deepEqual(await lastLogits(lm, inputIds), plain);
      await lm.loadAdapter(filesOf(name));
      await lm.mergeAdapter();
      assert.ok(distance(await lastLogits(lm, inputIds), logits) < 1e-4 * spread);
      await lm.dispose();
    });

    test(`${name}: is trained as PyTorch trains it, and saved`, async () => {
      const lm = await open(name);
      const before = await lm.parameter((await lm.parameters())[2].name);
      await lm.loadAdapter(filesOf(name));
      const options = { steps: 3, learningRate: 0.01, weightDecay: 0.01, maxGradNorm: 0, dropout: 0, batchTokens: 12, shuffle: false };
      const seen = [];
      for await (const { loss } of lm.train([{ inputIds }], options)) seen.push(loss);
      assert.ok(distance(seen, losses) < 1e-4, `${seen} ${losses}`);
      assert.deepEqual((await lm.parameter((await lm.parameters())[2].name)).data, before.data);
      const folder = mkdtempSync(join(tmpdir(), 'adapter-'));
      try {
        await lm.saveAdapter(folder);
        const saved = readTensors(join(folder, 'adapter_model.safetensors'));
        const wanted = Object.keys(trained).filter((key) => key.startsWith(`${name}/`));
        assert.deepEqual(Object.keys(saved).sort(), wanted.map((key) => key.slice(name.length + 1)).sort());
        for (const [key, { data }] of Object.entries(saved)) {
          assert.ok(distance(Array.from(data), Array.from(trained[`${name}/${key}`].data)) < 1e-5, key);
        }
        const config = JSON.parse(readFileSync(join(folder, 'adapter_config.json'), 'utf8'));
        const { r, lora_alpha, use_rslora, fan_in_fan_out } = JSON.parse(filesOf(name)['adapter_config.json']);
        assert.deepEqual(
          [config.r, config.lora_alpha, config.use_rslora, config.fan_in_fan_out],
          [r, lora_alpha, use_rslora, fan_in_fan_out],
        );
        const again = await open(name);
        await again.loadAdapter(folder);
        assert.deepEqual(await lastLogits(again, inputIds), await lastLogits(lm, inputIds));
        await again.dispose();
      } finally {
        rmSync(folder, { recursive: true });
      }
      await lm.dispose();
    });
  }
});

test('an adapter over weights in 16 and 8 bits learns; it merges into the former', async () => {
  for (const dtype of ['f16', 'q8']) {
    const lm = await open('llama-gqa', { dtype });
    await lm.addAdapter({ r: 4, targetModules: ['q_proj', 'v_proj', 'o_proj', 'up_proj'] });
    const { inputIds } = expected['llama-gqa'];
    const losses = [];
    for await (const { loss } of lm.train([{ inputIds }], { steps: 30, learningRate: 0.03, dropout: 0, batchTokens: 12 }))
      losses.push(loss);
    assert.ok(losses[29] < 0.7 * losses[0], `${losses[0]} to ${losses[29]}`);
    if (dtype === 'q8') await assert.rejects(lm.mergeAdapter(), code('unsupported', /Q8_0/));
    else await lm.mergeAdapter();
    await lm.dispose();
  }
});

test('what cannot be is refused by name, and leaves the model as it was', async () => {
  const lm = await open('llama-gqa');
  const { inputIds } = expected['llama-gqa'];
  const plain = await lastLogits(lm, inputIds);
  await assert.rejects(lm.addAdapter({}), code('invalid-argument', /targetModules/));
  await assert.rejects(lm.addAdapter({ targetModules: ['q_proj'], rank: 4 }), code('invalid-argument', /rank/));
  await assert.rejects(lm.addAdapter({ targetModules: ['q_proj'], r: 0 }), code('invalid-argument', /\br\b/));
  await assert.rejects(lm.addAdapter({ targetModules: ['c_attn'] }), code('invalid-argument', /c_attn/));
  await assert.rejects(lm.addAdapter({ targetModules: ['q_proj'], r: 1e9 }), code('out-of-memory', /memory/));
  await assert.rejects(lm.saveAdapter(), code('invalid-argument', /without/));
  await assert.rejects(lm.mergeAdapter(), code('invalid-argument', /without/));
  await assert.rejects(lm.loadAdapter(folderOf('llama-gqa')), code('not-found', /adapter_config\.json/));
  await assert.rejects(lm.loadAdapter(filesOf('gpt2-minimal')), code('invalid-argument', /c_attn/));
  const settings = JSON.parse(filesOf('llama-gqa')['adapter_config.json']);
  const changed = (change) => ({
    ...filesOf('llama-gqa'),
    'adapter_config.json': new TextEncoder().encode(JSON.stringify({ ...settings, ...change })),
  });
  for (const change of [
    { use_dora: true },
    { bias: 'all' },
    { peft_type: 'IA3' },
    { init_lora_weights: 'pissa' },
    { rank_pattern: { q: 2 } },
  ]) {
    await assert.rejects(lm.loadAdapter(changed(change)), code('unsupported', new RegExp(Object.keys(change)[0])));
  }
  await assert.rejects(lm.loadAdapter(changed({ r: 2 })), code('shape-mismatch', /lora_A/));
  await assert.rejects(lm.loadAdapter(changed({ target_modules: ['q_proj', 'k_proj'] })), code('missing-tensor', /k_proj/));
  await assert.rejects(lm.loadAdapter(changed({ target_modules: ['q_proj'] })), code('unsupported', /down_proj|v_proj/));
  assert.deepEqual(await lastLogits(lm, inputIds), plain);
  await assert.rejects(
    async () => {
      for await (const _ of lm.train([{ inputIds }], { steps: 1 }));
    },
    code('invalid-argument', /adapter/),
  );
  await lm.loadAdapter(filesOf('llama-gqa'));
  await assert.rejects(lm.addAdapter({ targetModules: ['q_proj'] }), code('invalid-argument', /without an adapter/));
  const training = lm.train([{ inputIds }], { steps: 5 });
  await training.next();
  await assert.rejects(lm.removeAdapter(), code('busy', /training/));
  await training.return();
  await lm.removeAdapter();
  assert.deepEqual(await lastLogits(lm, inputIds), plain);
  await lm.dispose();
});

test('a model that was made here takes an adapter, and is saved only without one', async () => {
  const lm = await create({ model_type: 'gpt2', vocab_size: 20, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 32 }, { worker: false });
  await lm.addAdapter({ targetModules: ['c_attn'] });
  await assert.rejects(lm.save(), code('unsupported', /mergeAdapter/));
  await lm.mergeAdapter();
  assert.equal(
    (await lm.save()).some(({ name }) => name === 'model.safetensors'),
    true,
  );
  await lm.dispose();
});
