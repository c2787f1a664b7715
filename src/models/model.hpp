// What every architecture offers, and how one is chosen.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "models/parameters.hpp"
#include "nn/attention.hpp"

namespace wf {

// What a model says about its hidden states.
enum class HeadKind : uint8_t {
  kLanguage,        // the next token: (T, V)
  kMaskedLanguage,  // this token: (T, V)
  kSequence,        // the whole sequence: (labels)
  kToken,           // each token: (T, labels)
  kQuestion,        // where an answer starts and ends: (T, 2)
  kNone,            // nothing: hidden states are the result
};

// Where the tokens of a padded sequence stand, when nobody says so.
enum class PositionRule : uint8_t {
  kIndex,    // at their index, padding counted
  kVisible,  // at their index among those that the mask shows (OPT)
  kNotPad,   // at their index among those that are not the padding token, which itself stands at -1 (RoBERTa, M2M100)
};

struct ModelInfo {
  std::string architecture;  // model_type: "gpt2"
  size_t layers = 0;
  size_t heads = 0;
  size_t kv_heads = 0;
  size_t head_size = 0;
  size_t hidden_size = 0;
  size_t vocab_size = 0;
  std::string positions;              // "learned", "rope", "alibi" or "sinusoidal"
  size_t context = 0;                 // positions the configuration names; 0: none named
  bool positions_are_a_wall = false;  // a learned table: nothing exists beyond `context`
  PositionRule position_rule = PositionRule::kIndex;
  int32_t padding = -1;  // the padding token, of kNotPad
  bool takes_position(int32_t token) const { return position_rule != PositionRule::kNotPad || token != padding; }
  bool relative_positions = false;  // scores depend on the distance of two tokens, padding between them counted (T5)
  HeadKind head = HeadKind::kLanguage;
  size_t labels = 0;          // of kSequence and kToken
  bool encoder_only = false;  // every token sees the whole sequence: no cache, whole sequences in a pass
  bool has_pooler = false;
  size_t token_types = 0;        // segments that can be told apart; 0: none
  size_t source_vocab_size = 0;  // of an encoder-decoder's encoder, where it has a vocabulary of its own; 0: the same
};

class EncoderDecoder;

class Model {
 public:
  explicit Model(std::string prefix) : parameters_(std::move(prefix)) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelInfo& info() const { return info_; }
  const Parameters& parameters() const { return parameters_; }
  const kernels::AttentionShape& cache_shape() const { return cache_shape_; }
  const std::vector<size_t>& windows() const { return windows_; }  // one a layer; 0: all positions

  // The model as one with an encoder and a decoder, or null.
  virtual const EncoderDecoder* encoder_decoder() const { return nullptr; }

  // Hidden states after the last norm, (T, D). `caches`: one a sequence, whose past the batch continues, or none; an encoder-only
  // model takes none.
  virtual Tensor forward(Context& ctx, const Batch& batch, Caches caches) const = 0;
  // What the head says of some rows of those states: (R, V), of kToken (R, labels), of kQuestion (R, 2). Of kSequence the states
  // of whole sequences go in, rows offsets[i]..offsets[i + 1] being sequence i, and (sequences, labels) comes out. kNone: kUnsupported.
  virtual Tensor head(Context& ctx, const Tensor& states) const;
  virtual Tensor classify(Context& ctx, const Tensor& states, std::span<const size_t> offsets) const;
  // One row a sequence, (sequences, D), of a model that has a pooler; otherwise kUnsupported.
  virtual Tensor pool(Context& ctx, const Tensor& states, std::span<const size_t> offsets) const;
  // States of any layer as the head expects them: through the model's last norm, where it has one. The result may be `states`.
  virtual Tensor final_norm(Context&, const Tensor& states) const { return states; }

 protected:
  ModelInfo info_;
  Parameters parameters_;
  kernels::AttentionShape cache_shape_{};
  std::vector<size_t> windows_;
};

// Reads a source with its encoder and continues a target with a decoder that looks at it. Both kinds of cache take their blocks
// from a pool of `cache_shape()`: those of the target have `windows()`, those of the source one entry a decoder layer without
// window. `info().layers` counts the decoder's.
class EncoderDecoder : public Model {
 public:
  using Model::Model;

  const EncoderDecoder* encoder_decoder() const override { return this; }
  size_t encoder_layers() const { return encoder_layers_; }
  size_t encoder_heads() const { return encoder_heads_; }

  // Hidden states of the sources after the encoder's last layer, (S, D).
  virtual Tensor encode(Context& ctx, const Batch& source) const = 0;
  // Writes the keys and values that cross-attention makes of `memory` (S, D), the rows of sequence i into cross[i], which is
  // empty, and makes them its past: once a source.
  virtual void remember(Context& ctx, const Tensor& memory, std::span<const size_t> memory_offsets, Caches cross) const = 0;
  // Hidden states of the targets after the last layer, (T, D). `self`: one a sequence, whose past the batch continues; `cross`:
  // as `remember` left them.
  virtual Tensor decode(Context& ctx, const Batch& target, Caches self, Caches cross) const = 0;
  // The same of whole targets, from the encoder's states themselves (S, D): teacher forcing.
  virtual Tensor decode(Context& ctx, const Batch& target, const Tensor& memory, std::span<const size_t> memory_offsets) const = 0;

  // Nothing to look at: kUnsupported.
  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override;

 protected:
  size_t encoder_layers_ = 0, encoder_heads_ = 0;
};

// The model that `config` describes, its weights not yet allocated. Unknown model_type, or a field whose value is not built:
// kUnsupported naming it; senseless sizes: kInvalidArgument.
std::unique_ptr<Model> make_model(const Config& config);

// One function an architecture, listed in registry.cpp.
std::unique_ptr<Model> make_gpt2(const Config& config);
std::unique_ptr<Model> make_llama(const Config& config);
std::unique_ptr<Model> make_gpt_neox(const Config& config);
std::unique_ptr<Model> make_opt(const Config& config);
std::unique_ptr<Model> make_bloom(const Config& config);
std::unique_ptr<Model> make_transformer(const Config& config);
std::unique_ptr<Model> make_bart(const Config& config);
std::unique_ptr<Model> make_mbart(const Config& config);
std::unique_ptr<Model> make_marian(const Config& config);
std::unique_ptr<Model> make_pegasus(const Config& config);
std::unique_ptr<Model> make_m2m_100(const Config& config);
std::unique_ptr<Model> make_t5(const Config& config);
std::unique_ptr<Model> make_mt5(const Config& config);
std::unique_ptr<Model> make_bert(const Config& config);

}  // namespace wf
