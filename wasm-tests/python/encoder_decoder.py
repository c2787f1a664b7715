"""Tiny encoder-decoder models of every family, as published folders, with what transformers makes of them."""

import math
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig

import beams
from common import DTYPES, write_checkpoint, write_json

V = 96
GREEDY = {"doSample": False, "numBeams": 1, "maxNewTokens": 20}


class Poor(Exception):
    """These prompts make a poor test: why."""


@dataclass
class Spec:
    """One fixture: `config` is config.json as it stands in the folder."""

    name: str
    config: dict
    note: str
    dtype: str = "F16"
    layout: str = "single"
    rename: Callable[[str], str] = lambda name: name
    extras: Callable[[dict], dict] = lambda tensors: {}  # tensors that published files carry as well
    generation_config: dict | None = None
    lengths: tuple[tuple[int, int], ...] = ((9, 5), (1, 1), (14, 8))  # of source and decoder ids
    gain: float = 1.0  # standard deviation of a matrix product of unit vectors
    embedding: float = 0.5
    steps: int = 150
    adjust: Callable[[dict], dict] = lambda state: state  # of the weights, last
    more: tuple[dict, ...] = ()  # further runs of generate
    unexpected: tuple[str, ...] = field(default=())  # names that Python itself ignores, by suffix


def marian(**changes) -> dict:
    return {
        "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False, "add_final_layer_norm": False,
        "architectures": ["MarianMTModel"], "attention_dropout": 0.0, "bad_words_ids": [[V - 1]], "bos_token_id": 0, "classif_dropout": 0.0,
        "classifier_dropout": 0.0, "d_model": 32, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "decoder_layerdrop": 0.0, "decoder_layers": 2,
        "decoder_start_token_id": V - 1, "decoder_vocab_size": V, "dropout": 0.1, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
        "encoder_layerdrop": 0.0, "encoder_layers": 2, "eos_token_id": 0, "forced_eos_token_id": 0, "gradient_checkpointing": False,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.02, "is_encoder_decoder": True,
        "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, "max_length": 64, "max_position_embeddings": 64, "model_type": "marian",
        "normalize_before": False, "normalize_embedding": False, "num_beams": 4, "num_hidden_layers": 2, "pad_token_id": V - 1, "scale_embedding": True,
        "share_encoder_decoder_embeddings": True, "static_position_embeddings": True, "torch_dtype": "float16", "transformers_version": "4.22.0.dev0",
        "use_cache": True, "vocab_size": V,
    } | changes


def bart(**changes) -> dict:
    return {
        "_num_labels": 3, "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False, "add_final_layer_norm": False,
        "architectures": ["BartForConditionalGeneration"], "attention_dropout": 0.1, "bos_token_id": 0, "classif_dropout": 0.1, "classifier_dropout": 0.0,
        "d_model": 32, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "decoder_layerdrop": 0.0, "decoder_layers": 2, "decoder_start_token_id": 2,
        "dropout": 0.1, "early_stopping": True, "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "encoder_layerdrop": 0.0, "encoder_layers": 2,
        "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "gradient_checkpointing": False, "init_std": 0.02,
        "is_encoder_decoder": True, "max_position_embeddings": 64, "model_type": "bart", "no_repeat_ngram_size": 3, "normalize_before": False,
        "normalize_embedding": True, "num_beams": 4, "num_hidden_layers": 2, "pad_token_id": 1, "scale_embedding": False,
        "task_specific_params": {"summarization": {"length_penalty": 1.0, "max_length": 128, "min_length": 12, "num_beams": 4}},
        "torch_dtype": "float32", "transformers_version": "4.12.0.dev0", "use_cache": True, "vocab_size": V,
    } | changes


def mbart(**changes) -> dict:
    base = bart(activation_dropout=0.0, add_final_layer_norm=True, architectures=["MBartForConditionalGeneration"], attention_dropout=0.0,
                model_type="mbart", normalize_before=True, num_beams=5, scale_embedding=True, max_length=40, static_position_embeddings=False,
                forced_bos_token_id=..., forced_eos_token_id=2, no_repeat_ngram_size=..., task_specific_params=..., tokenizer_class="MBart50Tokenizer")
    return {k: v for k, v in (base | changes).items() if v is not ...}


def pegasus(**changes) -> dict:
    base = bart(activation_function="relu", add_final_layer_norm=True, architectures=["PegasusForConditionalGeneration"], bos_token_id=0,
                decoder_start_token_id=0, early_stopping=..., eos_token_id=1, extra_pos_embeddings=1, force_bos_token_to_be_generated=False,
                forced_bos_token_id=..., forced_eos_token_id=1, length_penalty=0.6, max_length=64, model_type="pegasus", no_repeat_ngram_size=...,
                normalize_before=True, normalize_embedding=False, num_beams=8, pad_token_id=0, scale_embedding=True, static_position_embeddings=True,
                task_specific_params=...)
    return {k: v for k, v in (base | changes).items() if v is not ...}


def m2m_100(**changes) -> dict:
    return {
        "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["M2M100ForConditionalGeneration"], "attention_dropout": 0.1,
        "bos_token_id": 0, "d_model": 32, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "decoder_layerdrop": 0.05, "decoder_layers": 2,
        "decoder_start_token_id": 2, "dropout": 0.1, "early_stopping": True, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
        "encoder_layerdrop": 0.05, "encoder_layers": 2, "eos_token_id": 2, "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True,
        "max_length": 60, "max_position_embeddings": 64, "model_type": "m2m_100", "num_beams": 5, "num_hidden_layers": 2, "pad_token_id": 1,
        "scale_embedding": True, "transformers_version": "4.4.0.dev0", "use_cache": True, "vocab_size": V,
    } | changes


def t5(**changes) -> dict:
    base = {
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 64, "d_kv": 8, "d_model": 32, "decoder_start_token_id": 0, "dropout_rate": 0.1,
        "eos_token_id": 1, "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 64,
        "num_heads": 4, "num_layers": 2, "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
        "task_specific_params": {"translation_en_to_de": {"early_stopping": True, "max_length": 300, "num_beams": 4, "prefix": "translate English to German: "}},
        "vocab_size": V,
    }
    return {k: v for k, v in (base | changes).items() if v is not ...}


def t5_v1_1(**changes) -> dict:
    return t5(**({"d_kv": 8, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 2, "task_specific_params": ..., "tie_word_embeddings": False,
                  "transformers_version": "4.23.1", "use_cache": True, "n_positions": 512, "relative_attention_max_distance": 128} | changes))


def halves(length: int, d: int) -> torch.Tensor:
    """The sinusoid table of Marian and Pegasus: sines in the first half of the features, cosines in the second."""
    angle = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


def marian_strays(tensors: dict) -> dict:
    """The sinusoid tables and the further names of the one embedding, as in published files."""
    shared = tensors.get("model.shared.weight")
    out = {f"model.{side}.embed_positions.weight": halves(64, 32) for side in ("encoder", "decoder")}
    if shared is not None:
        out |= {f"model.{side}.embed_tokens.weight": shared for side in ("encoder", "decoder")}
    return out | {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"] if shared is None else shared}


def copies(prefix: str) -> Callable[[dict], dict]:
    """The further names of the shared embedding."""
    return lambda tensors: {f"{prefix}{side}.embed_tokens.weight": tensors[f"{prefix}shared.weight"].clone() for side in ("encoder", "decoder")}


def t5_strays(tensors: dict) -> dict:
    table = tensors["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    return copies("")(tensors) | {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": table + 1}


def large_feed_forward(state: dict) -> dict:
    """The same function by feed-forward activations 2^17 times as large, beyond what F16 holds; the weights still fit."""
    scales = {"layer_norm.weight": 4.0, "DenseReluDense.wi.weight": 2.0**15, "DenseReluDense.wo.weight": 2.0**-17}
    places = ("encoder.block.1.layer.1.", "decoder.block.0.layer.2.")
    return {k: v * next((f for end, f in scales.items() for place in places if k == place + end), 1.0) for k, v in state.items()}


FORCED = {"numBeams": 2, "lengthPenalty": 0.0, "forcedBosTokenId": 7, "forcedEosTokenId": 2, "encoderNoRepeatNgramSize": 2, "encoderRepetitionPenalty": 1.5,
          "minNewTokens": 5, "repetitionPenalty": 1.2, "maxNewTokens": 12, "numReturnSequences": 2}
SCALED = {"embedding": 0.18}  # for embeddings that are multiplied by sqrt(D)

SPECS = [
    Spec("marian", marian(), "OPUS-MT: pytorch_model.bin with sinusoid tables, pad as start, final_logits_bias, bad words and renormalized scores", layout="bin", **SCALED,
         extras=marian_strays, generation_config={"bad_words_ids": [[V - 1]], "bos_token_id": 0, "decoder_start_token_id": V - 1, "eos_token_id": 0,
                                                  "forced_eos_token_id": 0, "max_length": 64, "num_beams": 4, "pad_token_id": V - 1,
                                                  "renormalize_logits": True, "transformers_version": "4.32.0.dev0"},
         more=(FORCED | {"forcedEosTokenId": 0},)),
    Spec("marian-separate", marian(share_encoder_decoder_embeddings=False, vocab_size=101, decoder_vocab_size=V, scale_embedding=False),
         "OPUS-MT of the Tatoeba challenge: vocabularies apart (101 and 96), embeddings not scaled", layout="bin", extras=marian_strays),
    Spec("bart", bart(), "all keys of the published config.json, its own beam settings among them; embeddings not scaled, positions with an offset of 2",
         more=(FORCED,)),
    Spec("bart-base", bart(scale_embedding=True, encoder_attention_heads=2, decoder_layers=1, encoder_ffn_dim=48, num_beams=1, no_repeat_ngram_size=0),
         "saved from the base model: names without `model.`, no final_logits_bias; 2 heads beside 4, 2 layers beside 1", **SCALED, dtype="F32", layout="bin",
         rename=lambda name: name.removeprefix("model."), extras=lambda tensors: copies("")(tensors)),
    Spec("t5", t5(), "relative positions in buckets, scores not scaled, ReLU, tied head with scaled states; stray cross-attention positions", embedding=2.5,
         lengths=((9, 5), (1, 1), (70, 40)), extras=t5_strays, unexpected=("EncDecAttention.relative_attention_bias.weight",),
         more=(FORCED | {"forcedEosTokenId": 1},)),
    Spec("flan-t5", t5_v1_1(d_kv=6), "T5 1.1: gated tanh GELU, head of its own, d_kv * heads is not d_model", dtype="BF16", extras=copies("")),
    Spec("t5-large-ff", t5(), "feed-forward activations beyond 65504, the largest number of F16", embedding=2.5, adjust=large_feed_forward),
    Spec("mt5", t5_v1_1(architectures=["MT5ForConditionalGeneration"], model_type="mt5", num_heads=2, tokenizer_class="T5Tokenizer", num_decoder_layers=1,
                        relative_attention_num_buckets=12, relative_attention_max_distance=20), "mT5: 2 heads, 2 layers beside 1, 12 buckets up to 20",
         layout="bin", lengths=((9, 5), (1, 1), (50, 30))),
    Spec("mbart", mbart(decoder_start_token_id=90), "mBART en-ro: pre-norm with a norm after the embedding and one at the end, a language code as start", **SCALED),
    Spec("mbart-50", mbart(activation_function="relu", d_model=36, decoder_attention_heads=6, encoder_attention_heads=3), "mBART-50: start is the end token, a language code is forced",
         generation_config={"bos_token_id": 0, "decoder_start_token_id": 2, "early_stopping": True, "eos_token_id": 2, "forced_bos_token_id": 91,
                            "forced_eos_token_id": 2, "max_length": 40, "num_beams": 5, "pad_token_id": 1, "transformers_version": "4.27.0.dev0"}, dtype="BF16", **SCALED),
    Spec("pegasus", pegasus(), "sinusoids in halves, pre-norm, pad as start; tables in the file", **SCALED,
         extras=lambda tensors: copies("model.")(tensors) | {f"model.{side}.embed_positions.weight": halves(64, 32) for side in ("encoder", "decoder")}),
    Spec("m2m_100", m2m_100(), "sinusoids counted from pad + 1 over what is not padding", **SCALED, more=({**beams.PLAIN, "forcedBosTokenId": 91},)),
    Spec("nllb", m2m_100(tokenizer_class="NllbTokenizer", max_length=..., early_stopping=..., num_beams=..., torch_dtype="float32") , "NLLB: forced_bos_token_id as an option", **SCALED,
         generation_config={"bos_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 2, "max_length": 200, "pad_token_id": 1,
                            "transformers_version": "4.27.0.dev0"}, dtype="BF16", layout="bin", more=({**beams.SHORT, "forcedBosTokenId": 92},)),
]


def clean(config: dict) -> dict:
    return {k: v for k, v in config.items() if v is not ...}


def draw(name: str, shape: torch.Size, spec: Spec, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("final_logits_bias"):
        return 0.3 * noise
    if len(shape) == 1:
        return 0.2 * noise + (1.0 if name.endswith("weight") else 0.0)
    if "relative_attention_bias" in name:
        return noise
    if re.search(r"embed|shared", name):
        return spec.embedding * noise
    small = 1 / math.sqrt(spec.config.get("d_kv", 1)) if re.search(r"Attention\.q", name) else 1.0  # T5 does not divide its scores
    return spec.gain * small * noise / math.sqrt(shape[1])


def taught(spec: Spec, model, seed: int) -> None:
    """Random weights alone repeat one token, so the model begins to learn a text: a token of the source, then two by a fixed rule, and so on,
    for a number of steps that nothing foretells."""
    generator = torch.Generator().manual_seed(seed)
    ids = lambda *shape, high: torch.randint(4, high, shape, generator=generator)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n == "final_logits_bias" and spec.name != "bart-base")]:
            if p.requires_grad or name == "final_logits_bias":
                p.copy_(draw(name, p.shape, spec, generator))
        if spec.steps and spec.config.get("share_encoder_decoder_embeddings") is False:  # alike to begin with, so that copying is learned as soon
            model.model.encoder.embed_tokens.weight[:V] += 2 * model.model.decoder.embed_tokens.weight
    size, count = min(spec.config["vocab_size"], V) - 8, 14
    end, start = beams.ends_of(model)[0], model.generation_config.decoder_start_token_id
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    for _ in range(spec.steps):
        source = ids(16, int(ids(1, high=15)), high=size)
        copied = source.gather(1, ids(16, count, high=1 << 30) % source.shape[1])
        target = copied[:, :1]
        for k in range(1, count):
            target = torch.cat([target, 4 + (7 * (target[:, -1:] - 4) + 5) % (size - 4) if k % 3 else copied[:, k, None]], dim=1)
        stop = torch.randint(6, count, (16, 1), generator=generator)
        at = torch.arange(count)[None]
        fed = torch.cat([torch.full((16, 1), start), target[:, :-1]], dim=1)
        logits = model(input_ids=source, decoder_input_ids=fed).logits
        cross_entropy(logits.flatten(0, 1), torch.where(at < stop, target, torch.where(at == stop, end, -100)).flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def write_model(spec: Spec, folder: Path, seed: int) -> None:
    """config.json, generation_config.json and weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", clean(spec.config))
    if spec.generation_config is not None:
        write_json(folder / "generation_config.json", spec.generation_config)
    torch.manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    if spec.config.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.detach().clone())
    if spec.generation_config is not None:
        model.generation_config = GenerationConfig.from_pretrained(folder)
    taught(spec, model.eval(), seed)
    state = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if "final_logits_bias" in dict(model.named_buffers()) and spec.name != "bart-base":
        state["final_logits_bias"] = model.final_logits_bias.detach().as_subclass(torch.Tensor)
    tensors = {spec.rename(k): v.to(DTYPES[spec.dtype]) for k, v in spec.adjust(state).items()}
    write_checkpoint(folder, tensors | spec.extras(tensors), spec.layout)


def load(spec: Spec, folder: Path):
    """A fresh model, float32 and eager; fails on a name that Python did not find or did not expect."""
    model, report = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    unexpected = [k for k in report["unexpected_keys"] if not (spec.unexpected and k.endswith(spec.unexpected))]
    missing = [k for k in report["missing_keys"] if not (spec.config["model_type"] == "pegasus" and "embed_positions" in k)]  # sinusoids, computed
    assert not missing and not unexpected and not report["mismatched_keys"], (spec.name, report)
    return model.eval()


def largest_activation(model, source: list[int], target: list[int]) -> float:
    """Of the inputs of T5's feed-forward output matrices."""
    found = []
    hooks = [m.register_forward_pre_hook(lambda _, args: found.append(args[0].abs().max().item())) for n, m in model.named_modules() if n.endswith("DenseReluDense.wo")]
    model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target]))
    for hook in hooks:
        hook.remove()
    return max(found)


@torch.no_grad()
def forward_cases(spec: Spec, model, generator: torch.Generator) -> tuple[list[dict], dict]:
    cases, tensors = [], {}
    size, target_size = spec.config["vocab_size"], spec.config.get("decoder_vocab_size", spec.config["vocab_size"])
    pick = lambda n, size: torch.randint(4, size - 8, (n,), generator=generator).tolist()
    for i, (length, count) in enumerate(spec.lengths):
        source, target = pick(length, size), [model.generation_config.decoder_start_token_id, *pick(count - 1, target_size)]
        out = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target]), output_hidden_states=True, output_attentions=True)
        cases.append({"inputIds": source, "decoderInputIds": target})
        tensors[f"case.{i}.logits"] = out.logits[0]
        kinds = [("encoder_hidden", out.encoder_hidden_states), ("decoder_hidden", out.decoder_hidden_states)]
        if spec.adjust is large_feed_forward:
            require(largest_activation(model, source, target) > 65504, "small activations")
        if length < 30:
            kinds += [("encoder_attention", out.encoder_attentions), ("decoder_attention", out.decoder_attentions), ("cross_attention", out.cross_attentions)]
        for kind, layers in kinds:
            tensors |= {f"case.{i}.{kind}.{layer}": t[0] for layer, t in enumerate(layers)}
    return cases, tensors


def until_good(make: Callable, what: str):
    """What `make` gives at the first attempt that is no poor test."""
    reasons = Counter()
    for _ in range(60):
        try:
            return make()
        except Poor as reason:
            reasons[str(reason)] += 1
    raise Poor(f"[{what}] no prompt will do: {dict(reasons)}")


def require(holds: bool, why: str) -> None:
    if not holds:
        raise Poor(why)


@torch.no_grad()
def batch_case(name: str, model, pick: Callable) -> tuple[dict, torch.Tensor]:
    """Padded sources, asked for logits, greedy tokens and beams, by Python as a batch; `equalsAlone`: the row gives what its own tokens give."""
    pad, hole = model.config.pad_token_id, [1, 0, 1, 1, 0, 0, 1, 1]
    a, b, c = pick(8), pick(5), pick(8)
    ids, mask = {
        "left": ([a, [pad] * 3 + b], [[1] * 8, [0] * 3 + [1] * 5]),
        "right": ([a, b + [pad] * 3], [[1] * 8, [1] * 5 + [0] * 3]),
        "holes": ([[t if m else pad for t, m in zip(a, hole)], c], [hole, [1, 1, 1, 1, 1, 0, 1, 1]]),
    }[name]
    start = model.generation_config.decoder_start_token_id
    case = {"name": name, "inputIds": ids, "attentionMask": mask, "decoderInputIds": [[start, 20, 31], [start, 40, 9]], "runs": []}
    for options in (GREEDY, beams.SHORT):
        results, margin = beams.generate(model, ids, options, masks=mask)
        require(margin > beams.MARGIN, "margin")
        same = []
        for row, keep, one in zip(ids, mask, results):
            (alone,), margin = beams.generate(model, [[t for t, m in zip(row, keep) if m]], options)
            require(margin > beams.MARGIN, "margin alone")
            same.append(all(x["tokenIds"] == y["tokenIds"] and abs(x.get("score", 0) - y.get("score", 0)) < 1e-5 for x, y in zip(alone, one)))
        case["runs"].append({"options": options, "results": results, "equalsAlone": same})
    out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), decoder_input_ids=torch.tensor(case["decoderInputIds"]))
    return case, out.logits


def expect(spec: Spec, folder: Path, seed: int) -> tuple[dict, dict]:
    """expected.json and expected.safetensors."""
    generator = torch.Generator().manual_seed(seed + 1)
    model = load(spec, folder)
    ends, start, size = beams.ends_of(model), model.generation_config.decoder_start_token_id, spec.config["vocab_size"]
    pick = lambda n: torch.randint(4, size - 8, (n,), generator=generator).tolist()
    runs = []

    def ask(source: list[int], options: dict, prefix: list[int] | None = None) -> tuple[dict, list[dict]]:
        results, margin = beams.generate(model, [source], options, prefix=prefix)
        require(margin > (2e-3 if options.get("numBeams") == 1 else beams.MARGIN), "margin")
        return {"inputIds": source, **({} if prefix is None else {"decoderInputIds": prefix}), "options": options, "sequences": results[0]}, results[0]

    def run(length: int, options: dict, prefix: Callable | None = None, check: Callable = lambda source, found: None) -> None:
        def make():
            source = pick(length)
            case, found = ask(source, options, prefix and prefix())
            check(source, found)
            return [case]
        runs.extend(until_good(make, f"{spec.name}, {options}"))

    def varied(source, found):
        require(len(set(found[0]["tokenIds"])) > 4, "dull")
        require(all(found[0]["tokenIds"] != r["sequences"][0]["tokenIds"] for r in runs), "the source does not matter")

    def better(source, found):
        require(found[0]["tokenIds"] != ask(source, GREEDY)[1][0]["tokenIds"], "greedy finds it as well")

    def lengths(source, found):
        require(len({len(s["tokenIds"]) for s in found}) > 1 and found[-1]["finishReason"] == "stop", "beams of one length")

    def without_words():
        """A search, and another that may not say what it found."""
        source = pick(11)
        case, found = ask(source, beams.PLAIN)
        words = found[0]["tokenIds"]
        require(len(words) > 5 and not set(words[1:4]) & set(ends), "short")
        return [case, ask(source, beams.LONG | {"badWordsIds": [[words[1]], words[2:4]]})[0]]

    for length in (9, 4, 14):
        run(length, GREEDY, check=varied)
    run(9, beams.PLAIN, check=better)
    run(1, beams.PLAIN)
    runs.extend(until_good(without_words, f"{spec.name}, bad words"))
    run(9, beams.SHORT, check=lengths)
    run(14, beams.SHORT, check=lengths)
    run(7, {"maxNewTokens": 24})
    with_end = lambda: [start, *pick(2), ends[0], *pick(1)]  # an end token inside a prefix ends nothing
    run(9, beams.PLAIN | {"numReturnSequences": 4}, with_end, lengths)
    run(9, beams.SHORT, lambda: pick(2))
    run(14, GREEDY, with_end)
    for options in spec.more:
        run(9, options)
    cases, tensors = forward_cases(spec, model, generator)
    batches = []
    for name in ("left", "right", "holes"):
        case, tensors[f"batch.{name}.logits"] = until_good(lambda: batch_case(name, model, pick), f"{spec.name}, {name}")
        batches.append(case)
    answers = {"kind": "encoder-decoder", "note": spec.note, "seed": seed, "cases": cases, "runs": runs, "batches": batches}
    return answers, {k: v.detach().float().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


def generate(root: Path, seed: int, only: set[str]) -> None:
    for spec in SPECS:
        if only and spec.name not in only:
            continue
        folder = root / spec.name
        for attempt in range(8):
            trial = seed + 1000 * attempt
            write_model(replace(spec, steps=spec.steps + 50 * attempt), folder, trial)
            try:
                answers, tensors = expect(spec, folder, trial)
                break
            except Poor as reason:
                print(reason, flush=True)
        else:
            raise RuntimeError(f"[{spec.name}] no seed will do")
        write_json(folder / "expected.json", answers)
        save_file(tensors, folder / "expected.safetensors")
        size = sum(f.stat().st_size for f in folder.iterdir())
        assert size < 400_000, (spec.name, size)
        print(f"{spec.name}: {size / 1024:.0f} KB, lengths {[[len(s['tokenIds']) for s in r['sequences']] for r in answers['runs']]}", flush=True)
