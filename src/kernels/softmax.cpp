#include "kernels/softmax.hpp"

#include <cmath>
#include <limits>

#include "kernels/loops.hpp"

namespace wf::kernels {
namespace {

using simd::splat;

// The row's largest number; 0 for a row that is all -inf, so that what is subtracted from it stays -inf.
float shift_of(const float* x, size_t cols) {
  const float most = largest(x, cols);
  return most == -std::numeric_limits<float>::infinity() ? 0.0f : most;
}

float log_sum_exp(const float* x, size_t cols, float shift) {
  return std::log(total(cols, [=](auto at) { return simd::exp(at.get(x) - splat(shift)); }));
}

}  // namespace

void softmax(const float* x, float* y, size_t rows, size_t cols) {
  if (cols == 0) return;
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const F32 shift = splat(shift_of(x, cols));
    const float sum = total(cols, [=](auto at) {
      const F32 e = simd::exp(at.get(x) - shift);
      at.put(y, e);
      return e;
    });
    const F32 factor = splat(sum == 0.0f ? 0.0f : 1.0f / sum);
    each(cols, [=](auto at) { at.put(y, at.get(y) * factor); });
  }
}

void softmax_backward(const float* y, const float* dy, float* dx, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r, y += cols, dy += cols, dx += cols) {
    const F32 mean = splat(total(cols, [=](auto at) { return at.get(y) * at.get(dy); }));
    each(cols, [=](auto at) { at.put(dx, simd::mul_add(at.get(y), at.get(dy) - mean, at.get(dx))); });
  }
}

void log_softmax(const float* x, float* y, size_t rows, size_t cols) {
  if (cols == 0) return;
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const float shift = shift_of(x, cols);
    const F32 log_sum = splat(log_sum_exp(x, cols, shift));
    each(cols, [=](auto at) { at.put(y, (at.get(x) - splat(shift)) - log_sum); });
  }
}

Peak peak(const float* x, size_t n) {
  const float most = largest(x, n);
  return {most, total(n, [=](auto at) { return simd::exp(at.get(x) - splat(most)); })};
}

void cross_entropy(const float* x, const int32_t* target, float smoothing, float* loss, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r, x += cols) {
    if (target[r] < 0) {
      loss[r] = 0.0f;
      continue;
    }
    const float shift = shift_of(x, cols), log_sum = log_sum_exp(x, cols, shift);
    float value = (1.0f - smoothing) * (log_sum - (x[target[r]] - shift));
    if (smoothing != 0.0f) {
      const float mean = total(cols, [=](auto at) { return at.get(x) - splat(shift); }) / static_cast<float>(cols);
      value += smoothing * (log_sum - mean);
    }
    loss[r] = value;
  }
}

void cross_entropy_backward(const float* x, const int32_t* target, float smoothing, const float* dloss, float* dx, size_t rows,
                            size_t cols) {
  for (size_t r = 0; r < rows; ++r, x += cols, dx += cols) {
    if (target[r] < 0) continue;
    const float shift = shift_of(x, cols);
    const float sum = total(cols, [=](auto at) { return simd::exp(at.get(x) - splat(shift)); });
    const F32 factor = splat(1.0f / sum), d = splat(dloss[r]), even = splat(smoothing / static_cast<float>(cols));
    each(cols, [=](auto at) {
      const F32 p = simd::exp(at.get(x) - splat(shift)) * factor;
      at.put(dx, simd::mul_add(d, p - even, at.get(dx)));
    });
    dx[target[r]] -= dloss[r] * (1.0f - smoothing);
  }
}

}  // namespace wf::kernels
