"""Trains the second default model: Chinese characters to pinyin with tones, an encoder-decoder of the `transformer` architecture.

    python train.py                train, or with --resume go on from the checkpoint in --work; then write the model folder
    python train.py --export       write the model folder from the checkpoint as it is
    python train.py --evaluate     accuracy and alignment of the model folder on the held-out phrases

The phrases are fetched once with `npm pack @pinyin-pro/data@1.3.1`. About one in 25 is held out, by a hash of its characters.
The model is the reference Transformer of wasm-tests/python. Needs torch, safetensors, tokenizers and npm; made for one CPU core.
"""

import argparse
import collections
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "wasm-tests" / "python"))
from transformer_reference import Transformer  # noqa: E402

PACKAGE = "@pinyin-pro/data@1.3.1"
SEED = 1958  # also keys the hash of the held-out split
HELD_OUT_ONE_IN = 25
POLYPHONES = "行长重了得还都乐"
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]  # ids 0 to 3 of both vocabularies
SYMBOLS = [chr(c) for c in range(33, 127)] + list("，。！？、；：“”‘’（）《》〈〉【】「」『』…—·～￥％")  # each stands for itself in the target
CHINESE_STOPS = "，。！？、；："

CONFIG = {
    "model_type": "transformer", "is_encoder_decoder": True, "d_model": 128, "encoder_layers": 3,
    "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512,
    "activation_function": "relu", "dropout": 0.05, "scale_embedding": True, "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": False, "position_embedding_type": "sinusoidal", "normalize_before": True, "layer_norm_eps": 1e-05,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}

STEPS = 9_600
# The learning rates' factor, linear between these steps.
RATES = [(-1, 0.0), (199, 1.0), (1000, 1.0), (7000, 0.4), (STEPS, 0.0)]
# From which step on how many phrases of each kind make a step: in passes over all of them, over those with a character of several
# readings, over those with one of the eight polyphones; and drawn by frequency.
MIXTURES = [(0, {"all": 600}, 200), (1000, {"all": 400, "unsure": 240}, 160), (4000, {"all": 360, "unsure": 240, "polyphones": 80}, 120)]
SURE = 0.95  # a character has several readings where none makes up this share
FREQUENCY_POWER = 0.75
# Phrases in a source, and how often: the long ones teach the positions of whole sentences.
JOINED = {1: 0.35, 2: 0.2, 3: 0.15, 4: 0.15, 8: 0.1, 16: 0.05}
MAX_LENGTH = 64
MATRIX_LR, OTHER_LR, MATRIX_DECAY = 0.01, 0.002, 0.1
ALIGNMENT = 0.2  # weight of the loss on the mean cross-attention of the last decoder layer (Garg et al. 2019)
UNKNOWN = 0.005  # share of characters replaced by <unk>


def package(work: Path) -> Path:
    """The folder of the package's JSON files, fetched into `work` if it is not there yet."""
    root = work / "package" / "json"
    if not root.exists():
        work.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=work, check=True, capture_output=True, text=True)
        with tarfile.open(work / done.stdout.split()[-1]) as archive:
            archive.extractall(work, filter="data")
    return root


def is_held_out(phrase: str) -> bool:
    digest = hashlib.sha256(f"{SEED}:{phrase}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


class Corpus:
    """`train` and `held`: {phrase: (syllables, frequency)}; `source`, `target`: the vocabularies, {token: id}.

    Single characters are all trained on. Characters that occur in no phrase and not in the package's modern dictionary are left out.
    """

    def __init__(self, work: Path):
        root = package(work)
        read = lambda name: json.loads((root / name).read_text(encoding="utf-8"))
        modern = read("modern.json")
        entries = {k: (reading.split(), rate) for k, (reading, rate) in (modern | read("complete.json")).items()}
        characters = {c for k in entries if len(k) > 1 for c in k} | {k for k in modern if len(k) == 1}
        entries = {k: v for k, v in sorted(entries.items()) if characters.issuperset(k)}
        self.held = {k: v for k, v in entries.items() if len(k) > 1 and is_held_out(k)}
        self.train = {k: v for k, v in entries.items() if k not in self.held}
        syllables = sorted({s for reading, _ in self.train.values() for s in reading} - set(SYMBOLS))
        self.source = {t: i for i, t in enumerate([*SPECIALS, *SYMBOLS, *sorted(characters)])}
        self.target = {t: i for i, t in enumerate([*SPECIALS, *SYMBOLS, *syllables])}

    def config(self) -> dict:
        return CONFIG | {"vocab_size": len(self.target), "encoder_vocab_size": len(self.source), "max_position_embeddings": MAX_LENGTH,
                         "dtype": "float16"}


class Batches:
    """The sources and targets of step n are a function of n alone."""

    def __init__(self, corpus: Corpus):
        self.pairs = [([corpus.source[c] for c in k], [corpus.target[s] for s in v[0]]) for k, v in corpus.train.items()]
        self.stops = [(corpus.source[c], corpus.target[c]) for c in CHINESE_STOPS]
        self.symbols = [(corpus.source[c], corpus.target[c]) for c in SYMBOLS]
        # A lone 得 or 地 in running text is the particle de, which the package's reading of the character is not.
        rates = [0 if k in "得地" else v[1] ** FREQUENCY_POWER for k, v in corpus.train.items()]
        self.cumulative, total = [], 0.0
        for rate in rates:
            total += rate
            self.cumulative.append(total)
        counts = collections.defaultdict(collections.Counter)
        for phrase, (reading, _) in corpus.train.items():
            for character, syllable in zip(phrase, reading):
                counts[character][syllable] += 1
        unsure = {c for c, n in counts.items() if max(n.values()) < SURE * n.total()}
        holding = lambda characters: [i for i, k in enumerate(corpus.train) if len(k) > 1 and characters.intersection(k)]
        self.passes = {"all": range(len(self.pairs)), "unsure": holding(unsure), "polyphones": holding(set(POLYPHONES))}
        self.shuffled = {}

    def in_order(self, name: str, position: int) -> int:
        """The phrase at a position of the endless run of passes, each shuffled anew."""
        phrases = self.passes[name]
        epoch, place = divmod(position, len(phrases))
        if self.shuffled.get(name, (None,))[0] != epoch:
            order = list(phrases)
            random.Random(f"{SEED}/{epoch}" if name == "all" else f"{SEED}/{name}/{epoch}").shuffle(order)
            self.shuffled[name] = epoch, order
        return self.shuffled[name][1][place]

    def step(self, n: int) -> list[tuple[list[int], list[int]]]:
        draw = random.Random(f"{SEED}:{n}")
        seen = collections.Counter()  # before this step
        ends = [start for start, *_ in MIXTURES[1:]] + [math.inf]
        for (start, share, frequent), end in zip(MIXTURES, ends):
            for kind, count in share.items():
                seen[kind] += (min(n, end) - start) * count
            if n < end:
                break
        chosen = [self.in_order(kind, seen[kind] + i) for kind, count in share.items() for i in range(count)]
        chosen += draw.choices(range(len(self.pairs)), cum_weights=self.cumulative, k=frequent)
        draw.shuffle(chosen)
        sequences = []
        while chosen:
            source, target = [], []
            for _ in range(draw.choices(list(JOINED), weights=JOINED.values())[0]):
                if not chosen or len(source) + len(self.pairs[chosen[-1]][0]) > MAX_LENGTH - 2:
                    break
                s, t = self.pairs[chosen.pop()]
                source, target = source + s, target + t
                what = draw.random()
                extra = []
                if what < 0.12:
                    extra = [draw.choice(self.stops)]
                elif what < 0.18:
                    extra = draw.choices(self.symbols, k=min(draw.randint(1, 4), MAX_LENGTH - 1 - len(source)))
                source, target = source + [a for a, _ in extra], target + [b for _, b in extra]
            for i in range(len(source)):
                if draw.random() < UNKNOWN:
                    source[i] = target[i] = 3
            sequences.append((source, target))
        return sequences


def pad(sequences) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source ids with </s>, decoder input with <s>, labels with </s>, each (B, T); 0 is padding."""
    width = max(len(s) for s, _ in sequences) + 1
    rows = lambda ids: torch.tensor([r + [0] * (width - len(r)) for r in ids])
    return rows([s + [2] for s, _ in sequences]), rows([[1] + t for _, t in sequences]), rows([t + [2] for _, t in sequences])


def split(sequences, parts: int):
    """By length, into parts of about equally many tokens, so that little is padding."""
    sequences = sorted(sequences, key=lambda s: len(s[0]))
    total = sum(len(s) + 1 for s, _ in sequences)
    result, seen = [[] for _ in range(parts)], 0
    for s in sequences:
        result[min(parts - 1, seen * parts // total)].append(s)
        seen += len(s[0]) + 1
    return [r for r in result if r]


def rate_at(step: int) -> float:
    (a, low), (b, high) = next((p, q) for p, q in zip(RATES, RATES[1:]) if step < q[0])
    return low + (high - low) * (step - a) / (b - a)


def train(args) -> None:
    torch.manual_seed(SEED)
    corpus = Corpus(args.work)
    batches = Batches(corpus)
    model = Transformer(corpus.config())
    for name, p in model.named_parameters():
        if "embed_tokens" in name:
            torch.nn.init.normal_(p, std=CONFIG["d_model"] ** -0.5)
        elif p.ndim == 2:
            torch.nn.init.xavier_uniform_(p)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(p)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=MATRIX_LR, weight_decay=MATRIX_DECAY, momentum=0.95, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=OTHER_LR, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    base = [MATRIX_LR, OTHER_LR]
    first, checkpoint = 0, args.work / "checkpoint.pt"
    if args.resume:
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        first = state["step"]
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(corpus.train)} phrases to train on, {len(corpus.held)} held out, "
          f"{len(corpus.source)} source and {len(corpus.target)} target tokens", flush=True)

    began, running = time.monotonic(), torch.zeros(3)
    for step in range(first, STEPS):
        rate = rate_at(step)
        for optimizer, lr in zip(optimizers, base):
            for group in optimizer.param_groups:
                group["lr"] = lr * rate
        sequences = batches.step(step)
        tokens = sum(len(s) + 1 for s, _ in sequences)
        for part in split(sequences, 4):
            source, fed, labels = pad(part)
            visible = source != 0
            memory = model.encode(source, visible)[0][-1]
            logits, _, _, cross = model.decode(fed, memory, visible)
            real = labels != 0
            loss = cross_entropy(logits[real], labels[real], reduction="sum") / tokens
            # Token t of the target belongs to character t of the source, and the end to the end.
            own = cross[-1].mean(1).diagonal(dim1=1, dim2=2)[real]
            alignment = -(own + 1e-9).log().sum() / tokens
            (loss + ALIGNMENT * alignment).backward()
            running += torch.tensor([loss.item(), alignment.item(), (logits[real].argmax(-1) == labels[real]).sum().item() / tokens])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if done % 100 == 0:
            loss, alignment, right = (running / min(100, done - first)).tolist()
            running.zero_()
            print(f"step {done} loss {loss:.4f} alignment {alignment:.4f} right {right:.4f}, {(time.monotonic() - began) / (done - first) * 1e3:.0f} ms/step", flush=True)
        if done % 500 == 0 or done == STEPS:
            state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "rng": torch.get_rng_state(), "step": done}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
        if done % 1000 == 0 or done == STEPS:
            print(f"step {done} held out: {report(measure(model, corpus, readings(corpus.held)))}", flush=True)


def readings(entries: dict) -> dict[str, list[str]]:
    return {phrase: reading for phrase, (reading, _) in entries.items()}


@torch.no_grad()
def measure(model: Transformer, corpus: Corpus, expected: dict[str, list[str]]) -> collections.Counter:
    """Greedy decoding of each text, and what of it is as expected; a syllable that is not there is wrong and not aligned."""
    model.eval()
    counts, missed = collections.Counter(), collections.Counter()
    phrases = sorted(expected, key=len)
    names = list(corpus.target)
    for begin in range(0, len(phrases), 500):
        chunk = phrases[begin : begin + 500]
        source = pad([([corpus.source.get(c, 3) for c in p], []) for p in chunk])[0]
        visible = source != 0
        memory = model.encode(source, visible)[0][-1]
        fed, ended = torch.ones(len(chunk), 1, dtype=torch.long), torch.zeros(len(chunk), dtype=torch.bool)
        while not ended.all() and fed.shape[1] < source.shape[1] + 3:
            logits, _, _, cross = model.decode(fed, memory, visible)
            following = logits[:, -1].argmax(-1)
            fed = torch.cat([fed, following[:, None]], 1)
            ended |= following == 2
        links = model.decode(fed, memory, visible)[3][-1].mean(1).argmax(-1)  # (B, T): the character each syllable looks at
        for phrase, row, link in zip(chunk, fed[:, 1:].tolist(), links.tolist()):
            row = row[: row.index(2)] if 2 in row else row
            counts["phrases"] += 1
            counts["whole"] += [names[i] for i in row] == expected[phrase]
            for i, (character, reading) in enumerate(zip(phrase, expected[phrase])):
                right = i < len(row) and names[row[i]] == reading
                counts["syllables"] += 1
                counts["right"] += right
                counts["aligned"] += i < len(row) and link[i] == i
                if character in POLYPHONES:
                    counts["polyphones"] += 1
                    counts["polyphones right"] += right
                    counts[character] += 1
                    counts[character + " right"] += right
                if not right:
                    missed[character] += 1
    model.train()
    counts["missed"] = missed
    return counts


def report(c: collections.Counter) -> str:
    each = " ".join(f"{p} {c[p + ' right']}/{c[p]}" for p in POLYPHONES)
    return (f"{c['phrases']} phrases, {100 * c['whole'] / c['phrases']:.2f} % whole; {c['syllables']} syllables, {100 * c['right'] / c['syllables']:.2f} % right, "
            f"{100 * c['aligned'] / c['syllables']:.2f} % aligned; polyphones {c['polyphones right']}/{c['polyphones']} = "
            f"{100 * c['polyphones right'] / max(1, c['polyphones']):.2f} % ({each})")


def added_tokens(special: list[str]) -> list[dict]:
    return [{"id": SPECIALS.index(t), "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for t in special]


def tokenizer_json(vocab: dict[str, int], side: str) -> dict:
    """One token a character on the source's side, and </s> after them; one token a word on the target's, a space between words.

    White space is no token. A character outside the vocabulary is <unk>, which in the target is a word like the others: decoding shows it.
    """
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
    base = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None}
    words = {"type": "WhitespaceSplit"}
    if side == "target":
        return base | {"added_tokens": added_tokens(SPECIALS[:3]), "pre_tokenizer": words, "post_processor": None, "decoder": None,
                       "model": model}
    characters = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}, end],
                "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}
    return base | {"added_tokens": added_tokens(SPECIALS), "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, characters]},
                   "post_processor": template, "decoder": {"type": "Fuse"}, "model": model}


def export(args) -> None:
    """Writes the files of the model folder: configurations, tokenizers, weights (F16)."""
    corpus = Corpus(args.work)
    state = torch.load(args.work / "checkpoint.pt")
    save_file({k: v.half().contiguous() for k, v in state["model"].items()}, args.folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
                 "model_max_length": MAX_LENGTH, "clean_up_tokenization_spaces": False}
    generation = {k: v for k, v in CONFIG.items() if k.endswith("token_id")} | {"do_sample": False, "max_new_tokens": MAX_LENGTH}
    for name, value in (("config", corpus.config()), ("generation_config", generation), ("tokenizer_config", tokenizer)):
        (args.folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    for name, side in (("tokenizer", "source"), ("target_tokenizer", "target")):
        text = json.dumps(tokenizer_json(getattr(corpus, side), side), ensure_ascii=False, indent=1)
        (args.folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"written: the weights of step {state['step']}")
    evaluate(args)


def evaluate(args) -> None:
    corpus = Corpus(args.work)
    model = Transformer(json.loads((args.folder / "config.json").read_text()))
    model.load_state_dict({k: v.float() for k, v in load_file(args.folder / "model.safetensors").items()})
    source, target = (Tokenizer.from_file(str(args.folder / name)) for name in ("tokenizer.json", "target_tokenizer.json"))
    held = readings(corpus.held)
    for phrase, syllables in held.items():
        ids = [corpus.target[s] for s in syllables]
        assert source.encode(phrase).ids == [corpus.source[c] for c in phrase] + [2] and target.decode(ids) == " ".join(syllables), phrase
    print(f"held out: {report(measure(model, corpus, held))}")
    text = "\n".join(corpus.train)
    print(f"of these, inside no training phrase: {report(measure(model, corpus, {k: v for k, v in held.items() if k not in text}))}")
    lines = [line.split("\t") for line in (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()]
    print(f"sentences: {report(measure(model, corpus, {text: reading.split() for text, reading in lines}))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=HERE / ".work", help="package and checkpoint")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the model is written")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.evaluate:
        return evaluate(args)
    if not args.export:
        train(args)
    export(args)


if __name__ == "__main__":
    main()
