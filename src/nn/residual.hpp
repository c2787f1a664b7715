// The residual connection around a sub-layer, with its normalisation before the sub-layer or after the sum.
#pragma once

#include <cstdint>

#include "nn/norm.hpp"

namespace wf {

struct Residual {
  enum class Order : uint8_t {
    kPre,   // x + f(norm(x)): GPT-2, LLaMA
    kPost,  // norm(x + f(x)): Vaswani et al. 2017, section 3.1
  };

  Norm norm;
  Order order = Order::kPre;

  // x (T, D) -> (T, D). Without a tape the sum is written into x.
  template <class SubLayer>
  Tensor operator()(Context& ctx, Tensor x, const SubLayer& sub_layer) const {
    Scope scope(ctx);
    if (order == Order::kPre) return add(ctx, x, sub_layer(norm(ctx, x)));
    return scope.keep(norm(ctx, add(ctx, x, sub_layer(x))));
  }
};

}  // namespace wf
