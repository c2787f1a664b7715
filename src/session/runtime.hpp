// What every computation of a session shares: the model, the memory it works in, and how much of it there may be.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/arena.hpp"
#include "generate/options.hpp"
#include "models/model.hpp"
#include "nn/kv_cache.hpp"

namespace wf {

// Tokens of a sequence that go through the model at once: enough to be worth reading the weights, few enough to be interrupted.
constexpr size_t kChunk = generate::Options::kChunk;

// Throws kUnsupported, naming what the model can do, unless it predicts the next token.
void expect_next_token(const Model& model, std::string_view where);

struct Runtime {
  // `cache_store`: how keys and values are kept, kF32 or kF16.
  Runtime(std::unique_ptr<Model> model_, size_t memory_limit_, DType cache_store = DType::kF32);

  std::unique_ptr<Model> model;
  Arena arena;
  KvPool pool;
  size_t memory_limit;            // bytes that all of this may take together
  size_t weight_bytes = 0;        // held
  ThreadPool* threads = nullptr;  // or the caller's alone
  uint32_t weights_version = 0;   // changes with the weights: what was remembered of others is worth nothing

  Context context(Observer* observer = nullptr) { return {arena, nullptr, observer, 0, threads}; }

  size_t bytes() const { return weight_bytes + arena.bytes() + pool.bytes(); }

  KvCache make_cache() { return KvCache(pool, model->windows()); }  // of the model itself, or of its decoder
  KvCache make_source_cache() { return KvCache(pool, std::vector<size_t>(model->info().layers, 0)); }  // of what its decoder reads

  // Bytes of keys and values for `tokens` positions of one sequence.
  size_t cache_bytes(size_t tokens) const;
  // An upper estimate of what the arena needs for a pass of `rows` rows over sequences of up to `keys` positions, with logits of
  // `logit_rows` of them at once.
  size_t workspace_bytes(size_t rows, size_t keys, size_t logit_rows) const;
  // Rows whose logits are computed at once: as many as fit into a few megabytes.
  size_t logit_rows() const;
  // Throws kOutOfMemory, with the bytes, unless so many more fit under the limit.
  void expect_room(uint64_t bytes, std::string_view where, std::string_view what) const;
  // The same, where `bytes` counts on nothing that lies free in the pool: if need be, that is given back first.
  void make_room(uint64_t bytes, std::string_view where, std::string_view what);

  // Calls visit(first row, logits (some rows, V)) until all rows of `states` had their turn.
  template <class Visit>
  void for_logits(Context& ctx, const Tensor& states, const Visit& visit) const {
    const size_t at_once = logit_rows();
    for (size_t row = 0; row < states.rows; row += at_once) {
      const Scope scope(ctx);
      visit(row, model->head(ctx, states.slice(row, std::min(at_once, states.rows - row))));
    }
  }
};

}  // namespace wf
