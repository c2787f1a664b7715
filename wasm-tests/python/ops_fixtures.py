"""Makes wasm-tests/fixtures/ops.json: what PyTorch computes for the bare operations.

    python wasm-tests/python/ops_fixtures.py

Each case is {name, operation, args, options, expected}: tensors are {shape, data}, args in the order of the operation's own.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_interleaved
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

generator = torch.Generator()
cases = []


def normal(*shape: int, spread: float = 1.0) -> torch.Tensor:
    """Normal numbers of two digits, which keeps the file small."""
    return (torch.randn(shape, generator=generator) * spread * 100).round() / 100


def plain(value):
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "data": [float(f"{x:.7g}") for x in value.detach().flatten().double().tolist()]}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def case(name: str, operation: str, args: list, options: dict, expected) -> None:
    cases.append({"name": name, "operation": operation, "args": [plain(a) for a in args], "options": plain(options), "expected": plain(expected)})


def attend(q, k, v, mask=None, bias=None, causal=False, scale=None):
    """Output of scaled_dot_product_attention, and the weights by its documented equivalent. A row that sees nothing is zeros."""
    T, S = q.shape[-2], k.shape[-2]
    table = torch.zeros(T, S) if bias is None else bias
    if mask is not None:
        table = table.masked_fill(mask == 0, -torch.inf)
    if causal:
        # The tensor that the lower-right bias stands for.
        table = table.masked_fill(causal_lower_right(T, S)._materialize().logical_not(), -torch.inf)
    if q.dim() == 3 and k.shape[0] != q.shape[0]:
        k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], dim=0) for x in (k, v))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    weights = torch.softmax(factor * q @ k.transpose(-1, -2) + table, dim=-1).nan_to_num(0.0)
    output = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=table, scale=scale)[0].nan_to_num(0.0)
    torch.testing.assert_close(output, weights @ v)
    return {"output": output, "weights": weights}


def attention_cases() -> None:
    def run(name, q, k, v, **options):
        case(f"attention: {name}", "attention", [q, k, v], options, attend(q, k, v, **options))

    run("one head, values of another size", normal(5, 8), normal(7, 8), normal(7, 3))
    run("heads", normal(3, 5, 8), normal(3, 21, 8), normal(3, 21, 6))
    run("grouped heads", normal(4, 5, 8), normal(2, 18, 8), normal(2, 18, 6))
    run("causal, as many queries as keys", normal(2, 19, 4), normal(2, 19, 4), normal(2, 19, 4), causal=True)
    run("causal, fewer queries than keys", normal(2, 3, 4), normal(2, 19, 4), normal(2, 19, 4), causal=True)
    run("causal, more queries than keys", normal(2, 6, 4), normal(2, 4, 4), normal(2, 4, 4), causal=True)
    mask = (torch.rand(5, 7, generator=generator) > 0.4).float()
    mask[2] = 0
    run("mask with a row that sees nothing", normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4), mask=mask)
    run("mask of keys", normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4), mask=mask[:1])
    run("mask of each head", normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4), mask=torch.stack([mask, 1 - mask]))
    run("bias, shared", normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4), bias=normal(5, 7))
    run("bias of each head, mask, causal, scale", normal(2, 5, 4), normal(2, 7, 4), normal(2, 7, 4), bias=normal(2, 5, 7), mask=mask, causal=True, scale=1.5)


def multi_head_cases() -> None:
    for name, memory, bias, causal in (("self", False, True, False), ("cross", True, True, False), ("self, causal, no biases", False, False, True)):
        D, H, T, S, M = 12, 3, 5, 6, 8
        module = nn.MultiheadAttention(D, H, bias=bias, kdim=M if memory else None, vdim=M if memory else None, batch_first=True)
        randomise(module)
        x, m = normal(T, D), normal(S, M)
        source = m if memory else x
        mask = torch.ones(T, T).triu(1).bool() if causal else None
        output, weights = module(x[None], source[None], source[None], average_attn_weights=False, attn_mask=mask)
        if memory:
            query, key, value = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        else:
            query, key, value = module.in_proj_weight.chunk(3)
        matrices = {"query": query, "key": key, "value": value, "output": module.out_proj.weight}
        biases = dict(zip(("query", "key", "value"), module.in_proj_bias.chunk(3))) | {"output": module.out_proj.bias} if bias else {}
        linear = {k: {"weight": w} | ({"bias": biases[k]} if bias else {}) for k, w in matrices.items()}
        options = {"heads": H} | ({"memory": m} if memory else {}) | ({"causal": True} if causal else {})
        case(f"multiHeadAttention: {name}", "multiHeadAttention", [x, linear], options, {"output": output[0], "weights": weights[0]})


def randomise(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        noise = normal(*parameter.shape, spread=0.3)
        parameter.data = 1 + noise if parameter.dim() == 1 and "norm" in name and name.endswith("weight") else noise


def small_cases() -> None:
    x, w, b = normal(4, 11) * 3 + 2, normal(11), normal(11)
    case("layerNorm", "layerNorm", [x], {"weight": w, "bias": b, "eps": 1e-3}, F.layer_norm(x, (11,), w, b, 1e-3))
    case("layerNorm: bare, three dimensions", "layerNorm", [x.view(2, 2, 11)], {}, F.layer_norm(x.view(2, 2, 11), (11,)))
    case("rmsNorm", "rmsNorm", [x], {"weight": w, "eps": 1e-3}, F.rms_norm(x, (11,), w, 1e-3))
    case("rmsNorm: bare", "rmsNorm", [x], {}, F.rms_norm(x, (11,), None, 1e-6))
    case("softmax", "softmax", [x], {}, torch.softmax(x, -1))
    x, up, down, gate = normal(5, 8), nn.Linear(8, 14), nn.Linear(14, 8), nn.Linear(8, 14, bias=False)
    for module in (up, down, gate):
        randomise(module)
    weights = {k: dict(m.named_parameters()) for k, m in (("up", up), ("down", down))}
    for name, function in (("relu", F.relu), ("gelu", F.gelu), ("gelu_new", lambda h: F.gelu(h, approximate="tanh")), ("silu", F.silu)):
        case(f"feedForward: {name}", "feedForward", [x], weights | {"activation": name}, down(function(up(x))))
    gated = weights | {"gate": {"weight": gate.weight}, "activation": "silu"}
    case("feedForward: gated", "feedForward", [x], gated, down(F.silu(gate(x)) * up(x)))


def rope_cases() -> None:
    H, T, D = 2, 6, 8
    x = normal(H, T, D)

    def angles(positions, theta, rotary):
        frequency = 1.0 / theta ** (torch.arange(0, rotary, 2).float() / rotary)
        return positions.float()[:, None] * frequency

    def halves(x, positions, theta=10000.0):
        at = torch.cat([angles(positions, theta, x.shape[-1])] * 2, -1)[None]
        return apply_rotary_pos_emb(x[None], x[None], at.cos(), at.sin())[0][0]

    positions = torch.tensor([3, 0, 7, 7, 100, 2000])
    case("rope: halves", "rope", [x], {}, halves(x, torch.arange(T)))
    case("rope: positions and theta", "rope", [x], {"positions": positions.float(), "theta": 500.0}, halves(x, positions, 500.0))
    part = torch.cat([halves(x[..., :4], positions), x[..., 4:]], -1)
    case("rope: a part of the head", "rope", [x], {"positions": positions.float(), "rotary": 4}, part)
    at = angles(torch.arange(T), 10000.0, D)[None]
    interleaved = apply_interleaved(x.transpose(0, 1)[None], at.sin(), at.cos())[0].transpose(0, 1)
    case("rope: interleaved", "rope", [x], {"interleaved": True}, interleaved)
    case("rope: one head", "rope", [x[0]], {}, halves(x, torch.arange(T))[0])


def position_cases() -> None:
    halves = MarianSinusoidalPositionalEmbedding(40, 10).create_weight()
    case("sinusoidalPositions: halves, from 30", "sinusoidalPositions", [10, 10], {"layout": "halves", "first": 30}, halves[30:40])
    case("sinusoidalPositions", "sinusoidalPositions", [40, 10], {}, torch.stack([halves[:, :5], halves[:, 5:]], -1).reshape(40, 10))


def named(state: dict, cross: bool) -> dict:
    """PyTorch's tensors of a layer under the `transformer` architecture's names."""
    weights = {}
    attentions = {"self_attn": "self_attn"} | ({"multihead_attn": "encoder_attn"} if cross else {})
    for theirs, ours in attentions.items():
        for kind in ("weight", "bias"):
            for letter, part in zip("qkv", state[f"{theirs}.in_proj_{kind}"].chunk(3)):
                weights[f"{ours}.{letter}_proj.{kind}"] = part
            weights[f"{ours}.out_proj.{kind}"] = state[f"{theirs}.out_proj.{kind}"]
    norms = ["self_attn_layer_norm"] + (["encoder_attn_layer_norm"] if cross else []) + ["final_layer_norm"]
    for kind in ("weight", "bias"):
        weights |= {f"{name}.{kind}": state[f"norm{i + 1}.{kind}"] for i, name in enumerate(norms)}
        weights |= {f"fc{i}.{kind}": state[f"linear{i}.{kind}"] for i in (1, 2)}
    return weights


def layer_cases() -> None:
    D, H, width, T, S = 12, 3, 20, 5, 7
    for order in ("post", "pre"):
        options = {"d_model": D, "nhead": H, "dim_feedforward": width, "dropout": 0.0, "norm_first": order == "pre", "batch_first": True}
        x, memory = normal(T, D), normal(S, D)
        encoder = nn.TransformerEncoderLayer(activation="gelu", layer_norm_eps=1e-4, **options).train()
        randomise(encoder)
        mask = torch.tensor([1.0, 1, 0, 1, 1])
        with torch.no_grad():
            output = encoder(x[None], src_key_padding_mask=mask[None] == 0)[0]
        case(f"encoderLayer: {order}-norm", "encoderLayer", [x, named(encoder.state_dict(), False)],
             {"heads": H, "norm": order, "activation": "gelu", "eps": 1e-4, "mask": mask}, {"output": output})
        decoder = nn.TransformerDecoderLayer(**options).train()
        randomise(decoder)
        seen = torch.tensor([1.0, 0, 1, 1, 1, 1, 0])
        causal = torch.ones(T, T).triu(1).bool()
        with torch.no_grad():
            output = decoder(x[None], memory[None], tgt_mask=causal, memory_key_padding_mask=seen[None] == 0)[0]
        case(f"decoderLayer: {order}-norm", "decoderLayer", [x, memory, named(decoder.state_dict(), True)],
             {"heads": H, "norm": order, "memoryMask": seen}, {"output": output})


def generate(out: Path, seed: int) -> None:
    torch.manual_seed(seed)
    generator.manual_seed(seed)
    cases.clear()
    for make in (attention_cases, multi_head_cases, small_cases, rope_cases, position_cases, layer_cases):
        make()
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    (out / "ops.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"ops: {len(cases)} cases", flush=True)


if __name__ == "__main__":
    generate(Path(__file__).parent.parent / "fixtures", 2017)
