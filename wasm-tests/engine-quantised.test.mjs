// q8 and q4: what is kept, what that costs on the shipped models, odd shapes, and every family.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, describe, test } from 'node:test';
import { forcedReadings, quality } from '../bench/quality.mjs';
import { create, defaultModel, inspect, load as loadModel, pinyinModel } from '../dist/node.js';
import { sentences } from '../examples/models/pinyin/check.mjs';
import { random, safetensors } from './support/tiny.mjs';

const opened = [];
async function load(...args) {
  const lm = await loadModel(...args);
  opened.push(lm);
  return lm;
}
after(() => Promise.all(opened.map((lm) => lm.dispose())));

const passage = readFileSync(new URL('./fixtures/passage.txt', import.meta.url), 'utf8');

/** In blocks of 32 along each row: the largest magnitude. */
function blockMaxima({ data, shape: [rows, cols] }) {
  const most = [];
  for (let row = 0; row < rows; ++row) {
    for (let k = 0; k < cols; k += 32) {
      most.push(Math.max(...Array.from(data.subarray(row * cols + k, row * cols + Math.min(cols, k + 32)), Math.abs)));
    }
  }
  return { most, at: (i) => most[Math.floor(i / cols) * Math.ceil(cols / 32) + Math.floor((i % cols) / 32)] };
}

describe('what few bits cost (limits: 1 % of perplexity for q8, 8 % for q4)', () => {
  const within = ({ q8, q4 }) => {
    assert.ok(Math.abs(q8.ratio - 1) < 0.01 && q8.divergence < 0.005, JSON.stringify(q8));
    assert.ok(Math.abs(q4.ratio - 1) < 0.08 && q4.divergence < 0.08, JSON.stringify(q4));
    // That it is measured at all: few bits do differ, four more than eight.
    assert.ok(q8.divergence > 1e-7 && q4.divergence > q8.divergence, JSON.stringify({ q8, q4 }));
    assert.ok(q4.bytes < q8.bytes);
  };

  test('the character model, on a chapter it was not trained on', async () => {
    within(
      await quality(loadModel, defaultModel, ['q8', 'q4'], async (lm) => {
        const [ids] = await lm.tokenize([passage]);
        return [0, 1, 2, 3].map((i) => ({ inputIds: [ids.slice(i * 250, (i + 1) * 250)] }));
      }),
    );
  });

  test('the pinyin model, on sentences it has not seen', async () => {
    within(await quality(loadModel, pinyinModel, ['q8', 'q4'], (lm) => forcedReadings(lm, sentences())));
  });
});

describe('what is kept', () => {
  test('info, parameters, memory', async () => {
    const f32 = await load(defaultModel, { dtype: 'f32' });
    const { memory } = await inspect(defaultModel);
    for (const [dtype, bits] of [
      ['q8', 8],
      ['q4', 4],
    ]) {
      const lm = await load(defaultModel, { dtype });
      const info = lm.info();
      assert.equal(info.dtype, dtype);
      assert.ok(info.dtypes.f32 > 0, 'norms and biases stay as they are');
      assert.equal(info.dtypes.q8 > 0, true, 'the embedding has eight bits');
      for (const { name, shape, dtype: kept } of await lm.parameters()) {
        if (shape.length < 2 || /wpe|position/.test(name)) assert.equal(kept, 'f32', name);
        else assert.equal(kept, /embed_tokens|wte|lm_head/.test(name) ? 'q8' : dtype, name);
      }
      const { weights } = await lm.memory();
      assert.equal(weights, memory[dtype].weights);
      // A block of 32 has a scale of 32 bits, and in eight bits a sum of 16 or 32.
      assert.ok(
        weights > (info.parameters * bits) / 8 && weights < (await f32.memory()).weights * (bits / 32 + 0.09),
        `${dtype}: ${weights}`,
      );
    }
  });

  test('a weight is at most half a step from what the file has', async () => {
    const exact = await load(defaultModel, { dtype: 'f32' });
    const names = (await exact.parameters()).filter(({ shape }) => shape.length === 2).map(({ name }) => name);
    for (const [dtype, steps] of [
      ['q8', 127],
      ['q4', 7],
    ]) {
      const lm = await load(defaultModel, { dtype });
      const kept = new Map((await lm.parameters()).map(({ name, dtype: own }) => [name, own]));
      for (const name of names) {
        if (kept.get(name) !== dtype) continue;
        const [a, b] = [await exact.parameter(name), await lm.parameter(name)];
        assert.deepEqual(a.shape, b.shape);
        const { at } = blockMaxima(a);
        let square = 0;
        let worst = 0;
        a.data.forEach((value, i) => {
          const error = Math.abs(value - b.data[i]) / (at(i) / steps);
          worst = Math.max(worst, error);
          square += error * error;
        });
        // A scale has 11 bits, which moves 127 steps by up to 2^-12 of them; four bits may clip the largest value in favour of the others.
        assert.ok(worst <= (dtype === 'q8' ? 0.5 + 128 / 2 ** 12 : 1.5), `${dtype} ${name}: ${worst} steps`);
        assert.ok(Math.sqrt(square / a.data.length) < 0.32, `${dtype} ${name}: ${Math.sqrt(square / a.data.length)} steps`);
        const values = new Set(b.data.subarray(0, 32));
        assert.ok(values.size <= (dtype === 'q8' ? 32 : 16));
      }
    }
  });
});

/** The largest distance over the spread of the expected values. */
function offBy(got, expected) {
  const mean = expected.reduce((sum, x) => sum + x, 0) / expected.length;
  const spread = Math.sqrt(expected.reduce((sum, x) => sum + (x - mean) ** 2, 0) / expected.length);
  return got.reduce((most, x, i) => Math.max(most, Math.abs(x - expected[i])), 0) / spread;
}

/** A model in float32 whose weights are those that another holds. */
async function widened(lm, config) {
  const tensors = {};
  for (const { name, shape } of await lm.parameters()) tensors[name] = { shape, data: (await lm.parameter(name)).data };
  return load(
    { 'config.json': new TextEncoder().encode(JSON.stringify(config)), 'model.safetensors': safetensors(tensors) },
    { dtype: 'f32' },
  );
}

describe('the products are those of the weights that are kept', () => {
  const shapes = {
    'gpt2 with rows of 172 and 688, stored the other way round': {
      model_type: 'gpt2',
      vocab_size: 61,
      n_embd: 172,
      n_layer: 2,
      n_head: 4,
      n_positions: 64,
    },
    'llama with grouped heads and rows of 40 and 100': {
      model_type: 'llama',
      vocab_size: 50,
      hidden_size: 40,
      intermediate_size: 100,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      num_hidden_layers: 2,
      tie_word_embeddings: false,
    },
    bert: { model_type: 'bert', vocab_size: 50, hidden_size: 48, intermediate_size: 96, num_attention_heads: 3, num_hidden_layers: 2 },
  };
  for (const [name, config] of Object.entries(shapes)) {
    for (const dtype of ['q8', 'q4']) {
      test(`${name}, ${dtype}`, async () => {
        const lm = await create(config, { seed: 5, dtype });
        opened.push(lm);
        const exact = await widened(lm, config);
        const input = { inputIds: [Array.from({ length: 40 }, (_, i) => (i * 17 + 3) % 50)] };
        const [[a], [b]] = [await lm.forward(input), await exact.forward(input)];
        const of = (result) => (result.logits ?? result.lastHiddenState).data;
        // Activations are rounded to seven or eight bits of a block's largest: about 0.3 % of it, a few times over.
        assert.ok(offBy(of(a), of(b)) < 0.08, `${offBy(of(a), of(b))} of the spread`);
        assert.ok(offBy(of(a), of(b)) > 0);
      });
    }
  }

  test('alone, in a batch, and token by token: the same bits', async () => {
    for (const dtype of ['q8', 'q4']) {
      const lm = await load(random(3), { dtype });
      const ids = [[5, 9, 200, 31, 77, 14, 3], [1, 2], Array.from({ length: 40 }, (_, i) => (i * 29) % 256)];
      const together = await lm.forward({ inputIds: ids });
      for (const [i, one] of ids.entries()) {
        const [alone] = await lm.forward({ inputIds: [one] });
        assert.deepEqual(alone.logits.data, together[i].logits.data);
        const [begun] = await lm.forward({ inputIds: [one.slice(0, 2)] });
        assert.deepEqual(begun.logits.data, alone.logits.data.slice(0, begun.logits.data.length));
      }
      const prompts = ids.map((inputIds) => ({ inputIds }));
      const options = { maxNewTokens: 12, eosTokenId: null };
      const batch = await lm.generate(prompts, options).result;
      for (const [i, prompt] of prompts.entries()) {
        assert.deepEqual((await lm.generate(prompt, options).result).tokenIds, batch[i].tokenIds);
      }
    }
  });
});
