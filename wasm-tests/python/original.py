"""Fixtures of the original encoder-decoder Transformer, of gradients, and of scores."""

import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from common import random_weight, write_checkpoint, write_json
from transformer_reference import Transformer

CONFIG = {
    "model_type": "transformer", "is_encoder_decoder": True, "vocab_size": 40, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "activation_function": "relu",
    "dropout": 0.0, "layer_norm_eps": 1e-05, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "tie_word_embeddings": True, "torch_dtype": "float32",
}
NEW_TOKENS = 24


@torch.no_grad()
def greedy(model: Transformer, source: torch.Tensor) -> tuple[list[int], float]:
    """Generated tokens with the final end token, without the start token; smallest lead of the best logit, in standard deviations."""
    memory = model.encode(source)[0][-1]
    ids, lead = [CONFIG["decoder_start_token_id"]], math.inf
    while len(ids) <= NEW_TOKENS and (len(ids) == 1 or ids[-1] != CONFIG["eos_token_id"]):
        last = model.decode(torch.tensor(ids), memory)[0][-1]
        best = last.topk(2)
        lead = min(lead, ((best.values[0] - best.values[1]) / last.std()).item())
        ids.append(best.indices[0].item())
    return ids[1:], lead


def taught(seed: int) -> Transformer:
    """A model that has begun to learn to go on from the source's last token by a fixed rule: random weights alone repeat one token."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(CONFIG)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(random_weight(name, p.shape, generator, gemma=False, conv1d=False, gain=1.0))
        model.shared.weight.mul_(2 / math.sqrt(CONFIG["d_model"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(250):
        for _ in range(4):
            source = torch.randint(3, 40, (int(torch.randint(1, 13, (), generator=generator)),), generator=generator)
            target = [int(source[-1])]
            while len(target) < len(source) + 6:
                target.append(3 + (7 * target[-1] + 5) % 37)
            target = torch.tensor([*target, 2])
            fed = torch.cat([torch.tensor([1]), target[:-1]])
            cross_entropy(model.decode(fed, model.encode(source)[0][-1])[0], target).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def transformer(root: Path, seed: int) -> None:
    folder = root / "transformer"
    for attempt in range(20):
        model = taught(seed + 1000 * attempt)
        generator = torch.Generator().manual_seed(seed + 1000 * attempt + 1)
        draw = lambda n: torch.randint(3, 40, (n,), generator=generator)
        sources = [draw(7), draw(1), draw(12)]
        targets = [torch.cat([draw(n), torch.tensor([2])]) for n in (5, 9, 1)]
        decoded = [greedy(model, s) for s in sources]
        lengths = [len(ids) for ids, _ in decoded]
        if min(lead for _, lead in decoded) > 2e-3 and all(len(set(decoded[i][0])) >= 6 for i in (0, 2)) and 2 in decoded[0][0] and decoded[0][0][0] != decoded[2][0][0]:
            break
    else:
        raise RuntimeError("[transformer] no seed gives varied greedy text")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", CONFIG)
    write_checkpoint(folder, {k: v.detach() for k, v in model.state_dict().items()}, "single")
    tensors, cases, losses, count = {}, [], 0.0, 0
    for i, (source, target) in enumerate(zip(sources, targets)):
        fed = torch.cat([torch.tensor([CONFIG["decoder_start_token_id"]]), target[:-1]])
        encoder_hidden, encoder_attentions = model.encode(source)
        logits, hidden, attentions, cross = model.decode(fed, encoder_hidden[-1])
        losses, count = losses + cross_entropy(logits, target, reduction="sum"), count + len(target)
        tensors[f"case.{i}.logits"] = logits
        for kind, layers in (("encoder_hidden", encoder_hidden), ("encoder_attention", encoder_attentions), ("decoder_hidden", hidden),
                             ("decoder_attention", attentions), ("cross_attention", cross)):
            tensors |= {f"case.{i}.{kind}.{layer}": t for layer, t in enumerate(layers)}
        cases.append({"inputIds": source.tolist(), "decoderInputIds": fed.tolist(), "labels": target.tolist(), "greedy": decoded[i][0],
                      "finishReason": "length" if len(decoded[i][0]) == NEW_TOKENS and decoded[i][0][-1] != 2 else "stop"})
    loss = losses / count
    loss.backward()
    tensors |= {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    write_json(folder / "expected.json", {"maxNewTokens": NEW_TOKENS, "loss": loss.item(), "cases": cases, "seed": seed + 1000 * attempt})
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, folder / "expected.safetensors")
    print(f"transformer: greedy lengths {lengths}, loss {loss.item():.4f}")


def gradients(root: Path, seed: int) -> None:
    """Loss and gradients of some of the fixtures' models on two sequences: mean cross-entropy over all predicted tokens."""
    folder = root / "gradients"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    answers = {}
    for name in ("gpt2-minimal", "llama-gqa"):
        model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(seed)
        batch = [torch.randint(4, 95, (n,), generator=generator) for n in (9, 6)]
        total = sum(cross_entropy(model(input_ids=ids[None]).logits[0, :-1], ids[1:], reduction="sum") for ids in batch)
        loss = total / sum(len(ids) - 1 for ids in batch)
        loss.backward()
        grads = {n: p.grad.contiguous() for n, p in model.named_parameters()}
        save_file(grads, folder / f"{name}.safetensors")
        answers[name] = {"inputIds": [ids.tolist() for ids in batch], "loss": loss.item()}
    for name in ("t5", "flan-t5"):
        model = AutoModelForSeq2SeqLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(seed)
        draw = lambda n: torch.randint(2, 95, (n,), generator=generator)
        # Beyond the distances that have a bucket each, and beyond all of them in the decoder.
        sources, targets = [draw(9), draw(40)], [draw(140), draw(6)]
        fed = [torch.cat([torch.tensor([model.config.decoder_start_token_id]), target[:-1]]) for target in targets]
        total = sum(cross_entropy(model(input_ids=source[None], decoder_input_ids=ids[None]).logits[0], target, reduction="sum")
                    for source, ids, target in zip(sources, fed, targets))
        loss = total / sum(map(len, targets))
        loss.backward()
        save_file({n: p.grad.contiguous() for n, p in model.named_parameters()}, folder / f"{name}.safetensors")
        lists = {"inputIds": sources, "decoderInputIds": fed, "labels": targets}
        answers[name] = {key: [ids.tolist() for ids in rows] for key, rows in lists.items()} | {"loss": loss.item()}
    write_json(folder / "expected.json", answers)
    print("gradients:", {k: round(v["loss"], 4) for k, v in answers.items()})


@torch.no_grad()
def score(root: Path, seed: int) -> None:
    """Log-probability of each token given those before it (null for the first), and perplexity = exp(-mean)."""
    cases = []
    for name in ("gpt2", "llama-gqa", "bloom"):
        model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(seed + 7)
        for length in (2, 33):
            ids = torch.randint(4, 95, (length,), generator=generator)
            logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            cases.append({"model": name, "inputIds": ids.tolist(), "logprobs": [None, *(round(x, 6) for x in logprobs.tolist())],
                          "perplexity": math.exp(-logprobs.mean().item())})
    (root / "score").mkdir(exist_ok=True)
    write_json(root / "score" / "expected.json", {"cases": cases})
    print(f"score: {len(cases)} cases")


def generate(root: Path, seed: int) -> None:
    transformer(root, seed)
    gradients(root, seed)
    score(root, seed)
