"""ONNX files of the models in models.mjs, as transformers.js and onnxruntime-web take them.

    python onnx_models.py FOLDER OUT VARIANT...     FOLDER holds config.json and model.safetensors; VARIANT is f32, q8 or q4
    python onnx_models.py products OUT              single matrix products

The graphs are those that onnxruntime's own tools leave after optimisation: attention is one fused node with its cache
(GroupQueryAttention as onnxruntime-genai's builder has it, MultiHeadAttention as the transformer optimiser has it), and what
the session fuses by itself when it loads (skip + norm, bias + GELU, integer products with their scales) is left to it.
Decoders compute the logits of the last position only. q8 is onnxruntime's dynamic quantisation with transformers.js's
settings, q4 its MatMulNBits with blocks of 32.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


class Weights:
    """Tensors of a safetensors file of 16-bit floats, widened."""

    def __init__(self, folder):
        self.bytes = np.memmap(folder / "model.safetensors", np.uint8, "r")
        (length,) = struct.unpack("<Q", self.bytes[:8].tobytes())
        self.header = json.loads(self.bytes[8 : 8 + length].tobytes())
        self.start = 8 + length

    def __call__(self, name):
        entry = self.header[name]
        begin, end = (self.start + offset for offset in entry["data_offsets"])
        raw = np.frombuffer(self.bytes[begin:end].tobytes(), np.uint16)
        wide = (raw.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else raw.view(np.float16).astype(np.float32)
        return wide.reshape(entry["shape"])


class Graph:
    """Nodes, weights, inputs and outputs in the order in which they are named."""

    def __init__(self):
        self.nodes, self.initializers, self.inputs, self.outputs, self.constants = [], [], [], [], {}

    def node(self, kind, *inputs, outputs=1, domain="", **attributes):
        names = [f"{kind}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, f"{kind}_{len(self.nodes)}", domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, array, name=None):
        name = name or f"weight_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def constant(self, *values, dtype=np.int64, scalar=False):
        key = (values, dtype, scalar)
        if key not in self.constants:
            self.constants[key] = self.weight(np.array(values[0] if scalar else values, dtype))
        return self.constants[key]

    def input(self, name, shape, kind=TensorProto.INT64):
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value, name, shape, kind=TensorProto.FLOAT):
        self.nodes.append(helper.make_node("Identity", [value], [name], f"output_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def linear(self, x, weight, bias=None):
        """x W + b with W (inputs, outputs)."""
        y = self.node("MatMul", x, self.weight(weight))
        return y if bias is None else self.node("Add", y, self.weight(bias))

    def layer_norm(self, x, weight, bias, epsilon):
        return self.node("LayerNormalization", x, self.weight(weight), self.weight(bias), axis=-1, epsilon=epsilon)

    def cache(self, layer, heads, size, prefix=""):
        """Inputs of a layer's past keys and values, (batch, heads, past, size) each."""
        return [
            self.input(f"past_key_values.{layer}.{prefix}{kind}", ["batch_size", heads, f"past_{prefix}sequence_length", size], TensorProto.FLOAT)
            for kind in ("key", "value")
        ]

    def present(self, layer, values, heads, size, prefix=""):
        for kind, value in zip(("key", "value"), values):
            self.output(value, f"present.{layer}.{prefix}{kind}", ["batch_size", heads, f"total_{prefix}sequence_length", size])

    def last_position(self, x):
        """(batch, T, D) to (batch, 1, D)."""
        return self.node("Slice", x, self.constant(-1), self.constant(2**62), self.constant(1))

    def model(self):
        graph = helper.make_graph(self.nodes, "model", self.inputs, self.outputs, self.initializers)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)], ir_version=9, producer_name="bench"
        )


def lengths(graph):
    """What GroupQueryAttention wants of the mask: the last key of each row, and the number of keys."""
    mask = graph.input("attention_mask", ["batch_size", "total_sequence_length"])
    last = graph.node("Sub", graph.node("ReduceSum", mask, graph.constant(1), keepdims=0), graph.constant(1))
    total = graph.node("Gather", graph.node("Shape", mask), graph.constant(1, scalar=True), axis=0)
    return [graph.node("Cast", value, to=TensorProto.INT32) for value in (last, total)]


def gpt2(config, weights):
    graph = Graph()
    D, heads = config["n_embd"], config["n_head"]
    epsilon = config["layer_norm_epsilon"]
    ids = graph.input("input_ids", ["batch_size", "sequence_length"])
    keys = lengths(graph)
    positions = graph.input("position_ids", ["batch_size", "sequence_length"])
    x = graph.node(
        "Add",
        graph.node("Gather", graph.weight(weights("wte.weight")), ids),
        graph.node("Gather", graph.weight(weights("wpe.weight")), positions),
    )
    present = []
    for i in range(config["n_layer"]):
        w = lambda part: (weights(f"h.{i}.{part}.weight"), weights(f"h.{i}.{part}.bias"))
        qkv = graph.linear(graph.layer_norm(x, *w("ln_1"), epsilon), *w("attn.c_attn"))
        q, k, v = graph.node("Split", qkv, graph.constant(D, D, D), outputs=3, axis=-1)
        past = graph.cache(i, heads, D // heads)
        y, *cache = graph.node(
            "GroupQueryAttention", q, k, v, *past, *keys, outputs=3, domain=MICROSOFT, num_heads=heads, kv_num_heads=heads
        )
        present.append(cache)
        x = graph.node("Add", x, graph.linear(y, *w("attn.c_proj")))
        h = graph.linear(graph.layer_norm(x, *w("ln_2"), epsilon), *w("mlp.c_fc"))
        x = graph.node("Add", x, graph.linear(graph.node("FastGelu", h, domain=MICROSOFT), *w("mlp.c_proj")))
    x = graph.layer_norm(graph.last_position(x), weights("ln_f.weight"), weights("ln_f.bias"), epsilon)
    graph.output(graph.linear(x, weights("wte.weight").T), "logits", ["batch_size", 1, config["vocab_size"]])
    for i, cache in enumerate(present):
        graph.present(i, cache, heads, D // heads)
    return {"model": graph.model()}


def llama(config, weights):
    graph = Graph()
    D, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    size = D // heads
    ids = graph.input("input_ids", ["batch_size", "sequence_length"])
    keys = lengths(graph)
    angles = np.outer(
        np.arange(config["max_position_embeddings"]), config["rope_theta"] ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    )
    rotation = [graph.weight(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    x = graph.node("Gather", graph.weight(weights("model.embed_tokens.weight")), ids)

    def norm(x, name):
        scale = graph.weight(weights(f"{name}.weight"))
        return graph.node("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=config["rms_norm_eps"])

    present = []
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}"
        linear = lambda x, part: graph.linear(x, weights(f"{name}.{part}.weight").T)
        h = norm(x, f"{name}.input_layernorm")
        q, k, v = (linear(h, f"self_attn.{part}_proj") for part in "qkv")
        past = graph.cache(i, kv_heads, size)
        y, *cache = graph.node(
            "GroupQueryAttention",
            *(q, k, v, *past, *keys, *rotation),
            outputs=3,
            domain=MICROSOFT,
            num_heads=heads,
            kv_num_heads=kv_heads,
            do_rotary=1,
        )
        present.append(cache)
        x = graph.node("Add", x, linear(y, "self_attn.o_proj"))
        h = norm(x, f"{name}.post_attention_layernorm")
        gate = linear(h, "mlp.gate_proj")
        gate = graph.node("Mul", gate, graph.node("Sigmoid", gate))
        x = graph.node("Add", x, linear(graph.node("Mul", gate, linear(h, "mlp.up_proj")), "mlp.down_proj"))
    x = norm(graph.last_position(x), "model.norm")
    graph.output(graph.linear(x, weights("model.embed_tokens.weight").T), "logits", ["batch_size", 1, config["vocab_size"]])
    for i, cache in enumerate(present):
        graph.present(i, cache, kv_heads, size)
    return {"model": graph.model()}


def bert(config, weights):
    graph = Graph()
    D, heads, epsilon = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]
    ids = graph.input("input_ids", ["batch_size", "sequence_length"])
    mask = graph.input("attention_mask", ["batch_size", "sequence_length"])
    types = graph.input("token_type_ids", ["batch_size", "sequence_length"])
    table = lambda part: graph.weight(weights(f"embeddings.{part}_embeddings.weight"))
    count = graph.node("Shape", ids, start=1)
    x = graph.node("Add", graph.node("Gather", table("word"), ids), graph.node("Gather", table("token_type"), types))
    x = graph.node("Add", x, graph.node("Slice", table("position"), graph.constant(0), count, graph.constant(0)))
    x = graph.layer_norm(x, weights("embeddings.LayerNorm.weight"), weights("embeddings.LayerNorm.bias"), epsilon)
    visible = graph.node("Cast", graph.node("ReduceSum", mask, graph.constant(1), keepdims=0), to=TensorProto.INT32)
    for i in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{i}"
        w = lambda part: (weights(f"{name}.{part}.weight").T, weights(f"{name}.{part}.bias"))
        qkv = [w(f"attention.self.{part}") for part in ("query", "key", "value")]
        y = graph.node(
            "Attention",
            *(x, graph.weight(np.concatenate([a for a, _ in qkv], 1)), graph.weight(np.concatenate([b for _, b in qkv])), visible),
            domain=MICROSOFT,
            num_heads=heads,
        )
        x = graph.node("Add", x, graph.linear(y, *w("attention.output.dense")))
        x = graph.layer_norm(x, *w("attention.output.LayerNorm"), epsilon)
        h = graph.node("Gelu", graph.linear(x, *w("intermediate.dense")), domain=MICROSOFT)
        x = graph.node("Add", x, graph.linear(h, *w("output.dense")))
        x = graph.layer_norm(x, *w("output.LayerNorm"), epsilon)
    graph.output(x, "last_hidden_state", ["batch_size", "sequence_length", D])
    return {"model": graph.model()}


def marian(config, weights):
    D, heads, V = config["d_model"], config["encoder_attention_heads"], config["vocab_size"]
    size = D // heads
    frequencies = 10000.0 ** -(np.arange(0, D, 2) / D)
    angles = np.outer(np.arange(config["max_position_embeddings"]), frequencies)
    table = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)

    class Stack(Graph):
        def embed(self, ids, first, count):
            shared = self.weight(weights("model.shared.weight"))
            x = self.node("Mul", self.node("Gather", shared, ids), self.constant(float(D**0.5), dtype=np.float32, scalar=True))
            end = self.node("Add", first, count)
            return self.node("Add", x, self.node("Slice", self.weight(table), first, end, self.constant(0)))

        def project(self, x, name):
            return self.linear(x, weights(f"{name}.weight").T, weights(f"{name}.bias"))

        def attention(self, q, k, v, past=(), causal=0):
            """MultiHeadAttention's inputs: query, key, value, bias, padding, position bias, past key, past value."""
            padding = ["", "", "", *past] if past else []
            return self.node(
                "MultiHeadAttention",
                *(q, k, v, *padding),
                outputs=3 if past else 1,
                domain=MICROSOFT,
                num_heads=heads,
                unidirectional=causal,
            )

        def add_and_norm(self, x, y, name):
            return self.layer_norm(self.node("Add", x, y), weights(f"{name}.weight"), weights(f"{name}.bias"), 1e-5)

        def feed_forward(self, x, name):
            h = self.project(x, f"{name}.fc1")
            h = self.node("Mul", h, self.node("Sigmoid", h))
            return self.add_and_norm(x, self.project(h, f"{name}.fc2"), f"{name}.final_layer_norm")

        def as_heads(self, x):
            """(batch, S, D) to (batch, H, S, size)."""
            return self.node("Transpose", self.node("Reshape", x, self.constant(0, 0, heads, size)), perm=[0, 2, 1, 3])

    def encoder():
        graph = Stack()
        ids = graph.input("input_ids", ["batch_size", "source"])
        x = graph.embed(ids, graph.constant(0), graph.node("Shape", ids, start=1))
        for i in range(config["encoder_layers"]):
            name = f"model.encoder.layers.{i}"
            y = graph.attention(*(graph.project(x, f"{name}.self_attn.{part}_proj") for part in "qkv"))
            x = graph.add_and_norm(x, graph.project(y, f"{name}.self_attn.out_proj"), f"{name}.self_attn_layer_norm")
            x = graph.feed_forward(x, name)
        graph.output(x, "last_hidden_state", ["batch_size", "source", D])
        return graph.model()

    def decoder(first):
        """One step. The first also makes the keys and values of the source, which the others are given."""
        graph = Stack()
        ids = graph.input("input_ids", ["batch_size", "sequence_length"])
        states = first and graph.input("encoder_hidden_states", ["batch_size", "source", D], TensorProto.FLOAT)
        x, present = None, []
        for i in range(config["decoder_layers"]):
            name = f"model.decoder.layers.{i}"
            past = graph.cache(i, heads, size, "decoder.")
            if x is None:
                x = graph.embed(ids, graph.node("Shape", past[0], start=2, end=3), graph.node("Shape", ids, start=1))
            q, k, v = (graph.project(x, f"{name}.self_attn.{part}_proj") for part in "qkv")
            y, *cache = graph.attention(q, k, v, past, causal=1)
            x = graph.add_and_norm(x, graph.project(y, f"{name}.self_attn.out_proj"), f"{name}.self_attn_layer_norm")
            if first:
                source = [graph.as_heads(graph.project(states, f"{name}.encoder_attn.{part}_proj")) for part in "kv"]
            else:
                source = graph.cache(i, heads, size, "encoder.")
            y = graph.attention(graph.project(x, f"{name}.encoder_attn.q_proj"), *source)
            x = graph.add_and_norm(x, graph.project(y, f"{name}.encoder_attn.out_proj"), f"{name}.encoder_attn_layer_norm")
            x = graph.feed_forward(x, name)
            present.append((cache, source))
        head = graph.linear(graph.last_position(x), weights("model.shared.weight").T, weights("final_logits_bias")[0])
        graph.output(head, "logits", ["batch_size", 1, V])
        for i, (cache, source) in enumerate(present):
            graph.present(i, cache, heads, size, "decoder.")
            if first:
                graph.present(i, source, heads, size, "encoder.")
        return graph.model()

    return {"encoder_model": encoder(), "decoder_model": decoder(True), "decoder_with_past_model": decoder(False)}


def quantize_q8(source, target):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = {"MatMulConstBOnly": True, "DefaultTensorType": TensorProto.FLOAT}
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=False, reduce_range=False, extra_options=options)


def quantize_q4(source, target):
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
    quantizer.process()
    onnx.save(quantizer.model.model, target)


def products(folder):
    """Single products x (M, K) W (K, N), one a file."""
    random = np.random.default_rng(1)
    for size in (512, 1024, 2048):
        graph = Graph()
        x = graph.input("x", ["rows", size], TensorProto.FLOAT)
        graph.output(graph.linear(x, random.standard_normal((size, size), np.float32)), "y", ["rows", size])
        onnx.save(graph.model(), folder / f"matmul-{size}.onnx")


def main(folder, out, *variants):
    out = Path(out)
    if folder == "products":
        return products(out)
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    for name, model in globals()[config["model_type"]](config, Weights(folder)).items():
        plain = out / f"{name}.onnx"
        onnx.save(model, plain)
        if "q8" in variants:
            quantize_q8(plain, out / f"{name}_quantized.onnx")
        if "q4" in variants:
            quantize_q4(plain, out / f"{name}_q4.onnx")


if __name__ == "__main__":
    main(*sys.argv[1:])
