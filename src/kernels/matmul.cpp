#include "kernels/matmul.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/panels.hpp"
#include "kernels/quantize.hpp"
#include "kernels/tile.hpp"
#include "kernels/tile_codes.hpp"

namespace wf::kernels {
namespace {

constexpr size_t kRows = 128;   // rows of x that stay in the second-level cache while a panel passes
constexpr size_t kWidened = 4;  // rows for which a panel of 16-bit numbers is widened beforehand rather than for each

// What the sums of a panel's columns begin with: the bias, or 0.
struct Start {
  float values[kPanel] = {};
  size_t width;

  Start(const Product& product, size_t panel) : width(std::min(kPanel, product.F - panel * kPanel)) {
    if (product.bias) std::memcpy(values, product.bias + panel * kPanel, width * sizeof(float));
  }
  // y (M, width)
  void write(float* y, size_t y_stride, size_t M) const {
    for (size_t m = 0; m < M; ++m, y += y_stride) {
      if (width == kPanel) {
        std::memcpy(y, values, sizeof values);  // of a known size: no call
      } else {
        std::memcpy(y, values, width * sizeof(float));
      }
    }
  }
};

Half half_of(DType store, const uint16_t* panel, size_t D) {
  if (store == DType::kBF16) return Half::kBF16;
  const uint16_t* marks = panel + D * kPanel;
  return std::all_of(marks, marks + kPanel, [](uint16_t mark) { return mark == 0; }) ? Half::kFiniteF16 : Half::kF16;
}

// `shared` holds the rows of x, quantised. Weights are read once a panel and rows pass by in groups; rows that are left over, and a
// row by itself, take the tile for one, to the same bits.
void matmul_codes(const Product& product, size_t panel_begin, size_t panel_end) {
  const CodeTiles tiles = code_tiles(product.store);
  const size_t blocks = code_blocks(product.D), x_stride = quantised_row_bytes(product.D);
  const size_t panel_size = panel_bytes(product.store, kPanel, product.D);
  const char *const x = reinterpret_cast<const char*>(product.shared), *const panels = static_cast<const char*>(product.panels);
  const char* const end_of_panels = panels + panel_count(product.F) * panel_size;
  for (size_t m = 0; m < product.M; m += kRows) {
    const size_t end = std::min(product.M, m + kRows);
    for (size_t panel = panel_begin; panel < panel_end; ++panel) {
      const char* const weights = panels + panel * panel_size;
      const Start start(product, panel);
      float part[kMostTileRows * kPanel];
      for (size_t row = m; row < end;) {
        const size_t rows = end - row < tiles.rows ? 1 : tiles.rows;
        const CodeTile tile = rows == 1 ? tiles.one : tiles.many;
        float* y = product.y + row * product.y_stride + panel * kPanel;
        const bool whole = start.width == kPanel;
        float* const to = whole ? y : part;
        const size_t to_stride = whole ? product.y_stride : kPanel;
        tile(x + row * x_stride, x_stride, weights, blocks, end_of_panels, start.values, to, to_stride);
        if (!whole) {
          for (size_t r = 0; r < rows; ++r) std::memcpy(y + r * product.y_stride, part + r * kPanel, start.width * sizeof(float));
        }
        row += rows;
      }
    }
  }
}

}  // namespace

size_t matmul_shared(DType store, size_t M, size_t D) { return is_quantised_store(store) ? M * quantised_row_bytes(D) / sizeof(float) : 0; }

void matmul_prepare(const Product& product, size_t row_begin, size_t row_end) {
  if (!is_quantised_store(product.store)) return;
  const size_t row_bytes = quantised_row_bytes(product.D);
  char* const out = reinterpret_cast<char*>(product.shared);
  for (size_t m = row_begin; m < row_end; ++m)
    quantise_row(product.store, product.x + m * product.x_stride, product.D, out + m * row_bytes);
}

size_t matmul_scratch(DType store, size_t M, size_t D, size_t F) {
  static_cast<void>(F);
  return store == DType::kF32 || is_quantised_store(store) || M < kWidened ? 0 : std::min(kRun, D) * kPanel;
}

void matmul(const Product& product, size_t panel_begin, size_t panel_end, float* scratch) {
  if (is_quantised_store(product.store)) return matmul_codes(product, panel_begin, panel_end);
  const auto& [x, x_stride, store, panels, bias, y, y_stride, M, D, F, shared] = product;
  const void* const end = static_cast<const char*>(panels) + panel_bytes(store, F, D);
  for (size_t m = 0; m < M; m += kRows) {
    const size_t rows = std::min(kRows, M - m);
    const float* x_block = x + m * x_stride;
    float* y_block = y + m * y_stride;
    for (size_t panel = panel_begin; panel < panel_end; ++panel) {
      const Start start(product, panel);
      const size_t column = panel * kPanel, width = start.width;
      start.write(y_block + column, y_stride, rows);
      const size_t first = panel * panel_length(store, D) * kPanel;
      if (store == DType::kF32) {
        const float* b = static_cast<const float*>(panels) + first;
        for (size_t k = 0; k < D; k += kRun) {
          const size_t K = std::min(kRun, D - k);
          if (rows == 1 && width == kPanel) {
            tile_1_stream(x_block + k, b + k * kPanel, K, end, y_block + column);
          } else {
            add_product(x_block + k, x_stride, rows, b + k * kPanel, K, y_block + column, y_stride, width);
          }
        }
        continue;
      }
      const uint16_t* b = static_cast<const uint16_t*>(panels) + first;
      const Half half = half_of(store, b, D);
      for (size_t k = 0; k < D; k += kRun) {
        const size_t K = std::min(kRun, D - k);
        if (rows >= kWidened) {
          widen_run(half, b + k * kPanel, K * kPanel, scratch);
          add_product(x_block + k, x_stride, rows, scratch, K, y_block + column, y_stride, width);
        } else {
          for (size_t r = 0; r < rows; ++r) {
            float c[kPanel] = {};
            std::memcpy(c, y_block + r * y_stride + column, width * sizeof(float));
            tile_1_half(half, x_block + r * x_stride + k, b + k * kPanel, K, end, c);
            std::memcpy(y_block + r * y_stride + column, c, width * sizeof(float));
          }
        }
      }
    }
  }
}

}  // namespace wf::kernels
