// Folders laid out like published checkpoints, with random weights: speed depends on shapes, not on values.
import { closeSync, existsSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

const gpt2 = (layers, D, V, P) => [
  ['wte.weight', [V, D]],
  ['wpe.weight', [P, D]],
  ...Array.from({ length: layers }, (_, i) => [
    [`h.${i}.ln_1.weight`, [D], 1],
    [`h.${i}.ln_1.bias`, [D]],
    [`h.${i}.attn.c_attn.weight`, [D, 3 * D]],
    [`h.${i}.attn.c_attn.bias`, [3 * D]],
    [`h.${i}.attn.c_proj.weight`, [D, D]],
    [`h.${i}.attn.c_proj.bias`, [D]],
    [`h.${i}.ln_2.weight`, [D], 1],
    [`h.${i}.ln_2.bias`, [D]],
    [`h.${i}.mlp.c_fc.weight`, [D, 4 * D]],
    [`h.${i}.mlp.c_fc.bias`, [4 * D]],
    [`h.${i}.mlp.c_proj.weight`, [4 * D, D]],
    [`h.${i}.mlp.c_proj.bias`, [D]],
  ]).flat(),
  ['ln_f.weight', [D], 1],
  ['ln_f.bias', [D]],
];

const llama = (layers, D, Dkv, F, V) => [
  ['model.embed_tokens.weight', [V, D]],
  ...Array.from({ length: layers }, (_, i) =>
    [
      ['input_layernorm', [D], 1],
      ['self_attn.q_proj', [D, D]],
      ['self_attn.k_proj', [Dkv, D]],
      ['self_attn.v_proj', [Dkv, D]],
      ['self_attn.o_proj', [D, D]],
      ['post_attention_layernorm', [D], 1],
      ['mlp.gate_proj', [F, D]],
      ['mlp.up_proj', [F, D]],
      ['mlp.down_proj', [D, F]],
    ].map(([name, shape, value]) => [`model.layers.${i}.${name}.weight`, shape, value]),
  ).flat(),
  ['model.norm.weight', [D], 1],
];

/** The shapes of GPT-2 (124 M parameters, f16) and of SmolLM2-135M (bf16). */
export const shapes = {
  'gpt2-124m': {
    dtype: 'F16',
    config: {
      architectures: ['GPT2LMHeadModel'],
      model_type: 'gpt2',
      activation_function: 'gelu_new',
      layer_norm_epsilon: 1e-5,
      n_ctx: 1024,
      n_embd: 768,
      n_head: 12,
      n_layer: 12,
      n_positions: 1024,
      vocab_size: 50257,
    },
    tensors: gpt2(12, 768, 50257, 1024),
  },
  'smollm2-135m': {
    dtype: 'BF16',
    config: {
      architectures: ['LlamaForCausalLM'],
      model_type: 'llama',
      hidden_act: 'silu',
      hidden_size: 576,
      intermediate_size: 1536,
      max_position_embeddings: 8192,
      num_attention_heads: 9,
      num_hidden_layers: 30,
      num_key_value_heads: 3,
      rms_norm_eps: 1e-5,
      rope_theta: 100000,
      tie_word_embeddings: true,
      vocab_size: 49152,
    },
    tensors: llama(30, 576, 192, 1536, 49152),
  },
};

/** 2^20 random 16-bit values of either sign and a size near 0.02, the same every time. */
function randomBlock(dtype) {
  const block = new Uint16Array(1 << 20);
  let state = 1;
  for (let i = 0; i < block.length; ++i) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const sign = (state >>> 31) << 15;
    const mantissa = state >>> 8;
    // Exponents of 2^-7 and 2^-6.
    const exponent = 1 & (state >>> 30);
    block[i] = sign | (dtype === 'F16' ? ((8 + exponent) << 10) | (mantissa & 0x3ff) : ((120 + exponent) << 7) | (mantissa & 0x7f));
  }
  return Buffer.from(block.buffer);
}

/** Writes the folder `parent/name` unless it is there; returns its path. */
export function writeRandomModel(parent, name) {
  const folder = join(parent, name);
  if (existsSync(folder)) return folder;
  const { dtype, config, tensors } = shapes[name];
  const partial = `${folder}.partial`;
  rmSync(partial, { recursive: true, force: true });
  mkdirSync(partial, { recursive: true });
  writeFileSync(join(partial, 'config.json'), JSON.stringify(config, null, 2));
  const header = { __metadata__: { format: 'pt' } };
  let end = 0;
  for (const [tensor, shape] of tensors) {
    const begin = end;
    end += 2 * shape.reduce((a, b) => a * b, 1);
    header[tensor] = { dtype, shape, data_offsets: [begin, end] };
  }
  let text = JSON.stringify(header);
  text = text.padEnd(Math.ceil(text.length / 8) * 8);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  const file = openSync(join(partial, 'model.safetensors'), 'w');
  writeSync(file, length);
  writeSync(file, text);
  const block = randomBlock(dtype);
  const one = dtype === 'F16' ? 0x3c00 : 0x3f80;
  for (const [, shape, value] of tensors) {
    let left = 2 * shape.reduce((a, b) => a * b, 1);
    if (value === 1) {
      writeSync(file, Buffer.from(new Uint16Array(left / 2).fill(one).buffer));
      continue;
    }
    for (; left > 0; left -= block.length) writeSync(file, block, 0, Math.min(left, block.length));
  }
  closeSync(file);
  renameSync(partial, folder);
  return folder;
}
