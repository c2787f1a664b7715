#include "kernels/norm.hpp"

#include <cmath>

#include "kernels/loops.hpp"

namespace wf::kernels {
namespace {

using simd::mul_add;
using simd::splat;

// A row's mean as the sum of a large and a small number: at 1e4 the small one is below the large one's last digit, and without
// it nothing of a deviation of 1e-3 would be right.
struct Statistics {
  F32 mean, rest, scale;
  F32 operator()(F32 x) const { return ((x - mean) - rest) * scale; }
};

Statistics statistics(const float* x, size_t cols, float eps) {
  const float n = static_cast<float>(cols);
  const F32 mean = splat(total(cols, [=](auto at) { return at.get(x); }) / n);
  const F32 rest = splat(total(cols, [=](auto at) { return at.get(x) - mean; }) / n);
  const float variance = total(cols,
                               [=](auto at) {
                                 const F32 d = (at.get(x) - mean) - rest;
                                 return d * d;
                               }) /
                         n;
  return {mean, rest, splat(1.0f / std::sqrt(variance + eps))};
}

float root_mean_square_inverse(const float* x, size_t cols, float eps) {
  const float square = total(cols, [=](auto at) { return at.get(x) * at.get(x); }) / static_cast<float>(cols);
  return 1.0f / std::sqrt(square + eps);
}

}  // namespace

void layer_norm(const float* x, const float* weight, const float* bias, float* y, size_t rows, size_t cols, float eps) {
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const Statistics normal = statistics(x, cols, eps);
    each(cols, [=](auto at) {
      F32 v = normal(at.get(x));
      if (weight) v = v * at.get(weight);
      if (bias) v = v + at.get(bias);
      at.put(y, v);
    });
  }
}

void layer_norm_backward(const float* x, const float* weight, const float* dy, float* dx, float* dweight, float* dbias, size_t rows,
                         size_t cols, float eps) {
  const float n = static_cast<float>(cols);
  for (size_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols) {
    const Statistics normal = statistics(x, cols, eps);
    const auto slope = [=](auto at) { return weight ? at.get(dy) * at.get(weight) : at.get(dy); };
    const F32 mean = splat(total(cols, slope) / n);
    const F32 projection = splat(total(cols, [=](auto at) { return slope(at) * normal(at.get(x)); }) / n);
    each(cols, [=](auto at) {
      const F32 v = normal(at.get(x));
      at.put(dx, mul_add(normal.scale, (slope(at) - mean) - v * projection, at.get(dx)));
      if (dweight) at.put(dweight, mul_add(at.get(dy), v, at.get(dweight)));
      if (dbias) at.put(dbias, at.get(dbias) + at.get(dy));
    });
  }
}

void rms_norm(const float* x, const float* weight, float offset, float* y, size_t rows, size_t cols, float eps) {
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const F32 factor = splat(root_mean_square_inverse(x, cols, eps));
    each(cols, [=](auto at) {
      F32 v = at.get(x) * factor;
      if (weight) v = v * (at.get(weight) + splat(offset));
      at.put(y, v);
    });
  }
}

void rms_norm_backward(const float* x, const float* weight, float offset, const float* dy, float* dx, float* dweight, size_t rows,
                       size_t cols, float eps) {
  for (size_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols) {
    const F32 factor = splat(root_mean_square_inverse(x, cols, eps));
    const auto slope = [=](auto at) { return weight ? at.get(dy) * (at.get(weight) + splat(offset)) : at.get(dy); };
    const float n = static_cast<float>(cols);
    const F32 projection = splat(total(cols, [=](auto at) { return slope(at) * (at.get(x) * factor); }) / n);
    each(cols, [=](auto at) {
      const F32 v = at.get(x) * factor;
      at.put(dx, mul_add(factor, slope(at) - v * projection, at.get(dx)));
      if (dweight) at.put(dweight, mul_add(at.get(dy), v, at.get(dweight)));
    });
  }
}

}  // namespace wf::kernels
