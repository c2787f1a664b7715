// Writes the LLaMA shapes as GGUF (version 3), as llama.cpp's converter and its quantiser would, for wllama.
import { closeSync, openSync, writeSync } from 'node:fs';
import { elements } from './models.mjs';

const alignment = 32;
/** GGUF's number of each format, and its block: elements and bytes. */
export const formats = {
  F32: { type: 0, block: 1, bytes: 4 },
  Q4_0: { type: 2, block: 32, bytes: 18 },
  Q8_0: { type: 8, block: 32, bytes: 34 },
};

const bits = new DataView(new ArrayBuffer(4));

/** To the nearest 16-bit float, ties to even; for numbers that are normal there, or zero. */
export function toHalf(value) {
  bits.setFloat32(0, value);
  const word = bits.getUint32(0);
  const sign = (word >>> 16) & 0x8000;
  const magnitude = word & 0x7fffffff;
  if (magnitude < 0x38800000) return sign; // below 2^-14
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
}

/** ggml's quantize_row_q8_0_ref: 16-bit scale max |x| / 127, then 32 signed bytes. */
export function quantizeQ8(x) {
  const out = Buffer.alloc((x.length / 32) * 34);
  for (let block = 0, at = 0; block < x.length; block += 32, at += 34) {
    let max = 0;
    for (let i = 0; i < 32; ++i) max = Math.max(max, Math.abs(x[block + i]));
    const scale = Math.fround(max / 127);
    const inverse = scale ? Math.fround(1 / scale) : 0;
    out.writeUInt16LE(toHalf(scale), at);
    for (let i = 0; i < 32; ++i) {
      const scaled = Math.fround(x[block + i] * inverse);
      out.writeInt8(Math.sign(scaled) * Math.round(Math.abs(scaled)), at + 2 + i);
    }
  }
  return out;
}

/** ggml's quantize_row_q4_0_ref: 16-bit scale, the largest / -8, then 32 nibbles; byte j holds elements j and j + 16. */
export function quantizeQ4(x) {
  const out = Buffer.alloc((x.length / 32) * 18);
  for (let block = 0, at = 0; block < x.length; block += 32, at += 18) {
    let largest = 0;
    for (let i = 0; i < 32; ++i) if (Math.abs(x[block + i]) > Math.abs(largest)) largest = x[block + i];
    const scale = Math.fround(largest / -8);
    const inverse = scale ? Math.fround(1 / scale) : 0;
    out.writeUInt16LE(toHalf(scale), at);
    const nibble = (i) => Math.min(15, Math.trunc(Math.fround(Math.fround(x[block + i] * inverse) + 8.5)));
    for (let j = 0; j < 16; ++j) out[at + 2 + j] = nibble(j) | (nibble(j + 16) << 4);
  }
  return out;
}

const quantize = { F32: (x) => Buffer.from(x.buffer, x.byteOffset, x.byteLength), Q8_0: quantizeQ8, Q4_0: quantizeQ4 };

const number = (size, write) => {
  const bytes = Buffer.alloc(size);
  write(bytes);
  return bytes;
};
const u32 = (value) => number(4, (b) => b.writeUInt32LE(value));
const u64 = (value) => number(8, (b) => b.writeBigUInt64LE(BigInt(value)));
const f32 = (value) => number(4, (b) => b.writeFloatLE(value));
const text = (value) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
/** A value of metadata by its type's name: GGUF's type number and bytes. */
const types = {
  u32: [4, u32],
  i32: [5, (value) => number(4, (b) => b.writeInt32LE(value))],
  f32: [6, f32],
  bool: [7, (value) => Buffer.from([value ? 1 : 0])],
  text: [8, text],
};
const pair = (key, type, value) => {
  const [code, write] = types[type];
  if (!Array.isArray(value)) return Buffer.concat([text(key), u32(code), write(value)]);
  return Buffer.concat([text(key), u32(9), u32(code), u64(value.length), ...value.map(write)]);
};

/**
 * Everything before the tensors' bytes, padded. `metadata`: [key, type, value] each, an array of values for an array;
 * `tensors`: { name, shape (slowest first), format } each, whose bytes are to follow, each padded to 32.
 */
export function ggufHeader(metadata, tensors) {
  const parts = [Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(metadata.length), ...metadata.map((entry) => pair(...entry))];
  let offset = 0;
  for (const { name, shape, format } of tensors) {
    parts.push(text(name), u32(shape.length), ...[...shape].reverse().map(u64), u32(formats[format].type), u64(offset));
    offset += padded(tensorBytes(shape, format));
  }
  const header = Buffer.concat(parts);
  return Buffer.concat([header, Buffer.alloc(padded(header.length) - header.length)]);
}

export const tensorBytes = (shape, format) => (elements(shape) / formats[format].block) * formats[format].bytes;
const padded = (size) => Math.ceil(size / alignment) * alignment;

/** GGUF's name of a LLaMA weight. */
export function ggufName(name) {
  const [, layer, part] = /^model\.layers\.(\d+)\.(?:self_attn|mlp)?\.?(.+)\.weight$/.exec(name) ?? [];
  if (part === undefined) return { 'model.embed_tokens.weight': 'token_embd.weight', 'model.norm.weight': 'output_norm.weight' }[name];
  const parts = {
    input_layernorm: 'attn_norm',
    q_proj: 'attn_q',
    k_proj: 'attn_k',
    v_proj: 'attn_v',
    o_proj: 'attn_output',
    post_attention_layernorm: 'ffn_norm',
    gate_proj: 'ffn_gate',
    up_proj: 'ffn_up',
    down_proj: 'ffn_down',
  };
  return `blk.${layer}.${parts[part]}.weight`;
}

/** Rows of each head in the order of llama.cpp, whose rotation turns neighbours: Hugging Face's halves, interleaved. */
export function interleaveHeads(x, rows, columns, heads) {
  const out = new Float32Array(x.length);
  const size = rows / heads;
  for (let row = 0; row < rows; ++row) {
    const head = Math.floor(row / size);
    const within = row % size;
    const from = head * size + (within % 2) * (size / 2) + (within >> 1);
    out.set(x.subarray(from * columns, (from + 1) * columns), row * columns);
  }
  return out;
}

/** Where the vocabulary's bytes begin: an ASCII text is tokenised to its bytes plus this. */
export const firstByte = 3;

/** A vocabulary of V pieces without a meaning: three specials, the bytes, and then token i is the text " ti". */
function vocabulary(V) {
  const tokens = ['<unk>', '<s>', '</s>', ...Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`)];
  const kinds = [2, 3, 3, ...Array(256).fill(6)]; // unknown, control, bytes
  for (let i = tokens.length; i < V; ++i) {
    tokens.push(`\u2581t${i}`);
    kinds.push(1);
  }
  return [
    ['tokenizer.ggml.model', 'text', 'llama'],
    ['tokenizer.ggml.tokens', 'text', tokens],
    ['tokenizer.ggml.scores', 'f32', tokens.map((_, i) => -i)],
    ['tokenizer.ggml.token_type', 'i32', kinds],
    ['tokenizer.ggml.bos_token_id', 'u32', 1],
    ['tokenizer.ggml.eos_token_id', 'u32', 2],
    ['tokenizer.ggml.add_bos_token', 'bool', false],
    ['tokenizer.ggml.add_space_prefix', 'bool', false],
  ];
}

/**
 * Writes `file` from a model of models.mjs. Matrices are in `format`, except that a tied embedding stays in Q8_0 beside Q4_0,
 * as llama.cpp's quantiser has it for rows that its 6-bit blocks do not divide.
 */
export function writeGguf(file, { config, tensors }, read, format) {
  const { num_attention_heads: heads, num_key_value_heads: kvHeads, hidden_size: D } = config;
  const metadata = [
    ['general.architecture', 'text', 'llama'],
    ['general.file_type', 'u32', { F32: 0, Q4_0: 2, Q8_0: 7 }[format]],
    ['llama.block_count', 'u32', config.num_hidden_layers],
    ['llama.context_length', 'u32', config.max_position_embeddings],
    ['llama.embedding_length', 'u32', D],
    ['llama.feed_forward_length', 'u32', config.intermediate_size],
    ['llama.attention.head_count', 'u32', heads],
    ['llama.attention.head_count_kv', 'u32', kvHeads],
    ['llama.attention.layer_norm_rms_epsilon', 'f32', config.rms_norm_eps],
    ['llama.rope.dimension_count', 'u32', D / heads],
    ['llama.rope.freq_base', 'f32', config.rope_theta],
    ['llama.vocab_size', 'u32', config.vocab_size],
    ...vocabulary(config.vocab_size),
  ];
  const formatOf = (name, shape) => (shape.length === 1 ? 'F32' : format === 'Q4_0' && name === 'token_embd.weight' ? 'Q8_0' : format);
  const entries = tensors.map(([source, shape]) => {
    const name = ggufName(source);
    return { source, name, shape, format: formatOf(name, shape) };
  });
  const out = openSync(file, 'w');
  const write = (bytes) => {
    for (let at = 0; at < bytes.length; ) at += writeSync(out, bytes, at);
  };
  write(ggufHeader(metadata, entries));
  for (const { source, name, shape, format } of entries) {
    let x = read(source);
    if (name.endsWith('attn_q.weight')) x = interleaveHeads(x, ...shape, heads);
    if (name.endsWith('attn_k.weight')) x = interleaveHeads(x, ...shape, kvHeads);
    const bytes = quantize[format](x);
    write(bytes);
    write(Buffer.alloc(padded(bytes.length) - bytes.length));
  }
  closeSync(out);
}
