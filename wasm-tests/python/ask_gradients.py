"""Asks PyTorch for losses and gradients, in double: the mean cross-entropy of a batch of sequences, each by itself.

    python ask_gradients.py FOLDER

FOLDER has batches.json: by name a model's `folder`, its `kind` ("causal", "seq2seq", "masked"), `inputIds`, `labels` and, of
"seq2seq", `decoderInputIds`. It gets losses.json and, for each name, NAME.safetensors with the gradient of every parameter.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from common import write_json

KINDS = {"causal": AutoModelForCausalLM, "seq2seq": AutoModelForSeq2SeqLM, "masked": AutoModelForMaskedLM}


def main() -> None:
    root, losses = Path(sys.argv[1]), {}
    for name, batch in json.loads((root / "batches.json").read_text()).items():
        model = KINDS[batch["kind"]].from_pretrained(batch["folder"], dtype=torch.float64, attn_implementation="eager").eval()
        total, count = 0, 0
        for i, ids in enumerate(batch["inputIds"]):
            more = {"decoder_input_ids": torch.tensor([batch["decoderInputIds"][i]])} if batch["kind"] == "seq2seq" else {}
            logits, labels = model(input_ids=torch.tensor([ids]), **more).logits[0], torch.tensor(batch["labels"][i])
            if batch["kind"] == "causal":
                logits, labels = logits[:-1], labels[1:]
            total, count = total + cross_entropy(logits, labels, reduction="sum"), count + len(labels)
        loss = total / count
        loss.backward()
        losses[name] = loss.item()
        # Sines and cosines are parameters there, frozen until a checkpoint is loaded. GPT-NeoX's head has another name in its files.
        fixed = {f"{path}.weight" for path, module in model.named_modules() if "Sinusoidal" in type(module).__name__}
        head = "embed_out.weight" if name.startswith("gpt_neox") else "lm_head.weight"
        given = {head if key == "lm_head.weight" else key: p.grad for key, p in model.named_parameters() if key not in fixed}
        save_file({key: grad.float().contiguous() for key, grad in given.items() if grad is not None}, root / f"{name}.safetensors")
    write_json(root / "losses.json", losses)


if __name__ == "__main__":
    main()
