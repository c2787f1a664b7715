#include "kernels/matmul.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/panels.hpp"
#include "kernels/tile.hpp"

namespace wf::kernels {
namespace {

constexpr size_t kRows = 128;  // rows of x that stay in the second-level cache while a panel passes

// y (M, width) = bias (width) or 0
void start(const float* bias, float* y, size_t y_stride, size_t M, size_t width) {
  for (size_t m = 0; m < M; ++m, y += y_stride) {
    if (bias) {
      std::memcpy(y, bias, width * sizeof(float));
    } else {
      std::memset(y, 0, width * sizeof(float));
    }
  }
}

Half half_of(DType store, const uint16_t* panel, size_t D) {
  if (store == DType::kBF16) return Half::kBF16;
  const uint16_t* marks = panel + D * kPanel;
  return std::all_of(marks, marks + kPanel, [](uint16_t mark) { return mark == 0; }) ? Half::kFiniteF16 : Half::kF16;
}

}  // namespace

size_t matmul_scratch(DType store, size_t M, size_t D, size_t F) {
  static_cast<void>(F);
  return store == DType::kF32 || M == 1 ? 0 : std::min(kRun, D) * kPanel;
}

void matmul(const float* x, size_t x_stride, DType store, const void* panels, const float* bias, float* y, size_t y_stride, size_t M,
            size_t D, size_t F, float* scratch) {
  matmul(x, x_stride, store, panels, bias, y, y_stride, M, D, F, 0, panel_count(F), scratch);
}

void matmul(const float* x, size_t x_stride, DType store, const void* panels, const float* bias, float* y, size_t y_stride, size_t M,
            size_t D, size_t F, size_t panel_begin, size_t panel_end, float* scratch) {
  for (size_t m = 0; m < M; m += kRows, x += kRows * x_stride, y += kRows * y_stride) {
    const size_t rows = std::min(kRows, M - m);
    for (size_t panel = panel_begin; panel < panel_end; ++panel) {
      const size_t column = panel * kPanel, width = std::min(kPanel, F - column);
      start(bias ? bias + column : nullptr, y + column, y_stride, rows, width);
      const size_t first = panel * panel_length(store, D) * kPanel;
      if (store == DType::kF32) {
        const float* b = static_cast<const float*>(panels) + first;
        for (size_t k = 0; k < D; k += kRun) {
          add_product(x + k, x_stride, rows, b + k * kPanel, std::min(kRun, D - k), y + column, y_stride, width);
        }
        continue;
      }
      const uint16_t* b = static_cast<const uint16_t*>(panels) + first;
      const Half half = half_of(store, b, D);
      for (size_t k = 0; k < D; k += kRun) {
        const size_t K = std::min(kRun, D - k);
        if (M > 1) {
          widen_run(half, b + k * kPanel, K * kPanel, scratch);
          add_product(x + k, x_stride, rows, scratch, K, y + column, y_stride, width);
        } else {
          float c[kPanel] = {};
          std::memcpy(c, y + column, width * sizeof(float));
          tile_1_half(half, x + k, b + k * kPanel, K, c);
          std::memcpy(y + column, c, width * sizeof(float));
        }
      }
    }
  }
}

}  // namespace wf::kernels
