// Trainings beside PyTorch's: a character GPT on the novel with the same weights to begin with, batches and schedule; and models that
// each side has trained in turn, with the same logits on the other. wasm-tests/python/trained_models.py is PyTorch's part.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { create, load, trainTokenizer } from '../../dist/node.js';
import { chapters } from '../../examples/models/moby-dick-char/check.mjs';
import { draws } from '../../examples/train/draws.mjs';
import { close } from '../support/compare.mjs';
import { readTensors } from '../support/fixtures.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const place = join(root, 'build/proof/training-pytorch');
rmSync(place, { recursive: true, force: true });
after(() => rmSync(place, { recursive: true, force: true }));
const folderOf = (name) => {
  mkdirSync(join(place, name), { recursive: true });
  return join(place, name);
};
const python = (what, folder) =>
  execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [join(root, 'wasm-tests/python/trained_models.py'), what, folder], {
    stdio: 'inherit',
  });

const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

test('a character GPT on the novel: PyTorch’s losses', async (t) => {
  const [steps, sequences, context] = [300, 16, 64];
  const book = chapters();
  const { tokenizer } = await trainTokenizer([...book.train, ...book.held], { type: 'char' });
  const encoded = async (texts) => Int32Array.from((await tokenizer.encode(texts)).flat());
  const [ids, heldIds] = [await encoded(book.train), await encoded(book.held)];
  const random = draws(1851);
  const windows = (from, count) =>
    Array.from({ length: count }, () => {
      const start = Math.floor(random() * (from.length - context));
      return Array.from(from.subarray(start, start + context));
    });
  const batches = Array.from({ length: steps }, () => windows(ids, sequences));
  const held = windows(heldIds, 128);
  const recipe = { learningRate: 3e-3, warmup: 30, weightDecay: 0.1, maxGradNorm: 1 };

  const { bos, eos } = tokenizer.specials;
  const shape = { n_embd: 64, n_layer: 3, n_head: 4, n_positions: context };
  const config = { model_type: 'gpt2', vocab_size: tokenizer.vocabSize, ...shape, bos_token_id: bos, eos_token_id: eos };
  const lm = await create(config, { seed: 1, threads: 1 });
  const folder = folderOf('gpt');
  await lm.save(join(folder, 'initial'));
  writeFileSync(join(folder, 'data.json'), JSON.stringify({ ...recipe, batches, held }));
  const entries = (list) => list.map((inputIds) => ({ inputIds }));
  const found = [];
  let heldLoss;
  const options = { ...recipe, schedule: 'cosine', steps, batchTokens: sequences * context, shuffle: false, dropout: 0 };
  for await (const step of lm.train(entries(batches.flat()), { ...options, evalData: entries(held), evalEvery: steps })) {
    found.push(step.loss);
    heldLoss = step.evalLoss;
  }
  await lm.dispose();
  assert.equal(found.length, steps);

  python('gpt', folder);
  const expected = JSON.parse(readFileSync(join(folder, 'answer.json'), 'utf8'));
  const last = [found, expected.losses].map((losses) => mean(losses.slice(-50)));
  t.diagnostic(`loss of the last 50 steps ${last[0].toFixed(4)}, PyTorch's ${last[1].toFixed(4)}`);
  t.diagnostic(`held out ${heldLoss.toFixed(4)}, PyTorch's ${expected.held.toFixed(4)}`);
  // Characters' frequencies alone give about 3.
  assert.ok(found[0] > 4 && last[0] < 2.5, `${found[0]} to ${last[0]}`);
  assert.ok(Math.abs(found[0] / expected.losses[0] - 1) < 1e-5, `the first step: ${found[0]} for ${expected.losses[0]}`);
  assert.ok(Math.abs(last[0] / last[1] - 1) < 0.03, `the last steps: ${last[0]} for ${last[1]}`);
  assert.ok(Math.abs(heldLoss / expected.held - 1) < 0.03, `held out: ${heldLoss} for ${expected.held}`);
});

const roles = { bos_token_id: 1, eos_token_id: 2, pad_token_id: 0 };
const configs = {
  gpt2: {
    model_type: 'gpt2',
    architectures: ['GPT2LMHeadModel'],
    vocab_size: 50,
    n_embd: 32,
    n_layer: 2,
    n_head: 4,
    n_positions: 32,
    ...roles,
  },
  llama: {
    model_type: 'llama',
    architectures: ['LlamaForCausalLM'],
    vocab_size: 50,
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: 32,
    tie_word_embeddings: false,
    ...roles,
  },
  bert: {
    model_type: 'bert',
    architectures: ['BertForMaskedLM'],
    vocab_size: 50,
    hidden_size: 32,
    intermediate_size: 64,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    max_position_embeddings: 32,
    ...roles,
  },
  transformer: {
    model_type: 'transformer',
    is_encoder_decoder: true,
    vocab_size: 50,
    d_model: 32,
    encoder_layers: 2,
    decoder_layers: 2,
    encoder_attention_heads: 4,
    decoder_attention_heads: 4,
    encoder_ffn_dim: 64,
    decoder_ffn_dim: 64,
    layer_norm_eps: 1e-5,
    decoder_start_token_id: 1,
    ...roles,
  },
};

describe('what is trained here loads there with the same logits, and the other way round', async () => {
  const random = draws(2017);
  const draw = (count) => Array.from({ length: count }, () => 3 + Math.floor(47 * random()));
  const entries = Array.from({ length: 6 }, (_, i) => {
    const [inputIds, labels] = [draw(7 + i), draw(7 + i)];
    return { inputIds, labels, pair: { inputIds, labels: draw(12 - i) } };
  });
  const root = folderOf('both');
  const all = {};
  for (const [name, config] of Object.entries(configs)) {
    const lm = await create(config, { seed: 3, worker: false });
    const pairs = name === 'transformer';
    const masked = name === 'bert';
    const data = entries.map(({ pair, ...one }) => (pairs ? pair : masked ? one : { inputIds: one.inputIds, labels: one.inputIds }));
    const losses = [];
    for await (const { loss } of lm.train(data, { steps: 30, learningRate: 3e-3, batchTokens: 64 })) losses.push(loss);
    all[name] = { data, losses };
    const folder = folderOf(`both/${name}`);
    await lm.save(join(folder, 'model'));
    await lm.dispose();
    const asked = data.map((one) => (pairs ? { ...one, decoderInputIds: [1, ...one.labels.slice(0, -1)] } : one));
    writeFileSync(join(folder, 'entries.json'), JSON.stringify(asked));
  }
  python('both', root);

  for (const [name, { losses }] of Object.entries(all)) {
    test(name, async (t) => {
      assert.ok(mean(losses.slice(-5)) < 0.95 * losses[0], `nothing learned: ${losses[0]} to ${losses.at(-1)}`);
      const folder = join(root, name);
      const asked = JSON.parse(readFileSync(join(folder, 'entries.json'), 'utf8'));
      const expected = readTensors(join(folder, 'logits.safetensors'));
      for (const which of ['model', 'back']) {
        const lm = await load(join(folder, which), { worker: false });
        assert.deepEqual(lm.info().unusedTensors, []);
        let worst = 0;
        for (const [i, { labels: _, decoderInputIds, ...entry }] of asked.entries()) {
          const inputs = { inputIds: [entry.inputIds], ...(decoderInputIds ? { decoderInputIds: [decoderInputIds] } : {}) };
          const [{ logits }] = await lm.forward(inputs);
          worst = Math.max(worst, close(logits, expected[`${which}.${i}`], `${which}, sequence ${i}`, 1e-4));
        }
        t.diagnostic(`${which}: ${worst.toExponential(1)} of the spread apart`);
        await lm.dispose();
      }
    });
  }
});
