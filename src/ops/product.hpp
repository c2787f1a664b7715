// kernels::gemm on all threads.
#pragma once

#include "ops/context.hpp"

namespace wf {

// Shapes and strides as kernels::gemm's. Each thread makes some columns of C, or some rows where A is transposed, whichever is packed
// only once then; the bits are those of one thread.
void product(Context& ctx, bool trans_a, bool trans_b, size_t M, size_t N, size_t K, const float* A, size_t lda, const float* B, size_t ldb,
             bool accumulate, float* C, size_t ldc);

}  // namespace wf
