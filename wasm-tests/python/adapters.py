"""Adapters of the PEFT library over fixture models: what they make of logits, how AdamW trains them, and which modules are meant.

    python adapters.py ../fixtures

Needs `peft` (0.21) beside requirements.txt. Writes fixtures/adapters/NAME/ (adapter_config.json, adapter_model.safetensors) and
fixtures/adapters/expected.json and trained.safetensors; for the ways to name modules fixtures/adapters/modules/NAME/ and modules.json.
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

CASES = {
    "gpt2-minimal": dict(r=3, lora_alpha=5, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True),
    "llama-gqa": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=True),
}

MODULES = {
    "all-linear": ("gpt2-minimal", dict(target_modules="all-linear", fan_in_fan_out=True)),
    "all-linear-untied": ("llama-bias", dict(target_modules="All-Linear")),
    "all-linear-but": ("bert-masked-lm", dict(target_modules="all-linear", exclude_modules=["intermediate.dense", "key"])),
    "pattern": ("llama-gqa", dict(target_modules=r".*\.(?P<layer>\d+)\.self_attn\.[qv]_proj|model\.layers\.1\.mlp\.(gate|up)_proj")),
    "pattern-but": ("bert-masked-lm", dict(target_modules=r".*\.self\.\w+", exclude_modules=r".*\.0\..*|.*dropout|.*\.key")),
    "layer": ("gpt2-minimal", dict(target_modules=["c_attn", "mlp.c_fc"], layers_to_transform=1, fan_in_fan_out=True)),
    "layers": ("bert-masked-lm", dict(target_modules=["query", "dense"], layers_to_transform=[1, 7], layers_pattern=["none", "layer"])),
}


def adapted(base: torch.nn.Module, config: LoraConfig, folder: Path):
    """The model with an adapter of drawn numbers, which is saved into a folder."""
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    return model.eval()


def modules(fixtures: Path) -> None:
    out = fixtures / "adapters" / "modules"
    answers = {}
    for name, (folder, settings) in MODULES.items():
        torch.manual_seed(7)
        is_bert = folder.startswith("bert")
        kind = AutoModelForMaskedLM if is_bert else AutoModelForCausalLM
        base = kind.from_pretrained(fixtures / folder, dtype=torch.float32, attn_implementation="eager")
        model = adapted(base, LoraConfig(task_type=None if is_bert else "CAUSAL_LM", r=1, lora_alpha=2, **settings), out / name)
        ids = torch.randint(5, base.config.vocab_size, (1, 8))
        logits = model(input_ids=ids).logits[0, -1].tolist()
        answers[name] = {
            "model": folder,
            "settings": settings,
            "modules": sorted(model.base_model.targeted_module_names),
            "inputIds": ids[0].tolist(),
            "logits": logits,
        }
    (fixtures / "adapters" / "modules.json").write_text(json.dumps(answers) + "\n")


def main(fixtures: Path) -> None:
    modules(fixtures)
    out = fixtures / "adapters"
    answers, trained = {}, {}
    for name, settings in CASES.items():
        torch.manual_seed(7)
        base = AutoModelForCausalLM.from_pretrained(fixtures / name, dtype=torch.float32, attn_implementation="eager")
        model = adapted(base, LoraConfig(task_type="CAUSAL_LM", **settings), out / name)
        ids = torch.randint(0, base.config.vocab_size, (1, 12))
        logits = model(input_ids=ids).logits[0, -1].tolist()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=0.01)
        losses = []
        for _ in range(3):
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        answers[name] = {"inputIds": ids[0].tolist(), "logits": logits, "losses": losses}
        for parameter_name, parameter in model.named_parameters():
            if parameter.requires_grad:
                trained[f"{name}/{parameter_name.replace('.default', '')}"] = parameter.detach().contiguous()
    (out / "expected.json").write_text(json.dumps(answers) + "\n")
    save_file(trained, out / "trained.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
