"""What PyTorch makes of models that wasmformer has trained, and models that it trains from there. For wasm-tests/proof/training-pytorch.test.mjs.

    python trained_models.py gpt FOLDER      FOLDER/initial trained on FOLDER/data.json as that says; losses into FOLDER/answer.json
    python trained_models.py both FOLDER     of each FOLDER/NAME/model the logits, then a few steps of AdamW: saved in FOLDER/NAME/back,
                                             with its logits too
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, get_cosine_schedule_with_warmup

from common import write_json
from transformer_reference import Transformer


def optimizer_of(model: torch.nn.Module, rate: float, decay: float) -> torch.optim.AdamW:
    # Norms and biases are not decayed, as in transformers' Trainer.
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == decayed], "weight_decay": decay * decayed} for decayed in (True, False)]
    return torch.optim.AdamW(groups, lr=rate)


def gpt(folder: Path) -> None:
    data = json.loads((folder / "data.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder / "initial", dtype=torch.float32, attn_implementation="eager").eval()
    optimizer = optimizer_of(model, data["learningRate"], data["weightDecay"])
    scheduler = get_cosine_schedule_with_warmup(optimizer, data["warmup"], len(data["batches"]))
    losses = []
    loss_of = lambda ids: cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    for batch in data["batches"]:
        loss = loss_of(torch.tensor(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), data["maxGradNorm"])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        held = loss_of(torch.tensor(data["held"])).item()
    write_json(folder / "answer.json", {"losses": losses, "held": held})


class Model:
    """One way to load, to save and to ask for all four architectures."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        kind = self.config["model_type"]
        if kind == "transformer":
            self.module = Transformer(self.config)
            self.module.load_state_dict(load_file(folder / "model.safetensors"))
        else:
            load = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
            self.module, info = load.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
        self.module.eval()

    def logits(self, entry: dict) -> torch.Tensor:
        ids = torch.tensor(entry["inputIds"])
        if self.config["model_type"] == "transformer":
            return self.module.decode(torch.tensor(entry["decoderInputIds"]), self.module.encode(ids)[0][-1])[0]
        return self.module(input_ids=ids[None]).logits[0]

    def train(self, entries: list[dict]) -> None:
        optimizer = optimizer_of(self.module, 1e-3, 0.01)
        causal = self.config["model_type"] in ("gpt2", "llama")
        for _ in range(3):
            for entry in entries:
                logits, labels = self.logits(entry), torch.tensor(entry["labels"])
                (cross_entropy(logits[:-1], labels[1:]) if causal else cross_entropy(logits, labels)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        if self.config["model_type"] == "transformer":
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(self.config))
            save_file({name: tensor.contiguous() for name, tensor in self.module.state_dict().items()}, folder / "model.safetensors")
        else:
            self.module.save_pretrained(folder)


def both(root: Path) -> None:
    for folder in sorted(path for path in root.iterdir() if (path / "model").is_dir()):
        entries = json.loads((folder / "entries.json").read_text())
        model = Model(folder / "model")
        answer = {}
        for name in ("model", "back"):
            with torch.no_grad():
                answer |= {f"{name}.{i}": model.logits(entry).contiguous() for i, entry in enumerate(entries)}
            if name == "model":
                model.train(entries)
                model.save(folder / "back")
        save_file(answer, folder / "logits.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)  # Small matrices: a second thread only waits.
    {"gpt": gpt, "both": both}[sys.argv[1]](Path(sys.argv[2]))
