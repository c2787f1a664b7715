import { WasmformerError } from '../errors.ts';
import type { JsonObject } from './json.ts';
import type { ByteSource } from './source.ts';
import type { TensorEntry } from './tensors.ts';

const kMagic = 0x616b3432; // "ak42"
const kHeader = 256;

interface Shape {
  D: number; // model
  F: number; // feed-forward
  L: number; // layers
  H: number; // heads
  Hk: number; // key/value heads
  V: number; // vocabulary
  T: number; // positions
  tied: boolean;
}

function bad(name: string, message: string): WasmformerError {
  return new WasmformerError('invalid-file', `[${name}] llama2.c: ${message}`);
}

/**
 * A checkpoint of llama2.c (github.com/karpathy/llama2.c, export.py): the legacy version 0, whose header is seven
 * 32-bit integers (a negative vocabulary size says that the head is not tied), and version 1 (256 bytes of header).
 * Version 2, quantised, is not supported. Query and key rows are in the order of the original LLaMA code, where the
 * pairs that RoPE turns are neighbours; the configuration says so with `rope_interleaved: true`.
 * @returns the configuration as it would stand in a config.json, and the tensors under their safetensors names
 * @throws WasmformerError `invalid-file`, `unsupported`
 */
export async function readLlama2c(
  source: ByteSource,
  signal?: AbortSignal,
): Promise<{ config: JsonObject; generation: JsonObject; tensors: Map<string, TensorEntry> }> {
  const { name, size } = source;
  if (size < 28) throw bad(name, `length: expected a header of 28 bytes, got a file of ${size} (not a llama2.c checkpoint?)`);
  const bytes = await source.read(0, Math.min(size, 40), signal);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const modern = view.getUint32(0, true) === kMagic;
  const version = modern ? view.getInt32(4, true) : 0;
  if (modern && version !== 1)
    throw new WasmformerError(
      'unsupported',
      `[${name}] llama2.c: version: expected 0 or 1 (float32), got ${version}${version === 2 ? ' (int8)' : ''}`,
    );
  if (modern && size < kHeader) throw bad(name, `length: expected a header of ${kHeader} bytes, got a file of ${size}`);
  const [D, F, L, H, Hk, V, T] = Array.from({ length: 7 }, (_, i) => view.getInt32((modern ? 8 : 0) + 4 * i, true)) as [
    number,
    number,
    number,
    number,
    number,
    number,
    number,
  ];
  const shape: Shape = { D, F, L, H, Hk, V: Math.abs(V), T, tied: modern ? view.getUint8(36) === 1 : V > 0 };
  for (const [what, value, most] of [
    ['dim', D, 2 ** 20],
    ['hidden_dim', F, 2 ** 22],
    ['n_layers', L, 1024],
    ['n_heads', H, 2 ** 12],
    ['n_kv_heads', Hk, 2 ** 12],
    ['vocab_size', shape.V, 2 ** 24],
    ['seq_len', T, 2 ** 24],
  ] as const) {
    if (!(value >= 1 && value <= most)) throw bad(name, `${what}: expected 1 to ${most}, got ${value} (not a llama2.c checkpoint?)`);
  }
  if (D % H !== 0 || H % Hk !== 0 || (D / H) % 2 !== 0)
    throw bad(name, `heads: expected dim ${D} to split into ${H} even heads over ${Hk} key/value heads`);
  const tensors = modern ? layoutV1(source, shape) : layoutV0(source, shape);
  return {
    tensors,
    config: Object.assign(Object.create(null), {
      model_type: 'llama',
      architectures: ['LlamaForCausalLM'],
      hidden_size: D,
      intermediate_size: F,
      num_hidden_layers: L,
      num_attention_heads: H,
      num_key_value_heads: Hk,
      vocab_size: shape.V,
      max_position_embeddings: T,
      rms_norm_eps: 1e-5,
      rope_theta: 10000,
      rope_interleaved: true,
      hidden_act: 'silu',
      tie_word_embeddings: shape.tied,
      torch_dtype: 'float32',
    }),
    // run.c ends a story at either: the models were trained on texts joined by BOS.
    generation: Object.assign(Object.create(null), { bos_token_id: 1, eos_token_id: [1, 2] }),
  };
}

class Layout {
  readonly tensors = new Map<string, TensorEntry>();
  constructor(
    readonly source: ByteSource,
    public at: number,
  ) {}

  add(name: string, ...shape: number[]): void {
    const end = this.at + 4 * shape.reduce((product, n) => product * n, 1);
    if (!(end <= this.source.size))
      throw bad(this.source.name, `length: expected at least ${end} bytes for ${name}, got ${this.source.size}`);
    this.tensors.set(name, { name, dtype: 'F32', shape, source: this.source, begin: this.at, end });
    this.at = end;
  }

  layers(count: number, name: string, ...shape: number[]): void {
    for (let l = 0; l < count; ++l) this.add(`model.layers.${l}.${name}.weight`, ...shape);
  }

  finish(): Map<string, TensorEntry> {
    if (this.at !== this.source.size) throw bad(this.source.name, `length: expected ${this.at} bytes, got ${this.source.size}`);
    return this.tensors;
  }
}

function attention(layout: Layout, { D, F, L, H, Hk }: Shape, between: () => void): void {
  const rows = (D / H) * Hk;
  layout.layers(L, 'self_attn.q_proj', D, D);
  layout.layers(L, 'self_attn.k_proj', rows, D);
  layout.layers(L, 'self_attn.v_proj', rows, D);
  layout.layers(L, 'self_attn.o_proj', D, D);
  between();
  layout.layers(L, 'mlp.gate_proj', F, D);
  layout.layers(L, 'mlp.down_proj', D, F);
  layout.layers(L, 'mlp.up_proj', F, D);
}

function layoutV0(source: ByteSource, shape: Shape): Map<string, TensorEntry> {
  const { D, H, L, V, T, tied } = shape;
  const layout = new Layout(source, 28);
  layout.add('model.embed_tokens.weight', V, D);
  layout.layers(L, 'input_layernorm', D);
  attention(layout, shape, () => layout.layers(L, 'post_attention_layernorm', D));
  layout.add('model.norm.weight', D);
  layout.at += 4 * T * (D / H); // cosines and sines of RoPE, which are computed here
  if (!tied) layout.add('lm_head.weight', V, D);
  return layout.finish();
}

function layoutV1(source: ByteSource, shape: Shape): Map<string, TensorEntry> {
  const { D, L, V, tied } = shape;
  const layout = new Layout(source, kHeader);
  layout.layers(L, 'input_layernorm', D);
  layout.layers(L, 'post_attention_layernorm', D);
  layout.add('model.norm.weight', D);
  layout.add('model.embed_tokens.weight', V, D);
  attention(layout, shape, () => {});
  if (!tied) layout.add('lm_head.weight', V, D);
  return layout.finish();
}
