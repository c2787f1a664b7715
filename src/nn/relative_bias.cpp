#include "nn/relative_bias.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.hpp"
#include "ops/ops.hpp"

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
  if (ctx.tape != nullptr) fail(Code::kUnsupported, "gradients", "relative position biases: their gradient is not built");
  const size_t H = weight.cols(), zero = queries - 1, width = zero + keys;
  float* data = ctx.arena.floats(checked_product(H, width, "position biases"));
  const Scope scope(ctx);
  std::vector<int32_t> buckets(width);
  for (size_t i = 0; i < width; ++i) buckets[i] = bucket(static_cast<int64_t>(i) - static_cast<int64_t>(zero));
  const Tensor rows = embedding(ctx, buckets, weight);  // (width, H)
  for (size_t i = 0; i < width; ++i) {
    for (size_t h = 0; h < H; ++h) data[h * width + i] = rows.row(i)[h];
  }
  return {data, width, zero};
}

}  // namespace wf
