// C (M, N) = op(A) op(B), or += : row-major matrices in f32, for training.
#pragma once

#include <cstddef>

namespace wf::kernels {

// op(A) (M, K) is A, or with trans_a the transpose of A (K, M); op(B) (K, N) likewise. lda, ldb, ldc: floats between rows as
// stored. accumulate: C += instead of C =. C overlaps neither A nor B.
void gemm(bool trans_a, bool trans_b, size_t M, size_t N, size_t K, const float* A, size_t lda, const float* B, size_t ldb, bool accumulate,
          float* C, size_t ldc, float* scratch);
size_t gemm_scratch(size_t M, size_t N, size_t K);  // floats

}  // namespace wf::kernels
