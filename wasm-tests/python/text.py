"""Tokenizers and chat templates with what Python makes of hard strings, and a llama2.c model with its tokenizer."""

import json
import shutil
import struct
import tempfile
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import GPT2Tokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from common import random_weight, write_json

CORPUS = """The tokenizer learns its merges from these lines; they need not be long, only varied.
A constructor is called once; the constructor of the object returns the object itself, and toString() returns a string.
What __proto__ and prototype mean, every constructor knows: __proto__ points to the prototype, hasOwnProperty does not.
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.
Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, I thought I would sail about.
The whale, the white whale! There she blows! there! there! She blows! The ship tore on; leaving such a furrow in the sea.
In the year 1851 there were 135 chapters, 1 epilogue, 2 volumes; 3.14159 is not 22/7, and 1000000 is a million.
I'm sure you'll say we've seen it, they'd said; isn't it? don't, won't, can't, shouldn't, it's, that's.
def forward(self, x):\n    return self.norm(x + self.attention(x))\n\tfor (let i = 0; i < n; i++) { sum += values[i]; }
Übergrößen über alles: naïve café, façade, jalapeño. Der Wal ist weiß. 你好，世界。 こんにちは世界。 Привет, мир!
"""

HARD = [
    "", " ", "   ", "Hello, world!", " leading", "  two leading", "trailing ", "a  b   c    d", "\n", "\n\n\nthree lines\n", "tab\tand\r\nline",
    "    indented\n\tand tabbed", "constructor", "__proto__", "toString", "hasOwnProperty", "the constructor of __proto__.toString()", "valueOf prototype watch",
    "I'm you're we've I'LL DON'T it's", "1851 1000000 3.14159 0x1F 12,345.67", "😀", "smile 😀! 👩\u200d👩\u200d👧 🇫🇷 ✋🏽", "你好，世界", "今日は良い天気ですね。", "한국어 문장",
    "Привет, мир!", "نص عربي", "naïve café", "e\u0301 is not é", "a literal \ufffd stays", "\ufffd\ufffd", "𝒳 and 𐍈", "\u00a0no-break\u3000ideographic\u200bzero", "ﬁ ligature ½ ①",
    "snake_case camelCase kebab-case", "http://example.org/a?b=c&d=%20", "<not a tag> & [brackets] {braces}", "x" * 40, "the " * 20, "!!!???...---", "\"quoted\" 'single' `tick`",
]

CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
          "trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
          "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
         "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
         "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
         "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}")
QWEN = ("{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n{%- else %}\n"
        "    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n{%- endif %}\n"
        "{%- for message in messages %}\n    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or (message.role == \"assistant\") %}\n"
        "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n")
TEMPLATES = {"chatml": (CHATML, "<|im_start|>", "<|im_end|>"), "llama3": (LLAMA3, "<|begin_of_text|>", "<|eot_id|>"), "gemma": (GEMMA, "<bos>", "<eos>"),
             "qwen": (QWEN, None, "<|im_end|>")}

user, assistant, system = (lambda text, role=role: {"role": role, "content": text} for role in ("user", "assistant", "system"))
CONVERSATIONS = [
    [user("Hello!")],
    [user("  padded with blanks \n")],
    [system("Answer in one word."), user("What is the capital of France?")],
    [user("1 + 1?"), assistant("2"), user("And again, {{ braces }} & <tags> \"quoted\"?")],
    [user("你好 😀"), assistant(""), user("constructor __proto__")],
    [assistant("out of turn"), user("so?")],
]

# The split of Llama 3 and Qwen2; the one of GPT-2 is the ByteLevel pre-tokenizer's own.
LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(specials: list[str], split: str, template: str | None, ignore_merges: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if split == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif split == "digits":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
                                                           pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=480, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    byte_level_post = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = processors.Sequence([byte_level_post, processors.TemplateProcessing(single=template, pair=None, special_tokens=[
        (t, tokenizer.token_to_id(t)) for t in specials if t in template])]) if template else byte_level_post
    return tokenizer


def sentencepiece_style() -> Tokenizer:
    """As LLaMA's tokenizer.json: blanks become U+2581, unknown characters become bytes, `<s>` goes first."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    latin = "".join(c for c in CORPUS if ord(c) < 256)
    trained.train_from_iterator(latin.splitlines(), trainers.BpeTrainer(vocab_size=230, show_progress=False))
    learnt = json.loads(trained.to_str())["model"]
    pieces = specials + bytes_ + sorted(learnt["vocab"], key=learnt["vocab"].get)
    vocab = {p: i for i, p in enumerate(dict.fromkeys(pieces))}
    tokenizer.model = models.BPE(vocab=vocab, merges=[tuple(m) for m in learnt["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in specials])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def expectations(tokenizer, specials: list[str]) -> dict:
    texts = HARD + [f"{a}mid{b} and {a}" for a, b in zip(specials, specials[1:] + specials[:1])]
    cases = []
    for text in texts:
        ids, plain = (tokenizer.encode(text, add_special_tokens=s).ids for s in (True, False))
        case = {"text": text, "ids": ids, "idsWithoutSpecials": plain, "decoded": tokenizer.decode(ids), "decodedWithSpecials": tokenizer.decode(ids, skip_special_tokens=False)}
        cases.append(case)
    emoji = tokenizer.encode("😀", add_special_tokens=False).ids
    chinese = tokenizer.encode("界", add_special_tokens=False).ids
    broken = [emoji[:-1], emoji[-4:][1:], emoji[:-2] + chinese[-3:], chinese[-3:] + emoji[:-3], emoji[-1:] * 3]
    return {"cases": cases, "decodes": [{"ids": ids, "decoded": tokenizer.decode(ids)} for ids in broken if ids]}


def render(template: str, messages: list, bos: str | None, eos: str | None, prompt: bool) -> dict:
    carrier = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token=bos, eos_token=eos)
    try:
        return {"text": carrier.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=prompt)}
    except Exception as error:
        return {"error": str(error)}


def chats(tokenizer, template: str, bos: str, eos: str) -> list[dict]:
    out = []
    for messages in CONVERSATIONS[:4]:
        for prompt in (True, False):
            result = render(template, messages, bos, eos, prompt)
            if "text" in result:
                out.append({"messages": messages, "addGenerationPrompt": prompt, **result, "ids": tokenizer.encode(result["text"], add_special_tokens=False).ids})
    return out


def write_tokenizer(folder: Path, tokenizer: Tokenizer, config: dict, specials: list[str], template: str | None = None) -> dict:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    write_json(folder / "tokenizer_config.json", config)
    expected = expectations(tokenizer, specials)
    if template:
        expected["chats"] = chats(tokenizer, template, config.get("bos_token"), config["eos_token"])
    write_json(folder / "expected.json", expected)
    return expected


def tokenizers(root: Path) -> None:
    base = root / "tokenizers"
    common = {"clean_up_tokenization_spaces": False, "model_max_length": 1000000000000000019884624838656}

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    smol = byte_level(specials, "digits", None)
    write_tokenizer(base / "byte-bpe", smol, common | {"add_prefix_space": False, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>",
                    "pad_token": "<|im_end|>", "tokenizer_class": "GPT2Tokenizer", "chat_template": CHATML, "added_tokens_decoder": {
                        str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for i, s in enumerate(specials)}},
                    specials, CHATML)

    gpt2 = byte_level(["<|endoftext|>"], "gpt2", None)
    folder = base / "byte-bpe-files"  # vocab.json and merges.txt, as GPT-2 was first published
    expected = write_tokenizer(folder, gpt2, common | {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024, "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                                                       "unk_token": "<|endoftext|>", "add_prefix_space": False}, ["<|endoftext|>"])
    (folder / "tokenizer.json").unlink()
    gpt2.model.save(str(folder))
    slow = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    for case in expected["cases"]:
        assert slow.encode(case["text"]) == case["ids"], case

    llama3_specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    llama3 = byte_level(llama3_specials, "llama3", "<|begin_of_text|> $A", ignore_merges=True)
    write_tokenizer(base / "llama3-bpe", llama3, common | {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "tokenizer_class": "PreTrainedTokenizerFast",
                    "chat_template": [{"name": "default", "template": LLAMA3}, {"name": "tool_use", "template": "{{ raise_exception('tools') }}"}]}, llama3_specials, LLAMA3)

    sp = sentencepiece_style()
    write_tokenizer(base / "llama-bpe", sp, common | {"add_bos_token": True, "add_eos_token": False, "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False,
                    "normalized": False, "rstrip": False, "single_word": False}, "eos_token": "</s>", "unk_token": "<unk>", "legacy": True, "tokenizer_class": "LlamaTokenizer",
                    "sp_model_kwargs": {}}, ["<s>", "</s>"])
    print("tokenizers:", {f.name: sum(x.stat().st_size for x in f.iterdir()) // 1024 for f in sorted(base.iterdir())}, "KB")


def chat(root: Path) -> None:
    folder = root / "chat"
    folder.mkdir(exist_ok=True)
    cases = []
    for name, (template, bos, eos) in TEMPLATES.items():
        (folder / f"{name}.jinja").write_text(template)
        for messages in CONVERSATIONS:
            for prompt in (True, False):
                cases.append({"template": name, "bosToken": bos, "eosToken": eos, "messages": messages, "addGenerationPrompt": prompt, **render(template, messages, bos, eos, prompt)})
    write_json(folder / "expected.json", {"cases": cases})
    print(f"chat: {len(cases)} cases, {sum('error' in c for c in cases)} errors")


def llama2c(root: Path, seed: int) -> None:
    """model.bin and tokenizer.bin as karpathy/llama2.c's export.py (version 0) and tokenizer.py write them."""
    folder = root / "llama2c"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        text, prefix = Path(scratch) / "text.txt", f"{scratch}/spm"
        text.write_text("".join(c for c in CORPUS if ord(c) < 256))
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=prefix, model_type="bpe", vocab_size=384, byte_fallback=True, character_coverage=1.0,
            normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
        sp = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    pieces = []
    for i in range(sp.get_piece_size()):
        piece = {sp.bos_id(): "\n<s>\n", sp.eos_id(): "\n</s>\n"}.get(i, sp.id_to_piece(i)).replace("▁", " ").encode()
        pieces.append(struct.pack("<fi", sp.get_score(i), len(piece)) + piece)
    longest = max(len(p) - 8 for p in pieces)
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", longest) + b"".join(pieces))

    texts = ["Call me Ishmael", "", "It was the best of times, 1851! 😀 你好", "  two  blanks\n"]
    for attempt in range(40):
        trial = seed + 1000 * attempt
        generator = torch.Generator().manual_seed(trial)
        config = LlamaConfig(vocab_size=384, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=96,
                             rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, attn_implementation="eager")
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(random_weight(name, p.shape, generator, gemma=False, conv1d=False, gain=1.6))
            model.model.embed_tokens.weight[:3] *= 0.3  # llama2.c ends at <s>, transformers at </s>: greedy text is to hold neither
        cases, tensors = [], {}
        for i, text in enumerate(texts):
            ids = [1, *sp.encode(text)]
            with torch.no_grad():
                out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=32, do_sample=False, output_logits=True, return_dict_in_generate=True)
                tensors[f"case.{i}.logits"] = model(input_ids=torch.tensor([ids])).logits[0]
            greedy = out.sequences[0, len(ids):].tolist()
            lead = min(((t := row[0].topk(2).values)[0] - t[1]).item() / row[0].std().item() for row in out.logits)
            cases.append({"text": text, "ids": ids, "greedy": greedy, "lead": lead})
        if all(c["lead"] > 1e-3 and len(set(c["greedy"])) >= 6 and len(c["greedy"]) == 32 and not {1, 2} & set(c["greedy"]) for c in cases):
            break
    else:
        raise RuntimeError("[llama2c] no seed gives varied greedy text")

    def interleaved(w: torch.Tensor, heads: int) -> torch.Tensor:
        """Rows of a head from halves (transformers) to pairs (llama2.c)."""
        return w.view(heads, 2, -1, w.shape[1]).transpose(1, 2).reshape(w.shape)

    layers = model.model.layers
    head = 24 // 4
    angle = torch.arange(96)[:, None] / 10000 ** (torch.arange(0, head, 2) / head)
    order = [[model.model.embed_tokens.weight], [x.input_layernorm.weight for x in layers], [interleaved(x.self_attn.q_proj.weight, 4) for x in layers],
             [interleaved(x.self_attn.k_proj.weight, 2) for x in layers], [x.self_attn.v_proj.weight for x in layers], [x.self_attn.o_proj.weight for x in layers],
             [x.post_attention_layernorm.weight for x in layers], [x.mlp.gate_proj.weight for x in layers], [x.mlp.down_proj.weight for x in layers],
             [x.mlp.up_proj.weight for x in layers], [model.model.norm.weight], [angle.cos()], [angle.sin()]]
    header = struct.pack("<7i", 24, 40, 2, 4, 2, 384, 96)
    body = b"".join(t.detach().float().contiguous().numpy().tobytes() for group in order for t in group)
    (folder / "model.bin").write_bytes(header + body)
    write_json(folder / "expected.json", {"cases": [{**{k: v for k, v in c.items() if k != "lead"}, "greedyText": sp.decode(c["greedy"])} for c in cases], "seed": trial})
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "expected.safetensors")
    print(f"llama2c: {sum(f.stat().st_size for f in folder.iterdir()) // 1024} KB")


def generate(root: Path, seed: int) -> None:
    tokenizers(root)
    chat(root)
    llama2c(root, seed)
