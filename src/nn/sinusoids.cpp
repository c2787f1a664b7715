#include "nn/sinusoids.hpp"

#include <cmath>

#include "core/shape.hpp"

namespace wf {

Sinusoids::Sinusoids(size_t model_size) : frequencies_(model_size / 2) {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(10000.0, -static_cast<double>(2 * i) / static_cast<double>(model_size));
  }
}

Tensor Sinusoids::operator()(Context& ctx, std::span<const int32_t> positions) const {
  const size_t T = positions.size(), D = 2 * frequencies_.size();
  const Tensor y{ctx.arena.floats(checked_product(T, D, "positions")), T, D, D};
  for (size_t t = 0; t < T; ++t) {
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      const double angle = static_cast<double>(positions[t]) * frequencies_[i];
      y.row(t)[2 * i] = static_cast<float>(std::sin(angle));
      y.row(t)[2 * i + 1] = static_cast<float>(std::cos(angle));
    }
  }
  return y;
}

}  // namespace wf
