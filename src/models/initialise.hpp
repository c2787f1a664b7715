// Weights of a model that nothing has been learned into yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/config.hpp"
#include "models/model.hpp"

namespace wf {

// Draws by a counter, keyed by (seed, parameter, element): the same seed gives the same weights, in whatever order and pieces.
//
// `transformer` (Vaswani et al. 2017 do not say how): embeddings N(0, 1 / sqrt(D)), other matrices uniform within
// sqrt(6 / (inputs + outputs)) (Glorot, Bengio 2010, eq. 16). T5: as transformers does, normal, by the sizes of each layer and
// `initializer_factor`. Every other family as in transformers: N(0, `initializer_range` or `init_std`, 0.02 where the configuration
// has neither), GPT-2's projections into the residual stream divided by sqrt(2 layers) (Radford et al. 2019, section 2.3), zeros for
// the embedding of padding. Norms are ones, biases zeros.
class Initialiser {
 public:
  Initialiser(const Config& config, const Model& model, uint64_t seed);

  // `count` stored rows (elements of a vector) of a parameter, from row `begin` on, as floats.
  void draw(size_t parameter, size_t begin, size_t count, float* out) const;

 private:
  struct Rule {
    enum class Kind : uint8_t { kConstant, kNormal, kUniform, kSinusoids } kind;
    double size;  // the constant, the standard deviation, or the bound on both sides
  };
  Rule rule(const Parameter& parameter) const;
  Rule rule_of_t5(const Parameter& parameter) const;

  const Model& model_;
  uint64_t seed_;
  double deviation_, factor_;  // of most matrices; of T5
  bool sinusoids_;             // DistilBERT's table of positions begins as sinusoids
  double inner_;               // T5's feed-forward width
};

}  // namespace wf
