"""Writes wasm-tests/fixtures/gguf: the small models of the other fixtures as llama.cpp's convert_hf_to_gguf.py writes them (gguf-py's names
and writer; its rules for orders and scales restated here), models of quantised weights with what transformers makes of them dequantised,
and files of tokenizers alone.

    python gguf_fixtures.py [--out FOLDER] [--seed N]
    python gguf_fixtures.py --blocks        the table of src/kernels/blocks_test.cpp
"""

import argparse
import hashlib
import json
import math
import struct
from pathlib import Path

import gguf
import numpy as np
import sentencepiece.sentencepiece_model_pb2 as sentencepiece_model
import torch
import transformers
from gguf import GGMLQuantizationType as Quant
from safetensors.torch import load_file, save_file

from common import write_json

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
RAW = {torch.float32: (np.float32, Quant.F32), torch.float16: (np.float16, Quant.F16), torch.bfloat16: (np.uint16, Quant.BF16)}
BLOCKS = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def read_model(name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    folder = FIXTURES / name
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(file)
    if not tensors:
        tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    return json.loads((folder / "config.json").read_text()), tensors


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """LlamaModel.permute: a head's halves become neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def converted(arch: str, config: dict, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under GGUF's names."""
    layers = config.get("num_hidden_layers") or config.get("n_layer") or config["num_layers"]
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), layers)
    out = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("bert.")
        if any(part in name for part in ("pooler.", "position_ids", "coder.embed_tokens", ".attn.bias", "masked_bias", "EncDecAttention.relative")):
            continue
        if name == "lm_head.weight" and config.get("tie_word_embeddings", arch in ("gpt2", "t5")):
            continue
        if arch == "llama" and "q_proj" in name:
            tensor = permuted(tensor, config["num_attention_heads"])
        if arch == "llama" and "k_proj" in name:
            tensor = permuted(tensor, config["num_key_value_heads"])
        if arch == "gemma" and name.endswith("norm.weight"):
            tensor = tensor.float() + 1
        if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.T
        if tensor.ndim == 1 or name.endswith("_norm.weight") or "relative_attention_bias" in name:
            tensor = tensor.float()
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            raise ValueError(f"{arch}: no name for {name}")
        out[new] = tensor.contiguous()
    return out


def put_parameters(writer: gguf.GGUFWriter, arch: str, config: dict) -> None:
    pick = lambda *keys: next(config[k] for k in keys if k in config)
    hidden, heads = pick("hidden_size", "n_embd", "d_model"), pick("num_attention_heads", "n_head", "num_heads")
    writer.add_name(f"tiny {arch}")
    writer.add_block_count(pick("num_hidden_layers", "n_layer", "num_layers"))
    writer.add_context_length(pick("max_position_embeddings", "n_positions", "n_ctx"))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config.get("intermediate_size") or config.get("d_ff") or 4 * hidden)
    writer.add_head_count(heads)
    if arch in ("llama", "qwen2", "qwen3", "gemma"):
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_theta"])
        size = config.get("head_dim", hidden // heads)
        if "head_dim" in config:
            writer.add_key_length(size)
            writer.add_value_length(size)
        writer.add_rope_dimension_count(size)
        writer.add_vocab_size(config["vocab_size"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_epsilon") or config.get("layer_norm_eps") or 1e-5)
    if arch == "bert":
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.CLS)
    if arch == "t5":
        writer.add_key_length(config["d_kv"])
        writer.add_value_length(config["d_kv"])
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
        writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
        writer.add_decoder_start_token_id(config["decoder_start_token_id"])
        writer.add_decoder_block_count(config.get("num_decoder_layers", config["num_layers"]))
    writer.add_tokenizer_model("no_vocab")
    for key in ("bos", "eos", "pad"):
        if config.get(f"{key}_token_id") is not None:
            getattr(writer, f"add_{key}_token_id")(config[f"{key}_token_id"])


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if writer.tensors and writer.tensors[0]:
        writer.write_tensors_to_file()
    writer.close()


def put(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor | np.ndarray, quant: Quant | None = None) -> None:
    if quant is not None:
        return writer.add_tensor(name, tensor, raw_dtype=quant)
    kind, quant = RAW[tensor.dtype]
    data = tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    writer.add_tensor(name, np.ascontiguousarray(data.astype(kind)), raw_dtype=quant)


def llama3_factors(config: dict) -> torch.Tensor:
    """What LlamaModel writes as rope_freqs.weight."""
    scaling, dim = config["rope_scaling"], config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high, original = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    factors = []
    for frequency in 1.0 / (config["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)):
        length = 2 * math.pi / frequency
        if length < original / high:
            factors.append(1)
        elif length > original / low:
            factors.append(scaling["factor"])
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return torch.tensor(factors, dtype=torch.float32)


def plain_models(out: Path) -> None:
    """As the fixtures they come from, in the dtypes that those have."""
    for name, arch, source, split in [
        ("gpt2", "gpt2", "gpt2", 0), ("gpt2-f16", "gpt2", "gpt2-minimal", 0), ("llama", "llama", "llama-gqa", 0), ("llama-bias", "llama", "llama-bias", 0),
        ("llama-head-dim", "llama", "llama-head-dim", 0), ("llama3", "llama", "llama-llama3", 0), ("llama-linear", "llama", "llama-linear", 0),
        ("llama-yarn", "llama", "llama-yarn", 0), ("qwen2", "qwen2", "qwen2", 0), ("qwen3", "qwen3", "qwen3", 0), ("gemma", "gemma", "gemma", 0),
        ("bert", "bert", "bert", 0), ("t5", "t5", "t5", 0), ("flan-t5", "t5", "flan-t5", 0), ("split", "llama", "llama-gqa", 8),
    ]:
        config, tensors = read_model(source)
        writer = gguf.GGUFWriter(out / f"{name}.gguf", arch, split_max_tensors=split)
        put_parameters(writer, arch, config)
        scaling = config.get("rope_scaling")
        if scaling and name == "llama3":
            put(writer, "rope_freqs.weight", llama3_factors(config))
        elif scaling:
            writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.get("rope_type") or scaling["type"]))
            writer.add_rope_scaling_factor(scaling["factor"])
            if "original_max_position_embeddings" in scaling:
                writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        for key, tensor in converted(arch, config, tensors).items():
            put(writer, key, tensor)
        finish(writer)
        if name == "llama":
            second = bytearray((out / "llama.gguf").read_bytes())
            second[4] = 2
            (out / "version2.gguf").write_bytes(second)


def random_blocks(name: str, rows: int, cols: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Every bit at random but for the scales, which make numbers of about that spread."""
    elements, size = gguf.GGML_QUANT_SIZES[Quant[name]]
    raw = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    for at in SCALES[name]:
        raw[:, at:at + 2] = np.ones((len(raw), 1), np.float16).view(np.uint8)
    unit = gguf.dequantize(raw, Quant[name]).std()
    for i, at in enumerate(SCALES[name]):
        scales = spread / unit * rng.uniform(0.5, 1.5, (len(raw), 1)) * (-1 if i == 0 and rng.random() < 0.3 else 1)
        raw[:, at:at + 2] = scales.astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


@torch.no_grad()
def record(out: Path, name: str, model: transformers.PreTrainedModel, seed: int) -> dict:
    """Logits of a prompt, into expected.safetensors, and greedy tokens."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(3, model.config.vocab_size, (1, 12), generator=generator)
    expected = out / "expected.safetensors"
    save_file((load_file(expected) if expected.exists() else {}) | {f"{name}.logits": model(prompt).logits[0].contiguous()}, expected)
    result = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0,
                            output_logits=True, return_dict_in_generate=True)
    lead = min((t := row[0].topk(2).values)[0].item() - t[1].item() for row in result.logits)
    assert lead > 2e-3, (name, lead)
    return {"inputIds": prompt[0].tolist(), "greedy": result.sequences[0, 12:].tolist()}


def formats_model(out: Path, seed: int) -> dict:
    """LLaMA of every format, its blocks random."""
    rng = np.random.default_rng(seed)
    hidden, inner, heads, kv, size, V = 256, 64, 4, 2, 32, 64
    config = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": size,
              "vocab_size": V, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 2, "bos_token_id": 1}
    writer = gguf.GGUFWriter(out / "formats.gguf", "llama")
    put_parameters(writer, "llama", config)
    state = {}

    def add(name: str, hf: str, rows: int, cols: int, quant: str, spread: float) -> None:
        if quant in BLOCKS:
            raw = random_blocks(quant, rows, cols, spread, rng)
            put(writer, name, raw, Quant[quant])
            value = torch.from_numpy(gguf.dequantize(raw, Quant[quant]))
        else:
            value = (torch.from_numpy(rng.standard_normal((rows, cols)).astype(np.float32)) * spread).to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[quant])
            put(writer, name, value)
            value = value.float()
        parts = {"attn_q": heads, "attn_k": kv}
        for part, count in parts.items():
            if part in name:
                value = value.reshape(count, size // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)
        state[hf] = value

    def norm(name: str, hf: str) -> None:
        value = torch.from_numpy((1 + 0.2 * rng.standard_normal(hidden)).astype(np.float32))
        put(writer, name, value)
        state[hf] = value

    add("token_embd.weight", "model.embed_tokens.weight", V, hidden, "Q6_K", 0.5)
    wide, flat = 1.5 / math.sqrt(hidden), 1.5 / math.sqrt(128)
    for layer, kinds in enumerate([("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q2_K", "Q3_K", "Q4_0"), ("Q2_K", "Q3_K", "BF16", "Q4_1", "Q5_K", "Q8_0", "Q5_1"), ]):
        at, hf = f"blk.{layer}.", f"model.layers.{layer}."
        norm(at + "attn_norm.weight", hf + "input_layernorm.weight")
        norm(at + "ffn_norm.weight", hf + "post_attention_layernorm.weight")
        for part, target, rows, cols, kind, spread in [
            ("attn_q", "self_attn.q_proj", heads * size, hidden, kinds[0], wide), ("attn_k", "self_attn.k_proj", kv * size, hidden, kinds[1], wide),
            ("attn_v", "self_attn.v_proj", kv * size, hidden, kinds[2], wide), ("attn_output", "self_attn.o_proj", hidden, heads * size, kinds[3], flat),
            ("ffn_gate", "mlp.gate_proj", inner, hidden, kinds[4], wide), ("ffn_up", "mlp.up_proj", inner, hidden, kinds[5], wide),
            ("ffn_down", "mlp.down_proj", hidden, inner, kinds[6], 1.5 / math.sqrt(inner)),
        ]:
            add(f"{at}{part}.weight", f"{hf}{target}.weight", rows, cols, kind, spread)
    norm("output_norm.weight", "model.norm.weight")
    add("output.weight", "lm_head.weight", V, hidden, "Q5_0", wide)
    finish(writer)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config, tie_word_embeddings=False, attn_implementation="eager")).eval()
    model.load_state_dict(state, strict=True)
    digests = {name: hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest() for name, value in state.items()}
    return record(out, "formats", model, seed) | {"sha256": digests}


def quantised(out: Path, name: str, source: str, arch: str, kind: type, quant: str, seed: int) -> dict:
    """A model of the fixtures with its matrices in blocks, and the same dequantised."""
    config, tensors = read_model(source)
    writer = gguf.GGUFWriter(out / f"{name}.gguf", arch)
    put_parameters(writer, arch, config)
    model = kind.from_pretrained(FIXTURES / source, dtype=torch.float32, attn_implementation="eager").eval()
    state = model.state_dict()
    hf_names = {gguf_name: hf for hf in state for gguf_name in converted(arch, config, {hf: torch.zeros(config.get("num_attention_heads", 1) * 8, 8)})}
    for key, tensor in converted(arch, config, tensors).items():
        if tensor.ndim == 1 or "position_embd" in key or tensor.shape[1] % 32 != 0:
            put(writer, key, tensor.float())
            continue
        blocks = gguf.quantize(tensor.float().numpy(), Quant[quant])
        put(writer, key, blocks, Quant[quant])
        value = torch.from_numpy(gguf.dequantize(blocks, Quant[quant]))
        if "attn_q." in key or "attn_k." in key:
            value = value.reshape(config["num_attention_heads" if "attn_q" in key else "num_key_value_heads"], -1, 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        state[hf_names[key]].copy_(value.T if arch == "gpt2" and key.startswith("blk.") else value)
    finish(writer)
    return record(out, name, model, seed)


def tokenizers(out: Path) -> None:
    """Vocabularies without a model; what texts become stands in the fixtures that they come from."""
    kinds = {"smollm": ("files/smollm", "gpt2", "smollm"), "llama3": ("tokenizers/llama3-bpe", "gpt2", "llama-bpe"), "gpt-2": ("files/gpt2", "gpt2", "gpt-2"),
             "llama": ("files/llama", "llama", "default"), "gemma": ("files/gemma", "llama", "default"), "bert": ("files/word-piece", "bert", "jina-v2")}
    for name, (source, model, pre) in kinds.items():
        spec = json.loads((FIXTURES / source / "tokenizer.json").read_text())
        extra = {t["content"]: t for t in spec["added_tokens"]}
        ids = spec["model"]["vocab"] | {c: t["id"] for c, t in extra.items()}
        tokens = [t for t, _ in sorted(ids.items(), key=lambda pair: pair[1])]
        types = [3 if extra.get(t, {}).get("special") else 4 if t in extra else 6 if t.startswith("<0x") else 1 for t in tokens]
        writer = gguf.GGUFWriter(out / f"vocab-{name}.gguf", "bert" if model == "bert" else "gpt2" if model == "gpt2" else "llama")
        writer.add_context_length(512)
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        if model == "bert":  # BertModel.set_vocab's phantom spaces
            tokens = [t if t.startswith("[") and t.endswith("]") else t[2:] if t.startswith("##") else "\u2581" + t for t in tokens]
        writer.add_token_list(tokens)
        merges = spec["model"].get("merges") or []
        pairs = [m if isinstance(m, str) else " ".join(m) for m in merges]
        if model == "gpt2":
            writer.add_token_merges(pairs)
        if model == "llama":
            rank = {}
            for i, pair in enumerate(pairs):
                rank.setdefault(pair.replace(" ", ""), -float(i))
            types[ids["<unk>"]] = 2
            writer.add_token_scores([rank.get(t, -1e6 if types[i] == 1 else 0.0) for i, t in enumerate(tokens)])
            writer.add_add_space_prefix(name == "llama")
        writer.add_token_types(types)
        roles = {"bos": ["<|begin_of_text|>", "<s>"], "eos": ["<|end_of_text|>", "</s>", "<|endoftext|>"], "unknown": ["<unk>", "[UNK]"], "padding": ["[PAD]"],
                 "seperator": ["[SEP]"], "cls": ["[CLS]"], "mask": ["[MASK]"]}
        for role, names in roles.items():
            found = next((ids[n] for n in names if n in ids), None)
            if found is not None:
                writer.add_uint32(f"tokenizer.ggml.{role}_token_id", found)
        writer.add_chat_template("{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}")
        finish(writer)

    model = sentencepiece_model.ModelProto()
    model.ParseFromString((FIXTURES / "sentencepiece" / "unigram-t5.model").read_bytes())
    writer = gguf.GGUFWriter(out / "vocab-t5.gguf", "t5")
    writer.add_context_length(512)
    writer.add_tokenizer_model("t5")
    count = len(model.pieces)
    writer.add_token_list([p.piece for p in model.pieces] + [f"[PAD{count + i}]" for i in range(100)])
    writer.add_token_scores([p.score for p in model.pieces] + [-1000.0] * 100)
    writer.add_token_types([p.type for p in model.pieces] + [5] * 100)
    writer.add_precompiled_charsmap(model.normalizer_spec.precompiled_charsmap)
    writer.add_remove_extra_whitespaces(model.normalizer_spec.remove_extra_whitespaces)
    writer.add_add_space_prefix(model.normalizer_spec.add_dummy_prefix)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)
    for role, piece in (("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>")):
        getattr(writer, f"add_{role}_token_id")(next(i for i, p in enumerate(model.pieces) if p.piece == piece))
    finish(writer)


def blocks_table() -> None:
    for order, name in enumerate(BLOCKS):
        quant = Quant[name]
        elements, size = gguf.GGML_QUANT_SIZES[quant]
        raw, state = np.zeros(3 * size, np.uint8), 2017 + order
        for i in range(3 * size):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            raw[i] = state >> 24
        for block in range(3):
            for i, at in enumerate(SCALES[name]):
                raw[block * size + at:][:2] = np.frombuffer(struct.pack("<H", [0x2E66, 0xB1EB, 0x0203][(block + i) % 3]), np.uint8)
        values, digest = gguf.dequantize(raw.reshape(1, -1), quant).reshape(-1), 0x811C9DC5
        for byte in values.tobytes():
            digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
        print(name, [str(values[i]) for i in (0, 17, elements - 1, elements + elements // 2 + 3)], f"0x{digest:08x}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIXTURES / "gguf")
    parser.add_argument("--seed", type=int, default=2017)
    parser.add_argument("--blocks", action="store_true")
    args = parser.parse_args()
    if args.blocks:
        return blocks_table()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "expected.safetensors").unlink(missing_ok=True)
    plain_models(args.out)
    expected = {"formats": formats_model(args.out, args.seed)}
    for name, source, arch, kind, quant in [
        ("gpt2-q8", "gpt2", "gpt2", transformers.GPT2LMHeadModel, "Q8_0"), ("gpt2-q4", "gpt2", "gpt2", transformers.GPT2LMHeadModel, "Q4_0"),
        ("llama-q8", "llama-head-dim", "llama", transformers.LlamaForCausalLM, "Q8_0"),
    ]:
        expected[name] = quantised(args.out, name, source, arch, kind, quant, args.seed)
    write_json(args.out / "expected.json", expected)
    tokenizers(args.out)


if __name__ == "__main__":
    main()
