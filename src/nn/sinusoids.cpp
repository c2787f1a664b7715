#include "nn/sinusoids.hpp"

#include <cmath>

#include "core/shape.hpp"

namespace wf {

Sinusoids::Sinusoids(size_t model_size) : frequencies_(model_size / 2) {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(10000.0, -static_cast<double>(2 * i) / static_cast<double>(model_size));
  }
}

Sinusoids Sinusoids::halves(size_t model_size) {
  Sinusoids made(model_size);
  made.halves_ = true;
  return made;
}

Sinusoids Sinusoids::spread(size_t model_size, size_t offset) {
  Sinusoids made = halves(model_size);
  made.offset_ = static_cast<int32_t>(offset);
  const float step = static_cast<float>(std::log(10000.0) / static_cast<double>(model_size / 2 - 1));
  for (size_t i = 0; i < made.frequencies_.size(); ++i) made.frequencies_[i] = std::exp(static_cast<float>(i) * -step);
  return made;
}

Tensor Sinusoids::operator()(Context& ctx, std::span<const int32_t> positions) const {
  const size_t T = positions.size(), D = 2 * frequencies_.size();
  const Tensor y{ctx.arena.floats(checked_product(T, D, "positions")), T, D, D};
  for (size_t t = 0; t < T; ++t) {
    const bool nowhere = offset_ != 0 && positions[t] < 0;
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      double angle = static_cast<double>(positions[t] + offset_) * frequencies_[i];
      if (offset_ != 0) angle = static_cast<double>(static_cast<float>(angle));
      y.row(t)[halves_ ? i : 2 * i] = nowhere ? 0.0f : static_cast<float>(std::sin(angle));
      y.row(t)[halves_ ? frequencies_.size() + i : 2 * i + 1] = nowhere ? 0.0f : static_cast<float>(std::cos(angle));
    }
  }
  return y;
}

}  // namespace wf
