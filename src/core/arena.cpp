#include "core/arena.hpp"

#include <algorithm>

#include "core/shape.hpp"

namespace wf {

float* Arena::floats(size_t count) {
  const size_t bytes = aligned(checked_sum(checked_product(count, sizeof(float), "arena"), kAlignment, "arena")) - kAlignment;
  const size_t unused = block_ + (used_ != 0);  // this block and those behind it hold nothing
  while (block_ < blocks_.size() && blocks_[block_].bytes() - used_ < bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const size_t spare = unused < blocks_.size() ? aligned(bytes / 4) : 0;
    blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(unused), blocks_.end());
    block_ = unused;
    blocks_.emplace_back(std::max(checked_sum(bytes, spare, "arena"), block_bytes_), "the arena of activations");
  }
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
