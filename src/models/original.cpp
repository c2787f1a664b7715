// The configuration of the original Transformer (Vaswani et al. 2017), with what one may want to try otherwise.
#include <cmath>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/transformer.hpp"

namespace wf {

std::unique_ptr<Model> make_transformer(const Config& config) {
  TransformerConfig c;
  c.architecture = "transformer";
  c.D = dimension(config, "d_model", 512);
  c.vocab_size = vocabulary(config, 37000);
  c.encoder_layers = layer_count_or_none(config, "encoder_layers", 6);
  c.decoder_layers = layer_count_or_none(config, "decoder_layers", 6);
  if (c.encoder_layers + c.decoder_layers == 0) config.reject("decoder_layers", "layers in the encoder, the decoder or both");
  const size_t heads = head_count(config, "heads", 8);
  const auto shape = [&](std::string_view key) {
    const size_t H = head_count(config, key, heads);
    const bool given = config.has(key) || !config.has("heads");
    const size_t Dk = config.has("head_dim") ? dimension(config, "head_dim") : divided(c.D, "d_model", H, given ? key : "heads");
    return kernels::AttentionShape{H, H, Dk, dimension(config, "value_head_dim", Dk)};
  };
  if (c.encoder_layers != 0) c.encoder_shape = shape("encoder_attention_heads");
  if (c.decoder_layers != 0) c.decoder_shape = shape("decoder_attention_heads");
  c.encoder_inner = dimension(config, "encoder_ffn_dim", 2048);
  c.decoder_inner = dimension(config, "decoder_ffn_dim", 2048);
  c.activation = activation(config, "activation_function", "relu");
  c.eps = epsilon(config, "layer_norm_eps", 1e-5);
  c.embedding_scale = config.boolean("scale_embedding", true) ? std::sqrt(static_cast<float>(c.D)) : 1;
  c.order = config.boolean("normalize_before", false) ? Residual::Order::kPre : Residual::Order::kPost;
  c.final_norm = c.order == Residual::Order::kPre;
  c.residual = config.boolean("residual", true);
  if (config.has("scale")) {
    c.scale = static_cast<float>(config.number("scale"));
    if (!(c.scale > 0) || !std::isfinite(c.scale)) config.reject("scale", "a finite number above 0");
  }
  c.tied = config.boolean("tie_word_embeddings", true);
  if (!config.boolean("share_encoder_decoder_embeddings", true)) {
    c.source_vocab_size = dimension(config, "encoder_vocab_size", c.vocab_size);
    if (c.encoder_layers * c.decoder_layers == 0) config.reject("share_encoder_decoder_embeddings", "true, where there is only one side");
  }
  const std::string positions = config.string("position_embedding_type", "sinusoidal");
  c.context = config.size("max_position_embeddings", 0);
  if (positions == "learned") {
    c.positions = TransformerConfig::Positions::kLearned;
    c.context = dimension(config, "max_position_embeddings", 1024);
  } else if (positions == "none") {
    c.positions = TransformerConfig::Positions::kNone;
  } else if (positions != "sinusoidal") {
    fail(Code::kUnsupported, "config.json", "position_embedding_type: expected sinusoidal, learned or none, got '", positions, "'");
  } else if (c.D % 2 != 0) {
    config.reject("d_model", "an even number");
  }
  c.head = HeadKind::kNone;
  for (const std::string& name : config.strings("architectures")) {
    if (!name.ends_with("ForMaskedLM")) continue;
    if (c.decoder_layers != 0) config.reject("architectures", "no ...ForMaskedLM, where there is a decoder");
    c.head = HeadKind::kMaskedLanguage;
  }
  return build_transformer(c);
}

}  // namespace wf
