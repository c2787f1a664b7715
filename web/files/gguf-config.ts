import { WasmformerError } from '../errors.ts';
import type { Gguf } from './gguf.ts';
import { type JsonObject, kindOf } from './json.ts';
import { plainSettings, type SentenceSettings } from './sentence.ts';
import { blockFormats, type TensorEntry } from './tensors.ts';

/** How an architecture of GGUF becomes a model of transformers: what convert_hf_to_gguf.py of llama.cpp does, undone. */
interface Family {
  model: string;
  architecture: string;
  /** Pairs of a key behind the architecture's name and config.json's. A question mark: may be missing. */
  keys: string;
  /** Pairs of a tensor's name, without its block, and the safetensors name; `#` is the block's number. */
  names: string;
  /** What config.json has whatever the file says. */
  config?: JsonObject;
}

const kSizes = (positions: string, epsilon: string): string =>
  `embedding_length hidden_size block_count num_hidden_layers feed_forward_length intermediate_size attention.head_count num_attention_heads context_length ${positions} attention.${epsilon}`;
const kRotary: Omit<Family, 'model' | 'architecture'> = {
  keys: `${kSizes('max_position_embeddings', 'layer_norm_rms_epsilon rms_norm_eps')} attention.head_count_kv num_key_value_heads? rope.freq_base rope_theta?`,
  names:
    'token_embd model.embed_tokens output_norm model.norm output lm_head blk model.layers.#. attn_norm input_layernorm attn_q self_attn.q_proj attn_k self_attn.k_proj attn_v self_attn.v_proj attn_output self_attn.o_proj attn_q_norm self_attn.q_norm attn_k_norm self_attn.k_norm ffn_norm post_attention_layernorm ffn_gate mlp.gate_proj ffn_up mlp.up_proj ffn_down mlp.down_proj',
};
const kCausal = (model: string, name: string, config: JsonObject = {}): Family => ({
  ...kRotary,
  model,
  architecture: `${name}ForCausalLM`,
  config,
});

const kFamilies: Readonly<Record<string, Family>> = {
  llama: kCausal('llama', 'Llama'),
  qwen2: kCausal('qwen2', 'Qwen2'),
  qwen3: kCausal('qwen3', 'Qwen3'),
  gemma: kCausal('gemma', 'Gemma', { hidden_activation: 'gelu_pytorch_tanh' }),
  gpt2: {
    model: 'gpt2',
    architecture: 'GPT2LMHeadModel',
    keys: 'embedding_length n_embd block_count n_layer feed_forward_length n_inner? attention.head_count n_head attention.layer_norm_epsilon layer_norm_epsilon',
    names:
      'token_embd transformer.wte position_embd transformer.wpe output_norm transformer.ln_f output lm_head blk transformer.h.#. attn_norm ln_1 attn_qkv attn.c_attn attn_output attn.c_proj ffn_norm ln_2 ffn_up mlp.c_fc ffn_down mlp.c_proj',
  },
  bert: {
    model: 'bert',
    architecture: 'BertModel',
    keys: kSizes('max_position_embeddings', 'layer_norm_epsilon layer_norm_eps'),
    names:
      'token_embd embeddings.word_embeddings position_embd embeddings.position_embeddings token_types embeddings.token_type_embeddings token_embd_norm embeddings.LayerNorm blk encoder.layer.#. attn_q attention.self.query attn_k attention.self.key attn_v attention.self.value attn_output attention.output.dense attn_output_norm attention.output.LayerNorm ffn_up intermediate.dense ffn_down output.dense layer_output_norm output.LayerNorm',
    config: { add_pooling_layer: false },
  },
  t5: {
    model: 't5',
    architecture: 'T5ForConditionalGeneration',
    keys: 'embedding_length d_model block_count num_layers decoder_block_count num_decoder_layers? feed_forward_length d_ff attention.head_count num_heads attention.key_length d_kv context_length n_positions attention.layer_norm_epsilon layer_norm_epsilon attention.relative_buckets_count relative_attention_num_buckets decoder_start_token_id decoder_start_token_id?',
    names:
      'token_embd shared output lm_head enc.output_norm encoder.final_layer_norm dec.output_norm decoder.final_layer_norm enc.blk encoder.block.#.layer. dec.blk decoder.block.#.layer. attn_norm 0.layer_norm attn_q 0.SelfAttention.q attn_k 0.SelfAttention.k attn_v 0.SelfAttention.v attn_o 0.SelfAttention.o attn_rel_b 0.SelfAttention.relative_attention_bias cross_attn_norm 1.layer_norm cross_attn_q 1.EncDecAttention.q cross_attn_k 1.EncDecAttention.k cross_attn_v 1.EncDecAttention.v cross_attn_o 1.EncDecAttention.o ffn_norm %.layer_norm ffn_gate %.DenseReluDense.wi_0 ffn_up %.DenseReluDense.wi ffn_down %.DenseReluDense.wo',
  },
};

/** A list of pairs, parted by spaces. */
const pairsOf = (text: string): [string, string][] =>
  Array.from(text.matchAll(/(\S+) (\S+)/g), ([, from, to]) => [from, to] as [string, string]);

/**
 * A GGUF as a published folder has it: config.json, and the tensors under their safetensors names, in transformers' order
 * and scale. Where llama.cpp orders rows by RoPE's pairs, adds one to norms or turns a matrix, the entries say so, and
 * `loadTensors` undoes it.
 * @param where the file's name, for messages
 * @throws WasmformerError `unsupported` for an architecture; `invalid-file` or `missing-tensor` naming what lacks
 */
export async function modelOfGguf(
  { metadata, tensors }: Gguf,
  where: string,
  signal?: AbortSignal,
): Promise<{ config: JsonObject; tensors: Map<string, TensorEntry> }> {
  const bad = (key: string, expected: string, got: unknown): WasmformerError =>
    new WasmformerError('invalid-file', `[${where}] ${key}: expected ${expected}, got ${kindOf(got)}`);
  const unsupported = (key: string, expected: string, got: unknown): WasmformerError =>
    new WasmformerError('unsupported', `[${where}] ${key}: expected ${expected}, got ${kindOf(got)}`);
  const arch = metadata['general.architecture'];
  if (typeof arch !== 'string') throw bad('general.architecture', 'a name', arch);
  if (!Object.hasOwn(kFamilies, arch)) throw unsupported('general.architecture', Object.keys(kFamilies).join(', '), arch);
  const family = kFamilies[arch] as Family;

  const optional = (key: string): number | undefined => {
    let value = metadata[`${arch}.${key}`];
    // Some files have one for each layer.
    if (Array.isArray(value) && value.every((one) => one === (value as unknown[])[0])) value = value[0];
    if (value !== undefined && typeof value !== 'number') throw bad(`${arch}.${key}`, 'a number', value);
    return value;
  };
  const number = (key: string): number => {
    const value = optional(key);
    if (value === undefined) throw bad(`${arch}.${key}`, 'a number', value);
    return value;
  };
  const rowsOf = (name: string): number => {
    const rows = tensors.get(name)?.shape[0];
    if (rows === undefined)
      throw new WasmformerError('missing-tensor', `[${where}] ${name}: expected among ${tensors.size} tensors, not found`);
    return rows;
  };

  const config: JsonObject = Object.assign(Object.create(null), {
    model_type: family.model,
    architectures: [family.architecture],
    ...family.config,
    vocab_size: rowsOf('token_embd.weight'),
    tie_word_embeddings: !tensors.has('output.weight'),
  });
  const set = (key: string, value: unknown): void => {
    if (value !== undefined) config[key] = value;
  };
  for (const [key, name] of pairsOf(family.keys)) set(name.replace('?', ''), name.endsWith('?') ? optional(key) : number(key));
  const special = (name: string): unknown => metadata[`tokenizer.ggml.${name}_token_id`];
  const ends = [...new Set(['eos', 'eot', 'eom'].map(special))].filter((id) => typeof id === 'number');
  set('bos_token_id', special('bos'));
  set('eos_token_id', ends.length > 1 ? ends : ends[0]);
  set('pad_token_id', special('padding'));

  let headRows = 0;
  if (family.names === kRotary.names) {
    if ((optional('expert_count') ?? 0) > 0) throw unsupported(`${arch}.expert_count`, 'none', optional('expert_count'));
    headRows = optional('attention.key_length') ?? number('embedding_length') / number('attention.head_count');
    set('head_dim', headRows);
    for (const key of ['attention.value_length', 'rope.dimension_count']) {
      const size = optional(key) ?? headRows;
      if (size !== headRows) throw unsupported(`${arch}.${key}`, `${headRows}, as a head has`, size);
    }
    if (arch === 'llama') {
      set('attention_bias', tensors.has('blk.0.attn_q.bias'));
      set('mlp_bias', tensors.has('blk.0.ffn_up.bias'));
    }
    set('rope_scaling', await ropeScaling());
  } else if (arch === 't5') {
    set('feed_forward_proj', tensors.has('enc.blk.0.ffn_gate.weight') ? 'gated-gelu' : 'relu');
  } else {
    set(arch === 'gpt2' ? 'n_positions' : 'max_position_embeddings', rowsOf('position_embd.weight'));
    if (arch === 'bert') set('type_vocab_size', rowsOf('token_types.weight'));
  }

  async function ropeScaling(): Promise<JsonObject | undefined> {
    const scaling = 'rope.scaling';
    const type = metadata[`${arch}.${scaling}.type`] ?? 'linear';
    const factor = type === 'none' ? 0 : (optional(`${scaling}.factor`) ?? optional('rope.scale_linear') ?? 0);
    const scaled = factor !== 0 && factor !== 1;
    if (scaled && type !== 'linear' && type !== 'yarn') throw unsupported(`${arch}.${scaling}.type`, 'none, linear or yarn', type);
    // Llama 3.1's scaling, as divisors of the frequencies.
    const frequencies = tensors.get('rope_freqs.weight');
    if (frequencies !== undefined) {
      if (scaled || frequencies.dtype !== 'F32' || frequencies.shape[0] !== headRows / 2)
        throw unsupported('rope_freqs.weight', `${headRows / 2} F32 and no other scaling`, frequencies.dtype);
      const bytes = Uint8Array.from(await frequencies.source.read(frequencies.begin, frequencies.end, signal));
      const factors = [...new Float32Array(bytes.buffer)];
      return { rope_type: 'longrope', short_factor: factors, long_factor: factors, attention_factor: 1 };
    }
    if (!scaled) return undefined;
    const made: JsonObject = { rope_type: type, factor };
    if (type === 'yarn') {
      for (const [key, name] of pairsOf(
        'original_context_length original_max_position_embeddings yarn_beta_fast beta_fast yarn_beta_slow beta_slow',
      )) {
        const value = optional(`${scaling}.${key}`);
        if (value !== undefined) made[name] = value;
      }
      const magnitude = optional(`${scaling}.yarn_attn_factor`) ?? optional(`${scaling}.attn_factor`);
      if (magnitude !== undefined) made.attention_factor = magnitude * (1 + 0.1 * Math.log(factor));
    }
    return made;
  }

  const names = new Map(pairsOf(family.names));
  const renamed = new Map<string, TensorEntry>();
  for (const [name, entry] of tensors) {
    if (name === 'rope_freqs.weight') continue;
    const [, block, layer, part = '', kind] = /^(?:((?:enc\.|dec\.)?blk)\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(name) ?? [];
    const place = block === undefined ? '' : names.get(block)?.replace('#', layer as string);
    const known = names.get(part);
    if (place === undefined || known === undefined) {
      renamed.set(name, entry);
      continue;
    }
    const gated = part === 'ffn_up' && config.feed_forward_proj === 'gated-gelu' ? '_1' : '';
    const made = `${place}${known.replace('%', block === 'dec.blk' ? '2' : '1')}${gated}.${kind}`;
    renamed.set(made, { ...entry, ...changeOf(part, kind as string, entry), name: made });
  }
  return { config, tensors: renamed };

  /** How an entry differs from transformers' tensor. */
  function changeOf(part: string, kind: string, entry: TensorEntry): Partial<TensorEntry> {
    if (arch === 'llama' && /^attn_[qk]$/.test(part) && (entry.shape[0] as number) % headRows === 0) return { headRows };
    if (arch === 'gemma' && part.endsWith('norm')) {
      if (entry.dtype !== 'F32') throw unsupported(entry.name, 'a norm in F32', entry.dtype);
      return { add: -1 };
    }
    if (arch === 'gpt2' && kind === 'weight' && /^(attn_(qkv|output)|ffn_(up|down))$/.test(part) && entry.shape.length === 2) {
      const [outputs, inputs] = entry.shape as [number, number];
      const shape = [inputs, outputs];
      return blockFormats.has(entry.dtype) ? { shape, columns: true } : { shape, strides: [1, inputs] };
    }
    return {};
  }
}

/** How a file of BERT's kind pools, where it says so. */
export function sentenceOfGguf(metadata: JsonObject): SentenceSettings | null {
  const kind = ['', 'mean', 'cls', 'lasttoken'][Number(metadata[`${metadata['general.architecture']}.pooling_type`] ?? 0)];
  return kind ? plainSettings('GGUF', kind) : null;
}
