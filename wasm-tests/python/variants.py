"""Tiny random models of the original Transformer, one for each value of its configuration, by transformer_reference.py."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from common import DTYPES, random_weight, write_checkpoint, write_json
from transformer_reference import Transformer

NEW_TOKENS = 12


def config(**changes) -> dict:
    return {
        "model_type": "transformer", "is_encoder_decoder": True, "vocab_size": 40, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 40, "activation_function": "relu",
        "dropout": 0.1, "layer_norm_eps": 1e-05, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    } | changes


ONE_SIDE = {"is_encoder_decoder": False, "decoder_start_token_id": 1}
CONFIGS = {
    "pre-norm": (config(normalize_before=True, encoder_layers=2, decoder_layers=2), "normalize_before, with norms after the stacks"),
    "separate": (config(share_encoder_decoder_embeddings=False, encoder_vocab_size=31), "31 source tokens, 40 target tokens"),
    "untied": (config(tie_word_embeddings=False, scale_embedding=False), "a head of its own, embeddings not scaled"),
    "learned": (config(position_embedding_type="learned", max_position_embeddings=20), "learned positions"),
    "no-positions": (config(position_embedding_type="none", decoder_layers=2), "no positions"),
    "no-residual": (config(residual=False), "sub-layers without a residual connection"),
    "no-residual-pre-norm": (config(residual=False, normalize_before=True), "the same with the norm first"),
    "one-head": (config(encoder_attention_heads=1, decoder_attention_heads=1), "a single head"),
    "scale": (config(scale=1.0, encoder_attention_heads=2), "scores not divided"),
    "gelu": (config(activation_function="gelu", normalize_before=True), "GELU"),
    "value-size": (config(head_dim=10, value_head_dim=7, encoder_attention_heads=3), "keys of 10, values of 7 features"),
    "decoder-only": (config(**ONE_SIDE, encoder_layers=0, decoder_layers=2), "the decoder alone"),
    "decoder-only-pre-norm": (config(**ONE_SIDE, encoder_layers=0, decoder_layers=2, normalize_before=True, position_embedding_type="learned", max_position_embeddings=40,
                                     activation_function="gelu", tie_word_embeddings=False), "the decoder alone, as GPT has it"),
    "encoder-only": (config(**ONE_SIDE, decoder_layers=0, encoder_layers=2, architectures=["TransformerForMaskedLM"]), "the encoder alone, with the tied head"),
    "encoder-only-bare": (config(**ONE_SIDE, decoder_layers=0, encoder_layers=2, normalize_before=True, architectures=["TransformerModel"]), "the encoder alone, without a head"),
}


def build(values: dict, seed: int, dtype: torch.dtype) -> Transformer:
    model = Transformer(values).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(random_weight(name, p.shape, generator, gemma=False, conv1d=False, gain=1.3).to(dtype))
    return model


@torch.no_grad()
def expect(values: dict, model: Transformer, seed: int) -> tuple[dict, dict]:
    generator = torch.Generator().manual_seed(seed + 1)
    both, source_size = values["encoder_layers"] and values["decoder_layers"], values.get("encoder_vocab_size", values["vocab_size"])
    draw = lambda n, size: torch.randint(3, size, (n,), generator=generator)
    cases, runs, tensors = [], [], {}
    for i, (length, count) in enumerate(((7, 5), (1, 1), (12, 3))):
        source, fed = draw(length, source_size), torch.cat([torch.tensor([1]), draw(count - 1, values["vocab_size"])])
        found, case = {}, {"inputIds": source.tolist()}
        if values["encoder_layers"]:
            hidden, attentions = model.encode(source)
            found |= {"encoder_hidden": hidden, "encoder_attention": attentions} if both else {"hidden": hidden, "attention": attentions}
        if both:
            case["decoderInputIds"] = fed.tolist()
            tensors[f"case.{i}.logits"], states, weights, cross = model.decode(fed, hidden[-1])
            found |= {"decoder_hidden": states, "decoder_attention": weights, "cross_attention": cross}
        elif values["decoder_layers"]:
            tensors[f"case.{i}.logits"], states, weights, _ = model.decode(source)
            found |= {"hidden": states, "attention": weights}
        elif "MaskedLM" in values["architectures"][0]:
            tensors[f"case.{i}.logits"] = model.head(model.encoder, hidden[-1])
        else:
            tensors[f"case.{i}.last_hidden_state"] = hidden[-1]
        for kind, layers in found.items():
            tensors |= {f"case.{i}.{kind}.{layer}": t for layer, t in enumerate(layers)}
        if values["decoder_layers"]:
            ids, lead = [1] if both else source.tolist(), 1.0
            start = len(ids)
            while len(ids) - start < NEW_TOKENS and (len(ids) == start or ids[-1] != 2):
                logits = model.decode(torch.tensor(ids), hidden[-1] if both else None)[0][-1]
                best = logits.topk(2)
                lead = min(lead, ((best.values[0] - best.values[1]) / logits.std()).item())
                ids.append(best.indices[0].item())
            assert lead > 1e-3, (lead, seed)
            runs.append({"inputIds": source.tolist(), "options": {"maxNewTokens": NEW_TOKENS, "doSample": False},
                         "sequences": [{"tokenIds": ids[start:], "finishReason": "stop" if ids[-1] == 2 else "length"}]})
        cases.append(case)
    answers = {"kind": "transformer", "cases": cases, "runs": runs}
    return answers, {k: v.float().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


def write(values: dict, note: str, folder: Path, seed: int) -> None:
    """The model and what is expected of it, with the first seed that keeps every greedy token in the lead."""
    for trial in range(seed, seed + 50000, 1000):
        model = build(values, trial, DTYPES["F16"])
        try:
            answers, tensors = expect(values, model, trial)
            break
        except AssertionError:
            continue
    else:
        raise RuntimeError(f"[{folder.name}] no seed keeps the best token in the lead")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", values)
    write_checkpoint(folder, {k: v.detach().half() for k, v in model.state_dict().items()}, "single")
    write_json(folder / "expected.json", answers | {"note": note, "seed": trial})
    save_file(tensors, folder / "expected.safetensors")


def generate(root: Path, seed: int, only: set[str]) -> None:
    for name, (values, note) in CONFIGS.items():
        name = f"transformer-{name}"
        if only and name not in only:
            continue
        folder = root / name
        write(values, note, folder, seed)
        size = sum(f.stat().st_size for f in folder.iterdir())
        assert size < 120_000, (name, size)
        print(f"{name}: {size / 1024:.0f} KB", flush=True)
