"""Models whose shapes fit nothing evenly, and what transformers makes of them: widths that are no multiple of 4, head sizes 6, 10, 24
and 80, prime vocabularies, prompts across the borders of cache blocks and prefill chunks, windows of 1 to 40 under 200 tokens.

    python odd_shapes.py --out DIR [--seed N] [--only NAME ...]

Each folder is laid out like those of wasm-tests/fixtures, but for `forwards` in expected.json (`forward.I.*` in expected.safetensors)
in place of `prompts`' tensors, and for `scores`. The files are written by transformers' own save_pretrained, or as older versions did.
"""

import argparse
import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from common import DTYPES, random_weight, write_checkpoint, write_json
from families import bloom, clean, gemma, gpt2, gpt_neox, llama, mistral, opt, qwen2, qwen3

logging.disable_progress_bar()
NEW_TOKENS = 32
BORDERS = (1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 144, 200)
LEAD = 5e-4  # of the logits' standard deviation: rounding cannot turn a larger one round
LAYOUTS = ("current", "current-sharded", "bin", "bin-sharded", "single")


def shaped(heads: int, head_size: int, **changes) -> dict:
    return {"num_attention_heads": heads, "hidden_size": heads * head_size, "max_position_embeddings": 256} | changes


def specs() -> dict[str, dict]:
    """config.json by name."""
    out = {
        "llama-5x6": llama(**shaped(5, 6, num_key_value_heads=5, intermediate_size=77, vocab_size=97)),
        "llama-3x24": llama(**shaped(3, 24, num_key_value_heads=3, intermediate_size=190, vocab_size=1009, tie_word_embeddings=True)),
        "llama-6to2-head10": llama(**shaped(6, 10, num_key_value_heads=2, hidden_size=54, head_dim=10, vocab_size=97, num_hidden_layers=3)),
        "llama-8to1-head80": llama(**shaped(8, 80, num_key_value_heads=1, hidden_size=72, head_dim=80, vocab_size=1009)),
        "llama-1x34": llama(**shaped(1, 34, num_key_value_heads=1, intermediate_size=35, vocab_size=97, tie_word_embeddings=True)),
        "llama-beyond": llama(**shaped(3, 10, num_key_value_heads=1, max_position_embeddings=64, vocab_size=97)),
        "llama-bias-5to1": llama(**shaped(5, 6, num_key_value_heads=1, attention_bias=True, mlp_bias=True, vocab_size=1009)),
        "llama-partial": llama(**shaped(3, 10, num_key_value_heads=3, vocab_size=97, partial_rotary_factor=0.6)),
        "llama-yarn-beyond": llama(**shaped(3, 24, num_key_value_heads=3, max_position_embeddings=128, vocab_size=97,
                                            rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})),
        "llama-dynamic-beyond": llama(**shaped(3, 10, num_key_value_heads=3, max_position_embeddings=100, vocab_size=97,
                                               rope_scaling={"type": "dynamic", "factor": 3.0})),
        "llama-llama3-beyond": llama(**shaped(3, 24, num_key_value_heads=1, max_position_embeddings=128, vocab_size=97, rope_theta=500000.0,
                                              rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                            "original_max_position_embeddings": 32})),
        "llama-longrope-border": llama(**shaped(3, 8, num_key_value_heads=3, max_position_embeddings=256, original_max_position_embeddings=128, vocab_size=97,
                                                rope_scaling={"type": "longrope", "short_factor": [1.0, 1.05, 1.2, 1.4], "long_factor": [1.3, 2.1, 3.7, 4.9]})),
        "qwen2-5to1": qwen2(**shaped(5, 12, num_key_value_heads=1, vocab_size=1009, intermediate_size=101)),
        "qwen2-window17": qwen2(**shaped(6, 6, num_key_value_heads=2, vocab_size=97, use_sliding_window=True, sliding_window=17, max_window_layers=1)),
        "qwen3-6to3-head10": qwen3() | shaped(6, 10, num_key_value_heads=3, head_dim=10, hidden_size=33, vocab_size=97),
        "qwen3-head24": qwen3() | shaped(3, 24, num_key_value_heads=1, head_dim=24, hidden_size=40, vocab_size=1009, tie_word_embeddings=False),
        "qwen3-bias": qwen3() | shaped(4, 6, num_key_value_heads=2, head_dim=6, hidden_size=26, vocab_size=97, attention_bias=True),
        "gemma-3to1-head10": gemma(**shaped(3, 10, num_key_value_heads=1, head_dim=10, hidden_size=37, vocab_size=97, intermediate_size=51)),
        "gemma-8to1-head80": gemma(**shaped(8, 80, num_key_value_heads=1, head_dim=80, hidden_size=48, vocab_size=1009)),
        "gpt_neox-3x10": gpt_neox(**shaped(3, 10, rotary_pct=0.6, vocab_size=97, intermediate_size=61)),
        "gpt_neox-5x24": gpt_neox(**shaped(5, 24, rotary_pct=0.25, vocab_size=1009, intermediate_size=130)),
        "gpt_neox-3x80": gpt_neox(**shaped(3, 80, rotary_pct=0.4, vocab_size=97, intermediate_size=250, use_parallel_residual=False)),
        "gpt_neox-odd": gpt_neox(**shaped(3, 10, rotary_pct=0.7, vocab_size=97)),
        "gpt_neox-beyond": gpt_neox(**shaped(1, 18, rotary_pct=0.34, vocab_size=97, max_position_embeddings=40)),
    }
    for window, (heads, kv) in zip((1, 5, 16, 17, 40), ((6, 2), (8, 1), (3, 3), (1, 1), (5, 5))):
        out[f"mistral-window{window}"] = mistral() | shaped(heads, 10, num_key_value_heads=kv, vocab_size=97, sliding_window=window)
    for heads, size, vocabulary in ((1, 6, 97), (3, 6, 97), (5, 10, 1009), (3, 24, 97), (3, 80, 1009)):
        out[f"gpt2-{heads}x{size}"] = gpt2(n_head=heads, n_embd=heads * size, n_positions=256, n_ctx=256, vocab_size=vocabulary, n_layer=2,
                                           bos_token_id=96, eos_token_id=96)
    for heads, size, changes in ((3, 6, {}), (5, 6, {"word_embed_proj_dim": 14}), (1, 10, {"do_layer_norm_before": False, "word_embed_proj_dim": 7}),
                                 (3, 24, {"do_layer_norm_before": False, "word_embed_proj_dim": 36, "vocab_size": 1009, "_remove_final_layer_norm": False})):
        base = shaped(heads, size, ffn_dim=51, vocab_size=97, word_embed_proj_dim=heads * size)
        out["-".join(["opt", f"{heads}x{size}", *(["post"] if "do_layer_norm_before" in changes else [])])] = opt(**(base | changes))
    for heads, size, vocabulary in ((1, 6, 97), (3, 10, 97), (5, 6, 1009), (6, 10, 97), (12, 6, 97), (12, 24, 1009)):
        out[f"bloom-{heads}x{size}"] = bloom(n_head=heads, n_embed=heads * size, vocab_size=vocabulary)
    return out


def fill(model, family: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            conv1d = family == "gpt2" and name.rsplit(".", 2)[-2] in ("c_attn", "c_proj", "c_fc")
            parameter.copy_(random_weight(name, parameter.shape, generator, family == "gemma", conv1d, 3.0 if family == "bloom" else 1.6))


def old_name(name: str, family: str) -> str:
    return "embed_out.weight" if family == "gpt_neox" and name == "lm_head.weight" else name


def write(config: dict, folder: Path, seed: int, layout: str, dtype: str) -> None:
    """`current`: by save_pretrained of the transformers in use. Otherwise names and files as older versions wrote them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", clean(config))
    family = config["model_type"]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    fill(model, family, seed)
    model.to(DTYPES[dtype])
    if layout.startswith("current"):
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        model.save_pretrained(folder, max_shard_size=max(size // 3, 1000) if layout == "current-sharded" else size + 1)
        return
    state = {old_name(k, family): v for k, v in model.state_dict().items() if not (k == "lm_head.weight" and model.config.tie_word_embeddings)}
    if layout == "bin-sharded":
        names = list(state)
        half = len(names) // 2
        parts = {f"pytorch_model-{i + 1:05d}-of-00002.bin": names[a:b] for i, (a, b) in enumerate(((0, half), (half, len(names))))}
        for file, members in parts.items():
            torch.save({n: state[n] for n in members}, folder / file)
        write_json(folder / "pytorch_model.bin.index.json", {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in state.values())},
                                                             "weight_map": {n: f for f, members in parts.items() for n in members}})
    else:
        write_checkpoint(folder, state, layout)


def load(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def expect(config: dict, folder: Path, seed: int) -> tuple[dict, dict] | None:
    r = random.Random(seed)
    vocabulary, tensors = config["vocab_size"], {}
    draw = lambda n: [r.randrange(4, vocabulary - 1) for _ in range(n)]
    answers = {"family": config["model_type"], "forwards": [], "prompts": [], "batches": [], "scores": []}
    for i, length in enumerate(sorted(r.sample(BORDERS[:-1], 3)) + [200]):
        ids = draw(length)
        out = load(folder)(input_ids=torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
        answers["forwards"].append({"inputIds": ids})
        tensors[f"forward.{i}.logits"] = out.logits[0]
        for l, state in enumerate(out.hidden_states):
            tensors[f"forward.{i}.hidden.{l}"] = state[0]
        for l, weights in enumerate(out.attentions):
            tensors[f"forward.{i}.attention.{l}"] = weights[0]
        if length > 1:
            logprobs = out.logits[0, :-1].log_softmax(-1)[torch.arange(length - 1), torch.tensor(ids[1:])]
            answers["scores"].append({"inputIds": ids, "logprobs": [None, *logprobs.tolist()], "perplexity": (-logprobs.mean()).exp().item()})
    # With a window of 1 Python's cache keeps everything rather than nothing.
    cached = config.get("sliding_window") != 1
    for length in (r.randint(1, 14), r.choice((15, 16, 17)), r.choice((120, 127, 128, 129)), 200):
        ids = draw(length)
        out = load(folder).generate(torch.tensor([ids]), attention_mask=torch.ones(1, length, dtype=torch.long), max_new_tokens=NEW_TOKENS, do_sample=False,
                                    use_cache=cached, output_logits=True, return_dict_in_generate=True)
        lead = min(((t := row[0].topk(2).values)[0] - t[1]).item() / row[0].std().item() for row in out.logits)
        if lead < LEAD:
            return None
        tokens = out.sequences[0, length:].tolist()
        answers["prompts"].append({"inputIds": ids, "greedy": tokens, "finishReason": "stop" if tokens[-1] == config["eos_token_id"] else "length", "lead": lead})
    width = 150
    masks = {"left": [[0] * n + [1] * (width - n) for n in (0, r.randint(1, 20), r.randint(100, 149))],
             "right": [[1] * (width - n) + [0] * n for n in (0, r.randint(1, 20), r.randint(100, 149))],
             "holes": [[1] + [int(r.random() < 0.7) for _ in range(width - 1)] for _ in range(2)]}
    for name, mask in masks.items():
        ids = [draw(width) for _ in mask]
        logits = load(folder)(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits
        tensors[f"batch.{name}.logits"] = logits * torch.tensor(mask)[..., None]
        answers["batches"].append({"name": name, "inputIds": ids, "attentionMask": mask})
    return answers, {k: v.float().contiguous() for k, v in tensors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    for number, (name, config) in enumerate(specs().items()):
        if args.only and name not in args.only:
            continue
        r = random.Random(f"{name} {args.seed}")
        layout, dtype = r.choice(LAYOUTS), r.choice(("F32", "F16", "BF16"))
        for attempt in range(40):
            trial = args.seed + 1000 * (attempt + 50 * number)
            write(config, args.out / name, trial, layout, dtype)
            result = expect(config, args.out / name, trial)
            if result is not None:
                break
        else:
            raise RuntimeError(f"[{name}] no seed keeps the best token in the lead")
        answers, tensors = result
        write_json(args.out / name / "expected.json", answers | {"seed": trial, "note": f"{layout}, {dtype}"})
        save_file(tensors, args.out / name / "expected.safetensors")
        print(f"{name}: {layout}, {dtype}, seed {trial}, {[len(set(p['greedy'])) for p in answers['prompts']]} distinct tokens", flush=True)


if __name__ == "__main__":
    main()
