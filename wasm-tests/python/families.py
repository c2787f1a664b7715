"""Tiny random models of every decoder-only family, as published folders, with what transformers makes of them."""

import inspect
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from common import DTYPES, random_weight, write_checkpoint, write_json

NEW_TOKENS = 32
V = 96


@dataclass
class Spec:
    """One fixture: `config` is config.json as it stands in the folder."""

    name: str
    config: dict
    note: str
    dtype: str = "F32"
    layout: str = "single"
    rename: Callable[[str], str] = lambda name: name
    extras: Callable[[dict], dict] = lambda tensors: {}  # stray tensors that published files carry as well
    generation_config: dict | None = None
    lengths: tuple[int, ...] = (1, 8, 21)
    gain: float = 1.6  # standard deviation of a matrix product of unit vectors
    stops: bool = False  # greedy text is to end with the end-of-sequence token
    explicit_positions: bool = True
    unexpected: tuple[str, ...] = field(default=())  # names that Python itself ignores, by suffix


def llama(**changes) -> dict:
    """config.json in the spelling of transformers 4.x."""
    base = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 56, "max_position_embeddings": 64,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "float32", "transformers_version": "4.40.1", "use_cache": True, "vocab_size": V,
    }
    return {k: v for k, v in (base | changes).items() if v is not ...}


def gpt2(**changes) -> dict:
    base = {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 95, "embd_pdrop": 0.1,
        "eos_token_id": 95, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 64, "n_embd": 32,
        "n_head": 4, "n_layer": 3, "n_positions": 64, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": V,
    }
    return {k: v for k, v in (base | changes).items() if v is not ...}


def gpt_neox(**changes) -> dict:
    return {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 32,
        "initializer_range": 0.02, "intermediate_size": 64, "layer_norm_eps": 1e-05, "max_position_embeddings": 64, "model_type": "gpt_neox",
        "num_attention_heads": 2, "num_hidden_layers": 2, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": V,
    } | changes


def opt(**changes) -> dict:
    return {
        "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 64,
        "hidden_size": 32, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 64, "model_type": "opt", "num_attention_heads": 4,
        "num_hidden_layers": 2, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "transformers_version": "4.21.0.dev0",
        "use_cache": True, "vocab_size": V, "word_embed_proj_dim": 32,
    } | changes


def bloom(**changes) -> dict:
    return {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"], "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 32,
        "n_head": 4, "n_inner": None, "n_layer": 2, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 64,
        "skip_bias_add": True, "skip_bias_add_qkv": False, "transformers_version": "4.20.0", "unk_token_id": 0, "use_cache": True,
        "vocab_size": V,
    } | changes


def mistral(**changes) -> dict:
    return llama(architectures=["MistralForCausalLM"], model_type="mistral", num_key_value_heads=2, sliding_window=8, attention_bias=...,
                 mlp_bias=..., pretraining_tp=..., rope_scaling=..., transformers_version="4.34.0.dev0", torch_dtype="bfloat16", **changes)


def qwen2(**changes) -> dict:
    return llama(**({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2, "rope_theta": 1000000.0,
                     "rms_norm_eps": 1e-06, "max_window_layers": 2, "sliding_window": 64, "use_sliding_window": False, "attention_bias": ...,
                     "mlp_bias": ..., "pretraining_tp": ..., "rope_scaling": ..., "tie_word_embeddings": True, "torch_dtype": "bfloat16"} | changes))


def qwen3(**changes) -> dict:
    return qwen2(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=16, attention_bias=False, rope_scaling=None,
                 sliding_window=None, transformers_version="4.51.0", **changes)


def gemma(**changes) -> dict:
    return {
        "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1,
        "head_dim": 16, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 32, "initializer_range": 0.02,
        "intermediate_size": 64, "max_position_embeddings": 64, "model_type": "gemma", "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
        "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": V,
    } | changes


def embed_out(name: str) -> str:
    """The published name of GPT-NeoX's head; transformers 5 calls it lm_head in memory."""
    return "embed_out.weight" if name == "lm_head.weight" else name


def without(prefix: str) -> Callable[[str], str]:
    return lambda name: name.removeprefix(prefix)


def gpt2_strays(tensors: dict) -> dict:
    """Causal-mask buffers and the second copy of the embedding, as in published GPT-2 files."""
    mask = torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64)
    out = {"lm_head.weight": tensors["wte.weight"].clone()}
    for layer in range(2):
        out[f"h.{layer}.attn.bias"] = mask if layer == 0 else mask.to(torch.uint8)
        out[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return out


def neox_strays(tensors: dict) -> dict:
    out = {}
    for layer in range(2):
        out[f"gpt_neox.layers.{layer}.attention.bias"] = torch.tril(torch.ones(64, 64, dtype=torch.bool)).view(1, 1, 64, 64)
        out[f"gpt_neox.layers.{layer}.attention.masked_bias"] = torch.tensor(-1e9)
        out[f"gpt_neox.layers.{layer}.attention.rotary_emb.inv_freq"] = 1.0 / 10000 ** (torch.arange(0, 4, 2).float() / 4)
    return out


def inv_freq_strays(tensors: dict) -> dict:
    return {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8) for i in range(2)}


SHORT_FACTOR = [1.0, 1.05, 1.2, 1.4]
LONG_FACTOR = [1.3, 2.1, 3.7, 4.9]

SPECS = [
    Spec("gpt2", gpt2(), "GPT-2, all keys of the published config.json", generation_config={"bos_token_id": 95, "eos_token_id": 95, "_from_model_config": True}),
    Spec("gpt2-minimal", {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": V, "bos_token_id": 95, "eos_token_id": 95},
         "a config.json without optional keys", dtype="F16"),
    Spec("gpt2-stray", gpt2(n_layer=2, architectures=["GPT2LMHeadModel"]), "names without `transformer.`, mask buffers, lm_head.weight beside wte.weight",
         rename=without("transformer."), extras=gpt2_strays, unexpected=("attn.bias", "masked_bias")),
    Spec("gpt2-options", gpt2(n_layer=2, n_inner=48, activation_function="gelu", scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True,
                              layer_norm_epsilon=1e-3), "n_inner, erf GELU, scores divided by layer number", layout="bin"),
    Spec("llama", llama(num_hidden_layers=3), "multi-head, untied head"),
    Spec("llama-gqa", llama(num_key_value_heads=2, tie_word_embeddings=True, torch_dtype="bfloat16", rope_theta=100000,
                            is_llama_config=True, rope_interleaved=False), "grouped queries, tied head, SmolLM2's keys; shards", dtype="BF16", layout="sharded",
         generation_config={"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}),
    Spec("llama-bias", llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True), "multi-query, attention_bias and mlp_bias", dtype="F16"),
    Spec("llama-head-dim", llama(head_dim=12, num_key_value_heads=2, tie_word_embeddings=True), "head_dim is not hidden_size / heads; pytorch_model.bin", layout="bin"),
    Spec("llama-legacy", {k: v for k, v in llama().items() if k in ("architectures", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
                          "model_type", "num_attention_heads", "num_hidden_layers", "rms_norm_eps", "bos_token_id", "eos_token_id", "vocab_size")},
         "LLaMA 1: no num_key_value_heads, no rope_theta; stray inv_freq; F16 pytorch_model.bin", dtype="F16", layout="bin", extras=inv_freq_strays,
         unexpected=("inv_freq",)),
    Spec("llama-no-prefix", llama(architectures=["LlamaModel"], tie_word_embeddings=True, num_key_value_heads=2), "saved from the base model: names without `model.`",
         rename=without("model."), dtype="F16"),
    Spec("llama-rope-parameters", {k: v for k, v in llama(num_key_value_heads=2, dtype="float32", transformers_version="5.0.0", torch_dtype=..., rope_theta=..., rope_scaling=...,
         rope_parameters={"rope_theta": 500000.0, "rope_type": "default"}).items()}, "rope_parameters and dtype as transformers 5 writes them", dtype="F16"),
    Spec("llama-eos-list", llama(bos_token_id=..., eos_token_id=..., num_key_value_heads=2), "end tokens only in generation_config.json, as a list", dtype="F16",
         stops=True, generation_config={"bos_token_id": 1, "eos_token_id": []}),
    Spec("llama-linear", llama(max_position_embeddings=32, rope_scaling={"type": "linear", "factor": 2.5}), "rope linear; greedy text runs past max_position_embeddings", dtype="F16"),
    Spec("llama-dynamic", llama(max_position_embeddings=16, rope_scaling={"type": "dynamic", "factor": 2.0}),
         "rope dynamic NTK; greedy text runs past max_position_embeddings", dtype="F16"),
    Spec("llama-llama3", llama(rope_theta=500000.0, max_position_embeddings=128, num_key_value_heads=2, head_dim=16, hidden_size=32, num_attention_heads=4,
         rope_scaling={"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32, "rope_type": "llama3"}),
         "rope llama3", dtype="BF16"),
    Spec("llama-llama3-v5", llama(max_position_embeddings=128, num_key_value_heads=2, dtype="float32", torch_dtype=..., rope_theta=..., rope_scaling=...,
         transformers_version="5.0.0", head_dim=16,
         rope_parameters={"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
                          "rope_theta": 500000.0, "rope_type": "llama3"}), "rope llama3 inside rope_parameters", dtype="F16"),
    Spec("llama-yarn", llama(max_position_embeddings=64, head_dim=16, rope_scaling={"factor": 4.0, "original_max_position_embeddings": 16, "type": "yarn"}),
         "rope yarn, defaults", dtype="F16"),
    Spec("llama-yarn-options", llama(max_position_embeddings=64, head_dim=16, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
         "attention_factor": 1.25, "beta_fast": 16, "beta_slow": 2}), "rope yarn, attention_factor and betas given", dtype="F16"),
    Spec("llama-longrope", llama(max_position_embeddings=64, original_max_position_embeddings=24, rope_scaling={"type": "longrope", "short_factor": SHORT_FACTOR,
         "long_factor": LONG_FACTOR}), "rope longrope; greedy text crosses from short to long factors", dtype="F16"),
    Spec("mistral", mistral(), "sliding window of 8, shorter than the prompts", dtype="BF16"),
    Spec("mistral-full", mistral() | {"sliding_window": None, "head_dim": 8, "rope_theta": 1000000.0}, "sliding_window null, as from v0.2 on", layout="sharded", dtype="F16"),
    Spec("qwen2", qwen2(), "query/key/value bias, tied head, sliding window configured but off", dtype="BF16",
         generation_config={"bos_token_id": 1, "do_sample": True, "eos_token_id": [2, 3], "pad_token_id": 1, "repetition_penalty": 1.1, "temperature": 0.7,
                            "top_k": 20, "top_p": 0.8, "transformers_version": "4.37.0"}),
    Spec("qwen2-sliding", qwen2(use_sliding_window=True, sliding_window=6, max_window_layers=1, num_hidden_layers=3, tie_word_embeddings=False),
         "sliding window from layer max_window_layers on", dtype="F16"),
    Spec("qwen3", qwen3(), "query and key norms, head_dim 16", dtype="BF16"),
    Spec("gemma", gemma(), "scaled embedding, 1 + w norms, tanh GeGLU, multi-query, head_dim 16", dtype="BF16"),
    Spec("gemma-legacy", gemma(num_key_value_heads=4, hidden_activation=...) | {}, "hidden_act 'gelu' alone, which means the tanh form", dtype="F16"),
    Spec("gpt_neox", gpt_neox(), "parallel residual, a quarter of each head rotated; mask buffers", dtype="F16", rename=embed_out, extras=neox_strays,
         unexpected=("attention.bias", "masked_bias", "inv_freq")),
    Spec("gpt_neox-sequential", gpt_neox(use_parallel_residual=False, rotary_pct=1.0), "sequential residual, whole heads rotated", layout="bin", dtype="F16",
         rename=embed_out),
    Spec("opt", opt(), "pre-norm, learned positions with an offset of 2"),
    Spec("opt-post-norm", opt(do_layer_norm_before=False, word_embed_proj_dim=20), "post-norm with embedding projections, as opt-350m; names without `model.`",
         layout="bin", dtype="F16", rename=without("model.")),
    Spec("bloom", bloom(), "ALiBi; names without `transformer.`", dtype="F16", rename=without("transformer."), explicit_positions=False, gain=3.0),
    Spec("bloom-heads", bloom(n_head=6, n_embed=48, apply_residual_connection_post_layernorm=True), "6 heads; residual taken after the norm", dtype="BF16",
         explicit_positions=False, gain=3.0),
]


def clean(config: dict) -> dict:
    return {k: v for k, v in config.items() if v is not ...}


def write_model(spec: Spec, folder: Path, seed: int) -> None:
    """config.json, generation_config.json and random weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", clean(spec.config))
    if spec.generation_config is not None:
        write_json(folder / "generation_config.json", spec.generation_config)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    tied = {id(p) for n, p in model.named_parameters() if "embed" in n or "wte" in n}
    state = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name == "lm_head.weight" and id(parameter) in tied:
            continue
        conv1d = spec.config["model_type"] == "gpt2" and name.rsplit(".", 2)[-2] in ("c_attn", "c_proj", "c_fc")
        state[name] = random_weight(name, parameter.shape, generator, spec.config["model_type"] == "gemma", conv1d, spec.gain).to(DTYPES[spec.dtype])
    tensors = {spec.rename(k): v for k, v in state.items()}
    if spec.layout == "bin" and config.tie_word_embeddings:  # torch.save keeps the second name of a shared storage
        embedding = next(v for k, v in state.items() if "embed_tokens" in k or "wte" in k or "embed_in" in k or k.endswith("word_embeddings.weight"))
        tensors["lm_head.weight"] = embedding
    write_checkpoint(folder, tensors | spec.extras(tensors), spec.layout)


def load(spec: Spec, folder: Path):
    """A fresh model, float32 and eager; fails on a name that Python did not find or did not expect."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = [k for k in report["missing_keys"] if k != "lm_head.weight"]
    unexpected = [k for k in report["unexpected_keys"] if not k.endswith(spec.unexpected)] if spec.unexpected else list(report["unexpected_keys"])
    assert not missing and not unexpected and not report["mismatched_keys"], (spec.name, missing, unexpected, report)
    return model.eval()


@torch.no_grad()
def greedy(model, ids: list[int]) -> tuple[list[int], float]:
    """New tokens, and the smallest lead of the best token over the second, in units of the logits' standard deviation."""
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=NEW_TOKENS, do_sample=False,
                         output_scores=True, output_logits=True, return_dict_in_generate=True)
    lead = min(((t := scores[0].topk(2).values)[0] - t[1]).item() / logits[0].std().item() for scores, logits in zip(out.scores, out.logits))
    return out.sequences[0, len(ids):].tolist(), lead


def batches(spec: Spec, model, generator: torch.Generator) -> list[dict]:
    """Padded batches as Python takes them: the mask alone (positions then count the padding), and with explicit positions."""
    pad, width = 0, 8
    draw = lambda n: torch.randint(4, V - 1, (n,), generator=generator).tolist()
    a, b = draw(8), draw(5)
    rows = lambda *pairs: {"inputIds": [p[0] for p in pairs], "attentionMask": [p[1] for p in pairs]}
    out = [
        {"name": "left", **rows((a, [1] * 8), ([pad] * 3 + b, [0] * 3 + [1] * 5))},
        {"name": "right", **rows((a, [1] * 8), (b + [pad] * 3, [1] * 5 + [0] * 3))},
        {"name": "holes", **rows((a, [1, 0, 1, 1, 0, 0, 1, 1]), (draw(8), [1, 1, 1, 1, 1, 0, 1, 1]))},
    ]
    if spec.explicit_positions and "position_ids" in inspect.signature(model.forward).parameters:
        out.append({"name": "left-positions", **rows((a, [1] * 8), ([pad] * 3 + b, [0] * 3 + [1] * 5)),
                    "positionIds": [list(range(8)), [1, 1, 1, 0, 1, 2, 3, 4]]})
    return out


@torch.no_grad()
def expect(spec: Spec, folder: Path, seed: int) -> tuple[dict, dict] | None:
    """expected.json and expected.safetensors; None when this seed's weights make a poor test."""
    generator = torch.Generator().manual_seed(seed + 1)
    answers, tensors = {"family": spec.config["model_type"], "note": spec.note, "prompts": []}, {}
    eos = 2
    for i, length in enumerate(spec.lengths):
        ids = torch.randint(4, V - 1, (length,), generator=generator).tolist()
        tokens, lead = greedy(load(spec, folder), ids)
        ended = len(tokens) < NEW_TOKENS
        if lead < 2e-3 or (not spec.stops and (ended or len(set(tokens)) < 6)):
            return None
        answers["prompts"].append({"inputIds": ids, "greedy": tokens, "finishReason": "stop" if ended else "length"})
        model = load(spec, folder)
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
        tensors[f"prompt.{i}.logits"] = out.logits[0]
        for layer, hidden in enumerate(out.hidden_states):
            tensors[f"prompt.{i}.hidden.{layer}"] = hidden[0]
        for layer, attention in enumerate(out.attentions):
            tensors[f"prompt.{i}.attention.{layer}"] = attention[0]
    if spec.stops and not any(p["finishReason"] == "stop" for p in answers["prompts"]):
        return None
    answers["batches"] = batches(spec, model, generator)
    for batch in answers["batches"]:
        mask = torch.tensor(batch["attentionMask"])
        extra = {"position_ids": torch.tensor(batch["positionIds"])} if "positionIds" in batch else {}
        model = load(spec, folder)
        logits = model(input_ids=torch.tensor(batch["inputIds"]), attention_mask=mask, **extra).logits
        tensors[f"batch.{batch['name']}.logits"] = logits * mask[..., None]
    return answers, {k: v.float().contiguous() for k, v in tensors.items()}


def generate(root: Path, seed: int, only: set[str]) -> None:
    for spec in SPECS:
        if only and spec.name not in only:
            continue
        folder = root / spec.name
        for attempt in range(500):
            trial = seed + 1000 * attempt
            write_model(spec, folder, trial)
            if spec.stops:  # choose, as end tokens, two that the greedy text does reach
                write_json(folder / "generation_config.json", {"bos_token_id": 1})
                ids = torch.randint(4, V - 1, (spec.lengths[0],), generator=torch.Generator().manual_seed(trial + 1)).tolist()
                tokens, _ = greedy(load(spec, folder), ids)
                late = [t for i, t in enumerate(tokens) if i >= 9 and t not in tokens[:i]]
                if len(late) < 2:
                    continue
                write_json(folder / "generation_config.json", spec.generation_config | {"eos_token_id": [late[1], late[0]]})
            result = expect(spec, folder, trial)
            if result is not None:
                break
        else:
            raise RuntimeError(f"[{spec.name}] no seed gives varied greedy text")
        answers, tensors = result
        write_json(folder / "expected.json", answers | {"seed": trial})
        save_file(tensors, folder / "expected.safetensors")
        size = sum(f.stat().st_size for f in folder.iterdir())
        assert size < 300_000, (spec.name, size)
        print(f"{spec.name}: {size / 1024:.0f} KB, seed {trial}, {[len(set(p['greedy'])) for p in answers['prompts']]} distinct tokens", flush=True)
