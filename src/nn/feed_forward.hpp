// The position-wise feed-forward network, plain (Vaswani et al. 2017, eq. 2) or gated (Shazeer 2020).
#pragma once

#include "nn/linear.hpp"

namespace wf {

struct FeedForward {
  kernels::Activation activation = kernels::Activation::kRelu;
  bool is_gated = false;
  Linear up;    // (F, D), or (2 F, D): gate above up
  Linear down;  // (D, F)
  size_t layer = 0;
  Site site = Site::kAttention;  // of the layer's self-attention: which stack it belongs to

  FeedForward() = default;
  FeedForward(kernels::Activation act, bool gate, size_t model_size, size_t inner_size, bool with_bias, size_t number,
              Site stack = Site::kAttention)
      : activation(act),
        is_gated(gate),
        up(gate ? 2 * inner_size : inner_size, model_size, with_bias),
        down(model_size, inner_size, with_bias),
        layer(number),
        site(stack) {}

  // x (T, D) -> (T, D)
  Tensor operator()(Context& ctx, const Tensor& x) const {
    const Tensor wide = up(ctx, x);
    const size_t F = is_gated ? wide.cols / 2 : wide.cols;
    const Tensor inner = is_gated ? gated(ctx, activation, wide.columns(0, F), wide.columns(F, F)) : activate(ctx, activation, wide);
    ctx.observe(site, Part::kInner, layer, inner);
    return down(ctx, inner);
  }
};

}  // namespace wf
