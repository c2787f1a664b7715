#include "nn/kv_cache.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "core/error.hpp"
#include "core/shape.hpp"

namespace wf {

namespace {

constexpr size_t kHeader = kAlignment;  // bytes before a block's numbers; holds the reference count

uint32_t& references(void* block) { return *reinterpret_cast<uint32_t*>(static_cast<char*>(block) - kHeader); }

size_t checked_block_bytes(const kernels::AttentionShape& shape, DType store) {
  const size_t features = checked_product(shape.Hk, checked_sum(shape.Dk, shape.Dv, "key/value block"), "key/value block");
  checked_product(features, 2 * kernels::kBlock * sizeof(float), "key/value block");  // leaves room for a header
  return kernels::cache_block_bytes(shape, store);
}

}  // namespace

KvPool::KvPool(const kernels::AttentionShape& shape, size_t blocks_a_slab, DType store)
    : shape_(shape),
      store_(store),
      stride_(kHeader + aligned(checked_block_bytes(shape, store))),
      blocks_a_slab_(std::max<size_t>(blocks_a_slab, 1)) {}

void* KvPool::take() {
  if (free_.empty()) reserve(blocks_a_slab_);
  void* block = free_.back();
  free_.pop_back();
  references(block) = 1;
  ++in_use_;
  return block;
}

void KvPool::share(void* block) { ++references(block); }

void KvPool::drop(void* block) {
  if (--references(block) != 0) return;
  --in_use_;
  free_.push_back(block);
}

bool KvPool::is_shared(const void* block) const { return references(const_cast<void*>(block)) > 1; }

void KvPool::reserve(size_t blocks) {
  if (free_.size() >= blocks) return;
  const size_t count = std::max(blocks - free_.size(), blocks_a_slab_);
  slabs_.emplace_back(checked_product(count, stride_, "key/value cache"), "the key/value cache");
  free_.reserve(in_use_ + free_.size() + count);
  char* slab = static_cast<char*>(slabs_.back().data());
  for (size_t i = count; i-- > 0;) free_.push_back(slab + i * stride_ + kHeader);
}

void KvPool::trim() {
  std::sort(free_.begin(), free_.end(), std::less<>());
  std::erase_if(slabs_, [this](Buffer& slab) {
    const auto first = std::lower_bound(free_.begin(), free_.end(), slab.data(), std::less<>());
    const auto last = std::lower_bound(first, free_.end(), static_cast<char*>(slab.data()) + slab.bytes(), std::less<>());
    if (static_cast<size_t>(last - first) != slab.bytes() / stride_) return false;
    free_.erase(first, last);
    return true;
  });
}

size_t KvPool::bytes() const {
  size_t total = 0;
  for (const Buffer& slab : slabs_) total += slab.bytes();
  return total;
}

KvCache::KvCache(KvPool& pool, std::vector<size_t> windows) : pool_(&pool), layers_(windows.size()) {
  for (size_t l = 0; l < windows.size(); ++l) layers_[l].window = windows[l];
}

KvCache::KvCache(const KvCache& other) : pool_(other.pool_), layers_(other.layers_), length_(other.length_) {
  for (Layer& layer : layers_) {
    for (void* block : layer.blocks) pool_->share(block);
  }
}

KvCache& KvCache::operator=(KvCache other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(layers_, other.layers_);
  std::swap(length_, other.length_);
  return *this;
}

KvCache::~KvCache() {
  for (Layer& layer : layers_) {
    for (void* block : layer.blocks) pool_->drop(block);
  }
}

void KvCache::write(size_t layer, const Tensor& k, const Tensor& v) {
  expect_cacheable(layer, k, "a key");
  expect_cacheable(layer, v, "a value");
  Layer& table = layers_[layer];
  for (size_t done = 0; done < k.rows;) {
    const size_t position = length_ + done, offset = position % kernels::kBlock;
    const size_t count = std::min(kernels::kBlock - offset, k.rows - done);
    const size_t index = position / kernels::kBlock - table.first;
    if (index == table.blocks.size()) {
      table.blocks.push_back(pool_->take());
    } else if (pool_->is_shared(table.blocks[index])) {
      void* own = pool_->take();
      std::memcpy(own, table.blocks[index], pool_->block_bytes() - kHeader);
      pool_->drop(std::exchange(table.blocks[index], own));
    }
    kernels::write_block(pool_->shape(), pool_->store(), table.blocks[index], offset, count, k.row(done), k.stride, v.row(done), v.stride);
    done += count;
  }
}

void KvCache::expect_cacheable(size_t layer, const Tensor& x, const char* what) const {
  for (size_t r = 0; r < x.rows; ++r) {
    if (kernels::is_cacheable(store(), x.row(r), x.cols)) continue;
    const float* number = std::find_if_not(x.row(r), x.row(r) + x.cols, [this](float n) { return kernels::is_cacheable(store(), &n, 1); });
    fail(Code::kInvalidArgument, "cache", what, " of layer ", layer, ": expected at most 65504 in size with cacheDtype 'f16', got ",
         *number);
  }
}

void KvCache::advance(size_t count) {
  length_ += count;
  for (Layer& layer : layers_) {
    if (layer.window == 0 || length_ < layer.window) continue;
    const size_t oldest_seen = length_ + 1 - layer.window;  // by a query at position length_
    drop_front(layer, oldest_seen / kernels::kBlock - layer.first);
  }
}

size_t KvCache::kept_length(size_t length) const {
  length = std::min(length, length_);
  for (const Layer& layer : layers_) {
    const size_t oldest_seen = layer.window == 0 || length < layer.window ? 0 : length + 1 - layer.window;
    if (layer.first > oldest_seen / kernels::kBlock) return 0;
  }
  return length;
}

size_t KvCache::blocks_after_truncation(size_t length) const {
  length = kept_length(length);
  size_t count = 0;
  for (const Layer& layer : layers_) {
    for (size_t i = 0; i < layer.blocks.size(); ++i) {
      const bool whole = (layer.first + i + 1) * kernels::kBlock <= length;  // one that is not is copied when written to
      count += whole || !pool_->is_shared(layer.blocks[i]);
    }
  }
  return count;
}

size_t KvCache::truncate(size_t length) {
  length = kept_length(length);
  for (Layer& layer : layers_) {
    if (length == 0) {
      drop_front(layer, layer.blocks.size());
      layer.first = 0;
      continue;
    }
    const size_t kept = (length + kernels::kBlock - 1) / kernels::kBlock - layer.first;
    for (; layer.blocks.size() > kept; layer.blocks.pop_back()) pool_->drop(layer.blocks.back());
  }
  return length_ = length;
}

void KvCache::reserve(size_t length) {
  size_t missing = 0;
  for (Layer& layer : layers_) {
    const size_t seen = layer.window == 0 ? length : std::min(length, layer.window + 2 * kernels::kBlock);
    const size_t blocks = seen / kernels::kBlock + 1;
    layer.blocks.reserve(blocks);
    missing += blocks - std::min(blocks, layer.blocks.size());
    missing += !layer.blocks.empty() && pool_->is_shared(layer.blocks.back());  // it is copied when written to
  }
  pool_->reserve(missing);
}

void KvCache::drop_front(Layer& layer, size_t blocks) {
  blocks = std::min(blocks, layer.blocks.size());
  for (size_t i = 0; i < blocks; ++i) pool_->drop(layer.blocks[i]);
  layer.blocks.erase(layer.blocks.begin(), layer.blocks.begin() + static_cast<ptrdiff_t>(blocks));
  layer.first += blocks;
}

}  // namespace wf
