// What every architecture offers, and how one is chosen.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "models/parameters.hpp"
#include "nn/attention.hpp"

namespace wf {

struct ModelInfo {
  std::string architecture;  // model_type: "gpt2"
  size_t layers = 0;
  size_t heads = 0;
  size_t kv_heads = 0;
  size_t head_size = 0;
  size_t hidden_size = 0;
  size_t vocab_size = 0;
  std::string positions;       // "learned", "rope", "alibi" or "sinusoidal"
  size_t context = 0;          // positions the configuration names; 0: none named
  bool positions_are_a_wall = false;  // a learned table: nothing exists beyond `context`
  bool mask_moves_positions = false;  // without explicit positions, hidden tokens of a padded row do not count (OPT)
};

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

  // Hidden states after the last norm, (T, D). `caches`: one a sequence, whose past the batch continues, or none.
  virtual Tensor forward(Context& ctx, const Batch& batch, Caches caches) const = 0;
  // Logits of some rows of those states, (R, V).
  virtual Tensor head(Context& ctx, const Tensor& states) const = 0;

 protected:
  ModelInfo info_;
  Parameters parameters_;
  kernels::AttentionShape cache_shape_{};
  std::vector<size_t> windows_;
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

}  // namespace wf
