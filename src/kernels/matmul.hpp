// y (M, F) = x (M, D) W^T + bias (F), W packed in panels (panels.hpp).
#pragma once

#include <cstddef>

#include "core/dtype.hpp"

namespace wf::kernels {

// A row of y has the same bits whatever M is and wherever the row stands among the others.
// x (M, D) with x_stride floats between rows, y (M, F) likewise; bias (F) or null; y does not overlap x.
void matmul(const float* x, size_t x_stride, DType store, const void* panels, const float* bias, float* y, size_t y_stride, size_t M,
            size_t D, size_t F, float* scratch);

// Only the columns of y that belong to panels [panel_begin, panel_end): what one thread of several does.
void matmul(const float* x, size_t x_stride, DType store, const void* panels, const float* bias, float* y, size_t y_stride, size_t M,
            size_t D, size_t F, size_t panel_begin, size_t panel_end, float* scratch);

// Floats of scratch; each thread has its own.
size_t matmul_scratch(DType store, size_t M, size_t D, size_t F);

}  // namespace wf::kernels
