// The inner loops of products with quantised weights: one row of activations, or a few, times a panel of sixteen rows of weights.
// Out of line, so that engines compile them on their own.
#pragma once

#include <cstddef>

#include "core/dtype.hpp"

namespace wf::kernels {

// y (rows, 16) = from (16) + x (rows, D) W^T: rows of x as quantise_row leaves them, `x_stride` bytes apart; a panel of `blocks` blocks
// of k; rows of y `y_stride` floats apart. Weights of `kQ8` up to `end` are asked for ahead of time.
using CodeTile = void (*)(const char* x, size_t x_stride, const char* panel, size_t blocks, const char* end, const float* from, float* y,
                          size_t y_stride);
struct CodeTiles {
  CodeTile one, many;  // for one row and for `rows` of them, to the same bits
  size_t rows;
};
constexpr size_t kMostTileRows = 4;

// The fastest here for the format kQ8 or kQ4. Their sums of whole numbers are the same whichever it is.
CodeTiles code_tiles(DType store);

}  // namespace wf::kernels
