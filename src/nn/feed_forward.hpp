// The position-wise feed-forward network, plain (Vaswani et al. 2017, eq. 2) or gated (Shazeer 2020).
#pragma once

#include "nn/linear.hpp"

namespace wf {

struct FeedForward {
  kernels::Activation activation = kernels::Activation::kRelu;
  bool is_gated = false;
  Linear up;    // (F, D), or (2 F, D): gate above up
  Linear down;  // (D, F)

  FeedForward() = default;
  FeedForward(kernels::Activation act, bool gate, size_t model_size, size_t inner_size, bool with_bias)
      : activation(act),
        is_gated(gate),
        up(gate ? 2 * inner_size : inner_size, model_size, with_bias),
        down(model_size, inner_size, with_bias) {}

  // x (T, D) -> (T, D)
  Tensor operator()(Context& ctx, const Tensor& x) const {
    Tensor inner = up(ctx, x);
    if (!is_gated) return down(ctx, activate(ctx, activation, inner));
    const size_t F = inner.cols / 2;
    return down(ctx, gated(ctx, activation, inner.columns(0, F), inner.columns(F, F)));
  }
};

}  // namespace wf
