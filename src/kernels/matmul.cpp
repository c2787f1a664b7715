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

size_t matmul_shared(DType store, size_t M, size_t D) {
  static_cast<void>(store), static_cast<void>(M), static_cast<void>(D);
  return 0;
}

void matmul_prepare(const Product& product, size_t row_begin, size_t row_end) {
  static_cast<void>(product), static_cast<void>(row_begin), static_cast<void>(row_end);
}

size_t matmul_scratch(DType store, size_t M, size_t D, size_t F) {
  static_cast<void>(F);
  return store == DType::kF32 || M == 1 ? 0 : std::min(kRun, D) * kPanel;
}

void matmul(const Product& product, size_t panel_begin, size_t panel_end, float* scratch) {
  const auto& [x, x_stride, store, panels, bias, y, y_stride, M, D, F, shared] = product;
  for (size_t m = 0; m < M; m += kRows) {
    const size_t rows = std::min(kRows, M - m);
    const float* x_block = x + m * x_stride;
    float* y_block = y + m * y_stride;
    for (size_t panel = panel_begin; panel < panel_end; ++panel) {
      const size_t column = panel * kPanel, width = std::min(kPanel, F - column);
      start(bias ? bias + column : nullptr, y_block + column, y_stride, rows, width);
      const size_t first = panel * panel_length(store, D) * kPanel;
      if (store == DType::kF32) {
        const float* b = static_cast<const float*>(panels) + first;
        for (size_t k = 0; k < D; k += kRun) {
          add_product(x_block + k, x_stride, rows, b + k * kPanel, std::min(kRun, D - k), y_block + column, y_stride, width);
        }
        continue;
      }
      const uint16_t* b = static_cast<const uint16_t*>(panels) + first;
      const Half half = half_of(store, b, D);
      for (size_t k = 0; k < D; k += kRun) {
        const size_t K = std::min(kRun, D - k);
        if (M > 1) {
          widen_run(half, b + k * kPanel, K * kPanel, scratch);
          add_product(x_block + k, x_stride, rows, scratch, K, y_block + column, y_stride, width);
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
