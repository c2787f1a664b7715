// A model and the caches of some sequences, as generation sees them.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "generate/decoder.hpp"
#include "session/runtime.hpp"

namespace wf {

// A cache that outlives the generation that fills it, with the tokens it stands for.
struct HeldCache {
  explicit HeldCache(Runtime& runtime) : cache(runtime.make_cache()), weights_version(runtime.weights_version) {}
  // What weights that have changed since made of the tokens is worth nothing.
  void forget_unless(uint32_t version) {
    if (std::exchange(weights_version, version) == version) return;
    cache.clear();
    tokens.clear();
  }

  KvCache cache;
  std::vector<int32_t> tokens;
  uint32_t weights_version;
};

class ModelDecoder final : public generate::Decoder {
 public:
  // `held`: the cache of slot 0, or null. It may hold tokens already.
  ModelDecoder(Runtime& runtime, size_t slots, std::shared_ptr<HeldCache> held);

  size_t vocab_size() const override { return runtime_.model->info().vocab_size; }
  size_t max_positions() const override;
  size_t length(size_t slot) const override { return cache(slot).length(); }
  void run(std::span<const generate::Append> parts, float* logits) override;
  void reorder(std::span<const size_t> sources) override;
  void truncate(size_t slot, size_t length) override;
  void release(size_t slot) override;

  // Reads a source with the model's encoder: what the sequence in `slot` will look at.
  void read_source(size_t slot, std::span<const int32_t> tokens);
  // Memory for `length` positions of a slot, so that steps on the way there allocate nothing.
  void reserve(size_t slot, size_t length);

 private:
  void add_positions(size_t past, std::span<const int32_t> tokens);
  KvCache& cache(size_t slot) { return held_ && slot == 0 ? held_->cache : caches_[slot]; }
  const KvCache& cache(size_t slot) const { return held_ && slot == 0 ? held_->cache : caches_[slot]; }

  Runtime& runtime_;
  std::shared_ptr<HeldCache> held_;
  std::vector<KvCache> caches_;
  std::vector<KvCache> sources_;   // of an encoder-decoder model: what each slot looks at
  std::vector<size_t> source_of_;  // which that is: the slot into which it was read + 1; 0: none
  size_t reserved_ = 0;            // positions of the longest reserved slot
  // The batch of a run; kept, so that a warm step allocates nothing.
  std::vector<int32_t> tokens_, positions_;
  std::vector<size_t> offsets_, extents_, asking_;
  std::vector<KvCache*> batch_caches_, batch_sources_;
};

}  // namespace wf
