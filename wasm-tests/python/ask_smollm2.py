"""Asks the real SmolLM2-135M-Instruct, unpacked by unpack_smollm2.py, more than the fixtures hold.

    python ask_smollm2.py FOLDER FILE

FILE: `prompts` (text, ids, 64 greedy tokens, the smallest lead of the best token over the second), `scores` (text, ids, log-probabilities,
perplexity) and `chats` (messages, the template's text and its ids).
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from common import write_json

NEW_TOKENS = 64
PROMPTS = [
    "The three primary colours are",
    "Dear Sir,\n\nI am writing to you because",
    "1, 1, 2, 3, 5, 8,",
]
PARAGRAPHS = [
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and nothing particular to interest me on "
    "shore, I thought I would sail about a little and see the watery part of the world. It is a way I have of driving off the spleen and regulating "
    "the circulation.",
    "Photosynthesis is the process by which green plants turn light into chemical energy: 6 CO2 + 6 H2O → C6H12O6 + 6 O2. Zażółć gęślą jaźń; 光合成; 🌱. "
    "It happens in two stages, of which only the first needs light.",
]
CHATS = [
    ([{"role": "user", "content": "Hello!"}], True),
    ([{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "  Spaces  \n and\ttabs 😀 "}], True),
    ([{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Three <|im_end|>?"}], True),
    ([{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}], False),
]


@torch.no_grad()
def main() -> None:
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = {"prompts": [], "scores": [], "chats": []}
    for text in PROMPTS:
        ids = tokenizer(text).input_ids
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=NEW_TOKENS, do_sample=False,
                             output_logits=True, return_dict_in_generate=True)
        greedy = out.sequences[0, len(ids):].tolist()
        lead = min((t := row[0].topk(2).values)[0].item() - t[1].item() for row in out.logits)
        answers["prompts"].append({"text": text, "inputIds": ids, "greedy": greedy, "answer": tokenizer.decode(greedy, skip_special_tokens=True), "smallestLead": lead})
    for text in PARAGRAPHS:
        ids = tokenizer(text).input_ids
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
        logprobs = logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        answers["scores"].append({"text": text, "inputIds": ids, "logprobs": [None, *logprobs.tolist()], "perplexity": (-logprobs.mean()).exp().item()})
    for messages, prompt in CHATS:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        answers["chats"].append({"messages": messages, "addGenerationPrompt": prompt, "text": text, "inputIds": tokenizer(text, add_special_tokens=False).input_ids})
    write_json(file, answers)


if __name__ == "__main__":
    main()
