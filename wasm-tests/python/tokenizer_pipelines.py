"""Draws tokenizer.json files of random parts and records what the tokenizers library makes of texts and pairs.

    python tokenizer_pipelines.py OUTPUT [--seed N] [--count N]
"""

import argparse
import json
import random
from pathlib import Path

from sentencepiece import sentencepiece_model_pb2 as protobuf
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_fixtures import HARD, LINES, draw, to_units

# Splits of GPT-2, Llama 3, GPT-4o, BLOOM, DeepSeek, cl100k and Kimi, and what Oniguruma writes otherwise than JavaScript.
SPLITS = [
    r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+|\s+",
    r"[一-龥぀-ゟ゠-ヿ]+", r"\w+|[^\w\s]+", r"\d", r"^a|b$|\bthe\b", r"[[:punct:]]", r"[\x{4e00}-\x{9fff}]", r"(?<=a)b|c(?=d)", r"[^a-z]",
]
SPECIAL = ["<s>", "</s>", "<unk>", "[MASK]"]


class Draw:
    def __init__(self, seed: int, maps: list[bytes]):
        self.rng = random.Random(seed)
        self.maps = maps

    def yes(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def some(self, choices: list, sequence):
        """None, one of the choices, or several in sequence."""
        count = self.rng.randint(0, 3)
        made = [self.rng.choice(choices)() for _ in range(count)]
        return None if count == 0 else made[0] if count == 1 else sequence(made)

    def normalizer(self):
        n = normalizers
        return self.some([
            lambda: n.BertNormalizer(self.yes(), self.yes(), self.rng.choice([None, True, False]), self.yes()),
            n.NFC, n.NFD, n.NFKC, n.NFKD, n.Lowercase, n.StripAccents, n.Nmt, lambda: n.Strip(self.yes(), self.yes()),
            lambda: n.Precompiled(self.rng.choice(self.maps)), lambda: n.Prepend("▁"), lambda: n.Replace(" ", "▁"), lambda: n.Replace("``", '"'),
            lambda: n.Replace(Regex(" {2,}"), " "), lambda: n.Replace(Regex(r"\s+"), "xy"), lambda: n.Replace("e", ""),
        ], n.Sequence)

    def pre_tokenizer(self):
        p = pre_tokenizers
        behavior = lambda: self.rng.choice(["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"])
        return self.some([
            p.BertPreTokenizer, p.Whitespace, p.WhitespaceSplit, lambda: p.ByteLevel(add_prefix_space=self.yes(), use_regex=self.yes()),
            lambda: p.Metaspace(prepend_scheme=self.rng.choice(["always", "first", "never"]), split=self.yes()), lambda: p.Punctuation(behavior()),
            lambda: p.Digits(self.yes()), lambda: p.Split(Regex(self.rng.choice(SPLITS)), behavior(), invert=self.yes(0.2)),
            lambda: p.Split(self.rng.choice(["-", " ", "a", "."]), behavior()), lambda: p.CharDelimiterSplit("e"),
        ], p.Sequence)

    def model(self):
        common = {"special_tokens": SPECIAL, "show_progress": False}
        return self.rng.choice([
            lambda: (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(vocab_size=400, **common)),
            lambda: (models.Unigram(), trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", **common)),
            lambda: (models.BPE(unk_token="<unk>", fuse_unk=self.yes()), trainers.BpeTrainer(
                vocab_size=400, continuing_subword_prefix=self.rng.choice([None, "##"]), end_of_word_suffix=self.rng.choice([None, "</w>"]), **common)),
            lambda: (models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **common)),
            lambda: (models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(vocab_size=300, **common)),
        ])()

    def processor(self):
        r = processors
        template = lambda single, pair: r.TemplateProcessing(single=single, pair=pair, special_tokens=[("<s>", 0), ("</s>", 1)])
        return self.rng.choice([
            lambda: None,
            lambda: template("<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 $B:1 </s>:1"),
            lambda: r.RobertaProcessing(("</s>", 1), ("<s>", 0), self.yes(), self.yes()),
            lambda: r.BertProcessing(("</s>", 1), ("<s>", 0)),
            lambda: r.Sequence([r.ByteLevel(trim_offsets=self.yes(), add_prefix_space=self.yes()), template("<s> $A", "<s> $A $B:1")]),
        ])()

    def text(self) -> str:
        text = draw(self.rng) if self.yes(0.7) else self.rng.choice(HARD)
        for _ in range(self.rng.randint(0, 2)):
            at = self.rng.randint(0, len(text))
            text = text[:at] + self.rng.choice(["<s>", "[MASK]", " <mask> ", "ADD", "add", "</s>", "Q"]) + text[at:]
        return text

    def tokenizer(self) -> Tokenizer:
        model, trainer = self.model()
        tokenizer = Tokenizer(model)
        pre, normalizer, processor = self.pre_tokenizer(), self.normalizer(), self.processor()
        if pre is not None:
            tokenizer.pre_tokenizer = pre
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.train_from_iterator(LINES, trainer)
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        tokenizer.add_tokens([AddedToken("ADD", normalized=True, single_word=self.yes()), AddedToken("Q", normalized=False, rstrip=self.yes())])
        if processor is not None:
            tokenizer.post_processor = processor
        return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    folder = Path(__file__).parents[1] / "fixtures/sentencepiece"
    maps = [protobuf.ModelProto.FromString((folder / f"{name}.model").read_bytes()).normalizer_spec.precompiled_charsmap for name in ("unigram", "unigram-t5")]
    drawn = Draw(options.seed, maps)
    found = []
    while len(found) < options.count:
        try:
            tokenizer = drawn.tokenizer()
        except BaseException:  # the library panics where a normalizer leaves nothing to train on
            continue
        document = tokenizer.to_str()
        # Where the library's own places are off: behind what a charsmap removes, and where trimming looks at an unknown word's text.
        placed = '"Precompiled"' not in document and json.loads(document)["model"]["type"] not in ("Unigram", "WordLevel")
        cases = []
        for _ in range(40):
            text, pair, add = drawn.text(), drawn.text() if drawn.yes(0.3) else None, drawn.yes(0.8)
            if pair == "":
                continue
            made = tokenizer.encode(text, pair, add_special_tokens=add)
            sequence = [-1 if one is None else one for one in made.sequence_ids]
            places = [[to_units(pair if which == 1 else text, at) for at in both] for both, which in zip(made.offsets, sequence)]
            cases.append({"text": text, "pair": pair, "add": add, "ids": made.ids, "typeIds": made.type_ids, "sequence": sequence, "offsets": places if placed else None})
        found.append({"json": json.loads(document), "cases": cases})
    options.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
