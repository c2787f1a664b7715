"""Scores before and after transformers' own logits processors, for every option alone, at its edges, and combined in generate()'s order."""

import math
import random
import re
import struct

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from common import write_json

V = 32  # fewer than the 50 of top_k's default, so that an absent topK filters nothing
EOS = 2


def snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), name)


def shorten(x: float):
    """The shortest decimal that reads back as the same float32; null for minus infinity, a name for what JSON cannot say."""
    if x == -math.inf:
        return None
    if not math.isfinite(x):
        return "nan" if x != x else "inf"
    as_f32 = lambda y: struct.unpack("f", struct.pack("f", y))[0]
    return next(y for d in range(1, 10) if as_f32(y := float(f"{x:.{d}g}")) == as_f32(x))


def parse(scores: list) -> torch.Tensor:
    return torch.tensor([[-math.inf if s is None else float(s) for s in scores]], dtype=torch.float32)


class Table:
    def __init__(self, seed: int):
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=V, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
        self.random = random.Random(seed)
        self.cases = []

    def scores(self, spread: float = 1.5) -> list[float]:
        """Multiples of 1/256: exact in decimal and in float32."""
        return [round(self.random.gauss(0, spread) * 256) / 256 for _ in range(V)]

    def history(self, length: int) -> list[int]:
        return [self.random.randrange(3, V) for _ in range(length)]

    def add(self, name: str, options: dict, ids: list[int] | None = None, prompt_length: int | None = None, scores: list | None = None) -> None:
        ids = self.history(9) if ids is None else ids
        prompt_length = min(4, len(ids)) if prompt_length is None else prompt_length
        scores = self.scores() if scores is None else scores
        python = {snake(k): v for k, v in options.items()}
        if "min_new_tokens" in python:  # generate() sets one by the other before it makes its processors
            python["min_length"] = prompt_length + python["min_new_tokens"]
        if "sequence_bias" in python:
            python["sequence_bias"] = {tuple(k): v for k, v in python["sequence_bias"]}
        samplers = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")
        config = GenerationConfig(do_sample=any(k in python for k in samplers), **python)
        self.model._prepare_special_tokens(config, kwargs_has_attention_mask=True, device="cpu")
        processors = self.model._get_logits_processor(config, input_ids_seq_length=prompt_length, encoder_input_ids=torch.tensor([ids]), device="cpu")
        out = processors(torch.tensor([ids]), parse(scores))[0].float().tolist()
        self.cases.append({"name": name, "options": options, "promptLength": prompt_length, "ids": ids,
                           "scores": [shorten(s) if isinstance(s, float) else s for s in scores], "expected": [shorten(x) for x in out]})


def one_by_one(t: Table) -> None:
    for temperature in (0.1, 0.7, 1.0, 1.9):
        t.add(f"temperature {temperature}", {"temperature": temperature})
    ties = [1.0] * 6 + [2.0] * 4 + [0.5] * 10 + [-1.0] * 12
    t.random.shuffle(ties)
    for k in (1, 5, 31, 32, 100):
        t.add(f"topK {k}", {"topK": k})
    t.add("topK keeps ties at the border", {"topK": 7}, scores=ties)
    for p in (0.001, 0.1, 0.5, 0.9, 0.999, 1.0):
        t.add(f"topP {p}", {"topP": p})
    t.add("topP all equal", {"topP": 0.5}, scores=[0.25] * V)
    t.add("topP ties at the border", {"topP": 0.8}, scores=ties)
    t.add("topP one certain token", {"topP": 0.9}, scores=[40.0 if i == 11 else -40.0 for i in range(V)])
    for p in (0.0, 0.05, 0.3, 1.0):
        t.add(f"minP {p}", {"minP": p})
    t.add("minP ties", {"minP": 0.4}, scores=ties)
    for p in (0.05, 0.3, 0.9, 0.99):
        t.add(f"typicalP {p}", {"typicalP": p})
    t.add("typicalP ties", {"typicalP": 0.5}, scores=ties)
    for epsilon in (3e-4, 0.02, 0.2, 0.9):
        t.add(f"epsilonCutoff {epsilon}", {"epsilonCutoff": epsilon})
        t.add(f"etaCutoff {epsilon}", {"etaCutoff": epsilon})
    for h in (0.1, 0.4, 0.9):
        t.add(f"topH {h}", {"topH": h})
    holes = [None if i % 3 == 0 else s for i, s in enumerate(t.scores())]
    for name, value in (("topK", 25), ("topP", 0.7), ("minP", 0.1), ("typicalP", 0.6), ("epsilonCutoff", 0.02), ("etaCutoff", 0.02), ("temperature", 0.5)):
        t.add(f"{name} with minus infinities", {name: value}, scores=holes)
    for penalty in (1.3, 0.8, 1.0):
        t.add(f"repetitionPenalty {penalty}", {"repetitionPenalty": penalty}, ids=[5, 9, 5, 5, 30, 31, 3])
    t.add("repetitionPenalty at zero and minus infinity", {"repetitionPenalty": 2.0}, ids=[3, 4, 5], scores=[0.0 if i == 3 else None if i == 4 else 1.5 for i in range(V)])
    repeated = [7, 8, 9, 7, 8, 10, 7, 8]
    for n in (1, 2, 3, 4, 9):
        t.add(f"noRepeatNgramSize {n}", {"noRepeatNgramSize": n}, ids=repeated)
    t.add("noRepeatNgramSize 2 on one id", {"noRepeatNgramSize": 2}, ids=[7])
    t.add("badWordsIds", {"badWordsIds": [[5], [7, 8, 11], [8, 12], [9, 8, 13], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14]]}, ids=repeated)
    t.add("badWordsIds holds the end token", {"badWordsIds": [[EOS], [6]], "eosTokenId": EOS}, ids=repeated)
    t.add("sequenceBias", {"sequenceBias": [[[5], 2.5], [[6], -1.25], [[7, 8, 11], 4.0], [[8, 5], -8.0], [[9, 8, 12], 3.0], [[9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 13], 5.0]]}, ids=repeated)
    t.add("sequenceBias adds up", {"sequenceBias": [[[5], 2.5], [[8, 5], 1.0], [[7, 8, 5], 0.5]]}, ids=repeated)
    for n in (8, 9, 10):
        t.add(f"minLength {n} at 9", {"minLength": n, "eosTokenId": EOS})
        t.add(f"minNewTokens {n - 4} at 5", {"minNewTokens": n - 4, "eosTokenId": [EOS, 17]})
    t.add("forcedBosTokenId at the first", {"forcedBosTokenId": 21}, ids=[1])
    t.add("forcedBosTokenId later", {"forcedBosTokenId": 21}, ids=[1, 21])
    for n in (9, 10, 11):
        t.add(f"forcedEosTokenId at 9 of {n}", {"forcedEosTokenId": EOS, "maxLength": n})
    t.add("forcedEosTokenId a list", {"forcedEosTokenId": [EOS, 17], "maxLength": 10})
    t.add("suppressTokens", {"suppressTokens": [3, 4, 31, 0]})
    t.add("beginSuppressTokens at the first", {"beginSuppressTokens": [3, 4]}, prompt_length=9)
    t.add("beginSuppressTokens later", {"beginSuppressTokens": [3, 4]}, prompt_length=8)
    t.add("beginSuppressTokens after a forced first", {"beginSuppressTokens": [3, 4], "forcedBosTokenId": 21}, ids=[1, 21], prompt_length=1)
    for start in (3, 5, 6):
        t.add(f"exponentialDecayLengthPenalty from {start} at 5", {"exponentialDecayLengthPenalty": [start, 1.4], "eosTokenId": EOS})
    t.add("exponentialDecayLengthPenalty, negative score, two ends", {"exponentialDecayLengthPenalty": [1, 1.1], "eosTokenId": [EOS, 17]},
          scores=[-3.5 if i in (EOS, 17) else 1.0 for i in range(V)])
    invalid = t.scores()
    invalid[3:7] = ["nan", "inf", None, "nan"]
    t.add("removeInvalidValues", {"removeInvalidValues": True}, scores=invalid)
    t.add("renormalizeLogits", {"renormalizeLogits": True})
    t.add("renormalizeLogits after topP", {"renormalizeLogits": True, "topP": 0.7})
    t.add("nothing", {})


def combined(t: Table, count: int) -> None:
    """Random handfuls of options, histories that repeat, early and late steps."""
    r = t.random
    makers = {
        "temperature": lambda: round(r.uniform(0.3, 1.8), 2), "topK": lambda: r.randint(2, 30), "topP": lambda: round(r.uniform(0.3, 0.99), 2),
        "minP": lambda: round(r.uniform(0.01, 0.3), 3), "typicalP": lambda: round(r.uniform(0.3, 0.98), 2), "epsilonCutoff": lambda: round(r.uniform(1e-4, 0.05), 4),
        "etaCutoff": lambda: round(r.uniform(1e-4, 0.05), 4), "repetitionPenalty": lambda: round(r.uniform(0.7, 1.8), 2), "noRepeatNgramSize": lambda: r.randint(1, 3),
        "badWordsIds": lambda: [[3], [r.randrange(3, 9), 4], [5, 6]], "sequenceBias": lambda: [[[6], 3.5], [[r.randrange(3, 9), 7], -2.0], [[8, 9], 1.0]],
        "minLength": lambda: r.randint(4, 12), "minNewTokens": lambda: r.randint(1, 8), "forcedBosTokenId": lambda: 21, "forcedEosTokenId": lambda: EOS,
        "suppressTokens": lambda: [10, 11], "beginSuppressTokens": lambda: [12, 13], "exponentialDecayLengthPenalty": lambda: [r.randint(0, 4), 1.2],
        "removeInvalidValues": lambda: True, "renormalizeLogits": lambda: True,
    }
    for i in range(count):
        names = [n for n in makers if r.random() < 0.4]
        options = {n: makers[n]() for n in names} | {"eosTokenId": EOS}
        length = r.randint(1, 12)
        prompt_length = r.randint(1, length)
        if "forcedEosTokenId" in options:
            options["maxLength"] = max(length + r.choice((1, 1, 5)), options.get("minLength", 0))
        t.add(f"combined {i}", options, ids=[r.randrange(3, 10) for _ in range(length)], prompt_length=prompt_length)


def generate(root, seed: int) -> None:
    table = Table(seed)
    one_by_one(table)
    combined(table, 40)
    write_json(root / "logits.json", {"vocabSize": V, "cases": table.cases})
    print(f"logits.json: {len(table.cases)} cases, {(root / 'logits.json').stat().st_size / 1024:.0f} KB")
