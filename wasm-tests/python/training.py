"""Five steps of torch.optim.AdamW in double, with a warmed-up cosine schedule and clipping, from weights of fixtures: losses and weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, get_cosine_schedule_with_warmup

from common import write_json
from transformer_reference import Transformer

STEPS, WARMUP = 5, 2
# A bias of keys has no gradient but rounding errors, which Adam would blow up: epsilon is far above those.
OPTIONS = {"learningRate": 2e-3, "schedule": "cosine", "warmup": WARMUP, "steps": STEPS, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-5,
           "weightDecay": 0.1, "maxGradNorm": 0.5, "dropout": 0}


def train(model: torch.nn.Module, loss_of, batches: list) -> dict:
    named = list(model.named_parameters())
    # Norms and biases are not decayed, as in transformers' Trainer.
    groups = [{"params": [p for _, p in named if (p.dim() > 1) == decayed], "weight_decay": OPTIONS["weightDecay"] * decayed}
              for decayed in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=OPTIONS["learningRate"], betas=(OPTIONS["beta1"], OPTIONS["beta2"]), eps=OPTIONS["epsilon"])
    scheduler = get_cosine_schedule_with_warmup(optimizer, WARMUP, STEPS)
    steps = []
    for batch in batches:
        rate = scheduler.get_last_lr()[0]
        total, labels = 0, 0
        for one in batch:
            logits, wanted = loss_of(model, one)
            total += cross_entropy(logits, wanted, ignore_index=-100, reduction="sum")
            labels += int((wanted != -100).sum())
        loss = total / labels
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS["maxGradNorm"])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        steps.append({"loss": loss.item(), "gradientNorm": norm.item(), "learningRate": rate})
    return {"steps": steps, "weights": {name: p.detach().float().contiguous() for name, p in named}}


def causal(model, one):
    ids = torch.tensor(one["inputIds"])
    return model(input_ids=ids[None]).logits[0, :-1], ids[1:]


def masked(model, one):
    return model(input_ids=torch.tensor([one["inputIds"]])).logits[0], torch.tensor(one["labels"])


def translated(model, one):
    memory = model.encode(torch.tensor(one["inputIds"]))[0][-1]
    fed = torch.tensor([1, *one["labels"][:-1]])
    return model.decode(fed, memory)[0], torch.tensor(one["labels"])


def generate(root: Path, seed: int) -> None:
    folder = root / "training"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    draw = lambda least, most, n: torch.randint(least, most, (n,), generator=generator).tolist()

    def guesses(n):
        ids = draw(4, 95, n)
        chosen = torch.randperm(n, generator=generator)[: max(2, n // 4)].tolist()
        return {"inputIds": [3 if t in chosen else ids[t] for t in range(n)], "labels": [ids[t] if t in chosen else -100 for t in range(n)]}

    texts = lambda n: {"inputIds": draw(4, 95, n)}
    pairs = lambda n: {"inputIds": draw(3, 40, n), "labels": [*draw(3, 40, 11 - n), 2]}
    # Sequences of a batch add up to 24 tokens (of pairs, each has 12 on both sides together), so that batches are told by their size.
    runs = {
        "gpt2-minimal": (lambda: AutoModelForCausalLM.from_pretrained(root / "gpt2-minimal", dtype=torch.float32, attn_implementation="eager"), causal, texts),
        "llama-gqa": (lambda: AutoModelForCausalLM.from_pretrained(root / "llama-gqa", dtype=torch.float32, attn_implementation="eager"), causal, texts),
        "bert-masked-lm": (lambda: AutoModelForMaskedLM.from_pretrained(root / "bert-masked-lm", dtype=torch.float32, attn_implementation="eager"), masked, guesses),
        "transformer": (lambda: reference(root / "transformer"), translated, pairs),
    }
    answers = {}
    for name, (load, loss_of, entry) in runs.items():
        lengths = [(5, 7), (4, 8), (9, 2), (6, 6), (3, 10)] if name == "transformer" else [(9, 15), (13, 11), (5, 19), (12, 12), (20, 4)]
        batches = [[entry(n) for n in pair] for pair in lengths]
        found = train(load().eval().double(), loss_of, batches)
        save_file(found["weights"], folder / f"{name}.safetensors")
        answers[name] = {"batches": batches, "steps": found["steps"]}
        print(f"training {name}:", [round(step["loss"], 4) for step in found["steps"]], [round(step["gradientNorm"], 2) for step in found["steps"]])
    write_json(folder / "expected.json", {"options": OPTIONS, **answers})


def reference(folder: Path) -> Transformer:
    model = Transformer(json.loads((folder / "config.json").read_text()))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=False)
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    generate(Path(__file__).resolve().parent.parent / "fixtures", 2017)
