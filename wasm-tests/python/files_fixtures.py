"""Writes wasm-tests/fixtures/files: small tokenizers with what transformers makes of texts, and odd torch archives.

    python files_fixtures.py [--out FOLDER]
"""

import argparse
import json
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog's bark isn't loud, they've said; we're fine, I'm told.",
    "constructor __proto__ toString hasOwnProperty valueOf prototype constructor __proto__ toString length",
    "In the beginning was the word, and the word was with the 'model', and the model was 3.14159 or 42, 1984!",
    "Übergrößenträger naïve café façade 你好,世界。我们一起学习机器学习。 こんにちは世界 안녕하세요 Привет, мир",
    "emoji: 😀 👍🏽 👩‍👩‍👧‍👦 🇨🇳 text   with   many    spaces\n\nand\ttabs\r\nand lines  ",
    "def f(x):\n    return x ** 2  # squared ½ ² ٣ Ⅷ\n\nprint(f(12345678))",
] * 4

TEXTS = [
    "",
    " ",
    "Hello",
    "Hello, world!",
    "The quick brown fox doesn't jump. It 's  fine , isn't it ? Yes !",
    "constructor",
    "__proto__",
    "toString",
    "constructor __proto__ toString hasOwnProperty length valueOf end id constructor",
    "a literal \ufffd stays, \ufffd\ufffd too",
    "😀 👍🏽 👩‍👩‍👧‍👦 🇨🇳",
    "你好,世界。我们学习",
    "  leading and trailing  ",
    "tabs\tand\nlines\r\n\r\n  x   y",
    "12345 ½ ² ٣ Ⅷ 3.14",
    "no\u00a0break\u2003em\u3000wide\ufeffbom\u0085next",
    "a \u0085b \ufeffc \u0085\u0085 \ufeff\ufeff. \u200b x",
    "naïve café — “quotes” … 'single' \"double\"",
    "<|endoftext|>",
    "before <|endoftext|> after",
    "<s>x</s> <unk> [CLS] [MASK]",
    "#hash ## %%% $$$ ---",
    "ﬁ ① Å",
    "don't we'll I'd they're o'clock 'tis DON'T",
    "x" * 300,
    "\u0000\u0001\u007f",
    "Ġ Ċ ▁ <0x41> <0xE4>",
]


def random_ids(size: int, rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(size) for _ in range(n)] for n in (1, 3, 8, 40)]


def record(folder: Path, tokenizer, extra_ids: list[list[int]], rust: Tokenizer | None = None) -> None:
    """What transformers makes of the texts; `rust` decodes where transformers would load something else."""
    expected = {"vocabSize": len(tokenizer), "special": sorted(tokenizer.all_special_ids), "texts": [], "ids": []}
    for text in TEXTS:
        ids = tokenizer.encode(text)
        expected["texts"].append(
            {
                "text": text,
                "ids": ids,
                "plain": tokenizer.encode(text, add_special_tokens=False),
                "decoded": tokenizer.decode(ids),
                "skipped": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    for ids in extra_ids:
        expected["ids"].append({"ids": ids, "decoded": tokenizer.decode(ids)})
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=True, indent=0) + "\n")


def fast(folder: Path, tokenizer: Tokenizer, **special) -> PreTrainedTokenizerFast:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}\n')
    return PreTrainedTokenizerFast.from_pretrained(folder)


def byte_level(out: Path, name: str, pre, size: int, **special) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False),
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    folder = out / name
    loaded = fast(folder, tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>", **special)
    rng = random.Random(1)
    record(folder, loaded, random_ids(len(loaded), rng))


def vocab_and_merges(out: Path) -> None:
    """The files of GPT-2 and OPT before tokenizer.json: read by the class of each."""
    source = json.loads((out / "gpt2/tokenizer.json").read_text())
    vocab = dict(source["model"]["vocab"])
    merges = "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in source["model"]["merges"])
    for name, config, model_type in (
        ("gpt2-vocab-merges", {"model_max_length": 1024}, "gpt2"),
        ("opt-vocab-merges", {"add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>", "add_prefix_space": False}, "opt"),
    ):
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        own = dict(vocab)
        if model_type == "opt":
            own = {token: i + 2 for token, i in vocab.items()}
            own["<pad>"], own["</s>"] = 0, 1
        (folder / "vocab.json").write_text(json.dumps(own))
        (folder / "merges.txt").write_text(merges)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **config}))
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        loaded = transformers.GPT2Tokenizer.from_pretrained(folder)
        record(folder, loaded, random_ids(len(loaded), random.Random(2)))


def byte_fallback(out: Path) -> None:
    """BPE with SentencePiece's marks and byte fallback, as LLaMA's and Gemma's."""
    for name, with_prefix in (("llama", True), ("gemma", False)):
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        replace = normalizers.Replace(" ", "\u2581")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if with_prefix else replace
        specials = ["<unk>", "<s>", "</s>"]
        trainer = trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=specials + [f"<0x{i:02X}>" for i in range(256)],
            limit_alphabet=90,
            show_progress=False,
        )
        if not with_prefix:
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        # Words are split for the training alone: merges across spaces would make a few long tokens.
        saved, tokenizer.pre_tokenizer = tokenizer.pre_tokenizer, pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.train_from_iterator(CORPUS, trainer)
        document = json.loads(tokenizer.to_str())
        document["added_tokens"] = [one for one in document["added_tokens"] if not one["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(document))
        tokenizer.pre_tokenizer = saved if saved is not None else tokenizer.pre_tokenizer
        if saved is None:
            document = json.loads(tokenizer.to_str())
            document["pre_tokenizer"] = None
            tokenizer = Tokenizer.from_str(json.dumps(document))
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if with_prefix else []))
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
        folder = out / name
        loaded = fast(folder, tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        rng = random.Random(3)
        byte = [loaded.convert_tokens_to_ids(f"<0x{i:02X}>") for i in range(256)]
        runs = [[byte[b] for b in text.encode()] for text in ("😀", "你好", "é", "😀x你")]
        lone = [[byte[0xFF]], [byte[0xE4], byte[0xBD]], [10 + 259, byte[0xF0], 270, byte[0x80], 271]]
        # Runs of bytes that are no UTF-8 are this library's own affair (decoder.ts says why): ids without bytes, then whole runs.
        mixed = [[i for i in ids if i not in byte] for ids in random_ids(len(loaded), rng)]
        record(folder, loaded, [ids for ids in mixed if ids] + runs + lone)


def metaspace_and_word_piece(out: Path) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    folder = out / "unigram"
    loaded = fast(folder, tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", clean_up_tokenization_spaces=True)
    record(folder, loaded, random_ids(len(loaded), random.Random(4)))

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    folder = out / "word-piece"
    loaded = fast(folder, tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]")
    record(folder, loaded, random_ids(len(loaded), random.Random(5)))


def splits(out: Path) -> None:
    """Pre-tokenizers that the bought library gets wrong by itself, in one tokenizer each."""
    digits = pre_tokenizers.Digits
    llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    from tokenizers import Regex

    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level(out, "gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False), 600)
    byte_level(out, "smollm", pre_tokenizers.Sequence([digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), 600)
    byte_level(out, "llama3", pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(llama3), "isolated"), bytes_only]), 600)
    byte_level(
        out,
        "splits",
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split("-", "merged_with_previous"),
                pre_tokenizers.Split(Regex(r"[ \n]"), "merged_with_next"),
                pre_tokenizers.Punctuation("isolated"),
                digits(individual_digits=False),
                bytes_only,
            ]
        ),
        600,
    )
    byte_level(out, "prefix-space", pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=True)]), 500)


def added(out: Path) -> None:
    """Added tokens of all kinds, and special tokens that only the settings name."""
    tokenizer = Tokenizer.from_file(str(out / "gpt2/tokenizer.json"))
    tokenizer.add_tokens([AddedToken("    ", normalized=True), AddedToken("constructor"), AddedToken("\n\n")])
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<mask>", lstrip=True)])
    loaded = fast(out / "added", tokenizer, eos_token="<|endoftext|>", pad_token="<|pad|>", additional_special_tokens=["<|im_end|>"])
    TEXTS.extend(["<|im_start|>user\nHello<|im_end|>\n", "a    b        c", "x <mask>. y", "\n\n\n", "<|pad|><|pad|>"])
    record(out / "added", loaded, random_ids(len(loaded), random.Random(6)))


TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "blocks": "{%- if tools %}\n    {{- 'TOOLS ' }}\n    {%- for tool in tools %}\n        {{- tool | tojson }}\n    {%- endfor %}\n{%- endif %}\n{% for m in messages %}\n{{ m.role | upper }}: {{ m['content'] | trim }}\n{% endfor %}\n{{ unknown_variable }}{% if pad_token is defined %}PAD{% endif %}{% if enable_thinking is defined and enable_thinking %} think{% endif %}{# comment #}",
}


def chats(out: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hello, constructor! "},
        {"role": "assistant", "content": "你好 😀"},
        {"role": "user", "content": "Again"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "llama")
    cases = []
    for name, template in TEMPLATES.items():
        for variables in ({}, {"add_generation_prompt": True}, {"tools": tools, "enable_thinking": True}):
            text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **variables)
            cases.append({"name": name, "template": template, "variables": variables, "text": text})
    (out / "chats.json").write_text(json.dumps({"messages": messages, "cases": cases}, ensure_ascii=True, indent=0) + "\n")


def archives(out: Path) -> None:
    torch.manual_seed(7)
    folder = out / "torch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(6, 8, generator=generator)
    odd = {
        "plain": base,
        "tied": base,
        "transposed": base.t(),
        "rows": base[2:5],
        "columns": base[:, 2:5],
        "expanded": torch.randn(1, 5, generator=generator).expand(4, 5),
        "half": torch.randn(7, generator=generator).half(),
        "bfloat": torch.randn(3, 3, generator=generator).bfloat16(),
        "permuted": torch.randn(2, 3, 4, generator=generator).permute(2, 0, 1),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "mask": torch.ones(3, 3, dtype=torch.bool).tril(),
        "counter": torch.tensor([1, 2, 3]),
        "parameter": torch.nn.Parameter(torch.randn(2, generator=generator)),
    }
    torch.save(odd, folder / "odd.bin")
    save_file({k: v.detach().contiguous().clone() for k, v in odd.items()}, folder / "odd.safetensors")
    module = torch.nn.Linear(3, 2)
    torch.save(module.state_dict(), folder / "state.bin")
    torch.save({"epoch": 3, "state_dict": module.state_dict()}, folder / "nested.bin")
    torch.save(module, folder / "module.bin")
    torch.save(odd, folder / "protocol4.bin", pickle_protocol=4)
    torch.save(module.state_dict(), folder / "old.bin", _use_new_zipfile_serialization=False)
    # The same archive with every size in zip64 fields, as files over 4 GB have them.
    with zipfile.ZipFile(folder / "state.bin") as source, zipfile.ZipFile(folder / "zip64.bin", "w", zipfile.ZIP_STORED) as target:
        for info in source.infolist():
            with target.open(info.filename, "w", force_zip64=True) as stream:
                stream.write(source.read(info))
    with zipfile.ZipFile(folder / "state.bin") as source, zipfile.ZipFile(folder / "deflated.bin", "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))


def llama2c(out: Path) -> None:
    """A checkpoint as llama2.c's export.py lays it out, and the same weights under safetensors names."""
    folder = out / "llama2c"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(11)
    D, F, L, H, Hk, V, T = 8, 12, 2, 4, 2, 300, 16
    rows = D // H * Hk
    make = lambda *shape: rng.standard_normal(shape).astype("<f4")
    for name, tied in (("tied", True), ("untied", False)):
        layers = [
            {
                "input_layernorm": make(D),
                "self_attn.q_proj": make(D, D),
                "self_attn.k_proj": make(rows, D),
                "self_attn.v_proj": make(rows, D),
                "self_attn.o_proj": make(D, D),
                "post_attention_layernorm": make(D),
                "mlp.gate_proj": make(F, D),
                "mlp.down_proj": make(D, F),
                "mlp.up_proj": make(F, D),
            }
            for _ in range(L)
        ]
        embed, norm, head = make(V, D), make(D), make(V, D)
        header = np.array([D, F, L, H, Hk, V if tied else -V, T], "<i4").tobytes()
        order = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"]
        body = [embed] + [layer[key] for key in order for layer in layers] + [norm, make(T, D // H // 2), make(T, D // H // 2)]
        data = header + b"".join(part.tobytes() for part in body) + (b"" if tied else head.tobytes())
        (folder / f"{name}.bin").write_bytes(data)
        tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": norm}
        for i, layer in enumerate(layers):
            for key, value in layer.items():
                tensors[f"model.layers.{i}.{key}.weight"] = value
        if not tied:
            tensors["lm_head.weight"] = head
        save_file({k: torch.from_numpy(v.copy()) for k, v in tensors.items()}, folder / f"{name}.safetensors")
        if tied:
            modern = bytearray(np.array([0x616B3432, 1, D, F, L, H, Hk, V, T], "<u4").tobytes() + b"\x01")
            modern += bytes(256 - len(modern))
            v1 = ["input_layernorm", "post_attention_layernorm"]
            body = [layer[key] for key in v1 for layer in layers] + [norm, embed] + [layer[key] for key in order if key not in v1 for layer in layers]
            (folder / "version1.bin").write_bytes(bytes(modern) + b"".join(part.tobytes() for part in body))
    sentencepiece_tokenizer(folder)


def sentencepiece_tokenizer(folder: Path) -> None:
    """tokenizer.bin as llama2.c's tokenizer.py exports it from a SentencePiece model, which is the reference."""
    import io
    import struct

    import sentencepiece as spm

    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=512,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    processor = spm.SentencePieceProcessor(model_proto=model.getvalue())
    tokens, scores = [], []
    for i in range(processor.vocab_size()):
        text = processor.id_to_piece(i)
        if i == processor.bos_id():
            text = "\n<s>\n"
        elif i == processor.eos_id():
            text = "\n</s>\n"
        tokens.append(text.replace("\u2581", " ").encode())
        scores.append(processor.get_score(i))
    with open(folder / "tokenizer.bin", "wb") as out:
        out.write(struct.pack("I", max(map(len, tokens))))
        for token, score in zip(tokens, scores):
            out.write(struct.pack("fI", score, len(token)) + token)
    texts = [text for text in TEXTS if "<" not in text and "\u0000" not in text]
    cases = [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))} for text in texts]
    (folder / "tokenizer_expected.json").write_text(json.dumps(cases, ensure_ascii=True, indent=0) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "fixtures" / "files")
    out = parser.parse_args().out
    transformers.logging.set_verbosity_error()
    out.mkdir(parents=True, exist_ok=True)
    splits(out)
    vocab_and_merges(out)
    byte_fallback(out)
    metaspace_and_word_piece(out)
    added(out)
    chats(out)
    archives(out)
    llama2c(out)


if __name__ == "__main__":
    main()
