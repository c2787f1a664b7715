"""Tiny random encoder-only models of every family and head, as published folders, with what transformers makes of them."""

import math
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig

from common import DTYPES, write_checkpoint, write_json

V = 96
HEADS = {"MaskedLM": "masked-lm", "SequenceClassification": "sequence-classification", "TokenClassification": "token-classification",
         "QuestionAnswering": "question-answering", "Model": None}


@dataclass
class Spec:
    """One fixture: `config` is config.json as it stands in the folder; its `architectures` names the class."""

    name: str
    config: dict
    note: str
    dtype: str = "F16"
    layout: str = "single"
    rename: Callable[[str], str] = lambda name: name
    extras: Callable[[dict], dict] = lambda tensors: {}  # tensors that published files carry as well
    unexpected: tuple[str, ...] = field(default=())  # names that Python itself ignores, by prefix
    pooler: bool = True


def labels(*names: str) -> dict:
    return {"id2label": {str(i): n for i, n in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}


def bert(head: str, **changes) -> dict:
    base = {
        "architectures": [f"Bert{head}"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 64, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 64, "model_type": "bert", "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0,
        "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True, "vocab_size": V,
    }
    return {k: v for k, v in (base | changes).items() if v is not ...}


def roberta(head: str, **changes) -> dict:
    kind = changes.get("model_type", "roberta")
    return bert(head, **({"architectures": [f"{'Roberta' if kind == 'roberta' else 'XLMRoberta'}{head}"], "bos_token_id": 0, "eos_token_id": 2,
                          "layer_norm_eps": 1e-05, "max_position_embeddings": 66, "model_type": kind, "pad_token_id": 1, "type_vocab_size": 1,
                          "gradient_checkpointing": ..., "position_embedding_type": ..., "transformers_version": ..., "use_cache": ...} | changes))


def distilbert(head: str, **changes) -> dict:
    return {
        "activation": "gelu", "architectures": [f"DistilBert{head}"], "attention_dropout": 0.1, "dim": 32, "dropout": 0.1, "hidden_dim": 64,
        "initializer_range": 0.02, "max_position_embeddings": 64, "model_type": "distilbert", "n_heads": 4, "n_layers": 2, "pad_token_id": 0,
        "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "transformers_version": "4.10.0.dev0",
        "vocab_size": V,
    } | changes


def albert(head: str, **changes) -> dict:
    base = {
        "architectures": [f"Albert{head}"], "attention_probs_dropout_prob": 0, "bos_token_id": 2, "classifier_dropout_prob": 0.1, "down_scale_factor": 1,
        "embedding_size": 16, "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "hidden_size": 32,
        "initializer_range": 0.02, "inner_group_num": 1, "intermediate_size": 64, "layer_norm_eps": 1e-12, "max_position_embeddings": 64,
        "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 4, "num_hidden_groups": 1, "num_hidden_layers": 3,
        "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": V,
    }
    return {k: v for k, v in (base | changes).items() if v is not ...}


def old_norm(name: str) -> str:
    """The names of norms in files that TensorFlow's BERT was converted to."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def without(prefix: str) -> Callable[[str], str]:
    return lambda name: name.removeprefix(prefix)


def pretraining(tensors: dict) -> dict:
    """What pretraining left in the published files of BERT: the pooler, the head of sentence pairs, the head's second name."""
    return {"bert.pooler.dense.weight": torch.ones(32, 32), "bert.pooler.dense.bias": torch.ones(32), "cls.seq_relationship.weight": torch.ones(2, 32),
            "cls.seq_relationship.bias": torch.ones(2), "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone()}


def position_ids(name: str) -> Callable[[dict], dict]:
    return lambda tensors: {name: torch.arange(64)[None]}


PRETRAINING = ("bert.pooler", "cls.seq_relationship")

SPECS = [
    Spec("bert-masked-lm", bert("ForMaskedLM"), "bert-base-uncased: gamma and beta, pooler and pair head of pretraining, tied head", rename=old_norm,
         extras=pretraining, unexpected=PRETRAINING),
    Spec("bert", bert("Model"), "a sentence encoder: names without `bert.`, position_ids in the file", rename=without("bert."),
         extras=position_ids("embeddings.position_ids"), unexpected=("embeddings.position_ids",)),
    Spec("bert-minilm", bert("Model", hidden_size=64, num_attention_heads=2, num_hidden_layers=1), "all-MiniLM-L6-v2: heads of 32", layout="bin"),
    Spec("bert-no-pooler", bert("Model", hidden_act="relu", type_vocab_size=3, layer_norm_eps=1e-5), "a file without a pooler; 3 token types, ReLU", dtype="BF16",
         pooler=False),
    Spec("bert-classify", bert("ForSequenceClassification", **labels("negative", "neutral", "positive")), "three labels"),
    Spec("bert-score", bert("ForSequenceClassification", **labels("LABEL_0"), sbert_ce_default_activation_function="torch.nn.modules.linear.Identity"),
         "a cross-encoder: one label for pairs", layout="bin", extras=position_ids("bert.embeddings.position_ids"), unexpected=("bert.embeddings.position_ids",)),
    Spec("bert-tokens", bert("ForTokenClassification", _num_labels=5, **labels("O", "B-PER", "I-PER", "B-LOC", "I-LOC")), "named entities", dtype="BF16"),
    Spec("bert-answer", bert("ForQuestionAnswering", hidden_act="gelu_new"), "question answering; the pooler stands in the file", layout="bin",
         extras=lambda tensors: {k: v for k, v in pretraining(tensors).items() if "pooler" in k}, unexpected=("bert.pooler",)),
    Spec("distilbert-masked-lm", distilbert("ForMaskedLM"), "DistilBERT", layout="bin"),
    Spec("distilbert-classify", distilbert("ForSequenceClassification", **labels("NEGATIVE", "POSITIVE"), finetuning_task="sst-2"), "SST-2"),
    Spec("distilbert-answer", distilbert("ForQuestionAnswering", sinusoidal_pos_embds=True, n_heads=2), "SQuAD; position table that was made of sinusoids", dtype="BF16"),
    Spec("distilbert", distilbert("Model"), "bare, without a pooler", rename=without("distilbert.")),
    Spec("roberta-masked-lm", roberta("ForMaskedLM"), "positions from pad + 1"),
    Spec("roberta-classify", roberta("ForSequenceClassification", **labels("neutral", "entailment", "contradiction", "other")), "head of two layers", dtype="BF16"),
    Spec("roberta-tokens", roberta("ForTokenClassification", **labels("O", "X")), "token labels", layout="bin"),
    Spec("roberta-answer", roberta("ForQuestionAnswering", hidden_act="relu"), "question answering"),
    Spec("xlm-roberta", roberta("Model", model_type="xlm-roberta", output_past=True), "a multilingual sentence encoder: names without `roberta.`"),
    Spec("albert-masked-lm", albert("ForMaskedLM"), "one layer's weights for three, embedding of 16", layout="bin"),
    Spec("albert-classify", albert("ForSequenceClassification", **labels("LABEL_0", "LABEL_1"), num_hidden_groups=2, hidden_act="gelu", num_hidden_layers=4),
         "two groups of weights for four layers"),
    Spec("albert", albert("Model", num_hidden_groups=3, embedding_size=40), "bare; three groups", rename=without("albert."), dtype="BF16"),
]


def clean(config: dict) -> dict:
    return {k: v for k, v in config.items() if v is not ...}


def class_of(config: dict) -> type:
    return getattr(transformers, config["architectures"][0])


def head_of(config: dict) -> str | None:
    return next(v for k, v in HEADS.items() if config["architectures"][0].endswith(k))


def draw(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 0.2 * noise + (1.0 if re.search(r"norm\.weight", name, re.I) else 0.0)
    return (0.5 if "embeddings" in name else 1.6 / math.sqrt(shape[1])) * noise


def write_model(spec: Spec, folder: Path, seed: int) -> None:
    """config.json and random weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", clean(spec.config))
    model = class_of(spec.config)(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(seed)
    prefix = next((f"{p}." for p in ("bert", "roberta", "distilbert", "albert") if f"{p}." == f"{model.base_model_prefix}."), "")
    bare = head_of(spec.config) is None
    state = {(prefix if bare else "") + n: draw(n, p.shape, generator).to(DTYPES[spec.dtype]) for n, p in model.named_parameters()
             if spec.pooler or "pooler" not in n}
    tensors = {spec.rename(k): v for k, v in state.items()}
    write_checkpoint(folder, tensors | spec.extras(tensors), spec.layout)


def load(spec: Spec, folder: Path):
    """A fresh model, float32 and eager; fails on a name that Python did not find or did not expect."""
    kind = class_of(spec.config)
    extra = {"add_pooling_layer": False} if not spec.pooler else {}
    model, report = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **extra)
    unexpected = [k for k in report["unexpected_keys"] if not (spec.unexpected and k.startswith(spec.unexpected))]
    assert not report["missing_keys"] and not unexpected and not report["mismatched_keys"], (spec.name, report)
    return model.eval()


def outputs(out) -> dict[str, torch.Tensor]:
    """What a model's own kind of head gives, by the name of its tensor."""
    found = {"logits": out.get("logits"), "start_logits": out.get("start_logits"), "end_logits": out.get("end_logits"),
             "last_hidden_state": out.get("last_hidden_state"), "pooled": out.get("pooler_output")}
    return {k: v for k, v in found.items() if v is not None}


@torch.no_grad()
def expect(spec: Spec, folder: Path, seed: int, lengths: tuple[int, int, int] = (9, 1, 14)) -> tuple[dict, dict]:
    """expected.json and expected.safetensors."""
    generator = torch.Generator().manual_seed(seed + 1)
    model, types = load(spec, folder), spec.config.get("type_vocab_size", 0)
    pad = spec.config["pad_token_id"]
    pick = lambda n: torch.randint(4, spec.config["vocab_size"], (n,), generator=generator).tolist()
    pair = lambda n, first: [0] * first + [types - 1] * (n - first)
    cases, tensors = [], {}
    last = lengths[2]
    rows = [(pick(lengths[0]), None), (pick(lengths[1]), None), (pick(last), pair(last, last // 2 - 1) if types > 1 else None)]
    if pad == 1:  # a padding token that nothing masks stands at position pad, and those after it do not count it
        rows.append(([*pick(3), pad, *pick(4)], None))
    for i, (ids, kinds) in enumerate(rows):
        extra = {} if kinds is None else {"token_type_ids": torch.tensor([kinds])}
        out = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **extra, output_hidden_states=True,
                    output_attentions=True)
        cases.append({"inputIds": ids, **({} if kinds is None else {"tokenTypeIds": kinds})})
        tensors |= {f"case.{i}.{k}": v[0] for k, v in outputs(out).items()}
        tensors |= {f"case.{i}.hidden.{layer}": t[0] for layer, t in enumerate(out.hidden_states)}
        tensors |= {f"case.{i}.attention.{layer}": t[0] for layer, t in enumerate(out.attentions)}
    whole = head_of(spec.config) == "sequence-classification"
    a, b, c, hole = pick(8), pick(5), pick(8), [1, 1, 0, 1, 0, 0, 1, 1]
    masked = [t if m else pad for t, m in zip(a, hole)]
    given = {
        "right": ([a, b + [pad] * 3], [[1] * 8, [1] * 5 + [0] * 3], {}),
        "holes": ([masked, c], [hole, [1, 1, 1, 1, 1, 0, 1, 1]], {}),
    }
    if types > 1:
        given["right-types"] = (*given["right"][:2], {"tokenTypeIds": [pair(8, 3), pair(5, 2) + [0] * 3]})
    if not whole:  # the class of a sequence is read from the first column, which would be padding
        given["left"] = ([a, [pad] * 3 + b], [[1] * 8, [0] * 3 + [1] * 5], {})
        if spec.config["model_type"] != "distilbert":
            given["left-positions"] = (*given["left"][:2], {"positionIds": [list(range(8)), [1, 1, 1, 0, 1, 2, 3, 4]]})
    batches = []
    for name, (ids, mask, more) in given.items():
        extra = {{"tokenTypeIds": "token_type_ids", "positionIds": "position_ids"}[k]: torch.tensor(v) for k, v in more.items()}
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), **extra)
        batches.append({"name": name, "inputIds": ids, "attentionMask": mask, **more})
        tensors |= {f"batch.{name}.{k}": v for k, v in outputs(out).items() if not (k == "pooled" and name.startswith("left"))}
    answers = {"kind": "encoder", "head": head_of(spec.config), "note": spec.note, "seed": seed, "cases": cases, "batches": batches}
    return answers, {k: v.float().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


def generate(root: Path, seed: int, only: set[str]) -> None:
    for spec in SPECS:
        if only and spec.name not in only:
            continue
        folder = root / spec.name
        write_model(spec, folder, seed)
        answers, tensors = expect(spec, folder, seed)
        write_json(folder / "expected.json", answers)
        save_file(tensors, folder / "expected.safetensors")
        size = sum(f.stat().st_size for f in folder.iterdir())
        assert size < 300_000, (spec.name, size)
        print(f"{spec.name}: {size / 1024:.0f} KB", flush=True)
