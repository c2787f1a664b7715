// In what BERT's relatives differ: keys of the configuration, names of weights, and a few values.
#pragma once

#include <cstddef>

#include "kernels/activation.hpp"

namespace wf {

// BERT's values are the defaults.
struct EncoderFamily {
  // Keys of the configuration, and what counts where it lacks them.
  const char *size_key = "hidden_size", *layers_key = "num_hidden_layers", *heads_key = "num_attention_heads";
  const char *inner_key = "intermediate_size", *activation_key = "hidden_act";
  const char* activation = "gelu";
  size_t D = 768, layers = 12, H = 12, F = 3072, V = 30522;
  bool has_types = true;
  bool counts_from_padding = false;  // the first position's row follows that of the padding token's id
  bool shares_layers = false;        // layers come in groups that share weights; embeddings are narrower than the model
  bool head_has_gelu = false;        // the masked-language head, whatever the layers have
  kernels::Activation summary_activation = kernels::Activation::kTanh;
  // Names of weights: of the base model, of a layer, of the heads.
  const char *prefix = "bert.", *layers_name = "encoder.layer.", *pooler = "pooler.dense";
  const char *query = "attention.self.query", *key = "attention.self.key", *value = "attention.self.value";
  const char *output = "attention.output.dense", *attention_norm = "attention.output.LayerNorm";
  const char *up = "intermediate.dense", *down = "output.dense", *norm = "output.LayerNorm";
  const char *transform = "cls.predictions.transform.dense", *transform_norm = "cls.predictions.transform.LayerNorm";
  const char *decoder = "cls.predictions.decoder", *decoder_bias = "cls.predictions.bias";
  const char* summary = nullptr;  // of a text to be classified; null: the pooler's
  const char* classifier = "classifier";
};

inline constexpr EncoderFamily kBert;

inline constexpr EncoderFamily kRoberta{
    .V = 50265,
    .counts_from_padding = true,
    .head_has_gelu = true,
    .prefix = "roberta.",
    .transform = "lm_head.dense",
    .transform_norm = "lm_head.layer_norm",
    .decoder = "lm_head.decoder",
    .decoder_bias = "lm_head.bias",
    .summary = "classifier.dense",
    .classifier = "classifier.out_proj",
};

inline constexpr EncoderFamily kDistilBert{
    .size_key = "dim",
    .layers_key = "n_layers",
    .heads_key = "n_heads",
    .inner_key = "hidden_dim",
    .activation_key = "activation",
    .layers = 6,
    .has_types = false,
    .summary_activation = kernels::Activation::kRelu,
    .prefix = "distilbert.",
    .layers_name = "transformer.layer.",
    .pooler = nullptr,
    .query = "attention.q_lin",
    .key = "attention.k_lin",
    .value = "attention.v_lin",
    .output = "attention.out_lin",
    .attention_norm = "sa_layer_norm",
    .up = "ffn.lin1",
    .down = "ffn.lin2",
    .norm = "output_layer_norm",
    .transform = "vocab_transform",
    .transform_norm = "vocab_layer_norm",
    .decoder = "vocab_projector",
    .decoder_bias = "vocab_projector.bias",
    .summary = "pre_classifier",
};

inline constexpr EncoderFamily kAlbert{
    .activation = "gelu_new",
    .D = 4096,
    .H = 64,
    .F = 16384,
    .V = 30000,
    .shares_layers = true,
    .prefix = "albert.",
    .layers_name = "encoder.albert_layer_groups.",
    .pooler = "pooler",
    .query = "attention.query",
    .key = "attention.key",
    .value = "attention.value",
    .output = "attention.dense",
    .attention_norm = "attention.LayerNorm",
    .up = "ffn",
    .down = "ffn_output",
    .norm = "full_layer_layer_norm",
    .transform = "predictions.dense",
    .transform_norm = "predictions.LayerNorm",
    .decoder = "predictions.decoder",
    .decoder_bias = "predictions.bias",
};

}  // namespace wf
