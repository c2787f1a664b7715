// Models made and trained here load in Hugging Face transformers, with all their weights and the same logits; `transformer` in the
// repository's reference. Fresh seeds, or WASMFORMER_SEED.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { create, load, trainTokenizer } from '../../dist/node.js';
import { close } from '../support/compare.mjs';
import { numbers } from '../support/tiny.mjs';

const seed = Number(process.env.WASMFORMER_SEED ?? 1 + Math.floor(Math.random() * 1e6));
const place = mkdtempSync(join(tmpdir(), 'wasmformer-trained-'));
after(() => rmSync(place, { recursive: true }));
const draw = numbers(seed);
const ids = (length) => Array.from({ length }, () => 5 + Math.floor(((draw() + 1) / 2) * 85));

const text = 'The quick brown fox jumps over the lazy dog. '.repeat(20);
const { tokenizer } = await trainTokenizer([text], { type: 'bpe', vocabSize: 300 });

/** By name: a configuration, and entries to learn from. */
const sequences = Array.from({ length: 30 }, (_, i) => ({ inputIds: ids(6 + (i % 12)) }));
const models = {
  gpt2: [{ model_type: 'gpt2', vocab_size: 90, n_embd: 32, n_layer: 2, n_head: 4, n_positions: 40 }, sequences],
  'gpt2-text': [{ model_type: 'gpt2', vocab_size: 300, n_embd: 32, n_layer: 2, n_head: 4, n_positions: 40 }, [text]],
  llama: [
    {
      model_type: 'llama',
      vocab_size: 90,
      hidden_size: 32,
      intermediate_size: 56,
      num_hidden_layers: 2,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      max_position_embeddings: 64,
      tie_word_embeddings: false,
    },
    sequences,
  ],
  bert: [
    {
      model_type: 'bert',
      architectures: ['BertForMaskedLM'],
      vocab_size: 90,
      hidden_size: 32,
      intermediate_size: 64,
      num_hidden_layers: 2,
      num_attention_heads: 4,
      max_position_embeddings: 64,
    },
    sequences.map(({ inputIds }) => ({ inputIds, labels: inputIds.map((id, t) => (t % 3 === 0 ? id : -100)) })),
  ],
  transformer: [
    {
      model_type: 'transformer',
      is_encoder_decoder: true,
      vocab_size: 90,
      d_model: 32,
      encoder_layers: 2,
      decoder_layers: 2,
      encoder_attention_heads: 4,
      decoder_attention_heads: 4,
      encoder_ffn_dim: 64,
      decoder_ffn_dim: 64,
      activation_function: 'relu',
      layer_norm_eps: 1e-5,
      tie_word_embeddings: true,
      decoder_start_token_id: 1,
    },
    sequences.map(({ inputIds }) => ({ inputIds, labels: inputIds.toReversed() })),
  ],
};

const questions = [];
for (const [name, [config, data]] of Object.entries(models)) {
  const lm = await create(config, { seed, worker: false, ...(name === 'gpt2-text' ? { tokenizer } : {}) });
  for await (const _ of lm.train(data, { steps: 20, batchTokens: 128, learningRate: 3e-3, seed }));
  const folder = join(place, name);
  await lm.save(folder);
  await lm.dispose();
  const question = { folder, inputIds: ids(17), ...(name === 'transformer' ? { decoderInputIds: [1, ...ids(9)] } : {}) };
  questions.push(name === 'gpt2-text' ? { ...question, text: 'A lazy fox, quickly.' } : question);
}
const script = fileURLToPath(new URL('../python/ask_trained.py', import.meta.url));
const answers = JSON.parse(
  execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [script], {
    input: JSON.stringify(questions),
    stdio: ['pipe', 'pipe', 'inherit'],
    maxBuffer: 2 ** 26,
  }),
);

for (const [i, name] of Object.keys(models).entries()) {
  test(`${name}, seed ${seed}`, async () => {
    const { folder, inputIds, decoderInputIds, text } = questions[i];
    const lm = await load(folder, { worker: false });
    const [{ logits }] = await lm.forward({ inputIds: [inputIds], ...(decoderInputIds ? { decoderInputIds: [decoderInputIds] } : {}) });
    const rows = answers[i].logits;
    close(logits, { shape: [rows.length, rows[0].length], data: Float32Array.from(rows.flat()) }, name);
    if (text) assert.deepEqual(await lm.tokenize(text), answers[i].textIds);
    await lm.dispose();
  });
}
