// Muon: steps of matrices whose singular values are all about 1.
#pragma once

#include "ops/context.hpp"

namespace wf {

struct MuonStep {
  double learning_rate;
  double weight_decay;  // decoupled, as AdamW's
  double scale = 1;     // of the gradient as it is stored
};

// One step of a matrix; weight, gradient and momentum are (rows, cols), the momentum zeros before the first step. The gradient goes into
// the momentum, 0.95 of which is kept, and the sum of both, as Nesterov has it, is made about orthogonal by five Newton-Schulz iterations
// (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"). The step is as long as AdamW's usually is, 0.2
// sqrt(max(rows, cols)) times the learning rate, so that both take the same rate (Liu et al. 2025, "Muon is scalable for LLM training",
// section 2.2). As torch.optim.Muon with adjust_lr_fn="match_rms_adamw", in 32 bits instead of 16.
void muon(Context& ctx, float* weight, const float* gradient, float* momentum, size_t rows, size_t cols, const MuonStep& step);
// Scratch it takes, in floats.
size_t muon_floats(size_t rows, size_t cols);

}  // namespace wf
