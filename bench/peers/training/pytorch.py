"""Trains transformers' GPT-2 with AdamW: says "ready", then takes a step and prints its loss for every line it reads."""
import json
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

spec = json.loads(sys.argv[1])
shape = spec["shape"]
torch.set_num_threads(spec["threads"])
torch.manual_seed(1)
config = GPT2Config(
    vocab_size=shape["V"],
    n_embd=shape["D"],
    n_layer=shape["layers"],
    n_head=shape["H"],
    n_positions=shape["length"],
    embd_pdrop=0,
    attn_pdrop=0,
    resid_pdrop=0,
    use_cache=False,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config).train()
optimiser = torch.optim.AdamW(model.parameters(), lr=spec["learningRate"], weight_decay=0.01)
ids = torch.tensor(spec["ids"]).view(shape["sequences"], shape["length"])
print("ready", flush=True)
for _ in sys.stdin:
    loss = model(input_ids=ids, labels=ids).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(loss.item(), flush=True)
