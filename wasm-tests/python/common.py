"""What the fixture generators share: seeded tensors, files as they are published, and JSON that diffs well."""

import json
import math
import re
from pathlib import Path

import torch
from safetensors.torch import save_file

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_json(path: Path, value) -> None:
    """Indented JSON, with arrays of numbers on one line; infinities become null."""
    def clean(v):
        if isinstance(v, float) and not math.isfinite(v):
            return None
        if isinstance(v, dict):
            return {k: clean(x) for k, x in v.items()}
        if isinstance(v, (list, tuple)):
            return [clean(x) for x in v]
        return v

    text = json.dumps(clean(value), indent=1, ensure_ascii=False, allow_nan=False)
    number = r"(?:-?[\d.]+(?:[eE][-+]?\d+)?|null|true|false)"
    text = re.sub(rf"\[\s*({number}(?:,\s*{number})*)\s*\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    path.write_text(text + "\n", encoding="utf-8")


def random_weight(name: str, shape: torch.Size, generator: torch.Generator, gemma: bool, conv1d: bool, gain: float) -> torch.Tensor:
    """Weights spread so widely that a random model's greedy text wanders instead of repeating one token."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        is_scale = name.endswith("weight")
        return 0.2 * noise + (1.0 if is_scale and not gemma else 0.0)
    if re.search(r"embed|wte|wpe|shared", name):
        return (0.08 if gemma else 0.5) * noise  # Gemma multiplies its embedding by sqrt(D)
    fan_in = shape[0] if conv1d else shape[1]
    return gain * noise / math.sqrt(fan_in)


def write_checkpoint(folder: Path, tensors: dict[str, torch.Tensor], layout: str) -> None:
    """`layout`: 'single' or 'sharded' safetensors, or 'bin' (pytorch_model.bin, a zip of pickle and storages)."""
    if layout == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
        return
    tensors = {k: v.clone().contiguous() for k, v in tensors.items()}
    if layout == "single":
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    shards, count = {}, 3
    for i, name in enumerate(names):
        shards.setdefault(min(i * count // len(names), count - 1), []).append(name)
    weight_map = {}
    for i, members in shards.items():
        file = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
        save_file({n: tensors[n] for n in members}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(members, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
