#include "nn/relative_bias.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/tape.hpp"

namespace wf {

RelativeBias::RelativeBias(size_t heads, size_t buckets, size_t max_distance, bool both_ways)
    : weight(Weight::table(buckets, heads)), max_distance_(max_distance), both_ways_(both_ways) {}

// Half of a direction's buckets hold one distance each, the others grow as its logarithm up to the largest distance told apart.
// f32 as in Python: the logarithm's rounding decides the bucket at a border.
int32_t RelativeBias::bucket(int64_t distance) const {
  const int32_t buckets = static_cast<int32_t>(weight.rows()) / (both_ways_ ? 2 : 1), exact = buckets / 2;
  const int32_t first = both_ways_ && distance > 0 ? buckets : 0;
  const int64_t n = both_ways_ ? std::abs(distance) : std::max<int64_t>(-distance, 0);
  if (n < exact) return first + static_cast<int32_t>(n);
  const float grown = std::log(static_cast<float>(n) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(max_distance_) / exact)) * static_cast<float>(buckets - exact);
  return first + std::min(exact + static_cast<int32_t>(grown), buckets - 1);
}

RelativeBias::Table RelativeBias::over(Context& ctx, size_t queries, size_t keys) const {
  const size_t H = weight.cols(), zero = queries - 1, width = zero + keys;
  Tensor values = ctx.tensor(H, width);
  const Scratch row(ctx, H);
  std::vector<size_t> buckets(width);
  for (size_t i = 0; i < width; ++i) {
    buckets[i] = static_cast<size_t>(bucket(static_cast<int64_t>(i) - static_cast<int64_t>(zero)));
    weight.read_row(buckets[i], row);
    for (size_t h = 0; h < H; ++h) values.row(h)[i] = row[h];
  }
  if (!weight.trainable()) values.gradient = nullptr;
  if (ctx.tape != nullptr && weight.trainable()) {
    ctx.tape->record([&ctx, this, values, buckets = std::move(buckets)] {
      if (!ctx.tape->reached(values)) return;
      const float* given = ctx.tape->gradient(values);
      for (size_t h = 0; h < values.rows; ++h) {
        for (size_t i = 0; i < values.cols; ++i) weight.gradient()[buckets[i] * values.rows + h] += given[h * values.stride + i];
      }
    });
  }
  return {values, zero};
}

}  // namespace wf
