"""Writes wasm-tests/fixtures/sentencepiece: small SentencePiece models with the sentencepiece library's segmentations, and what
transformers' tokenizer classes make of such files (classes.json).

    python tokenizer_fixtures.py [--out FOLDER] [--seed N] [--only-library FOLDER --texts N]

With --only-library it writes models and segmentations of freshly drawn texts, for `npm run proof`.
"""

import argparse
import io
import json
import random
import shutil
import tempfile
from pathlib import Path

import sentencepiece as spm
import transformers
from sentencepiece import sentencepiece_model_pb2 as protobuf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from text import CORPUS as ENGLISH

LINES = [line for line in ENGLISH.split("\n") if line.strip()] + [
    "naïve café façade Übergrößenträger élève cœur ångström señor",
    "你好,世界。我们一起学习机器学习。今天天气很好,我们去公园。",
    "こんにちは世界 カタカナ ｶﾀｶﾅ",
    "안녕하세요 한국어 테스트 입니다",
    "Привет, мир! Как дела? Хорошо, спасибо.",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "emoji 😀 👍🏽 👩‍👩‍👧‍👦 🇨🇳 done",
    "ﬁ ﬂ ① Ⅷ ½ ﷺ 12345 3.14 2024-01-01 don't it's",
] * 5

# A few rules, so that most fixtures need not carry the 240 KB of nmt_nfkc.
RULES = ["FF21\t41", "65 301\tE9", "1112 1161 11AB\tD55C", "A0\t20", "9\t20", "A\t20", "D\t20", "3000\t20", "2460\t31", "FB01\t66 69", "BD\t31 2044 32", "200B\t20", "49\t69", "FDFA\t635 644"]

HARD = [
    "",
    " ",
    "     ",
    "\t\n\r\n",
    "Hello, world!",
    "  leading and trailing  ",
    "double  spaces   and\ttabs\nlines\r\nends",
    "e\u0301cole cafe\u0301 n\u0303 a\u0323\u0302 \u0301alone",
    "\u1112\u1161\u11ab\u1100\u1173\u11af 한글 각",
    "😀 👍🏽 👩‍👩‍👧‍👦 🇨🇳 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "ＦＵＬＬ ｗｉｄｔｈ　１２３ ｶﾞ ﾊﾟ",
    "\ufffd \ufffd\ufffd x\ufffdy",
    "ﬁne ﬂow ﬀ ① Ⅷ ½ ﷺ ™ ℃ ㍿",
    "\ufeffbom in\ufeffside",
    "\u0000\u0001\u0007\u001f\u007f\u0080\u0085\u009f",
    "x" * 300,
    "word" * 100,
    "▁ ▁▁a ▁b a▁b",
    "<s> </s> <unk> <pad> <mask> [CLS] [SEP] [MASK] <0x41> <extra_id_0>",
    "no\u00a0break\u2003em\u2009thin\u200bzero\u200czwnj\u200dzwj\u2060wj\u00adshy",
    "\u202eright to left\u202c \u200e",
    "İstanbul ǅ ß ẞ ſ K Å",
    "你好,世界。𠀀𪚥 々〆",
    "שָׁלוֹם עולם مَرْحَبًا ไทย हिन्दी",
    ">>fra<< Hello there",
    ">>zzz<<Hello",
    " >>fra<< no code",
    ">> a << b",
    "``quoted'' text 'x' \"y\"",
    "A<mask>B <mask> C  <mask>",
    "3.14159 1,000,000 ½ ² ٣ Ⅷ",
    "don't we'll I'd they're o'clock 'tis DON'T",
]
PAIRS = [("Where is it?", "It is on the table."), ("a", ""), ("x", "<mask> y"), ("naïve ½", "cafe\u0301 😀!")]

POOL = [chr(c) for c in [
    *list(range(0x20, 0x7F)) * 3, *range(0xA0, 0x250), *range(0x300, 0x370), *range(0x1100, 0x1200), *range(0xAC00, 0xAC80), *range(0xFF00, 0xFFEF),
    *range(0x3040, 0x3100), *range(0x4E00, 0x4E80), *range(0x1F600, 0x1F640), *range(0x2000, 0x2070), *range(0xFB00, 0xFB50), *range(0x2460, 0x24FF),
    *range(0x1E00, 0x1EFF), *range(0xFDF0, 0xFDFD), 0xFEFF, 0xFFFD, 0x200D, 0xFE0F, 0x3000, 9, 10, 13, 0, 1, 0x7F, 0x85]]


def draw(rng: random.Random) -> str:
    """A text that mixes words, white space and characters that normalise in odd ways."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(LINES)
    if kind < 0.35:
        return "".join(rng.choice([" ", "  ", "\t", "\n", "▁", "\u3000", "a", "b", "é", "e\u0301"]) for _ in range(rng.randint(0, 20)))
    if kind < 0.7:
        words = rng.choice(LINES).split(" ")
        rng.shuffle(words)
        text = " ".join(words)[:80]
        for _ in range(6):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(POOL) + text[at:]
        return text
    return "".join(rng.choice(POOL) for _ in range(rng.randint(0, 40)))


def train(path: Path, unused: int = 0, escape: bool = True, **options) -> None:
    """Trains a model on LINES; every `unused`-th piece is then marked as unused."""
    written = io.BytesIO()
    settings = {"model_type": "unigram", "vocab_size": 500, "character_coverage": 0.99, "hard_vocab_limit": False, "minloglevel": 3, "num_threads": 1}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        if options.get("normalization_rule_name") == "rules":
            rules.write("\n".join(RULES) + "\n")
            rules.flush()
            options = {**options, "normalization_rule_tsv": rules.name}
            del options["normalization_rule_name"]
        spm.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=written, **{**settings, **options})
    proto = protobuf.ModelProto.FromString(written.getvalue())
    for piece in proto.pieces[40:400:unused] if unused else []:
        piece.type = 5
    proto.normalizer_spec.escape_whitespaces = escape
    proto.normalizer_spec.normalization_rule_tsv = ""
    path.write_bytes(proto.SerializeToString())


MODELS = {
    "unigram": {"normalization_rule_name": "nmt_nfkc"},
    "unigram-t5": {"normalization_rule_name": "rules", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "unigram-symbols": {"normalization_rule_name": "rules", "user_defined_symbols": ["<sep>", "foo bar", "é", "I"], "unused": 9},
    "unigram-identity": {"normalization_rule_name": "identity"},
    "unigram-bytes": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True, "vocab_size": 700},
    "unigram-albert": {"normalization_rule_name": "rules", "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
    "bpe": {"model_type": "bpe", "normalization_rule_name": "rules", "unused": 7},
    "bpe-nllb": {"model_type": "bpe", "normalization_rule_name": "rules"},
    "bpe-llama": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True, "vocab_size": 800, "split_digits": True},
    "bpe-symbols": {
        "model_type": "bpe", "normalization_rule_name": "rules", "add_dummy_prefix": False, "escape": False,
        "control_symbols": ["<ctl>"], "user_defined_symbols": ["<|im|>", "  "], "vocab_size": 600,
    },
}
FRESH = {
    "unigram-nfkc_cf": {"normalization_rule_name": "nmt_nfkc_cf", "user_defined_symbols": ["<sep>", "foo bar", "é"]},
    "unigram-nfkc": {"normalization_rule_name": "nfkc", "add_dummy_prefix": False, "vocab_size": 800},
    "bpe-nmt_nfkc": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc", "vocab_size": 900},
}


def segment(path: Path, texts: list[str]) -> list[dict]:
    """Ids, and the code units (UTF-16) each piece stands for, as the library says; and what it decodes them to."""
    processor = spm.SentencePieceProcessor(model_file=str(path))
    cases = []
    for text in texts:
        units = []
        for at, char in enumerate(text):
            units += [sum(len(c.encode("utf-16-le")) // 2 for c in text[:at])] * len(char.encode())
        units.append(len(text.encode("utf-16-le")) // 2)
        pieces = processor.encode(text, return_type="proto").pieces
        cases.append({"ids": [piece.id for piece in pieces], "offsets": [[units[piece.begin], units[piece.end]] for piece in pieces]})
    return cases


def library(out: Path, kinds: dict, texts: list[str]) -> None:
    for name, options in kinds.items():
        train(out / f"{name}.model", **options)
    expected = {name: segment(out / f"{name}.model", texts) for name in kinds}
    (out / "expected.json").write_text(json.dumps({"texts": texts, "models": expected}, ensure_ascii=False, separators=(",", ":")) + "\n")


def byte_level(folder: Path, special: list[str]) -> None:
    """vocab.json and merges.txt of a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=450, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.model.save(str(folder))


def word_piece(folder: Path, lower: bool) -> None:
    from tokenizers import normalizers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in tokens))


def pieces(path: Path) -> list[str]:
    return [piece.piece for piece in protobuf.ModelProto.FromString(path.read_bytes()).pieces]


def to_units(text: str, at: int) -> int:
    return len(text[:at].encode("utf-16-le")) // 2


def ask(tokenizer, text: str, pair: str | None = None, **options) -> dict:
    """What a tokenizer makes of a text or two."""
    fast = tokenizer.is_fast
    made = tokenizer(text, pair, return_token_type_ids=fast, return_offsets_mapping=fast, **options)
    case = {"text": text, **({} if pair is None else {"pair": pair}), "ids": made["input_ids"]}
    if fast:
        sequences = [-1 if one is None else one for one in made.sequence_ids()]
        case["typeIds"] = made["token_type_ids"]
        case["sequence"] = sequences
        case["offsets"] = [[to_units(pair if which == 1 else text, at) for at in both] for both, which in zip(made["offset_mapping"], sequences)]
    return case


def classes(out: Path) -> list[dict]:
    """Each class of transformers, loaded from the files it is published with."""
    rng = random.Random(3)
    mask = {"mask_token": AddedToken("<mask>", lstrip=True, special=True, normalized=False)}
    marian_vocab = ["</s>", "<unk>"] + [p for p in pieces(out / "unigram.model")[3:] if rng.random() < 0.9]
    marian_vocab += [p for p in pieces(out / "bpe.model")[3:] if p not in marian_vocab] + [">>fra<<", ">>deu<<", "<pad>"]
    numbered = {token: i for i, token in enumerate(marian_vocab)}
    # In target mode the class still gives special tokens the source's ids, so that they are the same here.
    separate = {token: i for i, token in enumerate(["</s>", "<unk>", "<pad>", *marian_vocab[2:-1]])}
    target = {token: i for i, token in enumerate(["</s>", "<unk>", "<pad>", *pieces(out / "bpe.model")[5:]])}
    m2m = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *[p for p in pieces(out / "unigram.model")[3:] if rng.random() < 0.95]])}
    shared = {"vocab.json": numbered, "source.spm": "unigram", "target.spm": "bpe"}
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    codes = ["eng_Latn", "fra_Latn", "zho_Hans", "deu_Latn"]
    kinds = [
        ("marian", "MarianTokenizer", "marian", shared, {"source_lang": "en", "target_lang": "fr"}, {}),
        ("marian-separate", "MarianTokenizer", "marian", {**shared, "vocab.json": separate, "target_vocab.json": target}, {"separate_vocabs": True}, {}),
        ("t5", "T5Tokenizer", "t5", {"spiece.model": "unigram-t5"}, {}, {}),
        ("mt5", "T5Tokenizer", "mt5", {"spiece.model": "unigram-t5"}, {"extra_ids": 0, "tokenizer_class": "T5Tokenizer"}, {}),
        ("albert", "AlbertTokenizer", "albert", {"spiece.model": "unigram-albert"}, {}, {}),
        ("albert-cased", "AlbertTokenizer", "albert", {"spiece.model": "unigram-albert"}, {"do_lower_case": False, "keep_accents": True}, {}),
        ("pegasus", "PegasusTokenizer", "pegasus", {"spiece.model": "unigram-t5"}, {}, {"mask_token": "<mask_1>", "mask_token_sent": "<mask_2>"}),
        ("xlm-roberta", "XLMRobertaTokenizer", "xlm-roberta", {"sentencepiece.bpe.model": "unigram"}, {}, mask),
        ("mbart", "MBartTokenizer", "mbart", {"sentencepiece.bpe.model": "unigram-identity"}, {"tokenizer_class": "MBartTokenizer"}, {}),
        ("mbart50", "MBart50Tokenizer", "mbart", {"sentencepiece.bpe.model": "unigram"}, {"tokenizer_class": "MBart50Tokenizer", "src_lang": "fr_XX", "tgt_lang": "de_DE"}, {}),
        ("m2m100", "M2M100Tokenizer", "m2m_100", {"sentencepiece.bpe.model": "unigram", "vocab.json": m2m}, {"src_lang": "de", "extra_special_tokens": languages}, {}),
        ("nllb", "NllbTokenizer", "m2m_100", {"sentencepiece.bpe.model": "bpe-nllb"}, {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": codes}, {"mask_token": None}),
        ("nllb-legacy", "NllbTokenizer", "m2m_100", {"sentencepiece.bpe.model": "bpe-nllb"}, {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": codes, "legacy_behaviour": True, "src_lang": "deu_Latn"}, {"mask_token": None}),
        ("llama", "LlamaTokenizer", "llama", {"tokenizer.model": "bpe-llama"}, {"add_bos_token": True, "legacy": False}, {}),
        ("llama-eos", "LlamaTokenizer", "llama", {"tokenizer.model": "bpe-llama"}, {"add_bos_token": True, "add_eos_token": True, "legacy": False}, {}),
        ("bert", "BertTokenizer", "bert", {"vocab.txt": True}, {}, {}),
        ("bert-cased", "BertTokenizer", "bert", {"vocab.txt": False}, {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}, {}),
        ("bert-accents", "BertTokenizer", "bert", {"vocab.txt": True}, {"strip_accents": False, "tokenize_chinese_chars": False}, {}),
        ("distilbert", "DistilBertTokenizer", "distilbert", {"vocab.txt": True}, {}, {}),
        ("roberta", "RobertaTokenizer", "roberta", {"merges.txt": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}, {}, mask),
        ("bart", "BartTokenizer", "bart", {"merges.txt": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}, {"add_prefix_space": True}, mask),
    ]
    found = []
    for name, kind, model_type, files, settings, given in kinds:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            texts: dict[str, str] = {}
            copies: dict[str, str] = {}
            for file, source in files.items():
                if isinstance(source, str):
                    shutil.copy(out / f"{source}.model", folder / file)
                    copies[file] = f"{source}.model"
                elif file == "vocab.txt":
                    word_piece(folder, source)
                elif file == "merges.txt":
                    byte_level(folder, source)
                else:
                    (folder / file).write_text(json.dumps(source, ensure_ascii=False))
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
            for file in sorted(folder.iterdir()):
                if file.name not in copies:
                    texts[file.name] = file.read_text()
            tokenizer = getattr(transformers, kind).from_pretrained(folder, **given)
            # This class leaves out the space before a text that begins with one, where the library has both; and its place differs.
            texts_asked = [text for text in HARD if not (kind == "LlamaTokenizer" and text.startswith((" ", "▁")))]
            cases = [ask(tokenizer, text) for text in texts_asked] + [ask(tokenizer, *pair) for pair in PAIRS if tokenizer.is_fast]
            for case in cases if kind == "LlamaTokenizer" else []:
                del case["offsets"]
            for case in [] if settings.get("separate_vocabs") else cases:
                case["decoded"] = tokenizer.decode(case["ids"])
                case["skipped"] = tokenizer.decode(case["ids"], skip_special_tokens=True)
            entry = {"name": name, "modelType": model_type, "copies": copies, "files": texts, "cases": cases}
            if kind == "MarianTokenizer":
                entry["targets"] = [{"text": text, "ids": tokenizer(text_target=text)["input_ids"]} for text in HARD]
                for case in entry["targets"]:
                    case["skipped"] = tokenizer.decode(case["ids"], skip_special_tokens=True)
            if getattr(tokenizer, "tgt_lang", None):
                entry["targets"] = [{"text": text, "ids": tokenizer(text_target=text)["input_ids"]} for text in HARD[:8]]
            if hasattr(tokenizer, "_src_lang"):
                code = {"m2m100": "zh", "mbart": "zh_CN", "mbart50": "zh_CN"}.get(name, "fra_Latn")
                tokenizer.src_lang = code
                entry["language"] = {"code": code, "ids": tokenizer("Hello, world!")["input_ids"]}
            found.append(entry)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "fixtures/sentencepiece")
    parser.add_argument("--seed", type=int, default=2017)
    parser.add_argument("--only-library", type=Path)
    parser.add_argument("--texts", type=int, default=120)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = [*HARD, "<sep>foo barI", "a<ctl>b<|im|>  c", *[draw(rng) for _ in range(options.texts)]]
    if options.only_library:
        options.only_library.mkdir(parents=True, exist_ok=True)
        library(options.only_library, {**MODELS, **FRESH}, texts)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    library(options.out, MODELS, texts)
    (options.out / "classes.json").write_text(json.dumps(classes(options.out), ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
