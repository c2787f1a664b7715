// Tiny models made on the spot, as files by name: what `load` takes as bytes.

/** A safetensors file. `tensors`: { name: { shape, data: Float32Array } }. */
export function safetensors(tensors) {
  const header = {};
  let offset = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype: 'F32', shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  let text = JSON.stringify(header);
  text += ' '.repeat((8 - (text.length % 8)) % 8);
  const bytes = new Uint8Array(8 + text.length + offset);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(new TextEncoder().encode(text), 8);
  offset = 8 + text.length;
  for (const { data } of Object.values(tensors)) {
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
    offset += data.byteLength;
  }
  return bytes;
}

const json = (value) => new TextEncoder().encode(JSON.stringify(value));

/** Reproducible numbers from -1 to 1 (mulberry32). */
export function numbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}

/** GPT-2's letters for bytes: printable ones stand for themselves, the others follow from U+0100. */
function byteLetters() {
  const letters = [];
  let next = 256;
  for (let byte = 0; byte < 256; ++byte) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    letters.push(String.fromCharCode(printable ? byte : next++));
  }
  return letters;
}

export const eos = 256;
export const bos = 257;
export const special = 258;

/** A tokenizer whose ids 0 to 255 are bytes; 256 to 258 are special tokens. */
export function byteTokenizer({ addBos = false } = {}) {
  const vocab = Object.fromEntries(byteLetters().map((letter, byte) => [letter, byte]));
  const added = ['<eos>', '<bos>', '<tool>'].map((content, i) => ({
    id: 256 + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }));
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
    post_processor: addBos
      ? {
          type: 'TemplateProcessing',
          single: [{ SpecialToken: { id: '<bos>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
          pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
          special_tokens: { '<bos>': { id: '<bos>', ids: [bos], tokens: ['<bos>'] } },
        }
      : { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true },
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab,
      merges: [],
    },
  };
}

const size = 264;

/** The files of a LLaMA-shaped model; `weights` fills each tensor: (name, shape) => Float32Array. */
export function llama(weights, { config = {}, generationConfig = {}, tokenizer = byteTokenizer(), chatTemplate } = {}) {
  const full = {
    model_type: 'llama',
    architectures: ['LlamaForCausalLM'],
    hidden_size: size,
    intermediate_size: 32,
    num_hidden_layers: 1,
    num_attention_heads: 4,
    num_key_value_heads: 4,
    vocab_size: size,
    max_position_embeddings: 512,
    rms_norm_eps: 1e-5,
    rope_theta: 10000,
    hidden_act: 'silu',
    tie_word_embeddings: false,
    bos_token_id: bos,
    eos_token_id: eos,
    ...config,
  };
  const {
    hidden_size: d,
    intermediate_size: f,
    vocab_size: v,
    num_hidden_layers: layers,
    num_attention_heads: h,
    num_key_value_heads: hk,
  } = full;
  const shapes = { 'model.embed_tokens.weight': [v, d], 'model.norm.weight': [d], 'lm_head.weight': [v, d] };
  for (let l = 0; l < layers; ++l) {
    const p = `model.layers.${l}.`;
    Object.assign(shapes, {
      [`${p}input_layernorm.weight`]: [d],
      [`${p}post_attention_layernorm.weight`]: [d],
      [`${p}self_attn.q_proj.weight`]: [d, d],
      [`${p}self_attn.k_proj.weight`]: [(d / h) * hk, d],
      [`${p}self_attn.v_proj.weight`]: [(d / h) * hk, d],
      [`${p}self_attn.o_proj.weight`]: [d, d],
      [`${p}mlp.gate_proj.weight`]: [f, d],
      [`${p}mlp.up_proj.weight`]: [f, d],
      [`${p}mlp.down_proj.weight`]: [d, f],
    });
  }
  const tensors = Object.fromEntries(Object.entries(shapes).map(([name, shape]) => [name, { shape, data: weights(name, shape) }]));
  const files = {
    'config.json': json(full),
    'generation_config.json': json({ bos_token_id: full.bos_token_id, eos_token_id: full.eos_token_id, ...generationConfig }),
    'model.safetensors': safetensors(tensors),
  };
  if (tokenizer) {
    files['tokenizer.json'] = json(tokenizer);
    files['tokenizer_config.json'] = json({
      tokenizer_class: 'PreTrainedTokenizerFast',
      bos_token: '<bos>',
      eos_token: '<eos>',
      clean_up_tokenization_spaces: false,
      ...(chatTemplate ? { chat_template: chatTemplate } : {}),
    });
  }
  return files;
}

const count = (shape) => shape.reduce((product, length) => product * length, 1);

/**
 * A model that writes what it is told: the next token is `next(token)`, with next to no doubt. Its embedding is one-hot,
 * its layer adds nothing, its head is the map.
 */
export function chain(next, options) {
  return llama((name, shape) => {
    const data = new Float32Array(count(shape));
    if (name.endsWith('norm.weight')) data.fill(1);
    if (name === 'model.embed_tokens.weight') for (let i = 0; i < size; ++i) data[i * size + i] = 1;
    if (name === 'lm_head.weight') {
      for (let i = 0; i < size; ++i) {
        const to = next(i);
        if (to !== undefined) data[to * size + i] = 4;
      }
    }
    return data;
  }, options);
}

/** A chain that goes through the bytes of a text, each of which occurs once in it, and then ends. */
export function recite(text, options) {
  const bytes = new TextEncoder().encode(text);
  if (new Set(bytes).size !== bytes.length) throw new Error('recite: a byte occurs twice');
  const next = new Map();
  for (const [i, byte] of bytes.entries()) next.set(byte, bytes[i + 1] ?? eos);
  return chain((token) => next.get(token), options);
}

/** A model of random weights, for distributions with something to choose from. */
export function random(seed = 1, options) {
  const draw = numbers(seed);
  return llama((name, shape) => {
    const data = new Float32Array(count(shape));
    const scale = name.endsWith('norm.weight') ? 0 : name.includes('embed') || name.includes('lm_head') ? 0.3 : 0.1;
    for (let i = 0; i < data.length; ++i) data[i] = scale ? draw() * scale : 1;
    return data;
  }, options);
}
