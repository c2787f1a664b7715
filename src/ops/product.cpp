#include "ops/product.hpp"

#include <algorithm>

#include "kernels/gemm.hpp"
#include "kernels/panels.hpp"

namespace wf {

void product(Context& ctx, bool trans_a, bool trans_b, size_t M, size_t N, size_t K, const float* A, size_t lda, const float* B, size_t ldb,
             bool accumulate, float* C, size_t ldc) {
  const Scratch scratch(ctx, kernels::gemm_scratch(M, N, K), ctx.threads());
  const size_t whole = trans_a ? M : N;
  // Rows of C each need all of B packed: not too few of them.
  const size_t unit = trans_a ? std::max<size_t>(32, (M / (3 * ctx.threads()) + 1) / 2 * 2) : kernels::kPanel;
  ctx.share((whole + unit - 1) / unit, uint64_t{M} * N * K, [&](size_t begin, size_t end, size_t thread) {
    const size_t first = begin * unit, count = std::min(end * unit, whole) - first;
    if (trans_a) {
      kernels::gemm(true, trans_b, count, N, K, A + first, lda, B, ldb, accumulate, C + first * ldc, ldc, scratch.of(thread));
    } else {
      const float* columns = B + first * (trans_b ? ldb : 1);
      kernels::gemm(false, trans_b, M, count, K, A, lda, columns, ldb, accumulate, C + first, ldc, scratch.of(thread));
    }
  });
}

}  // namespace wf
