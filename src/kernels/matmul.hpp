// y (M, F) = x (M, D) W^T + bias (F), W packed in panels (panels.hpp).
#pragma once

#include <cstddef>

#include "core/dtype.hpp"

namespace wf::kernels {

// A row of y has the same bits whatever M is, wherever the row stands among the others, and however the panels are divided.
struct Product {
  const float* x;  // (M, D), `x_stride` floats between rows
  size_t x_stride;
  DType store;
  const void* panels;
  const float* bias;  // (F), or null
  float* y;           // (M, F), `y_stride` floats between rows; does not overlap x
  size_t y_stride;
  size_t M, D, F;
  float* shared = nullptr;  // matmul_shared(...) floats, filled by matmul_prepare before the first panel
};

// Floats that all threads of a product share: the rows of x as quantised weights take them; 0 where x is taken as it is.
size_t matmul_shared(DType store, size_t M, size_t D);
// Fills them for rows [row_begin, row_end).
void matmul_prepare(const Product& product, size_t row_begin, size_t row_end);

// The columns of y that belong to panels [panel_begin, panel_end).
void matmul(const Product& product, size_t panel_begin, size_t panel_end, float* scratch);
// Floats of scratch; each thread has its own.
size_t matmul_scratch(DType store, size_t M, size_t D, size_t F);

}  // namespace wf::kernels
