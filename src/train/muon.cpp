#include "train/muon.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/elementwise.hpp"
#include "kernels/optimise.hpp"
#include "ops/product.hpp"

namespace wf {

namespace {

constexpr float kMomentum = 0.95f;
constexpr int kIterations = 5;
constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;  // a x + b x^3 + c x^5 brings 0..1 near 1

}  // namespace

size_t muon_floats(size_t rows, size_t cols) {
  const size_t n = std::min(rows, cols);
  return 2 * checked_product(rows, cols, "muon") + 2 * checked_product(n, n, "muon");
}

void muon(Context& ctx, float* weight, const float* gradient, float* momentum, size_t rows, size_t cols, const MuonStep& step) {
  const size_t count = rows * cols, n = std::min(rows, cols);
  const Scratch scratch(ctx, muon_floats(rows, cols));
  float *x = scratch, *next = x + count, *gram = next + count, *square = gram + n * n;
  const float fresh = (1 - kMomentum) * static_cast<float>(step.scale);
  kernels::scale(momentum, kMomentum, momentum, count);
  kernels::axpy(fresh, gradient, momentum, count);
  kernels::scale(momentum, kMomentum, x, count);
  kernels::axpy(fresh, gradient, x, count);

  const double norm = std::sqrt(kernels::sum_of_squares(x, count));
  kernels::scale(x, static_cast<float>(1 / std::max(norm, 1e-7)), x, count);
  const bool wide = rows <= cols;
  for (int i = 0; i < kIterations; ++i) {
    // x := a x + (b G + c G^2) x with G = x x^T, on the side that is smaller.
    product(ctx, !wide, wide, n, n, wide ? cols : rows, x, cols, x, cols, false, gram, n);
    product(ctx, false, false, n, n, n, gram, n, gram, n, false, square, n);
    kernels::scale(square, kC, square, n * n);
    kernels::axpy(kB, gram, square, n * n);
    kernels::scale(x, kA, next, count);
    if (wide) {
      product(ctx, false, false, rows, cols, n, square, n, x, cols, true, next, cols);
    } else {
      product(ctx, false, false, rows, cols, n, x, cols, square, n, true, next, cols);
    }
    std::swap(x, next);
  }
  const double length = step.learning_rate * 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
  kernels::scale(weight, static_cast<float>(1 - step.learning_rate * step.weight_decay), weight, count);
  kernels::axpy(static_cast<float>(-length), x, weight, count);
}

}  // namespace wf
