// The loss of a batch whose right continuation is known, and its gradient in every weight.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.hpp"

namespace wf {

struct LossBatch {
  std::vector<std::vector<int32_t>> inputs;          // token ids a sequence
  std::vector<std::vector<int32_t>> decoder_inputs;  // likewise; of encoder-decoder models only, whose `inputs` are the sources
  // One a token, below 0: does not count. As in transformers: label t + 1 is what position t of `inputs` should continue with; for
  // encoder-decoder models label t is what position t of `decoder_inputs` should, and for encoders what position t of `inputs` is.
  std::vector<std::vector<int32_t>> labels;
  float smoothing = 0;  // of the labels, in [0, 1)
};

struct LossSum {
  double sum = 0;     // of the cross-entropies, in nats
  size_t labels = 0;  // that count
  double mean() const { return sum / static_cast<double>(labels); }
};

// Throws unless the model can learn from the batch: weights that are not trainable or a head that does not predict tokens are
// kUnsupported; lists that do not fit together, ids outside the vocabulary, sequences beyond learned positions, or no label at all are
// kInvalidArgument, naming `where`.
void expect_trainable(const Model& model, const char* where);
void expect_batch(const Model& model, const LossBatch& batch, const char* where);

// Cross-entropy of a batch that fits. Of `ctx` the arena, the threads, what is dropped and whether blocks are run again are used; the
// arena is left as it was.
LossSum loss(const Model& model, const Context& ctx, const LossBatch& batch);
// The same, adding `share` times the gradient of the sum to the weights'.
LossSum add_gradients(const Model& model, const Context& ctx, const LossBatch& batch, double share);

// Mean cross-entropy over the labels that count. Leaves its gradient in the weights.
double gradients(const Model& model, const Context& ctx, const LossBatch& batch);

// Of no labels at all: a pass over `sequences` of `length` tokens each, with a gradient of ones from the last states back. For
// measuring; the weights' gradients are left undefined.
void rehearse(const Model& model, const Context& ctx, size_t sequences, size_t length);

// Floats of logits that are held at once: some rows of them, and as many of their gradient.
size_t logit_floats(const Model& model, size_t rows);

}  // namespace wf
