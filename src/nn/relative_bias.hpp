// Learned numbers added to attention scores by the distance of key and query, which falls into buckets that widen with it
// (Raffel et al. 2020, "T5", section 2.1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/context.hpp"
#include "ops/weight.hpp"

namespace wf {

class RelativeBias {
 public:
  // Of one pass, in the arena: the bias of the key at j for head h's query at i is values(h, zero + j - i).
  struct Table {
    Tensor values;  // (H, width)
    size_t zero;
  };

  RelativeBias() = default;
  // `both_ways`: half of the buckets are for keys after the query; otherwise those all count as distance 0.
  RelativeBias(size_t heads, size_t buckets, size_t max_distance, bool both_ways);

  // For queries at positions below `queries` and keys below `keys`, both at least 1. Backward: the gradient of a bucket and head is the
  // sum of those of the values at its distances.
  Table over(Context& ctx, size_t queries, size_t keys) const;

  Weight weight;  // (buckets, H)

 private:
  int32_t bucket(int64_t distance) const;  // of key less query

  size_t max_distance_ = 0;
  bool both_ways_ = false;
};

}  // namespace wf
