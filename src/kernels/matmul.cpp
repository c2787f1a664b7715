#include "kernels/matmul.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/panels.hpp"
#include "kernels/tile.hpp"

namespace wf::kernels {

size_t matmul_scratch(DType store, size_t M, size_t D, size_t F) {
  static_cast<void>(D), static_cast<void>(F);
  return store == DType::kF32 || M == 1 ? 0 : kRun * kPanel;
}

void matmul(const float* x, size_t x_stride, DType store, const void* panels, const float* bias, float* y, size_t y_stride, size_t M,
            size_t D, size_t F, float* scratch) {
  matmul(x, x_stride, store, panels, bias, y, y_stride, M, D, F, 0, panel_count(F), scratch);
}

void matmul(const float* x, size_t x_stride, DType store, const void* panels, const float* bias, float* y, size_t y_stride, size_t M,
            size_t D, size_t F, size_t panel_begin, size_t panel_end, float* scratch) {
  const float* wide = static_cast<const float*>(panels);
  const uint16_t* half = static_cast<const uint16_t*>(panels);
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    const size_t column = panel * kPanel, columns = std::min(kPanel, F - column);
    for (size_t m = 0; m < M; ++m) {
      float* row = y + m * y_stride + column;
      if (bias) {
        std::memcpy(row, bias + column, columns * sizeof(float));
      } else {
        std::memset(row, 0, columns * sizeof(float));
      }
    }
    for (size_t k = 0; k < D; k += kRun) {
      const size_t K = std::min(kRun, D - k), at = (panel * D + k) * kPanel;
      const float* b = wide + at;
      if (store != DType::kF32 && M > 1) {
        widen_run(store, half + at, K * kPanel, scratch);
        b = scratch;
      }
      for (size_t m = 0; m < M;) {
        const size_t rows = std::min<size_t>(2, M - m);
        const float* a = x + m * x_stride + k;
        float* c = y + m * y_stride + column;
        float edge[2][kPanel] = {};
        float* c0 = c;
        float* c1 = c + y_stride;
        if (columns < kPanel) {
          c0 = edge[0], c1 = edge[1];
          for (size_t i = 0; i < rows; ++i) std::memcpy(edge[i], c + i * y_stride, columns * sizeof(float));
        }
        if (rows == 2) {
          tile_2(a, a + x_stride, b, K, c0, c1);
        } else if (store != DType::kF32 && M == 1) {
          tile_1_half(store, a, half + at, K, c0);
        } else {
          tile_1(a, b, K, c0);
        }
        if (columns < kPanel) {
          for (size_t i = 0; i < rows; ++i) std::memcpy(c + i * y_stride, edge[i], columns * sizeof(float));
        }
        m += rows;
      }
    }
  }
}

}  // namespace wf::kernels
