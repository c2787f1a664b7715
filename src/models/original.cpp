// The configuration of the original Transformer (Vaswani et al. 2017), with what one may want to try otherwise.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/transformer.hpp"

namespace wf {

namespace {

constexpr std::array<std::string_view, 23> kKeys{"model_type",
                                                 "vocab_size",
                                                 "encoder_vocab_size",
                                                 "d_model",
                                                 "encoder_layers",
                                                 "decoder_layers",
                                                 "heads",
                                                 "encoder_attention_heads",
                                                 "decoder_attention_heads",
                                                 "head_dim",
                                                 "value_head_dim",
                                                 "encoder_ffn_dim",
                                                 "decoder_ffn_dim",
                                                 "activation_function",
                                                 "position_embedding_type",
                                                 "max_position_embeddings",
                                                 "normalize_before",
                                                 "scale_embedding",
                                                 "tie_word_embeddings",
                                                 "share_encoder_decoder_embeddings",
                                                 "scale",
                                                 "residual",
                                                 "layer_norm_eps"};

// The number of single-letter changes that turn one word into the other (Levenshtein 1966).
size_t changes(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t other = std::min(row[j], row[j + 1]) + 1;
      diagonal = std::exchange(row[j + 1], std::min(other, diagonal + (a[i] == b[j] ? 0 : 1)));
    }
  }
  return row.back();
}

// A configuration may say more than this file reads, but what is nearly one of its keys was meant to be it.
void expect_no_slips(const Config& config) {
  for (const auto& [key, value] : config.values()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    for (const std::string_view known : kKeys) {
      if (changes(key, known) <= 2) {
        fail(Code::kInvalidArgument, config.where(), key, ": unknown key: expected ", known, ", or a name less like it");
      }
    }
  }
}

}  // namespace

std::unique_ptr<Model> make_transformer(const Config& config) {
  expect_no_slips(config);
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
  } else if (config.size("encoder_vocab_size", c.vocab_size) != c.vocab_size) {
    config.reject("encoder_vocab_size", join(c.vocab_size, ", as vocab_size, or share_encoder_decoder_embeddings: false"));
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
    if (!name.ends_with("ForMaskedLM")) {
      expect_language_model(name);
      continue;
    }
    if (c.decoder_layers != 0) config.reject("architectures", "no ...ForMaskedLM, where there is a decoder");
    c.head = HeadKind::kMaskedLanguage;
  }
  return build_transformer(c);
}

}  // namespace wf
