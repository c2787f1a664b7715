"""beams.json beside some of the decoder-only models: beam search after prompts, and after prompts padded on the left."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import beams
from common import write_json
from encoder_decoder import require, until_good

MODELS = ("gpt2", "llama-gqa", "mistral-full", "qwen2", "qwen3", "gemma", "gpt_neox", "opt", "bloom")


def generate(root: Path, seed: int, only: set[str]) -> None:
    for name in MODELS:
        if only and name not in only:
            continue
        model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(seed + 1)
        pick = lambda n: torch.randint(4, 90, (n,), generator=generator).tolist()

        def with_ends(prompt: list[int], options: dict, *places: int) -> dict:
            """End tokens that the prompt's greedy text holds, so that beams end."""
            text = beams.generate(model, [prompt], {"maxNewTokens": 24, "minNewTokens": 24, "doSample": False})[0][0][0]["tokenIds"]
            ends = sorted({text[p] for p in places})
            greedy = {"doSample": False} if model.generation_config.do_sample else {}
            return options | greedy | {"eosTokenId": ends if len(places) > 1 else ends[0], "padTokenId": 0}

        def ask(length: int, options: dict, *places: int) -> dict:
            prompt = pick(length)
            options = with_ends(prompt, options, *places)
            (found,), margin = beams.generate(model, [prompt], options)
            require(margin > beams.MARGIN, "margin")
            require(options.get("earlyStopping") is not True or any(s["finishReason"] == "stop" for s in found), "none ends")
            return {"inputIds": prompt, "options": options, "sequences": found}

        def batch() -> dict:
            a, b = pick(8), pick(5)
            options = with_ends(a, beams.SHORT, 7)
            ids, mask = [a, [0] * 3 + b], [[1] * 8, [0] * 3 + [1] * 5]
            results, margin = beams.generate(model, ids, options, masks=mask)
            alone = [beams.generate(model, [row], options) for row in (a, b)]
            require(min(margin, *(m for _, m in alone)) > beams.MARGIN, "margin")
            same = [all(x["tokenIds"] == y["tokenIds"] and abs(x["score"] - y["score"]) < 1e-5 for x, y in zip(one[0], row))
                    for (one, _), row in zip(alone, results)]
            return {"name": "left", "inputIds": ids, "attentionMask": mask, "options": options, "results": results,
                    "equalsAlone": same}

        runs = [until_good(lambda: ask(length, options, *places), f"{name}, beams") for length, options, *places in (
            (8, beams.PLAIN, 9), (1, beams.SHORT, 6, 9), (21, beams.SHORT, 4), (12, beams.LONG | {"minLength": 15}, 5))]
        write_json(root / name / "beams.json", {"seed": seed, "runs": runs, "batches": [until_good(batch, f"{name}, batch")]})
        print(f"{name}: beams of {[[len(s['tokenIds']) for s in r['sequences']] for r in runs]}", flush=True)
