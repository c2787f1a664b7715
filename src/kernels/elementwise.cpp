#include "kernels/elementwise.hpp"

#include <cstring>

#include "kernels/loops.hpp"

namespace wf::kernels {

void add(const float* x, const float* y, float* out, size_t n) {
  each(n, [=](auto at) { at.put(out, at.get(x) + at.get(y)); });
}

void multiply(const float* x, const float* y, float* out, size_t n) {
  each(n, [=](auto at) { at.put(out, at.get(x) * at.get(y)); });
}

void multiply_add(const float* x, const float* y, float* out, size_t n) {
  each(n, [=](auto at) { at.put(out, simd::mul_add(at.get(x), at.get(y), at.get(out))); });
}

void scale(const float* x, float a, float* y, size_t n) {
  const F32 factor = simd::splat(a);
  each(n, [=](auto at) { at.put(y, at.get(x) * factor); });
}

void axpy(float a, const float* x, float* y, size_t n) {
  const F32 factor = simd::splat(a);
  each(n, [=](auto at) { at.put(y, simd::mul_add(factor, at.get(x), at.get(y))); });
}

float dot(const float* x, const float* y, size_t n) {
  return total(n, [=](auto at) { return at.get(x) * at.get(y); });
}

void add_bias(const float* x, const float* bias, float* y, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r) add(x + r * cols, bias, y + r * cols, cols);
}

void add_rows_backward(const float* dy, size_t dy_stride, float* dbias, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r) add(dbias, dy + r * dy_stride, dbias, cols);
}

void copy_rows(const float* x, size_t x_stride, float* y, size_t y_stride, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r) std::memcpy(y + r * y_stride, x + r * x_stride, cols * sizeof(float));
}

}  // namespace wf::kernels
