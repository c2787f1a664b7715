// The models that are measured: folders laid out like published checkpoints, with random weights, since speed depends on
// shapes and not on values. Every contender's files are made from these.
import { closeSync, existsSync, mkdirSync, openSync, readSync, renameSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

const numbers = (count, make) => Array.from({ length: count }, (_, i) => make(i)).flat();
const linear = (name, outputs, inputs) => [
  [`${name}.weight`, [outputs, inputs]],
  [`${name}.bias`, [outputs]],
];
const norm = (name, D) => [
  [`${name}.weight`, [D], 1],
  [`${name}.bias`, [D]],
];
/** GPT-2 stores the weights of its linear layers as (inputs, outputs). */
const conv1d = (name, inputs, outputs) => [
  [`${name}.weight`, [inputs, outputs]],
  [`${name}.bias`, [outputs]],
];

function gpt2(n_layer, n_embd, n_head, vocab_size, n_positions) {
  return {
    dtype: 'F16',
    config: {
      architectures: ['GPT2LMHeadModel'],
      model_type: 'gpt2',
      activation_function: 'gelu_new',
      layer_norm_epsilon: 1e-5,
      n_ctx: n_positions,
      n_embd,
      n_head,
      n_layer,
      n_positions,
      vocab_size,
    },
    tensors: [
      ['wte.weight', [vocab_size, n_embd]],
      ['wpe.weight', [n_positions, n_embd]],
      ...numbers(n_layer, (i) => [
        ...norm(`h.${i}.ln_1`, n_embd),
        ...conv1d(`h.${i}.attn.c_attn`, n_embd, 3 * n_embd),
        ...conv1d(`h.${i}.attn.c_proj`, n_embd, n_embd),
        ...norm(`h.${i}.ln_2`, n_embd),
        ...conv1d(`h.${i}.mlp.c_fc`, n_embd, 4 * n_embd),
        ...conv1d(`h.${i}.mlp.c_proj`, 4 * n_embd, n_embd),
      ]),
      ...norm('ln_f', n_embd),
    ],
  };
}

function llama(layers, D, heads, kvHeads, F, V, positions, theta) {
  const Dkv = (D / heads) * kvHeads;
  return {
    dtype: 'BF16',
    config: {
      architectures: ['LlamaForCausalLM'],
      model_type: 'llama',
      hidden_act: 'silu',
      hidden_size: D,
      intermediate_size: F,
      max_position_embeddings: positions,
      num_attention_heads: heads,
      num_hidden_layers: layers,
      num_key_value_heads: kvHeads,
      rms_norm_eps: 1e-5,
      rope_theta: theta,
      tie_word_embeddings: true,
      vocab_size: V,
    },
    tensors: [
      ['model.embed_tokens.weight', [V, D]],
      ...numbers(layers, (i) =>
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
      ),
      ['model.norm.weight', [D], 1],
    ],
  };
}

function bert(layers, D, heads, F, V, positions) {
  return {
    dtype: 'F16',
    config: {
      architectures: ['BertModel'],
      model_type: 'bert',
      add_pooling_layer: false,
      hidden_act: 'gelu',
      hidden_size: D,
      intermediate_size: F,
      layer_norm_eps: 1e-12,
      max_position_embeddings: positions,
      num_attention_heads: heads,
      num_hidden_layers: layers,
      pad_token_id: 0,
      type_vocab_size: 2,
      vocab_size: V,
    },
    tensors: [
      ['embeddings.word_embeddings.weight', [V, D]],
      ['embeddings.position_embeddings.weight', [positions, D]],
      ['embeddings.token_type_embeddings.weight', [2, D]],
      ...norm('embeddings.LayerNorm', D),
      ...numbers(layers, (i) => [
        ...['query', 'key', 'value'].flatMap((part) => linear(`encoder.layer.${i}.attention.self.${part}`, D, D)),
        ...linear(`encoder.layer.${i}.attention.output.dense`, D, D),
        ...norm(`encoder.layer.${i}.attention.output.LayerNorm`, D),
        ...linear(`encoder.layer.${i}.intermediate.dense`, F, D),
        ...linear(`encoder.layer.${i}.output.dense`, D, F),
        ...norm(`encoder.layer.${i}.output.LayerNorm`, D),
      ]),
    ],
  };
}

function marian(layers, D, heads, F, V, positions) {
  const attention = (name) => [
    ...['q_proj', 'k_proj', 'v_proj', 'out_proj'].flatMap((part) => linear(`${name}.${part}`, D, D)),
    ...norm(`${name}_layer_norm`, D),
  ];
  const stack = (name, blocks) =>
    numbers(layers, (i) => [
      ...blocks.flatMap((block) => attention(`model.${name}.layers.${i}.${block}`)),
      ...linear(`model.${name}.layers.${i}.fc1`, F, D),
      ...linear(`model.${name}.layers.${i}.fc2`, D, F),
      ...norm(`model.${name}.layers.${i}.final_layer_norm`, D),
    ]);
  return {
    dtype: 'F16',
    config: {
      architectures: ['MarianMTModel'],
      model_type: 'marian',
      activation_function: 'swish',
      d_model: D,
      decoder_attention_heads: heads,
      decoder_ffn_dim: F,
      decoder_layers: layers,
      decoder_start_token_id: V - 1,
      encoder_attention_heads: heads,
      encoder_ffn_dim: F,
      encoder_layers: layers,
      eos_token_id: 0,
      is_encoder_decoder: true,
      max_position_embeddings: positions,
      num_hidden_layers: layers,
      pad_token_id: V - 1,
      scale_embedding: true,
      static_position_embeddings: true,
      vocab_size: V,
    },
    tensors: [
      ['model.shared.weight', [V, D]],
      ['final_logits_bias', [1, V]],
      ...stack('encoder', ['self_attn']),
      ...stack('decoder', ['self_attn', 'encoder_attn']),
    ],
  };
}

/** Each `{ dtype, config, tensors: [[name, shape, value?], ...] }`: the format of the file, config.json, weights. */
export const shapes = {
  'gpt2-124m': gpt2(12, 768, 12, 50257, 1024),
  'gpt2-4k': gpt2(12, 768, 12, 50257, 4200),
  'layer-8k': gpt2(1, 512, 8, 512, 8448),
  'smollm2-135m': llama(30, 576, 9, 3, 1536, 49152, 8192, 100000),
  'llama-15m': llama(6, 288, 6, 6, 768, 32000, 1024, 10000),
  'minilm-l6': bert(6, 384, 12, 1536, 30522, 512),
  'opus-mt': marian(6, 512, 8, 2048, 32001, 512),
  // The least that every library can load: what remains of the time to start is the library's own.
  tiny: llama(1, 32, 1, 1, 32, 512, 128, 10000),
};

export const elements = (shape) => shape.reduce((a, b) => a * b, 1);

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

/** Makes a folder by `write(partial)` unless it is there: whole, or not at all. Returns its path, as a promise where `write` does. */
export function makeOnce(folder, write) {
  if (existsSync(folder)) return folder;
  const partial = `${folder}.partial`;
  rmSync(partial, { recursive: true, force: true });
  mkdirSync(partial, { recursive: true });
  const finish = () => {
    renameSync(partial, folder);
    return folder;
  };
  const written = write(partial);
  return written?.then ? written.then(finish) : finish();
}

/** Writes the folder `parent/name` (config.json, model.safetensors) unless it is there; returns its path. */
export function writeRandomModel(parent, name) {
  const { dtype, config, tensors } = shapes[name];
  return makeOnce(join(parent, name), (folder) => {
    writeFileSync(join(folder, 'config.json'), JSON.stringify(config, null, 2));
    const header = { __metadata__: { format: 'pt' } };
    let end = 0;
    for (const [tensor, shape] of tensors) {
      const begin = end;
      end += 2 * elements(shape);
      header[tensor] = { dtype, shape, data_offsets: [begin, end] };
    }
    let text = JSON.stringify(header);
    text = text.padEnd(Math.ceil(text.length / 8) * 8);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    const file = openSync(join(folder, 'model.safetensors'), 'w');
    writeSync(file, length);
    writeSync(file, text);
    const block = randomBlock(dtype);
    const one = dtype === 'F16' ? 0x3c00 : 0x3f80;
    let at = 0; // Neighbouring tensors begin at different places of the block, or layers would be alike.
    for (const [, shape, value] of tensors) {
      let left = 2 * elements(shape);
      if (value === 1) {
        writeSync(file, Buffer.from(new Uint16Array(left / 2).fill(one).buffer));
        continue;
      }
      while (left > 0) {
        const count = Math.min(left, block.length - at);
        writeSync(file, block, at, count);
        left -= count;
        at = (at + count) % block.length;
      }
    }
    closeSync(file);
  });
}

/** Reads tensors of a folder that `writeRandomModel` wrote, widened: `read(name)` gives a Float32Array. */
export function openModel(folder, name) {
  const { dtype, tensors } = shapes[name];
  const places = new Map();
  let end = 0;
  for (const [tensor, shape] of tensors) {
    places.set(tensor, [end, elements(shape)]);
    end += 2 * elements(shape);
  }
  const file = openSync(join(folder, 'model.safetensors'));
  const head = Buffer.alloc(8);
  readSync(file, head, 0, 8, 0);
  const start = 8 + Number(head.readBigUInt64LE());
  const table = widening(dtype);
  const read = (tensor) => {
    const [offset, count] = places.get(tensor);
    const raw = new Uint16Array(count);
    readSync(file, raw, 0, raw.byteLength, start + offset);
    const out = new Float32Array(count);
    for (let i = 0; i < count; ++i) out[i] = table[raw[i]];
    return out;
  };
  return { read, close: () => closeSync(file) };
}

/** The value of each pattern of 16 bits. */
function widening(dtype) {
  const table = new Float32Array(1 << 16);
  const view = new DataView(new ArrayBuffer(4));
  for (let bits = 0; bits < table.length; ++bits) {
    if (dtype === 'BF16') {
      view.setUint32(0, bits << 16);
      table[bits] = view.getFloat32(0);
    } else {
      const exponent = (bits >> 10) & 31;
      const fraction = bits & 1023;
      table[bits] = (bits & 0x8000 ? -1 : 1) * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
    }
  }
  return table;
}
