#include "kernels/softmax.hpp"

#include <algorithm>
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

float sum_of_exp(const float* x, size_t cols, float shift) {
  return total(cols, [=](auto at) { return simd::exp_of_negative(at.get(x) - splat(shift)); });
}

}  // namespace

void softmax(const float* x, float* y, size_t rows, size_t cols) {
  if (cols == 0) return;
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const F32 shift = splat(shift_of(x, cols));
    const float sum = total(cols, [=](auto at) {
      const F32 e = simd::exp_of_negative(at.get(x) - shift);
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
    const F32 log_sum = splat(std::log(sum_of_exp(x, cols, shift)));
    each(cols, [=](auto at) { at.put(y, (at.get(x) - splat(shift)) - log_sum); });
  }
}

Peak peak(const float* x, size_t n) {
  const float most = largest(x, n);
  return {most, sum_of_exp(x, n, most)};
}

namespace {

// `sum` is that of e^(x - shift).
float loss_of(const float* x, int32_t target, float smoothing, size_t cols, float shift, float sum) {
  const float log_sum = std::log(sum);
  const float value = (1.0f - smoothing) * (log_sum - (x[target] - shift));
  if (smoothing == 0.0f) return value;
  const float mean = total(cols, [=](auto at) { return at.get(x) - splat(shift); }) / static_cast<float>(cols);
  return value + smoothing * (log_sum - mean);
}

}  // namespace

void cross_entropy(const float* x, const int32_t* target, float smoothing, float* loss, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r, x += cols) {
    if (target[r] < 0) {
      loss[r] = 0.0f;
      continue;
    }
    const float shift = shift_of(x, cols);
    loss[r] = loss_of(x, target[r], smoothing, cols, shift, sum_of_exp(x, cols, shift));
  }
}

void cross_entropy_forward(const float* x, const int32_t* target, float smoothing, float* loss, float* numerators, float* factors,
                           size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r, x += cols, numerators += cols) {
    if (target[r] < 0) {
      loss[r] = 0.0f;
      continue;
    }
    const float shift = shift_of(x, cols);
    const float sum = total(cols, [=](auto at) {
      const F32 e = simd::exp_of_negative(at.get(x) - splat(shift));
      at.put(numerators, e);
      return e;
    });
    loss[r] = loss_of(x, target[r], smoothing, cols, shift, sum);
    factors[r] = 1.0f / sum;
  }
}

void cross_entropy_backward(const int32_t* target, float smoothing, const float* dloss, const float* factors, float* numerators,
                            size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r, numerators += cols) {
    if (target[r] < 0) {
      std::fill_n(numerators, cols, 0.0f);
      continue;
    }
    const F32 factor = splat(factors[r]), d = splat(dloss[r]), even = splat(smoothing / static_cast<float>(cols));
    each(cols, [=](auto at) { at.put(numerators, d * (at.get(numerators) * factor - even)); });
    numerators[target[r]] -= dloss[r] * (1.0f - smoothing);
  }
}

}  // namespace wf::kernels
