#include "kernels/gemm.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/panels.hpp"
#include "kernels/tile.hpp"

namespace wf::kernels {
namespace {

constexpr size_t kGroup = 16 * kPanel;  // columns packed together
constexpr size_t kRows = 64;            // rows packed together

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
      float* packed_b = scratch;                          // (panels, run, kPanel)
      float* packed_a = scratch + panels * run * kPanel;  // (rows, run)
      for (size_t p = 0; p < panels; ++p) {
        const size_t n = n0 + p * kPanel, width = std::min(kPanel, N - n);
        float* out = packed_b + p * run * kPanel;
        if (width < kPanel) std::memset(out, 0, run * kPanel * sizeof(float));
        for (size_t k = 0; k < run; ++k) {
          for (size_t j = 0; j < width; ++j) {
            out[k * kPanel + j] = trans_b ? B[(n + j) * ldb + k0 + k] : B[(k0 + k) * ldb + n + j];
          }
        }
      }
      for (size_t m0 = 0; m0 < M; m0 += kRows) {
        const size_t rows = std::min(kRows, M - m0);
        const float* a = A + m0 * lda + k0;
        size_t a_stride = lda;
        if (trans_a) {
          for (size_t k = 0; k < run; ++k) {
            for (size_t m = 0; m < rows; ++m) packed_a[m * run + k] = A[(k0 + k) * lda + m0 + m];
          }
          a = packed_a, a_stride = run;
        }
        for (size_t p = 0; p < panels; ++p) {
          const size_t n = n0 + p * kPanel, width = std::min(kPanel, N - n);
          const float* b = packed_b + p * run * kPanel;
          for (size_t m = 0; m < rows; m += 2) {
            const size_t pair = std::min<size_t>(2, rows - m);
            float* c = C + (m0 + m) * ldc + n;
            float edge[2][kPanel] = {};
            float* c0 = c;
            float* c1 = c + ldc;
            if (width < kPanel) {
              c0 = edge[0], c1 = edge[1];
              for (size_t i = 0; i < pair; ++i) std::memcpy(edge[i], c + i * ldc, width * sizeof(float));
            }
            if (pair == 2) {
              tile_2(a + m * a_stride, a + (m + 1) * a_stride, b, run, c0, c1);
            } else {
              tile_1(a + m * a_stride, b, run, c0);
            }
            if (width < kPanel) {
              for (size_t i = 0; i < pair; ++i) std::memcpy(c + i * ldc, edge[i], width * sizeof(float));
            }
          }
        }
      }
    }
  }
}

}  // namespace wf::kernels
