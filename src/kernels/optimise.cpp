#include "kernels/optimise.hpp"

#include <cmath>

#include "kernels/loops.hpp"

namespace wf::kernels {
namespace {

F32 rounded(double a) { return simd::splat(static_cast<float>(a)); }

}  // namespace

void adamw(float* p, const float* g, float* m, float* v, size_t n, const AdamStep& step) {
  const F32 scale = rounded(step.scale), coupling = rounded(step.coupled ? step.weight_decay : 0);
  const F32 keep = rounded(step.coupled ? 1 : 1 - step.learning_rate * step.weight_decay);
  const F32 part1 = rounded(1 - step.beta1), beta2 = rounded(step.beta2), part2 = rounded(1 - step.beta2);
  const F32 change = rounded(-step.learning_rate / step.correction1), root = rounded(std::sqrt(step.correction2));
  const F32 epsilon = rounded(step.epsilon);
  each_compact(n, [=](auto at) {
    const F32 old = at.get(p), gradient = simd::mul_add(coupling, old, at.get(g) * scale);
    const F32 first = simd::mul_add(part1, gradient - at.get(m), at.get(m));
    const F32 second = simd::mul_add(part2 * gradient, gradient, at.get(v) * beta2);
    at.put(m, first);
    at.put(v, second);
    at.put(p, old * keep + change * first / (simd::sqrt(second) / root + epsilon));
  });
}

double sum_of_squares(const float* g, size_t n) {
  double sums[4] = {};
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) sums[lane] += static_cast<double>(g[i + lane]) * static_cast<double>(g[i + lane]);
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

size_t first_not_finite(const float* x, size_t n) {
  constexpr size_t kStretch = 1024;
  for (size_t begin = 0; begin < n; begin += kStretch) {
    const size_t end = n - begin < kStretch ? n : begin + kStretch;
    F32 bad = simd::zero();  // 0 times what is not finite is NaN, and stays it
    each_compact(end - begin, [&](auto at) { bad = bad + at.get(x + begin) * simd::zero(); });
    if (simd::sum(bad) == 0.0f) continue;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(x[i])) return i;
    }
  }
  return n;
}

}  // namespace wf::kernels
