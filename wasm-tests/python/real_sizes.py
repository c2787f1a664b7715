"""Models of published sizes with random weights, and what transformers makes of a prompt of 64 tokens, for encoder-decoders a source of 64 and a target of 16.

    python real_sizes.py --out DIR [--seed N] [--only NAME ...]
    python real_sizes.py --list

Configurations are those of the published config.json files, weights in their dtype. DIR/NAME gets config.json, model.safetensors,
expected.json (`parameters` as published; `inputIds`, `greedy`: 16 tokens) and expected.safetensors (`logits`, (64, V)). Encoder-decoders and encoders are laid out like those of
wasm-tests/fixtures (`kind`): encoder-decoders with a greedy run and a search with 4 beams. A model of `refused` gets a file
of the right length without content: it does not fit into 32 bits of memory.
"""

import argparse
import gc
import json
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.utils import logging

import beams
from common import DTYPES, write_json
from encoder_decoder import bart, marian, t5, t5_v1_1
from encoders import bert, class_of, distilbert, outputs
from families import bloom, clean, gemma, gpt2, gpt_neox, llama, opt, qwen2, qwen3

PROMPT, NEW_TOKENS = 64, 16
LEAD = 5e-4  # of the logits' standard deviation


def sizes() -> dict[str, tuple[dict, str, int]]:
    """config.json, dtype, and the published number of parameters."""
    ids50256 = {"bos_token_id": 50256, "eos_token_id": 50256}
    neox = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 50304, "max_position_embeddings": 2048}
    positions = {"n_positions": 1024, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    return {
        "distilgpt2": (gpt2(n_layer=6, **positions, **ids50256), "F32", 81_912_576),
        "gpt2": (gpt2(n_layer=12, **positions, **ids50256), "F32", 124_439_808),
        "opt-125m": (opt(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072, vocab_size=50272, max_position_embeddings=2048,
                         word_embed_proj_dim=768), "F16", 125_239_296),
        "pythia-160m": (gpt_neox(**neox), "F16", 162_322_944),
        "opt-350m": (opt(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096, vocab_size=50272, max_position_embeddings=2048,
                         word_embed_proj_dim=512, do_layer_norm_before=False), "F16", 331_196_416),
        "SmolLM2-360M": (llama(hidden_size=960, intermediate_size=2560, num_hidden_layers=32, num_attention_heads=15, num_key_value_heads=5, vocab_size=49152,
                               max_position_embeddings=8192, rope_theta=100000, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0), "BF16", 361_821_120),
        "Qwen2.5-0.5B": (qwen2(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936,
                               max_position_embeddings=32768, max_window_layers=24, sliding_window=32768, bos_token_id=151643, eos_token_id=151643), "BF16",
                         494_032_768),
        "bloom-560m": (bloom(n_embed=1024, n_layer=24, n_head=16, vocab_size=250880, seq_length=2048), "F16", 559_214_592),
        "Qwen3-0.6B": (qwen3() | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
                                  "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "max_window_layers": 28, "bos_token_id": 151643,
                                  "eos_token_id": 151645}, "BF16", 596_049_920),
        "TinyLlama-1.1B": (llama(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, vocab_size=32000,
                                 max_position_embeddings=2048), "F16", 1_100_048_384),
        "gemma-2b": (gemma(hidden_size=2048, intermediate_size=16384, num_hidden_layers=18, num_attention_heads=8, num_key_value_heads=1, head_dim=256,
                           vocab_size=256000, max_position_embeddings=8192), "BF16", 2_506_172_416),
    }


def other_sizes() -> dict[str, tuple[dict, str, int]]:
    """The same of encoder-decoders and encoders."""
    big = {"encoder_layers": 6, "decoder_layers": 6, "num_hidden_layers": 6}
    opus = {"d_model": 512, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "vocab_size": 58101,
            "decoder_vocab_size": 58101, "pad_token_id": 58100, "decoder_start_token_id": 58100, "bad_words_ids": [[58100]], "max_position_embeddings": 512}
    base = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072, "max_position_embeddings": 512, "vocab_size": 30522}
    return {
        "opus-mt-en-de": (marian(**big, **opus), "F16", 73_886_208),
        "t5-small": (t5(d_model=512, d_kv=64, d_ff=2048, num_heads=8, num_layers=6, vocab_size=32128, n_positions=512), "F32", 60_506_624),
        "flan-t5-small": (t5_v1_1(d_model=512, d_kv=64, d_ff=1024, num_heads=6, num_layers=8, num_decoder_layers=8, vocab_size=32128), "F32", 76_961_152),
        "bart-base": (bart(**big, d_model=768, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, vocab_size=50265,
                           max_position_embeddings=1024), "F32", 139_420_416),
        "all-MiniLM-L6-v2": (bert("Model", **base | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}), "F32", 22_713_216),
        "distilbert-sst-2": (distilbert("ForSequenceClassification", dim=768, hidden_dim=3072, n_heads=12, n_layers=6, vocab_size=30522, max_position_embeddings=512), "F32",
                             66_955_010),
        "bert-base-uncased": (bert("ForMaskedLM", **base), "F32", 109_514_298),
    }


REFUSED = {"gemma-2b"}
KINDS = {"marian": AutoModelForSeq2SeqLM, "t5": AutoModelForSeq2SeqLM, "bart": AutoModelForSeq2SeqLM}
GAINS = {"gpt2": 1.6, "gpt_neox": 1.6, "opt": 1.6, "bloom": 2.0}


def kind_of(config: dict):
    """The class of a configuration's models; encoders have one for each head."""
    return KINDS.get(config["model_type"]) or (class_of(config) if "bert" in config["model_type"] else AutoModelForCausalLM)


def shapes(folder: Path) -> dict[str, torch.Size]:
    config = json.loads((folder / "config.json").read_text())
    kind, read = kind_of(config), AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = kind.from_config(read) if hasattr(kind, "from_config") else kind(read)
    found = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}  # the head's second name of a tied embedding is left out
    if config.get("tie_word_embeddings") is False and config["model_type"] == "t5":
        found["lm_head.weight"] = found["shared.weight"]
    return found


def draw(name: str, shape: torch.Size, conv1d: bool, gain: float, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Spread so that greedy texts wander, yet rounding does not grow from layer to layer."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return (0.1 * noise + (1.0 if name.endswith("weight") else 0.0)).to(dtype)
    if name == "shared.weight":  # T5 divides its states by sqrt(D) before the tied head, and not its scores by sqrt(Dk)
        return noise.mul_(1.5).to(dtype)
    if name.endswith("Attention.q.weight"):
        gain /= 8
    if "embed" in name or "wte" in name or "wpe" in name:
        return noise.mul_(0.08).to(dtype)
    return noise.mul_(gain / (shape[0] if conv1d else shape[1]) ** 0.5).to(dtype)


def write(config: dict, dtype: str, folder: Path, seed: int, hollow: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", clean(config))
    generator = torch.Generator().manual_seed(seed)
    found = shapes(folder)
    if hollow:
        header, offset = {}, 0
        for name, shape in found.items():
            size = shape.numel() * 2
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
        return
    conv1d = lambda name: config["model_type"] == "gpt2" and name.rsplit(".", 2)[-2] in ("c_attn", "c_proj", "c_fc")
    gain = GAINS.get(config["model_type"], 1.3)
    rename = lambda name: "embed_out.weight" if config["model_type"] == "gpt_neox" and name == "lm_head.weight" else name
    save_file({rename(n): draw(n, s, conv1d(n), gain, DTYPES[dtype], generator) for n, s in found.items()}, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def expect(config: dict, folder: Path, seed: int) -> dict:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed + 1)
    for _ in range(10):
        ids = torch.randint(4, config["vocab_size"] - 4, (1, PROMPT), generator=generator)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True)
        lead = min(((t := row[0].topk(2).values)[0] - t[1]).item() / row[0].std().item() for row in out.logits)
        if lead > LEAD:
            save_file({"logits": model(ids).logits[0].contiguous()}, folder / "expected.safetensors")
            return {"inputIds": ids[0].tolist(), "greedy": out.sequences[0, PROMPT:].tolist(), "lead": lead}
    raise RuntimeError(f"[{folder.name}] no prompt keeps the best token in the lead")


@torch.no_grad()
def expect_other(config: dict, folder: Path, seed: int) -> dict:
    kind = kind_of(config)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed + 1)
    draw = lambda n: torch.randint(4, config["vocab_size"] - 4, (1, n), generator=generator)
    ids, extra, runs = draw(PROMPT), {}, []
    if kind is AutoModelForSeq2SeqLM:
        start = model.generation_config.decoder_start_token_id
        extra = {"decoder_input_ids": torch.cat([torch.tensor([[start]]), draw(15)], dim=1)}
        for options, least in (({"numBeams": 1, "doSample": False, "maxNewTokens": NEW_TOKENS}, LEAD), ({"numBeams": 4, "numReturnSequences": 2, "maxNewTokens": NEW_TOKENS}, beams.MARGIN)):
            for _ in range(40):
                source = draw(PROMPT)[0].tolist()
                (found,), margin = beams.generate(model, [source], options)
                if margin > least:
                    break
            else:
                raise RuntimeError(f"[{folder.name}] no prompt keeps decisions apart")
            runs.append({"inputIds": source, "options": options, "sequences": found})
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), **extra)
    save_file({f"case.0.{k}": v[0].clone() for k, v in outputs(out).items()}, folder / "expected.safetensors")
    case = {"inputIds": ids[0].tolist()} | ({"decoderInputIds": extra["decoder_input_ids"][0].tolist()} if extra else {})
    return {"kind": "encoder-decoder" if extra else "encoder", "cases": [case], "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(sizes() | other_sizes()))
        return
    logging.disable_progress_bar()
    for name, (config, dtype, parameters) in (sizes() | other_sizes()).items():
        if args.only and name not in args.only:
            continue
        folder = args.out / name
        write(config, dtype, folder, args.seed, name in REFUSED)
        gc.collect()
        answers = {} if name in REFUSED else (expect_other if name in other_sizes() else expect)(config, folder, args.seed)
        write_json(folder / "expected.json", {"parameters": parameters, "dtype": dtype, "refused": name in REFUSED} | answers)


if __name__ == "__main__":
    main()
