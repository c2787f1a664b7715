// The small operations between the large ones.
#pragma once

#include <cstddef>

namespace wf::kernels {

void add(const float* x, const float* y, float* out, size_t n);           // out = x + y; out may be x or y
void multiply(const float* x, const float* y, float* out, size_t n);      // out = x y; out may be x or y
void multiply_add(const float* x, const float* y, float* out, size_t n);  // out += x y
void scale(const float* x, float a, float* y, size_t n);                  // y = a x; y may be x
void axpy(float a, const float* x, float* y, size_t n);                   // y += a x
float dot(const float* x, const float* y, size_t n);                      // sum of x y

void add_bias(const float* x, const float* bias, float* y, size_t rows, size_t cols);  // y (rows, cols) = x + bias (cols); y may be x
// dbias (cols) += sum over rows of dy (rows, cols), whose rows are dy_stride floats apart.
void add_rows_backward(const float* dy, size_t dy_stride, float* dbias, size_t rows, size_t cols);
// y (rows, cols) = x, each with its own stride in floats; no overlap.
void copy_rows(const float* x, size_t x_stride, float* y, size_t y_stride, size_t rows, size_t cols);

}  // namespace wf::kernels
