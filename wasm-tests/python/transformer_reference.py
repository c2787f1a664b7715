"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in plain PyTorch, as the reference for wasmformer's own.

Post-norm residuals, sinusoidal positions (sine at even, cosine at odd features), ReLU feed-forward, biases everywhere, one embedding
shared by source, target and output projection, scaled by sqrt(D) on the way in (section 3.4). No dropout.
Letters: T tokens, S keys, D model, H heads, F feed-forward, V vocabulary.
"""

import math

import torch
from torch import nn
from torch.nn.functional import relu


def positions(length: int, d: int) -> torch.Tensor:
    """(T, D): section 3.5."""
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Attention(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, memory, causal: bool):
        """x (T, D), memory (S, D) -> output (T, D), weights (H, T, S)."""
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, T, D / H)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(memory)), split(self.v_proj(memory))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -math.inf)
        weights = scores.softmax(-1)
        return self.out_proj((weights @ v).transpose(0, 1).flatten(1)), weights


class EncoderLayer(nn.Module):
    def __init__(self, d: int, heads: int, f: int, eps: float):
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = Attention(d, heads), nn.LayerNorm(d, eps)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(d, f), nn.Linear(f, d), nn.LayerNorm(d, eps)

    def forward(self, x):
        y, weights = self.self_attn(x, x, causal=False)
        x = self.self_attn_layer_norm(x + y)
        return self.final_layer_norm(x + self.fc2(relu(self.fc1(x)))), weights


class DecoderLayer(nn.Module):
    def __init__(self, d: int, heads: int, f: int, eps: float):
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = Attention(d, heads), nn.LayerNorm(d, eps)
        self.encoder_attn, self.encoder_attn_layer_norm = Attention(d, heads), nn.LayerNorm(d, eps)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(d, f), nn.Linear(f, d), nn.LayerNorm(d, eps)

    def forward(self, x, memory):
        y, weights = self.self_attn(x, x, causal=True)
        x = self.self_attn_layer_norm(x + y)
        y, cross = self.encoder_attn(x, memory, causal=False)
        x = self.encoder_attn_layer_norm(x + y)
        return self.final_layer_norm(x + self.fc2(relu(self.fc1(x)))), weights, cross


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)


class Transformer(nn.Module):
    """`config` is config.json; one sequence at a time."""

    def __init__(self, config: dict):
        super().__init__()
        self.d, eps = config["d_model"], config["layer_norm_eps"]
        self.shared = nn.Embedding(config["vocab_size"], self.d)
        self.encoder = Stack(EncoderLayer(self.d, config["encoder_attention_heads"], config["encoder_ffn_dim"], eps) for _ in range(config["encoder_layers"]))
        self.decoder = Stack(DecoderLayer(self.d, config["decoder_attention_heads"], config["decoder_ffn_dim"], eps) for _ in range(config["decoder_layers"]))

    def embed(self, ids):
        return self.shared(ids) * math.sqrt(self.d) + positions(len(ids), self.d)

    def encode(self, ids):
        """ids (S) -> hidden states, embedding first, (S, D) each, and attention weights, (H, S, S) each."""
        hidden, attentions = [self.embed(ids)], []
        for layer in self.encoder.layers:
            x, weights = layer(hidden[-1])
            hidden.append(x)
            attentions.append(weights)
        return hidden, attentions

    def decode(self, ids, memory):
        """ids (T), memory (S, D) -> logits (T, V), hidden states, attention weights (H, T, T), cross-attention weights (H, T, S)."""
        hidden, attentions, cross_attentions = [self.embed(ids)], [], []
        for layer in self.decoder.layers:
            x, weights, cross = layer(hidden[-1], memory)
            hidden.append(x)
            attentions.append(weights)
            cross_attentions.append(cross)
        return hidden[-1] @ self.shared.weight.T, hidden, attentions, cross_attentions
