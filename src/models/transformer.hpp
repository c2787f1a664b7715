// The Transformer as it was first described (Vaswani et al. 2017), with what its descendants vary as values.
#pragma once

#include <memory>
#include <string>

#include "models/model.hpp"
#include "nn/residual.hpp"

namespace wf {

// A configuration's key that, false, leaves out `final_logits_bias`: files of base models (facebook/bart-base) have none.
constexpr const char* kAddLogitsBias = "add_final_logits_bias";

struct TransformerConfig {
  enum class Positions : uint8_t {
    kSinusoids,  // sines at even, cosines at odd features (section 3.5)
    kHalves,     // sines, then cosines (Marian)
    kSpread,     // the same with the slowest frequency at 1/10000 itself, from position `position_offset` on (fairseq)
    kLearned,    // rows of a table, from row `position_offset` on
    kNone,
  };

  std::string architecture, prefix;
  size_t D = 0, vocab_size = 0;
  size_t source_vocab_size = 0;                   // of embeddings of the source's own; 0: shared with the target
  size_t encoder_layers = 0, decoder_layers = 0;  // one of them may be 0: a decoder or an encoder alone
  kernels::AttentionShape encoder_shape{}, decoder_shape{};
  size_t encoder_inner = 0, decoder_inner = 0;
  kernels::Activation activation = kernels::Activation::kRelu;
  float eps = 1e-5f, embedding_scale = 1;
  float scale = 0;  // of attention scores; 0: 1 / sqrt(Dk)
  Positions positions = Positions::kSinusoids;
  size_t context = 0, position_offset = 0;  // positions the configuration names; of a learned table all there are
  PositionRule position_rule = PositionRule::kIndex;
  int32_t padding = -1;
  Residual::Order order = Residual::Order::kPost;
  bool residual = true;
  bool final_norm = false;              // after each stack
  bool embedding_norm = false;          // after each embedding (BART)
  bool tied = true;                     // the head is the target's embedding
  bool logits_bias = false;             // a bias of the head (Marian)
  HeadKind head = HeadKind::kLanguage;  // of an encoder alone; decoders predict the next token
};

std::unique_ptr<Model> build_transformer(const TransformerConfig& config);

}  // namespace wf
