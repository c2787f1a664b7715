"""What transformers' own beam search finds where the logits are those of src/generate/testing.hpp: a function of the tokens so far.

    python beam_oracle.py [--seed N] [--cases N] [--out FILE]

One case a line of FILE (default wasm-tests/fixtures/beams.txt), fields separated by '|':
    vocabulary | options, name=value, separated by blanks | prompts | sources (of an encoder-decoder model; empty without) | sequences
Lists of ids are joined by ',', lists of lists by ';'. A sequence is `ids@score@log-probabilities`, the best of the first prompt first.
Cases in which equal scores decide are left out (several forced tokens, too few beams that can be finished): they hang on the order in which torch.topk
has equal scores.
"""

import argparse
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput, Seq2SeqLMOutput
from transformers.utils import logging

from sampling import snake

U64, U32 = (1 << 64) - 1, np.uint64(0xFFFFFFFF)


def uniform(seed: int, count: int) -> np.ndarray:
    """src/core/rng.hpp: element v of the stream under `seed`, step and site 0 (Salmon et al. 2011)."""
    c = [np.arange(count, dtype=np.uint64), *(np.zeros(count, np.uint64) for _ in range(3))]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & U32, (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & U32]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return ((c[0] << np.uint64(21)) ^ (c[1] >> np.uint64(11))).astype(np.float64) * 2.0**-53


def logits_after(ids: list[int], vocabulary: int) -> torch.Tensor:
    seed = 14695981039346656037
    for token in ids:
        seed = ((seed ^ (token + 1)) * 1099511628211) & U64
    return torch.from_numpy((4 * uniform(seed, vocabulary)).astype(np.float32))


class Config(PretrainedConfig):
    model_type = "fake"


class FakeEncoder(torch.nn.Module):
    main_input_name = "input_ids"

    def forward(self, input_ids=None, **_):
        return BaseModelOutput(last_hidden_state=torch.zeros(*input_ids.shape, 1))


class Fake(PreTrainedModel, GenerationMixin):
    config_class = Config
    main_input_name = "input_ids"

    def __init__(self, vocabulary: int, encoder: bool):
        super().__init__(Config(vocab_size=vocabulary, is_encoder_decoder=encoder))
        self.encoder = FakeEncoder()
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def get_encoder(self, modality=None):
        return self.encoder

    def forward(self, input_ids=None, decoder_input_ids=None, attention_mask=None, encoder_outputs=None, **_):
        ids = decoder_input_ids if self.config.is_encoder_decoder else input_ids
        logits = torch.stack([logits_after(row.tolist(), self.config.vocab_size) for row in ids])[:, None]
        return Seq2SeqLMOutput(logits=logits) if self.config.is_encoder_decoder else CausalLMOutput(logits=logits)


def random_case(r: random.Random) -> SimpleNamespace:
    vocabulary = r.choice((5, 7, 12, 12, 30, 50))
    token = lambda: r.randrange(vocabulary)
    ids = lambda least, most: [token() for _ in range(r.randint(least, most))]
    encoder = r.random() < 0.5
    beams = r.randint(2, 6)
    makers = {
        "maxNewTokens": lambda: r.randint(1, 14), "lengthPenalty": lambda: r.choice((0.0, 0.6, 2.0, -1.0, round(r.uniform(-2, 3), 2))),
        "earlyStopping": lambda: r.choice((True, True, "never", "never", False)), "noRepeatNgramSize": lambda: r.randint(1, 3),
        "encoderNoRepeatNgramSize": lambda: r.randint(1, 3), "encoderRepetitionPenalty": lambda: round(r.uniform(0.6, 1.8), 2),
        "repetitionPenalty": lambda: round(r.uniform(0.6, 1.8), 2), "badWordsIds": lambda: [ids(1, 2) for _ in range(r.randint(1, 4))],
        "minLength": lambda: r.randint(1, 9), "minNewTokens": lambda: r.randint(1, 6), "forcedBosTokenId": token,
        "forcedEosTokenId": token, "suppressTokens": lambda: ids(1, 2), "beginSuppressTokens": lambda: ids(1, 2),
        "renormalizeLogits": lambda: True, "removeInvalidValues": lambda: True, "numReturnSequences": lambda: r.randint(1, beams),
        "sequenceBias": lambda: [[[token()], round(r.uniform(-2, 2), 2)], [[token(), token()], round(r.uniform(-2, 2), 2)]],
    }
    options = {name: make() for name, make in makers.items() if r.random() < (0.7 if name in ("lengthPenalty", "earlyStopping", "numReturnSequences") else 0.18)}
    if "sequenceBias" in options:
        options["sequenceBias"] = [[list(k), v] for k, v in {tuple(k): v for k, v in options["sequenceBias"]}.items()]
    options["numBeams"] = beams
    if r.random() < 0.9:
        options["eosTokenId"] = ids(1, 3)
    if r.random() < 0.25 and "eosTokenId" in options:
        options["exponentialDecayLengthPenalty"] = [r.randint(0, 3), round(r.uniform(1.05, 1.5), 2)]
    prompts = [ids(1, 1) if encoder and r.random() < 0.7 else ids(1, 5) for _ in range(r.randint(1, 3))]
    sources = [ids(1, 8) for _ in prompts] if encoder else []
    if "maxNewTokens" not in options:
        options["maxLength"] = max(map(len, prompts)) + r.randint(1, 12)
    return SimpleNamespace(vocabulary=vocabulary, options=options, prompts=prompts, sources=sources)


def found(case: SimpleNamespace) -> list[tuple[list[int], float, list[float]]]:
    """Every prompt alone."""
    model = Fake(case.vocabulary, bool(case.sources)).eval()
    options = {snake(k): v for k, v in case.options.items()}
    if "sequence_bias" in options:
        options["sequence_bias"] = {tuple(k): v for k, v in options["sequence_bias"]}
    results = []
    for i, prompt in enumerate(case.prompts):
        inputs = {"input_ids": torch.tensor([prompt])}
        if case.sources:
            inputs = {"input_ids": torch.tensor([case.sources[i]]), "decoder_input_ids": inputs["input_ids"], "decoder_start_token_id": prompt[0]}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])  # or the padding token would be taken for padding
        out = model.generate(**inputs, **options, use_cache=False, output_scores=True, return_dict_in_generate=True, pad_token_id=0)
        for sequence, score, indices in zip(out.sequences, out.sequences_scores, out.beam_indices):
            count = int((indices >= 0).sum())
            tokens = sequence[len(prompt) : len(prompt) + count].tolist()
            results.append((tokens, float(score), [float(out.scores[t][indices[t], token]) for t, token in enumerate(tokens)]))
    return results


def text(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(text, value)) if isinstance(value, list) else f"{value:.9g}" if isinstance(value, float) else str(value)


def flat(options: dict) -> dict:
    """Lists of lists laid end to end, as parse_options takes them."""
    out = {}
    for name, value in options.items():
        biases = None
        if name == "sequenceBias":
            value, biases = [k for k, _ in value], [v for _, v in value]
        if isinstance(value, list) and value and isinstance(value[0], list):
            out[name + ".lengths"] = [len(v) for v in value]
            value = [x for v in value for x in v]
        out[name] = value
        if biases is not None:
            out[name + ".values"] = biases
    return out


def line(case: SimpleNamespace, results) -> str:
    lists = lambda all_ids: ";".join(text(ids) for ids in all_ids)
    options = " ".join(f"{k}={text(v)}" for k, v in flat(case.options).items())
    sequences = ";".join(f"{text(tokens)}@{text(score)}@{text(logprobs)}" for tokens, score, logprobs in results)
    return "|".join((str(case.vocabulary), options, lists(case.prompts), lists(case.sources), sequences))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "fixtures" / "beams.txt")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    r = random.Random(arguments.seed)
    lines = []
    while len(lines) < arguments.cases:
        case = random_case(r)
        try:
            results = found(case)
            penalty = case.options.get("lengthPenalty", 1.0)
            if all(tokens and abs(score * len(tokens) ** penalty - sum(logprobs)) < 1 for tokens, score, logprobs in results):
                lines.append(line(case, results))
        except (ValueError, RuntimeError) as reason:
            print(f"refused by transformers: {case.options}: {reason}")
    arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
