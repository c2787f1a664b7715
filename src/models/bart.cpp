// The published encoder-decoders that are the original Transformer with other values: BART (Lewis et al. 2020), mBART (Liu et al.
// 2020), Marian (Junczys-Dowmunt et al. 2018), Pegasus (Zhang et al. 2020), M2M100 (Fan et al. 2021) and with it NLLB.
#include <cmath>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/transformer.hpp"

namespace wf {

namespace {

using Positions = TransformerConfig::Positions;

// What they have in common; `activation_name`: the default of the family.
TransformerConfig common(const Config& config, std::string_view architecture, std::string_view activation_name, bool scale_embedding) {
  TransformerConfig c;
  c.architecture = architecture;
  c.prefix = "model.";
  c.D = dimension(config, "d_model", 1024);
  c.vocab_size = vocabulary(config, 50265);
  c.encoder_layers = layer_count(config, "encoder_layers", 12);
  c.decoder_layers = layer_count(config, "decoder_layers", 12);
  const auto shape = [&](std::string_view key) {
    const size_t H = head_count(config, key, 16), Dk = divided(c.D, "d_model", H, key);
    return kernels::AttentionShape{H, H, Dk, Dk};
  };
  c.encoder_shape = shape("encoder_attention_heads");
  c.decoder_shape = shape("decoder_attention_heads");
  c.encoder_inner = dimension(config, "encoder_ffn_dim", 4096);
  c.decoder_inner = dimension(config, "decoder_ffn_dim", 4096);
  c.activation = activation(config, "activation_function", activation_name);
  c.embedding_scale = config.boolean("scale_embedding", scale_embedding) ? std::sqrt(static_cast<float>(c.D)) : 1;
  c.context = dimension(config, "max_position_embeddings", 1024);
  c.tied = config.boolean("tie_word_embeddings", true);
  return c;
}

void pre_norm(TransformerConfig& c) {
  c.order = Residual::Order::kPre;
  c.final_norm = true;
}

void learned_positions(TransformerConfig& c) {
  c.positions = Positions::kLearned;
  c.position_offset = 2;
  c.embedding_norm = true;
}

void sinusoidal_positions(const Config& config, TransformerConfig& c, Positions positions) {
  if (c.D % 2 != 0 || c.D < 4) config.reject("d_model", "an even number from 4");
  c.positions = positions;
}

}  // namespace

std::unique_ptr<Model> make_bart(const Config& config) {
  TransformerConfig c = common(config, "bart", "gelu", false);
  learned_positions(c);
  c.logits_bias = config.boolean(kAddLogitsBias, true);
  return build_transformer(c);
}

std::unique_ptr<Model> make_mbart(const Config& config) {
  TransformerConfig c = common(config, "mbart", "gelu", false);
  learned_positions(c);
  pre_norm(c);
  c.logits_bias = config.boolean(kAddLogitsBias, true);
  return build_transformer(c);
}

std::unique_ptr<Model> make_marian(const Config& config) {
  TransformerConfig c = common(config, "marian", "gelu", false);
  sinusoidal_positions(config, c, Positions::kHalves);
  c.logits_bias = config.boolean(kAddLogitsBias, true);
  if (!config.boolean("share_encoder_decoder_embeddings", true)) {
    c.source_vocab_size = c.vocab_size;
    c.vocab_size = dimension(config, "decoder_vocab_size", c.vocab_size);
  }
  return build_transformer(c);
}

std::unique_ptr<Model> make_pegasus(const Config& config) {
  TransformerConfig c = common(config, "pegasus", "gelu", false);
  sinusoidal_positions(config, c, Positions::kHalves);
  pre_norm(c);
  c.logits_bias = config.boolean(kAddLogitsBias, true);
  return build_transformer(c);
}

std::unique_ptr<Model> make_m2m_100(const Config& config) {
  TransformerConfig c = common(config, "m2m_100", "relu", true);
  sinusoidal_positions(config, c, Positions::kSpread);
  pre_norm(c);
  c.position_rule = PositionRule::kNotPad;
  c.padding = static_cast<int32_t>(dimension(config, "pad_token_id", 1));
  c.position_offset = static_cast<size_t>(c.padding) + 1;
  return build_transformer(c);
}

}  // namespace wf
