"""Writes wasm-tests/fixtures/tasks: tiny random models with tiny real tokenizers, and what transformers' pipelines, sentence-transformers'
pooling and MarianMT's `generate` make of texts.

    python task_fixtures.py [--out FOLDER] [--seed N]

A tokenizer stands in a folder of its own and is shared by its models. transformers 5 has no question-answering pipeline any more: the one
of 4.57 is written out here (`answers`), without its sums over equal answers. Offsets are UTF-16's.
"""

import argparse
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import sentencepiece as spm
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoTokenizer, pipeline

from common import write_json
from text import CORPUS

WORDS = ["New York and London are cities.", "Angela Merkel visited Paris, and café Müller.", "naïve façade 你好 世界", "émigré 😀 fine"]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def utf16(text: str, place: int) -> int:
    """A place counted in characters, as JavaScript counts it."""
    return len(text[:place].encode("utf-16-le")) // 2


def labels(names: list[str]) -> dict:
    return {"id2label": {str(i): n for i, n in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}


def fill(model: torch.nn.Module, seed: int, gain: float = 1.0) -> None:
    """Weights so wide that a random model has opinions."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.copy_(0.2 * noise + ("norm" in name.lower() and name.endswith("weight")))
            elif "embed" in name or "shared" in name:
                weight.copy_(0.6 * noise)
            else:
                weight.copy_(gain * noise / weight.shape[1] ** 0.5)


def save(folder: Path, model: torch.nn.Module, config: dict) -> None:
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    # One tensor of those that share its memory, as save_pretrained keeps it.
    dropped = set(model._tied_weights_keys or ())
    state = {k: v.clone().contiguous() for k, v in model.state_dict().items() if k not in dropped and not k.endswith(("position_ids", "embed_positions.weight"))}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def make(out: Path, name: str, kind: str, seed: int, size: int, **more) -> torch.nn.Module:
    """A random model of a class: `kind` is its name."""
    family = {"Bert": "bert", "Roberta": "roberta", "DistilBert": "distilbert"}[kind.split("For")[0].removesuffix("Model")]
    config = {
        "architectures": [kind], "model_type": family, "vocab_size": size, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 64 + 2 * (family == "roberta"), "type_vocab_size": 1 if family == "roberta" else 2,
        "pad_token_id": 1 if family == "roberta" else 0, "layer_norm_eps": 1e-12, **more,
    }
    if family == "roberta":
        config |= {"bos_token_id": 0, "eos_token_id": 2}
    if family == "distilbert":
        config = {"architectures": [kind], "model_type": family, "vocab_size": size, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32,
                  "max_position_embeddings": 64, "pad_token_id": 0, **more}
    torch.manual_seed(seed)
    model = getattr(transformers, kind)._from_config(AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation="eager").eval()
    fill(model, seed, gain=2.0)
    save(out / name, model, config)
    return model


def wordpiece(folder: Path):
    """A WordPiece vocabulary of about 240, lower-cased, as BERT's. The trainer's own choice differs from run to run."""
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter(word for text in [CORPUS, *WORDS] for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    letters = sorted({c for word in words for c in word})
    ends = Counter(word[-n:] for word, count in words.items() for n in (2, 3) if len(word) > n)
    common = lambda counts, most: [x for x, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most]]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters if c.isalnum()), *common(words, 60), *(f"##{e}" for e in common(ends, 40))]
    tokenizer = Tokenizer(models.WordPiece({name: i for i, name in enumerate(dict.fromkeys(names))}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, splitter, decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 48, "cls_token": "[CLS]", "mask_token": "[MASK]",
                "pad_token": "[PAD]", "sep_token": "[SEP]", "unk_token": "[UNK]", "clean_up_tokenization_spaces": True}
    return write_tokenizer(folder, tokenizer, settings)


def byte_level(folder: Path):
    """Byte-level BPE, as RoBERTa's: no mark of what goes on inside a word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([CORPUS, *WORDS], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    settings = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 48, "bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>",
                "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False, "special": True},
                "pad_token": "<pad>", "unk_token": "<unk>", "add_prefix_space": False}
    return write_tokenizer(folder, tokenizer, settings)


def write_tokenizer(folder: Path, tokenizer: Tokenizer, settings: dict):
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(folder / "tokenizer_config.json", settings)
    # What the files say, not what a class makes of them.
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_input_names=["input_ids", "attention_mask"] + ["token_type_ids"] * (settings["tokenizer_class"] == "BertTokenizer"),
        **{k: (v["content"] if isinstance(v, dict) else v) for k, v in settings.items() if k not in ("tokenizer_class", "do_lower_case", "add_prefix_space")})


def masks(model, tokenizer) -> list[dict]:
    mask = tokenizer.mask_token
    runs = [{"text": f"The {mask} of the whale."}, {"text": f"{mask} and London", "topK": 3}, {"text": f"a {mask} in {mask} sea", "topK": 2},
            {"text": f"The {mask}.", "targets": ["\u0120the" if model.config.model_type == "roberta" else "the", "s", "a"], "topK": 2}]
    if model.config.model_type == "bert":
        runs.append({"text": f"Caf\u00e9 {mask} \U0001f600 [UNK] end", "topK": 4})
    task = pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu")
    for run in runs:
        options = {"top_k": run.get("topK", 5)} | ({"targets": run["targets"]} if "targets" in run else {})
        found = task(run["text"], **options)
        rows = found if isinstance(found[0], list) else [found]
        rows = [[{"tokenId": one["token"], "text": one["token_str"], "token": tokenizer.convert_ids_to_tokens(one["token"]), "score": one["score"],
                  "sequence": one["sequence"]} for one in row] for row in rows]
        run["expected"] = rows if isinstance(found[0], list) else rows[0]
    return runs


def sequences(model, tokenizer) -> list[dict]:
    task = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    runs = [{"input": "The whale was white."}, {"input": {"text": "It was a whale.", "pair": "Was it white?"}}, {"input": "", "topK": 2},
            {"input": "the sea", "function": "sigmoid"}, {"input": "the sea", "function": "none"}, {"input": "the sea", "function": "softmax"}]
    for run in runs:
        given = run["input"] if isinstance(run["input"], str) else {"text": run["input"]["text"], "text_pair": run["input"]["pair"]}
        options = {"function_to_apply": run["function"]} if "function" in run else {}
        found = task(given, top_k=run.get("topK"), **options)
        run["expected"] = found if isinstance(found[0], dict) else found[0]
    return runs


def tokens(model, tokenizer) -> list[dict]:
    task = pipeline("token-classification", model=model, tokenizer=tokenizer, device="cpu")
    long = " ".join([*WORDS, CORPUS[:160]])
    runs = []
    for text in [*WORDS, "unhappiness.The dog's-tail, Ångström"]:
        for aggregation in ("none", "simple", "first", "average", "max"):
            runs.append({"text": text, "aggregation": aggregation})
    runs.append({"text": WORDS[0], "aggregation": "none", "ignoreLabels": ["B-PER", "I-LOC"]})
    for aggregation in ("simple", "max"):
        runs.append({"text": long, "aggregation": aggregation, "window": {"size": tokenizer.model_max_length, "overlap": 8}})
    for run in runs:
        options = {"aggregation_strategy": run["aggregation"]}
        if "ignoreLabels" in run:
            options["ignore_labels"] = run["ignoreLabels"]
        if "window" in run:
            options["stride"] = run["window"]["overlap"]
        text = run["text"]
        found = pipeline("token-classification", model=model, tokenizer=tokenizer, device="cpu", **options)(text)
        # Of windows that begin with a token of spaces alone, the pipeline gives the first entity twice.
        found = [one for i, one in enumerate(found) if i == 0 or one != found[i - 1]]
        run["expected"] = [
            {"label": one.get("entity_group", one.get("entity")), "score": float(one["score"]), "text": text[one["start"]:one["end"]],
             "offsets": [utf16(text, one["start"]), utf16(text, one["end"])]} | ({"index": one["index"]} if run["aggregation"] == "none" else {})
            for one in found]
    return runs


def spans(start, end, allowed, maximum, top):
    """transformers 4.57, pipelines/question_answering.py: `select_starts_ends` and `decode_spans`; allowed: the context's tokens and [CLS]."""
    start, end = (np.where(allowed, one, -10000.0) for one in (start, end))
    start, end = (np.exp(one - one.max()) for one in (start, end))
    start, end = start / start.sum(), end / end.sum()
    none = start[0] * end[0]
    start[0] = end[0] = 0
    candidates = np.tril(np.triu(np.outer(start, end)), maximum - 1)
    order = np.argsort(-candidates.flatten(), kind="stable")[:top]
    pairs = [np.unravel_index(i, candidates.shape) for i in order]
    return none, [(int(s), int(e), float(candidates[s, e])) for s, e in pairs if allowed[s] and allowed[e] and s and e]


def answers(model, tokenizer) -> list[dict]:
    context = "Call me Ishmael. The white whale swam in the sea, and Ahab hunted the whale."
    runs = [{"question": "Who hunted?", "context": context, "topK": 4}, {"question": "Where?", "context": context, "maxAnswerLength": 3, "topK": 2},
            {"question": "Who?", "context": context, "impossible": True, "topK": 3},
            {"question": "What?", "context": CORPUS[:300], "topK": 5, "maxLength": 40, "docStride": 12},
            {"question": "What?", "context": CORPUS[:260], "topK": 3, "maxLength": 32, "docStride": 8, "impossible": True},
            {"question": "Caf\u00e9?", "context": "na\u00efve \U0001f600 fa\u00e7ade \u4f60\u597d world", "topK": 3}]
    for run in runs:
        top, maximum = run.get("topK", 1), run.get("maxAnswerLength", 15)
        limit = run.get("maxLength", tokenizer.model_max_length)
        encoded = tokenizer(run["question"], run["context"], truncation="only_second", max_length=limit, stride=run.get("docStride", 20),
                            return_overflowing_tokens=True, return_token_type_ids=True, return_tensors=None)
        whole = tokenizer(run["question"], run["context"]).encodings[0]
        best, nothing = {}, float("inf")
        for w in range(len(encoded["input_ids"])):
            one = encoded.encodings[w]
            output = model(input_ids=torch.tensor([one.ids]), token_type_ids=torch.tensor([one.type_ids])) if model.config.model_type == "bert" else model(input_ids=torch.tensor([one.ids]))
            allowed = np.array([s == 1 or i == tokenizer.cls_token_id for s, i in zip(one.sequence_ids, one.ids)])
            none, found = spans(output.start_logits[0].detach().numpy(), output.end_logits[0].detach().numpy(), allowed, maximum, 2 * top + 10)
            nothing = min(nothing, float(none))
            for s, e, score in found:
                # Whole words, as the pre-tokenizer has them, wherever a window begins or ends.
                begin = whole.word_to_chars(whole.char_to_word(one.offsets[s][0], 1), 1)[0]
                finish = whole.word_to_chars(whole.char_to_word(one.offsets[e][1] - 1, 1), 1)[1]
                best[begin, finish] = max(score, best.get((begin, finish), 0.0))
        found = [{"text": run["context"][b:e], "score": score, "offsets": [utf16(run["context"], b), utf16(run["context"], e)]} for (b, e), score in best.items()]
        if run.get("impossible"):
            found.append({"text": "", "score": nothing, "offsets": [0, 0]})
        run["expected"] = sorted(found, key=lambda one: -one["score"])[:top]
    return runs


POOLINGS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["mean", "max"]]


def embeddings(model, tokenizer) -> dict:
    texts = ["The white whale.", "", "the", CORPUS[:60], "Caf\u00e9 \U0001f600 \u4f60\u597d", "The white whale."]
    cases = []
    for mode in POOLINGS:
        for prompt in ("", "query: "):
            module = Pooling(16, mode, include_prompt=prompt == "")
            vectors = []
            for text in texts:
                one = tokenizer(prompt + text, return_tensors="pt")
                with torch.no_grad():
                    states = model(**one).last_hidden_state
                features = {"token_embeddings": states, "attention_mask": one["attention_mask"]}
                if prompt:
                    features["prompt_length"] = tokenizer(prompt, return_tensors="pt")["input_ids"].shape[1] - 1
                vectors.append(module(features)["sentence_embedding"][0].tolist())
            cases.append({"pooling": mode, "prompt": prompt, "vectors": vectors})
    return {"texts": texts, "cases": cases}


def pieces(lines: list[str], size: int, seed: int) -> bytes:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=size, model_type="unigram", hard_vocab_limit=False,
                                   character_coverage=1.0, bos_id=-1, unk_id=1, eos_id=0, minloglevel=2, num_threads=1, normalization_rule_name="identity")
    return model.getvalue()


def translation(out: Path, seed: int) -> dict:
    """A Marian model with published files: two SentencePiece models, one vocabulary, language codes in it. A seed is passed over that ends a text at once."""
    folder = out / "marian"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = [line for line in CORPUS.split("\n") if line.strip()] + WORDS
    target = ["Der Wal ist weiß.", "Nennt mich Ismael.", "Er jagte den Wal über alle Meere.", "你好，世界。", *WORDS] * 3
    (folder / "source.spm").write_bytes(pieces(source, 150, seed))
    (folder / "target.spm").write_bytes(pieces(target, 120, seed))
    names = ["</s>", "<unk>", ">>deu<<", ">>zho<<"]
    for file in ("source.spm", "target.spm"):
        model = spm.SentencePieceProcessor(model_file=str(folder / file))
        names += [model.id_to_piece(i) for i in range(model.get_piece_size()) if model.id_to_piece(i) not in names]
    names.append("<pad>")
    write_json(folder / "vocab.json", {name: i for i, name in enumerate(names)})
    write_json(folder / "tokenizer_config.json", {"source_lang": "en", "target_lang": "mul", "model_max_length": 32, "tokenizer_class": "MarianTokenizer", "separate_vocabs": False})
    pad = len(names) - 1
    config = {"architectures": ["MarianMTModel"], "model_type": "marian", "vocab_size": len(names), "d_model": 16, "encoder_layers": 2, "decoder_layers": 3,
              "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "activation_function": "swish",
              "max_position_embeddings": 32, "pad_token_id": pad, "eos_token_id": 0, "bos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": 0,
              "bad_words_ids": [[pad]], "scale_embedding": True, "static_position_embeddings": True, "num_beams": 3, "no_repeat_ngram_size": 1, "max_length": 14, "is_encoder_decoder": True}
    torch.manual_seed(seed)
    model = transformers.MarianMTModel._from_config(AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation="eager").eval()
    fill(model, seed, gain=1.5)
    shutil.rmtree(folder / "x", ignore_errors=True)
    save(folder / "x", model, config)
    for file in (folder / "x").iterdir():
        file.rename(folder / file.name)
    (folder / "x").rmdir()
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    sentences = ["Call me Ishmael.", "The white whale swam in the sea!", "Where is Dr. Ahab?", "a < b & c > d", "No. 7", "café \U0001f600 end",
                 ">>deu<< The whale.", ">>deu<< Call me.", ">>zho<< The whale."]
    found = []
    for options in ({}, {"num_beams": 1}):
        for text in sentences:
            one = tokenizer(text, return_tensors="pt")
            made = model.generate(**one, **options, return_dict_in_generate=True, output_scores=True)
            ids = made.sequences[0].tolist()[1:]
            ids = ids[: ids.index(0) + 1] if 0 in ids else ids
            entry = {"text": text, **({"numBeams": 1} if options else {}), "inputIds": one["input_ids"][0].tolist(), "tokenIds": ids,
                     "translation": tokenizer.decode(ids, skip_special_tokens=True)}
            if not options:
                entry["score"] = float(made.sequences_scores[0])
            with torch.no_grad():
                looked = model(**one, decoder_input_ids=torch.tensor([[pad, *ids[:-1]]]), output_attentions=True)
            entry["attention"] = looked.cross_attentions[1][0].mean(0).tolist()  # the layer before the last of three
            found.append(entry)
    if min(len(entry["tokenIds"]) for entry in found if not entry["text"].startswith(">>")) < 6:
        return translation(out, seed + 1000)
    return {"sentences": found}


def generate(out: Path, seed: int) -> None:
    folder = out / "tasks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bert, roberta = wordpiece(folder / "wordpiece"), byte_level(folder / "byte-level")
    size, other = len(bert), len(roberta)
    expected: dict = {}
    expected["fillMask"] = [
        {"model": "bert-mask", "tokenizer": "wordpiece", "runs": masks(make(folder, "bert-mask", "BertForMaskedLM", seed, size), bert)},
        {"model": "roberta-mask", "tokenizer": "byte-level", "runs": masks(make(folder, "roberta-mask", "RobertaForMaskedLM", seed, other), roberta)},
    ]
    moods = labels(["bad", "so-so", "good"])
    expected["classify"] = [
        {"model": name, "tokenizer": "wordpiece", "runs": sequences(make(folder, name, kind, seed + i, size, **more), bert)}
        for i, (name, kind, more) in enumerate([
            ("bert-moods", "BertForSequenceClassification", moods),
            ("distilbert-many", "DistilBertForSequenceClassification", moods | {"problem_type": "multi_label_classification"}),
            ("bert-one", "BertForSequenceClassification", labels(["LABEL_0"])),
            ("bert-regression", "BertForSequenceClassification", labels(["LABEL_0"]) | {"problem_type": "regression"}),
        ])]
    expected["tokens"] = [
        {"model": "bert-names", "tokenizer": "wordpiece", "runs": tokens(make(folder, "bert-names", "BertForTokenClassification", seed, size, **labels(LABELS)), bert)},
        {"model": "roberta-names", "tokenizer": "byte-level", "runs": tokens(make(folder, "roberta-names", "RobertaForTokenClassification", seed, other, **labels(LABELS)), roberta)},
    ]
    expected["answer"] = [
        {"model": "bert-answer", "tokenizer": "wordpiece", "runs": answers(make(folder, "bert-answer", "BertForQuestionAnswering", seed, size), bert)},
    ]
    expected["embed"] = {"model": "bert", "tokenizer": "wordpiece", **embeddings(make(folder, "bert", "BertModel", seed, size), bert)}
    expected["translate"] = translation(folder, seed)
    write_json(folder / "expected.json", expected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "fixtures")
    parser.add_argument("--seed", type=int, default=2017)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    generate(args.out, args.seed)


if __name__ == "__main__":
    main()
