"""Logits of saved models, as transformers (or transformer_reference.py) computes them, as JSON on standard output.

    python ask_trained.py < '[{"folder": ..., "inputIds": [...], "decoderInputIds": [...]}, ...]'
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from transformer_reference import Transformer


@torch.no_grad()
def logits(folder: Path, ids: list[int], decoder_ids: list[int] | None) -> list[list[float]]:
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "transformer":
        model = Transformer(config)
        model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
        return model.decode(torch.tensor(decoder_ids), model.encode(torch.tensor(ids))[0][-1])[0].tolist()
    kind = AutoModelForMaskedLM if config["model_type"] == "bert" else AutoModelForCausalLM
    model, report = kind.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert model.dtype == torch.float32, model.dtype
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[key], (key, report[key])
    return model.eval()(input_ids=torch.tensor([ids])).logits[0].tolist()


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    answers = []
    for one in json.load(sys.stdin):
        folder = Path(one["folder"])
        answer = {"logits": logits(folder, one["inputIds"], one.get("decoderInputIds"))}
        if "text" in one:
            answer["textIds"] = AutoTokenizer.from_pretrained(folder)(one["text"])["input_ids"]
        answers.append(answer)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
