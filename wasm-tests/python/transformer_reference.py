"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in plain PyTorch, as the reference for wasmformer's own.

Post-norm residuals, sinusoidal positions (sine at even, cosine at odd features), ReLU feed-forward, biases everywhere, one embedding
shared by source, target and output projection, scaled by sqrt(D) on the way in (section 3.4). No dropout unless the configuration has some.
As values of the configuration: pre-norm with final norms (`normalize_before`), an embedding of the source's own
(`share_encoder_decoder_embeddings` false, `encoder_vocab_size`).
Letters: T tokens, S keys, D model, H heads, F feed-forward, V vocabulary. Shapes are those of one sequence; any number of batch dimensions may come
before them, then with `visible` (S), false at the source's padding.
"""

import math

import torch
from torch import nn
from torch.nn.functional import dropout, relu


def positions(length: int, d: int) -> torch.Tensor:
    """(T, D): section 3.5."""
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Attention(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, memory, causal: bool, visible=None):
        """x (T, D), memory (S, D) -> output (T, D), weights (H, T, S)."""
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (H, T, D / H)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(memory)), split(self.v_proj(memory))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        if visible is not None:
            scores = scores.masked_fill(~visible[..., None, None, :], -math.inf)
        weights = scores.softmax(-1)
        return self.out_proj((weights @ v).transpose(-3, -2).flatten(-2)), weights


class Layer(nn.Module):
    """The sub-layers of a layer, and how one is added to its input."""

    def __init__(self, config: dict, side: str):
        super().__init__()
        d, f, eps = config["d_model"], config[f"{side}_ffn_dim"], config["layer_norm_eps"]
        self.pre_norm, self.dropout = config.get("normalize_before", False), config.get("dropout", 0.0)
        heads = config[f"{side}_attention_heads"]
        self.self_attn, self.self_attn_layer_norm = Attention(d, heads), nn.LayerNorm(d, eps)
        if side == "decoder":
            self.encoder_attn, self.encoder_attn_layer_norm = Attention(d, heads), nn.LayerNorm(d, eps)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(d, f), nn.Linear(f, d), nn.LayerNorm(d, eps)

    def add(self, x, norm, sublayer):
        """norm(x + sublayer(x)), or x + sublayer(norm(x)); `sublayer` gives its output and something to pass on."""
        y, extra = sublayer(norm(x) if self.pre_norm else x)
        x = x + dropout(y, self.dropout, self.training)
        return x if self.pre_norm else norm(x), extra

    def feed_forward(self, x):
        return self.add(x, self.final_layer_norm, lambda h: (self.fc2(relu(self.fc1(h))), None))[0]


class EncoderLayer(Layer):
    def __init__(self, config: dict):
        super().__init__(config, "encoder")

    def forward(self, x, visible=None):
        x, weights = self.add(x, self.self_attn_layer_norm, lambda h: self.self_attn(h, h, causal=False, visible=visible))
        return self.feed_forward(x), weights


class DecoderLayer(Layer):
    def __init__(self, config: dict):
        super().__init__(config, "decoder")

    def forward(self, x, memory, visible=None):
        x, weights = self.add(x, self.self_attn_layer_norm, lambda h: self.self_attn(h, h, causal=True))
        x, cross = self.add(x, self.encoder_attn_layer_norm, lambda h: self.encoder_attn(h, memory, causal=False, visible=visible))
        return self.feed_forward(x), weights, cross


class Stack(nn.Module):
    def __init__(self, config: dict, layers, own_vocabulary: int | None):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if own_vocabulary is not None:
            self.embed_tokens = nn.Embedding(own_vocabulary, config["d_model"])
        if config.get("normalize_before", False):
            self.layer_norm = nn.LayerNorm(config["d_model"], config["layer_norm_eps"])

    def norm(self, x):
        return self.layer_norm(x) if hasattr(self, "layer_norm") else x


class Transformer(nn.Module):
    """`config` is config.json."""

    def __init__(self, config: dict):
        super().__init__()
        self.d, self.dropout = config["d_model"], config.get("dropout", 0.0)
        shared = config.get("share_encoder_decoder_embeddings", True)
        if shared:
            self.shared = nn.Embedding(config["vocab_size"], self.d)
        self.encoder = Stack(config, (EncoderLayer(config) for _ in range(config["encoder_layers"])), None if shared else config["encoder_vocab_size"])
        self.decoder = Stack(config, (DecoderLayer(config) for _ in range(config["decoder_layers"])), None if shared else config["vocab_size"])

    def embedding(self, stack):
        return self.shared if hasattr(self, "shared") else stack.embed_tokens

    def embed(self, stack, ids):
        return dropout(self.embedding(stack)(ids) * math.sqrt(self.d) + positions(ids.shape[-1], self.d), self.dropout, self.training)

    def encode(self, ids, visible=None):
        """ids (S) -> hidden states, embedding first and the last after the final norm, (S, D) each, and attention weights, (H, S, S) each."""
        hidden, attentions = [self.embed(self.encoder, ids)], []
        for layer in self.encoder.layers:
            x, weights = layer(hidden[-1], visible)
            hidden.append(x)
            attentions.append(weights)
        hidden[-1] = self.encoder.norm(hidden[-1])
        return hidden, attentions

    def decode(self, ids, memory, visible=None):
        """ids (T), memory (S, D) -> logits (T, V), hidden states, attention weights (H, T, T), cross-attention weights (H, T, S)."""
        hidden, attentions, cross_attentions = [self.embed(self.decoder, ids)], [], []
        for layer in self.decoder.layers:
            x, weights, cross = layer(hidden[-1], memory, visible)
            hidden.append(x)
            attentions.append(weights)
            cross_attentions.append(cross)
        hidden[-1] = self.decoder.norm(hidden[-1])
        return hidden[-1] @ self.embedding(self.decoder).weight.T, hidden, attentions, cross_attentions
