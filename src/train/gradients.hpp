// The loss of a batch whose right continuation is known, and its gradient in every weight.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arena.hpp"
#include "models/model.hpp"

namespace wf {

struct LossBatch {
  std::vector<std::vector<int32_t>> inputs;          // token ids a sequence
  std::vector<std::vector<int32_t>> decoder_inputs;  // likewise; of encoder-decoder models only, whose `inputs` are the sources
  // One a token, below 0: does not count. As in transformers: label t + 1 is what position t of `inputs` should continue with; for
  // encoder-decoder models label t is what position t of `decoder_inputs` should.
  std::vector<std::vector<int32_t>> labels;
  float smoothing = 0;  // of the labels, in [0, 1)
};

// Mean cross-entropy over the labels that count. Leaves its gradient in the weights, which must be trainable (kUnsupported);
// lists that do not fit together, ids outside the vocabulary, or no label at all are kInvalidArgument.
double gradients(const Model& model, Arena& arena, const LossBatch& batch);

}  // namespace wf
