// Keys and values of the positions a sequence has been through, in a table of reference-counted blocks: copies of a sequence
// share blocks until one of them writes (Kwon et al. 2023, "Efficient memory management for large language model serving with
// PagedAttention").
#pragma once

#include <cstddef>
#include <vector>

#include "core/buffer.hpp"
#include "kernels/attention.hpp"
#include "ops/tensor.hpp"

namespace wf {

// Blocks of one size for all caches of a model. Grows by slabs; shrinks only when asked to.
class KvPool {
 public:
  KvPool(const kernels::AttentionShape& shape, size_t blocks_a_slab, DType store = DType::kF32);
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const kernels::AttentionShape& shape() const { return shape_; }
  DType store() const { return store_; }  // how keys and values are kept: kF32 or kF16
  void* take();                           // a block with one reference; memory undefined
  void share(void* block);                // one reference more
  void drop(void* block);                 // one reference less; the last gives the block back
  bool is_shared(const void* block) const;
  void reserve(size_t blocks);  // makes sure that many can be taken without allocating
  void trim();                  // gives back the slabs of which no block is in use
  size_t block_bytes() const { return stride_; }
  size_t bytes() const;  // held
  size_t blocks_in_use() const { return in_use_; }

 private:
  kernels::AttentionShape shape_;
  DType store_;
  size_t stride_;  // bytes from one block to the next: a header with the count, then keys and values
  size_t blocks_a_slab_;
  size_t in_use_ = 0;
  std::vector<Buffer> slabs_;
  std::vector<void*> free_;
};

// The cache of one sequence. A forward pass writes each layer's keys and values behind the positions so far; `advance` then
// makes them part of the past.
class KvCache {
 public:
  // `windows`: one a layer, the number of latest positions a query sees (its own among them); 0 for all.
  KvCache(KvPool& pool, std::vector<size_t> windows);
  KvCache(const KvCache& other);  // shares the blocks
  KvCache(KvCache&& other) noexcept = default;
  KvCache& operator=(KvCache other) noexcept;
  ~KvCache();

  size_t layers() const { return layers_.size(); }
  size_t length() const { return length_; }  // positions of the past
  DType store() const { return pool_->store(); }

  // k (n, Hk * Dk), v (n, Hk * Dv): positions length()..length() + n of `layer`. A number that kF16 cannot keep is kInvalidArgument.
  void write(size_t layer, const Tensor& k, const Tensor& v);
  // The block table of a layer: entry i holds positions (first_block(layer) + i) * kBlock onwards.
  const void* const* blocks(size_t layer) const { return layers_[layer].blocks.data(); }
  size_t first_block(size_t layer) const { return layers_[layer].first; }

  // `count` written positions join the past; blocks that no later query can see are given back.
  void advance(size_t count);
  // Forgets the positions from `length` on. A windowed layer that no longer holds what position `length` would see makes it
  // forget everything. Returns the length kept.
  size_t truncate(size_t length);
  // Blocks that truncate(length) leaves to this cache or gives back to the pool: going on from there takes no memory for them.
  size_t blocks_after_truncation(size_t length) const;
  void clear() { truncate(0); }
  // Takes memory for the table up to `length` positions, so that steps on the way allocate nothing.
  void reserve(size_t length);

 private:
  struct Layer {
    std::vector<void*> blocks;
    size_t first = 0;  // number of the first block still held
    size_t window = 0;
  };

  size_t kept_length(size_t length) const;  // of truncate
  void expect_cacheable(size_t layer, const Tensor& x, const char* what) const;
  void drop_front(Layer& layer, size_t blocks);

  KvPool* pool_;
  std::vector<Layer> layers_;
  size_t length_ = 0;
};

}  // namespace wf
