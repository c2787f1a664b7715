#include "kernels/gemm.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/panels.hpp"
#include "kernels/tile.hpp"

namespace wf::kernels {
namespace {

constexpr size_t kGroup = 16 * kPanel;  // columns of B packed together
constexpr size_t kRows = 64;            // rows of A packed together

}  // namespace

size_t gemm_scratch(size_t M, size_t N, size_t K) {
  const size_t run = std::min(K, kRun), columns = std::min(panel_count(N) * kPanel, kGroup);
  return run * (columns + std::min(M, kRows));
}

void gemm(bool trans_a, bool trans_b, size_t M, size_t N, size_t K, const float* A, size_t lda, const float* B, size_t ldb, bool accumulate,
          float* C, size_t ldc, float* scratch) {
  if (!accumulate) {
    for (size_t m = 0; m < M; ++m) std::memset(C + m * ldc, 0, N * sizeof(float));
  }
  for (size_t n0 = 0; n0 < N; n0 += kGroup) {
    const size_t columns = std::min(kGroup, N - n0), panels = panel_count(columns);
    for (size_t k0 = 0; k0 < K; k0 += kRun) {
      const size_t run = std::min(kRun, K - k0);
      float* packed_a = scratch + panels * run * kPanel;  // (rows, run), behind the panels (panels, run, kPanel)
      for (size_t p = 0; p < panels; ++p) {
        const size_t n = n0 + p * kPanel;
        pack_panel(trans_b, B, ldb, k0, run, n, std::min(kPanel, N - n), scratch + p * run * kPanel);
      }
      for (size_t m0 = 0; m0 < M; m0 += kRows) {
        const size_t rows = std::min(kRows, M - m0);
        const float* a = A + m0 * lda + k0;
        if (trans_a) {
          transpose(A + k0 * lda + m0, lda, run, rows, packed_a, run);
          a = packed_a;
        }
        for (size_t p = 0; p < panels; ++p) {
          const size_t n = n0 + p * kPanel;
          add_product(a, trans_a ? run : lda, rows, scratch + p * run * kPanel, run, C + m0 * ldc + n, ldc, std::min(kPanel, N - n));
        }
      }
    }
  }
}

}  // namespace wf::kernels
