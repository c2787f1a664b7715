// A linear layer, or several side by side that read the same input (query, key and value; gate and up).
#pragma once

#include "ops/ops.hpp"

namespace wf {

struct Linear {
  Weight weight;  // (F, D)
  Weight bias;    // (F), absent when the layer has none

  Linear() = default;
  Linear(size_t outputs, size_t inputs, bool with_bias)
      : weight(Weight::matrix(outputs, inputs)), bias(with_bias ? Weight::vector(outputs) : Weight()) {}

  // y (T, F) = x (T, D) W^T + b
  Tensor operator()(Context& ctx, const Tensor& x) const { return linear(ctx, x, weight, bias); }
};

}  // namespace wf
