// LoRA: adapters of the PEFT library read, trained as PyTorch trains them, merged and written (wasm-tests/python/adapters.py).
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { create, load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { folderOf, readJson, readTensors } from './support/fixtures.mjs';
import { stepsOf } from './support/training.mjs';

const expected = readJson('adapters', 'expected.json');
const trained = readTensors(join(folderOf('adapters'), 'trained.safetensors'));
const open = (name, options) => load(folderOf(name), { threads: 1, worker: false, ...options });
const lastLogits = async (lm, ids) => {
  const [{ logits }] = await lm.forward({ inputIds: [ids] });
  return Array.from(logits.data.subarray(logits.data.length - logits.shape[1]));
};
const distance = (a, b) => Math.max(...a.map((value, i) => Math.abs(value - b[i])));
const json = (value) => new TextEncoder().encode(JSON.stringify(value));
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

test('names of no such layer say nothing in a file, as to PEFT, and are refused in a call', async () => {
  const [name, { inputIds, logits }] = Object.entries(expected).find(([name]) => name === 'llama-gqa');
  const files = filesOf(name);
  const told = JSON.parse(files['adapter_config.json']);
  const lm = await open(name, { dtype: 'f32' });
  const names = [...told.target_modules, 'query_key_value', 'wi_0'];
  await lm.loadAdapter({ ...files, 'adapter_config.json': json({ ...told, target_modules: names }) });
  assert.ok(distance(await lastLogits(lm, inputIds), logits) < 1e-4 * (Math.max(...logits) - Math.min(...logits)));
  const [config] = await lm.saveAdapter();
  assert.deepEqual(JSON.parse(new TextDecoder().decode(config.bytes)).target_modules.sort(), told.target_modules.sort());
  await lm.removeAdapter();
  await assert.rejects(lm.addAdapter({ targetModules: names }), code('invalid-argument', /query_key_value/));
  for (const [target_modules, wrong, message] of [
    [['wi_0'], 'invalid-argument', /target_modules/],
    [['q_proj', 'wi_0'], 'unsupported', /down_proj/],
  ]) {
    const changed = { ...files, 'adapter_config.json': json({ ...told, target_modules }) };
    await assert.rejects(lm.loadAdapter(changed), code(wrong, message));
  }
  await lm.dispose();
});

describe('modules are named as in PEFT', () => {
  const camel = (key) => key.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
  for (const [name, { model, settings, modules, inputIds, logits }] of Object.entries(readJson('adapters', 'modules.json'))) {
    test(`${name}: the same of ${model}, with the same logits`, async () => {
      const lm = await open(model, { dtype: 'f32' });
      const plain = await lastLogits(lm, inputIds);
      const { fan_in_fan_out: _, ...targets } = settings;
      await lm.addAdapter({ r: 2, ...Object.fromEntries(Object.entries(targets).map(([key, value]) => [camel(key), value])) });
      const saved = Object.fromEntries((await lm.saveAdapter()).map((file) => [file.name, file.bytes]));
      const config = JSON.parse(new TextDecoder().decode(saved['adapter_config.json']));
      assert.deepEqual(
        [...config.target_modules].sort(),
        'layers_to_transform' in settings || !Array.isArray(settings.target_modules) ? modules : settings.target_modules,
      );
      const length = Number(Buffer.from(saved['adapter_model.safetensors']).readBigUInt64LE(0));
      const names = Object.keys(JSON.parse(Buffer.from(saved['adapter_model.safetensors']).toString('utf8', 8, 8 + length)));
      assert.deepEqual(
        names.filter((key) => key !== '__metadata__').sort(),
        modules.flatMap((module) => ['A', 'B'].map((side) => `base_model.model.${module}.lora_${side}.weight`)).sort(),
      );
      await lm.removeAdapter();
      const files = filesOf(join('modules', name));
      const told = JSON.parse(files['adapter_config.json']);
      // PEFT writes what it has made of "all-linear".
      for (const change of [{}, settings]) {
        await lm.loadAdapter({ ...files, 'adapter_config.json': json({ ...told, ...change }) });
        const spread = Math.max(...logits) - Math.min(...logits);
        assert.ok(distance(plain, logits) > 0.001 * spread);
        assert.ok(distance(await lastLogits(lm, inputIds), logits) < 1e-5 * spread);
        await lm.removeAdapter();
      }
      await lm.dispose();
    });
  }

  test('and what is none is refused by name', async () => {
    const lm = await open('llama-gqa');
    const q = 'q_proj';
    for (const [options, wrong, message] of [
      [{ targetModules: '' }, 'invalid-argument', /targetModules/],
      [{ targetModules: [] }, 'invalid-argument', /targetModules/],
      [{ targetModules: 5 }, 'invalid-argument', /targetModules/],
      [{ targetModules: 'q_proj' }, 'invalid-argument', /named and not left out, got "q_proj"/],
      [{ targetModules: '.*attn.*' }, 'unsupported', /linear layers, got "model.layers.0.self_attn"/],
      [{ targetModules: '.*(embed_tokens|q_proj)' }, 'unsupported', /model\.embed_tokens/],
      [{ targetModules: '(?!model).*' }, 'unsupported', /lm_head/], // tied to the embedding
      [{ targetModules: '.*norm' }, 'unsupported', /norm/],
      [{ targetModules: '.*(q_proj' }, 'unsupported', /Python/],
      [{ targetModules: '.*q_proj)|(.*v_proj' }, 'unsupported', /Python/],
      [{ targetModules: '(?i).*Q_PROJ' }, 'unsupported', /Python/],
      [{ targetModules: '.*\\.(q)?_?\\1proj' }, 'unsupported', /Python/],
      [{ targetModules: 'all-linear', excludeModules: '.*' }, 'invalid-argument', /named and not left out/],
      [{ targetModules: [q], excludeModules: [q] }, 'invalid-argument', /named and not left out/],
      [{ targetModules: [q, 'c_attn'], excludeModules: ['x'] }, 'invalid-argument', /c_attn/],
      [{ targetModules: [q], layersToTransform: 2 }, 'invalid-argument', /named and not left out/],
      [{ targetModules: [q], layersToTransform: [-1] }, 'invalid-argument', /layersToTransform/],
      [{ targetModules: [q], layersPattern: 'layers' }, 'invalid-argument', /layers_to_transform/],
      [{ targetModules: [q], layersToTransform: 0, layersPattern: 'h(' }, 'unsupported', /layers_pattern/],
      [{ targetModules: 'all-linear', layersToTransform: 0 }, 'invalid-argument', /layers_to_transform/],
    ]) {
      await assert.rejects(lm.addAdapter(options), code(wrong, message), JSON.stringify(options));
    }
    for (const [key, value] of Object.entries({
      target_modules: [],
      exclude_modules: 5,
      layers_to_transform: ['1'],
      layers_pattern: [3],
    })) {
      const settings = { ...JSON.parse(filesOf('llama-gqa')['adapter_config.json']), [key]: value };
      await assert.rejects(
        lm.loadAdapter({ ...filesOf('llama-gqa'), 'adapter_config.json': json(settings) }),
        code('invalid-file', new RegExp(key)),
      );
    }
    await lm.dispose();
  });
});

describe('an adapter’s training is saved with it, and goes on bit for bit', () => {
  const config = { model_type: 'gpt2', vocab_size: 20, n_embd: 16, n_layer: 2, n_head: 2, n_positions: 32 };
  const data = Array.from({ length: 24 }, (_, i) => ({ inputIds: Array.from({ length: 8 }, (_, t) => (3 * i + t * (1 + (i % 4))) % 20) }));
  const options = { batchTokens: 24, learningRate: 0.02, schedule: 'cosine', warmup: 1, seed: 5 };
  const made = () => create(config, { seed: 3, worker: false, trainable: false, dtype: 'f16' });
  const added = async () => {
    const lm = await made();
    await lm.addAdapter({ targetModules: 'all-linear', r: 2, seed: 4 });
    return lm;
  };
  const recordOf = (files) => Object.fromEntries(files.map(({ name, bytes }) => [name, bytes]));
  let skipped = 0;
  const skipping = {
    [Symbol.asyncIterator]: async function* () {
      yield* data;
    },
    skip: async (count) => {
      skipped += count;
      return data.slice(count);
    },
  };
  for (const [name, entries, half, batchTokens] of [
    ['an array', data, 3, 24],
    ['an iterable that can skip', skipping, 3, 24],
    ['an iterable that does skip', skipping, 20, 8],
  ]) {
    test(`${name}: ${2 * half} steps are ${half}, a save, and ${half} in another model`, async () => {
      const given = { ...options, steps: 2 * half, batchTokens };
      const whole = await added();
      const steps = await stepsOf(whole.train(entries, given));
      assert.equal(steps.length, 2 * half);
      const first = await added();
      const folder = mkdtempSync(join(tmpdir(), 'adapter-'));
      try {
        assert.deepEqual(await stepsOf(first.train(entries, given), half), steps.slice(0, half));
        await first.saveAdapter(folder, { optimizer: true });
        assert.deepEqual(readdirSync(folder).sort(), [
          'adapter_config.json',
          'adapter_model.safetensors',
          'optimizer.safetensors',
          'trainer_state.json',
        ]);
        const second = await made();
        await second.loadAdapter(folder);
        for (const lm of [second, first]) {
          assert.deepEqual(await stepsOf(lm.train(entries, { resume: true })), steps.slice(half));
          assert.deepEqual(await lm.saveAdapter(undefined, { optimizer: true }), await whole.saveAdapter(undefined, { optimizer: true }));
        }
        // Older state does not stay beside newer weights.
        await second.saveAdapter(folder);
        assert.deepEqual(readdirSync(folder).sort(), ['adapter_config.json', 'adapter_model.safetensors']);
        for (const lm of [whole, first, second]) await lm.dispose();
      } finally {
        rmSync(folder, { recursive: true });
      }
    });
  }

  test('a skip of the data’s own was used', () => assert.ok(skipped > 0));

  test('what cannot be gone on with is refused', async () => {
    const lm = await added();
    await assert.rejects(lm.saveAdapter(undefined, { optimizer: true }), code('invalid-argument', /saveAdapter.*has been trained/));
    await assert.rejects(lm.saveAdapter(undefined, { optimiser: true }), code('invalid-argument', /'optimizer'/));
    const early = recordOf(await lm.saveAdapter());
    await stepsOf(lm.train(data, { ...options, steps: 2 }));
    const files = recordOf(await lm.saveAdapter(undefined, { optimizer: true }));
    const again = await made();
    const resume = () => stepsOf(again.train(data, { resume: true, steps: 3 }));
    const { 'optimizer.safetensors': optimizer, 'trainer_state.json': state, ...plain } = files;
    await again.loadAdapter(plain);
    await assert.rejects(resume(), code('invalid-argument', /resume/));
    await again.removeAdapter();
    await again.loadAdapter({ ...early, 'optimizer.safetensors': optimizer, 'trainer_state.json': state });
    await assert.rejects(resume(), code('invalid-file', /weights/));
    await again.removeAdapter();
    await again.loadAdapter({ ...files, 'trainer_state.json': json({ global_step: 3 }) }); // as a Trainer of transformers leaves it
    await assert.rejects(resume(), code('invalid-file', /format/));
    await again.removeAdapter();
    await again.loadAdapter({ ...files, 'optimizer.safetensors': early['adapter_model.safetensors'] });
    await assert.rejects(resume(), code('missing-tensor', /exp_avg\.transformer/));
    await again.removeAdapter();
    await again.loadAdapter({ ...plain, 'trainer_state.json': state });
    await assert.rejects(resume(), code('not-found', /optimizer\.safetensors/));
    await again.removeAdapter();
    // It goes with the adapter.
    await again.loadAdapter(files);
    await assert.rejects(stepsOf(again.train(data.slice(1), { resume: true })), code('invalid-argument', /the 24 examples of before/));
    await again.removeAdapter();
    await again.addAdapter({ targetModules: 'all-linear', r: 2, seed: 4 });
    await assert.rejects(resume(), code('invalid-argument', /resume/));
    await again.removeAdapter();
    await again.loadAdapter(files);
    assert.deepEqual(
      (await resume()).map(({ step }) => step),
      [3],
    );
    for (const model of [lm, again]) await model.dispose();
  });
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
    'adapter_config.json': json({ ...settings, ...change }),
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
