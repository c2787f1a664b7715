#include "core/arena.hpp"

#include <algorithm>

#include "core/shape.hpp"

namespace wf {

float* Arena::floats(size_t count) {
  const size_t bytes = aligned(checked_sum(checked_product(count, sizeof(float), "arena"), kAlignment, "arena")) - kAlignment;
  while (block_ < blocks_.size() && blocks_[block_].bytes() - used_ < bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.emplace_back(std::max(bytes, block_bytes_), "the arena of activations");
  float* data = blocks_[block_].floats() + used_ / sizeof(float);
  used_ += bytes;
  size_t in_use = used_;
  for (size_t i = 0; i < block_; ++i) in_use += blocks_[i].bytes();
  peak_ = std::max(peak_, in_use);
  return data;
}

void Arena::clear() {
  blocks_.clear();
  release({});
  peak_ = 0;
}

size_t Arena::bytes() const {
  size_t total = 0;
  for (const Buffer& block : blocks_) total += block.bytes();
  return total;
}

}  // namespace wf
