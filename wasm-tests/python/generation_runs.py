"""What transformers' generate() does with random options and generation_config.json files, token by token, and what it draws from.

    python generation_runs.py --out DIR [--seed N] [--fixtures DIR]

DIR/runs.json: models (folders DIR/NAME: a fixture's weights with a generation_config.json of their own or none), each with calls:
`options` in camelCase, `inputIds`, and either `greedy` (the new tokens) or `logprobs` (of the first new token, null for what is ruled out).
DIR/filters.json and filters.safetensors: `scores` (V) and what the logits processors leave of them, V = 49152, by random options.
"""

import argparse
import json
import math
import random
import shutil
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from common import write_json
from odd_shapes import LEAD
from sampling import snake

MODELS = ("gpt2", "llama", "llama-gqa", "llama-eos-list", "mistral", "qwen2", "qwen3", "gpt_neox", "opt", "bloom")
VOCABULARY = 49152


def options(r: random.Random, eos: int, ids: list[int], vocabulary: int) -> dict:
    """A handful of options that greedy search reads, many of them about tokens that are likely to come."""
    token = lambda: r.choice(ids) if r.random() < 0.5 else r.randrange(vocabulary)
    makers = {
        "repetitionPenalty": lambda: round(r.uniform(0.8, 1.9), 2), "noRepeatNgramSize": lambda: r.randint(1, 4), "minNewTokens": lambda: r.randint(1, 20),
        "minLength": lambda: r.randint(2, 40), "suppressTokens": lambda: [token() for _ in range(r.randint(1, 12))],
        "beginSuppressTokens": lambda: [token() for _ in range(r.randint(1, 12))],
        "badWordsIds": lambda: [[token() for _ in range(r.choice((1, 1, 2, 3)))] for _ in range(r.randint(1, 12))],
        "sequenceBias": lambda: [[[token() for _ in range(r.choice((1, 1, 2)))], round(r.uniform(-5, 5), 2)] for _ in range(r.randint(1, 12))],
        "forcedBosTokenId": token, "forcedEosTokenId": lambda: r.choice((eos, [eos, 7])),
        "exponentialDecayLengthPenalty": lambda: [r.randint(0, 12), round(r.uniform(1.05, 1.6), 2)],
        "removeInvalidValues": lambda: True, "renormalizeLogits": lambda: True,
        "eosTokenId": lambda: r.choice((eos, [eos, token()], [token(), token(), eos])),
    }
    return {name: make() for name, make in makers.items() if r.random() < 0.25}


def sampling_options(r: random.Random) -> dict:
    makers = {
        "temperature": lambda: round(r.uniform(0.3, 1.8), 2), "topK": lambda: r.choice((0, 1, 3, 20, 40, 60, 500)), "topP": lambda: round(r.uniform(0.05, 1), 3),
        "minP": lambda: round(r.uniform(0, 0.3), 3), "typicalP": lambda: round(r.uniform(0.1, 0.99), 3), "epsilonCutoff": lambda: round(r.uniform(1e-5, 0.02), 5),
        "etaCutoff": lambda: round(r.uniform(1e-5, 0.02), 5), "topH": lambda: round(r.uniform(0.1, 0.95), 3),
    }
    return {name: make() for name, make in makers.items() if r.random() < 0.35}


def python(options: dict) -> dict:
    out = {snake(k): v for k, v in options.items()}
    if "sequence_bias" in out:
        out["sequence_bias"] = {tuple(k): v for k, v in out["sequence_bias"]}
    return out


def without_repeats(options: dict) -> dict:
    """Python's dictionary keeps the last bias of a sequence; a list in generation_config.json is read alike."""
    if "sequenceBias" in options:
        options["sequenceBias"] = [[list(k), v] for k, v in {tuple(k): v for k, v in options["sequenceBias"]}.items()]
    return options


def model_settings(r: random.Random, variant: int, eos: int, context: list[int], vocabulary: int) -> dict | None:
    """A generation_config.json: none, one that only names tokens, or one with options of its own, which Python accepts together."""
    if variant == 0:
        return None
    settings = {"bos_token_id": 1, "eos_token_id": r.choice((eos, [eos, r.randrange(vocabulary)])), "pad_token_id": 0}
    while variant > 1:
        own = without_repeats({k: v for k, v in options(r, eos, context, vocabulary).items() if k != "eosTokenId"})
        more = {snake(k): v for k, v in (own | sampling_options(r)).items()} | r.choice(({}, {"do_sample": True}))
        more |= r.choice(({}, {"max_length": r.randint(26, 40)}, {"max_new_tokens": r.randint(3, 20)}))
        try:
            GenerationConfig(**(settings | more))
        except ValueError:
            continue
        return settings | more
    return settings


def make_folder(source: Path, folder: Path, generation_config: dict | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if not file.name.startswith(("expected.", "generation_config")):
            shutil.copy(file, folder)
    if generation_config is not None:
        write_json(folder / "generation_config.json", generation_config)


@torch.no_grad()
def call(model, ids: list[int], given: dict, sample: bool):
    mask = torch.ones(1, len(ids), dtype=torch.long)
    kwargs = {"do_sample": sample} if sample or "do_sample" in given else {}
    return model.generate(torch.tensor([ids]), attention_mask=mask, output_scores=True, output_logits=True, return_dict_in_generate=True, **(given | kwargs))


def runs(root: Path, fixtures: Path, seed: int) -> None:
    r = random.Random(seed)
    models = []
    for base in MODELS:
        vocabulary = json.loads((fixtures / base / "config.json").read_text())["vocab_size"]
        eos = json.loads((fixtures / base / "config.json").read_text()).get("eos_token_id", 2)
        for variant in range(4):
            name = f"{base}-{variant}"
            context = [r.randrange(4, vocabulary - 1) for _ in range(24)]
            settings = model_settings(r, variant, eos, context, vocabulary)
            make_folder(fixtures / base, root / name, settings)
            model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
            model_samples = bool(settings and settings.get("do_sample"))
            calls = []
            for _ in range(100):
                if len(calls) == 8:
                    break
                ids = context[: r.choice((1, 1, 2, 5, 12, 24))]
                sample = len(calls) >= 5
                given = without_repeats(options(r, eos, context, vocabulary))
                if sample:
                    given |= sampling_options(r)
                length = r.choice(({}, {"maxLength": len(ids) + r.randint(1, 24)}, {"maxNewTokens": r.randint(1, 24)}, {"maxNewTokens": 24}))
                if not length and not (settings and ("max_new_tokens" in settings or settings.get("max_length", 0) > len(ids))):
                    length = {"maxNewTokens": 20}
                given |= length
                if not sample and model_samples:
                    given["doSample"] = False
                try:
                    out = call(model, ids, python(given), sample)
                except (ValueError, RuntimeError):  # options that contradict each other, or leave no token
                    continue
                tokens = out.sequences[0, len(ids):].tolist()
                if sample:
                    logprobs = out.scores[0][0].float().log_softmax(-1).tolist()
                    calls.append({"inputIds": ids, "options": given | {"doSample": True}, "logprobs": logprobs})
                    continue
                if any(scores.isnan().any() for scores in out.scores):  # an overflowing penalty, normalised: argmax takes the first NaN
                    continue
                lead = min(((t := scores[0].topk(2).values)[0] - t[1]).item() / logits[0].std().item() for scores, logits in zip(out.scores, out.logits))
                if not lead >= LEAD:
                    continue
                calls.append({"inputIds": ids, "options": given, "greedy": tokens})
            models.append({"name": name, "generationConfig": settings, "calls": calls})
        print(f"generation: {base}", flush=True)
    write_json(root / "runs.json", {"seed": seed, "models": models})


def filters(root: Path, seed: int, count: int = 60) -> None:
    """The warpers on scores shaped like a language model's: a few likely tokens, a long tail, sometimes ties and minus infinities."""
    r, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    folder = root / next(iter(sorted(p.name for p in root.iterdir() if p.is_dir())))
    model = AutoModelForCausalLM.from_pretrained(folder)
    cases, tensors = [], {}
    for i in range(count):
        scores = torch.randn(VOCABULARY, generator=generator) * r.choice((1.5, 2.5, 4.0)) - 4
        scores[torch.randint(0, VOCABULARY, (20,), generator=generator)] += torch.rand(20, generator=generator) * 18
        ties = r.random() < 0.3
        if ties:
            scores = (scores * 8).round() / 8
        if r.random() < 0.2:
            scores[torch.rand(VOCABULARY, generator=generator) < 0.3] = -math.inf
        ids = torch.randint(3, VOCABULARY, (40,), generator=generator).tolist()
        given = sampling_options(r)
        while not given:
            given = sampling_options(r)
        if r.random() < 0.3:
            given["repetitionPenalty"] = round(r.uniform(0.8, 1.5), 2)
        if r.random() < 0.2:
            given["renormalizeLogits"] = True
        config = GenerationConfig(do_sample=True, **({"top_k": 0} | python(given)))
        model._prepare_special_tokens(config, kwargs_has_attention_mask=True, device="cpu")
        processors = model._get_logits_processor(config, input_ids_seq_length=40, encoder_input_ids=torch.tensor([ids]), device="cpu")
        tensors[f"{i}.scores"] = scores
        tensors[f"{i}.expected"] = processors(torch.tensor([ids]), scores[None].clone())[0].float().contiguous()
        cases.append({"options": given, "ids": ids, "ties": ties})
    write_json(root / "filters.json", {"cases": cases})
    save_file(tensors, root / "filters.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixtures", type=Path, default=Path(__file__).parent.parent / "fixtures")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    args.out.mkdir(parents=True, exist_ok=True)
    runs(args.out, args.fixtures, args.seed)
    filters(args.out, args.seed)


if __name__ == "__main__":
    main()
