"""Trains vocabularies with the tokenizers library, the oracle of `trainTokenizer`.

    python tokenizer_training.py [--out FOLDER]           # wasm-tests/fixtures/tokenizer-training/expected.json
    python tokenizer_training.py --compare CASES OUTPUT   # for `npm run proof`: other corpora, and what tokenizer.json files of ours do

WordPieceTrainer gives the characters that continue words ids in the order of a hash table, which is another in each process, and ties
between pairs go by ids. Here they are given beforehand, as special tokens, in the order of their code points.
"""

import argparse
import json
import random
import re
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from common import write_json
from text import CORPUS
from tokenizer_fixtures import HARD, LINES

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train(kind: str, texts: list[str], vocab_size: int, min_frequency: int, specials: list[str]) -> dict:
    """The tokens in the order of their ids, and the merges of BPE."""
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        words = [word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]
        first = sorted({c for word in words for c in word})
        later = sorted({c for word in words for c in word[1:]})
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=specials + first + ["##" + c for c in later], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"tokens": sorted(model["vocab"], key=model["vocab"].get), "merges": [" ".join(merge) for merge in model.get("merges", [])]}


def mixed(seed: int, count: int) -> list[str]:
    """Lines of words of few letters, so that many pairs are equally frequent and many tokens can be made in two ways."""
    rng = random.Random(seed)
    return ["".join(rng.choice("aab cdé中") for _ in range(rng.randint(0, 40))) for _ in range(count)]


def fixtures(out: Path) -> None:
    passages = [line for line in CORPUS.split("\n") if line]
    code = Path(__file__).with_name("common.py").read_text("utf-8").split("\n")
    corpora = {"english": passages, "scripts": LINES, "hard": HARD, "code": code, "ties": mixed(1, 60)}
    # Half a surrogate pair has no UTF-8.
    corpora = {name: [text for text in texts if not re.search("[\ud800-\udfff]", text)] for name, texts in corpora.items()}
    cases = []
    for name, texts in corpora.items():
        for kind, specials in (("bpe", ["<|endoftext|>"]), ("wordpiece", BERT)):
            for min_frequency, more in ((0, 200), (3, 600)):
                least = 257 if kind == "bpe" else len(train(kind, texts, 0, 0, BERT)["tokens"])
                options = {"vocabSize": least + more, "minFrequency": min_frequency}
                made = train(kind, texts, options["vocabSize"], min_frequency, specials)
                if kind == "bpe":
                    made["tokens"] = made["tokens"][257:]
                cases.append({"corpus": name, "type": kind, **options, **made})
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "expected.json", {"corpora": corpora, "cases": cases})


def compare(source: Path, out: Path) -> None:
    """What the library learns of each case's texts, and how it encodes and decodes `strings` with the case's own `json`."""
    answers = []
    for case in json.loads(source.read_text("utf-8")):
        ours = Tokenizer.from_str(case["json"])
        learned = train(case["type"], case["texts"], case["vocabSize"], case["minFrequency"], case["specials"]) if case["type"] in ("bpe", "wordpiece") else {}
        encodings = [ours.encode(text).ids for text in case["strings"]]
        answers.append({**learned, "ids": encodings, "decoded": [ours.decode(ids) for ids in encodings]})
    out.write_text(json.dumps(answers), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "fixtures" / "tokenizer-training")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("CASES", "OUTPUT"))
    arguments = parser.parse_args()
    if arguments.compare:
        compare(*arguments.compare)
    else:
        fixtures(arguments.out)
