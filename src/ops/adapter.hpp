// Low-rank changes of frozen matrices (Hu et al. 2021, "LoRA").
#pragma once

#include "ops/context.hpp"
#include "ops/weight.hpp"

namespace wf {

// y[:, row .. row + F) += scale x A^T B^T. Backward: of A, B and x, as of two linear layers.
void add_adapter(Context& ctx, const Tensor& x, const Adapter& adapter, const Tensor& y);

// dx (T, D) += dy (T, F) W of a matrix that is packed for the kernels.
void add_input_gradient(Context& ctx, const Weight& w, const float* dy, size_t dy_stride, float* dx, size_t dx_stride, size_t T);

}  // namespace wf
