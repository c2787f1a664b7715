#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace wf {

double Schedule::at(uint32_t n) const {
  if (kind == Kind::kPaper) {
    const double step = n, rise = std::max(warmup, 1u);
    return std::min(1 / std::sqrt(step), step / (rise * std::sqrt(rise))) / std::sqrt(hidden_size);
  }
  const double done = n - 1.0, rise = warmup;
  if (done < rise) return peak * (done / rise);
  const double left = std::max(steps - rise, 1.0);
  switch (kind) {
    case Kind::kLinear:
      return peak * std::max(0.0, (steps - done) / left);
    case Kind::kCosine:
      return peak * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, (done - rise) / left)));
    case Kind::kInverseSqrt: {
      const double scale = warmup == 0 ? 10000 : rise;
      return peak / std::sqrt((done + scale - rise) / scale);
    }
    default:
      return peak;
  }
}

}  // namespace wf
