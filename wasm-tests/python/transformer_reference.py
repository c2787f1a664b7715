"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in plain PyTorch, as the reference for wasmformer's own.

Post-norm residuals, sinusoidal positions (sine at even, cosine at odd features), ReLU feed-forward, biases everywhere, one embedding
shared by source, target and output projection, scaled by sqrt(D) on the way in (section 3.4). No dropout unless the configuration has some.
As values of the configuration: pre-norm with final norms (`normalize_before`), an embedding of the source's own
(`share_encoder_decoder_embeddings` false, `encoder_vocab_size`), a head of its own (`tie_word_embeddings` false), embeddings as they are
(`scale_embedding` false), learned positions or none (`position_embedding_type`), GELU (`activation_function`), no residual connections
(`residual` false), another factor of the scores (`scale`), other sizes of keys and values (`head_dim`, `value_head_dim`), and one side alone
(`encoder_layers` 0 or `decoder_layers` 0).
Letters: T tokens, S keys, D model, H heads, F feed-forward, V vocabulary. Shapes are those of one sequence; any number of batch dimensions may come
before them, then with `visible` (S), false at the source's padding.
"""

import math

import torch
from torch import nn
from torch.nn.functional import dropout, gelu, relu


def positions(length: int, d: int) -> torch.Tensor:
    """(T, D): section 3.5."""
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Attention(nn.Module):
    def __init__(self, config: dict, heads: int):
        super().__init__()
        d, self.heads = config["d_model"], heads
        dk = config.get("head_dim", d // heads)
        dv = config.get("value_head_dim", dk)
        self.scale = config.get("scale", 1 / math.sqrt(dk))
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(*s) for s in ((d, heads * dk), (d, heads * dk), (d, heads * dv), (heads * dv, d)))

    def forward(self, x, memory, causal: bool, visible=None):
        """x (T, D), memory (S, D) -> output (T, D), weights (H, T, S)."""
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (H, T, Dk)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(memory)), split(self.v_proj(memory))
        scores = q @ k.transpose(-2, -1) * self.scale
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
        self.residual, self.activation = config.get("residual", True), {"relu": relu, "gelu": gelu}[config.get("activation_function", "relu")]
        heads = config[f"{side}_attention_heads"]
        self.self_attn, self.self_attn_layer_norm = Attention(config, heads), nn.LayerNorm(d, eps)
        if side == "decoder" and config["encoder_layers"]:
            self.encoder_attn, self.encoder_attn_layer_norm = Attention(config, heads), nn.LayerNorm(d, eps)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(d, f), nn.Linear(f, d), nn.LayerNorm(d, eps)

    def add(self, x, norm, sublayer):
        """norm(x + sublayer(x)), or x + sublayer(norm(x)), or these without x; `sublayer` gives its output and something to pass on."""
        y, extra = sublayer(norm(x) if self.pre_norm else x)
        y = dropout(y, self.dropout, self.training)
        x = x + y if self.residual else y
        return x if self.pre_norm else norm(x), extra

    def feed_forward(self, x):
        return self.add(x, self.final_layer_norm, lambda h: (self.fc2(self.activation(self.fc1(h))), None))[0]


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
        cross = None
        if memory is not None:
            x, cross = self.add(x, self.encoder_attn_layer_norm, lambda h: self.encoder_attn(h, memory, causal=False, visible=visible))
        return self.feed_forward(x), weights, cross


class Stack(nn.Module):
    def __init__(self, config: dict, layers, own_vocabulary: int | None):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if own_vocabulary is not None:
            self.embed_tokens = nn.Embedding(own_vocabulary, config["d_model"])
        if config.get("position_embedding_type") == "learned":
            self.embed_positions = nn.Embedding(config.get("max_position_embeddings", 1024), config["d_model"])
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
        if config["encoder_layers"]:
            self.encoder = Stack(config, (EncoderLayer(config) for _ in range(config["encoder_layers"])), None if shared else config["encoder_vocab_size"])
        if config["decoder_layers"]:
            self.decoder = Stack(config, (DecoderLayer(config) for _ in range(config["decoder_layers"])), None if shared else config["vocab_size"])
        self.scale = math.sqrt(self.d) if config.get("scale_embedding", True) else 1.0
        self.positions = config.get("position_embedding_type", "sinusoidal")
        if not config.get("tie_word_embeddings", True):
            self.lm_head = nn.Linear(self.d, config["vocab_size"], bias=False)

    def embedding(self, stack):
        return self.shared if hasattr(self, "shared") else stack.embed_tokens

    def embed(self, stack, ids):
        x = self.embedding(stack)(ids) * self.scale
        if self.positions != "none":
            at = torch.arange(ids.shape[-1])
            x = x + (stack.embed_positions(at) if self.positions == "learned" else positions(len(at), self.d))
        return dropout(x, self.dropout, self.training)

    def head(self, stack, x):
        """x (T, D) -> logits (T, V)."""
        return self.lm_head(x) if hasattr(self, "lm_head") else x @ self.embedding(stack).weight.T

    def encode(self, ids, visible=None):
        """ids (S) -> hidden states, embedding first and the last after the final norm, (S, D) each, and attention weights, (H, S, S) each."""
        hidden, attentions = [self.embed(self.encoder, ids)], []
        for layer in self.encoder.layers:
            x, weights = layer(hidden[-1], visible)
            hidden.append(x)
            attentions.append(weights)
        hidden[-1] = self.encoder.norm(hidden[-1])
        return hidden, attentions

    def decode(self, ids, memory=None, visible=None):
        """ids (T), memory (S, D), none where there is no encoder -> logits (T, V), hidden states, attention weights (H, T, T), cross-attention weights (H, T, S)."""
        hidden, attentions, cross_attentions = [self.embed(self.decoder, ids)], [], []
        for layer in self.decoder.layers:
            x, weights, cross = layer(hidden[-1], memory, visible)
            hidden.append(x)
            attentions.append(weights)
            cross_attentions.append(cross)
        hidden[-1] = self.decoder.norm(hidden[-1])
        return self.head(self.decoder, hidden[-1]), hidden, attentions, cross_attentions
