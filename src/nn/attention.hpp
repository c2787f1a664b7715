// Multi-head attention (Vaswani et al. 2017, section 3.2), with grouped key/value heads (Ainslie et al. 2023), a sliding window,
// linear biases (Press et al. 2022, "ALiBi") and rotary positions as values.
#pragma once

#include <span>
#include <vector>

#include "nn/kv_cache.hpp"
#include "nn/linear.hpp"
#include "nn/norm.hpp"
#include "nn/relative_bias.hpp"
#include "nn/rope.hpp"
#include "ops/batch.hpp"

namespace wf {

// One cache a sequence of the batch, or none: then attention is computed over the batch itself.
using Caches = std::span<KvCache* const>;

// softmax(scale q k^T + mask) v, and who wants to see the weights.
struct AttentionCore {
  kernels::AttentionShape shape{};
  float scale = 1;
  bool causal = true;
  size_t window = 0;          // latest positions a query sees, its own among them; 0: all
  std::vector<float> slopes;  // (H) ALiBi, or empty
  Site site = Site::kAttention;
  size_t layer = 0;  // in the model, and in the cache

  // q (T, H * Dk) over what the caches hold, the batch's own rows included when `own` -> (T, H * Dv).
  Tensor over_caches(Context& ctx, const Tensor& q, const Batch& batch, Caches caches, bool own,
                     const RelativeBias::Table* relative = nullptr) const;
  // q (T, H * Dk), k (S, Hk * Dk), v (S, Hk * Dv); sequence i of the queries sees sequence i of the keys -> (T, H * Dv).
  // Under a tape exactly, with the weights kept for its backward, and with dropout of weights where the context has it; otherwise the
  // same bits as over caches. `key_bias`: as a batch's.
  Tensor over_rows(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, std::span<const size_t> query_offsets,
                   std::span<const size_t> key_offsets, std::span<const float* const> key_bias = {},
                   const RelativeBias::Table* relative = nullptr) const;

 private:
  struct Keys {  // of one sequence, as kernels::attention takes them
    DType store;
    const void* const* blocks;
    size_t first_block;
    size_t count;
    const float* bias = nullptr;  // (count), added to every query's scores, or null
    const RelativeBias::Table* relative = nullptr;
  };

  kernels::AttentionMask mask(size_t query_begin, const float* key_bias, const RelativeBias::Table* relative) const;
  Tensor exact(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, std::span<const size_t> query_offsets,
               std::span<const size_t> key_offsets, std::span<const float* const> key_bias, const RelativeBias::Table* relative) const;
  void streamed(Context& ctx, size_t sequence, const Tensor& q, size_t query_begin, const Keys& keys, const Tensor& out) const;
};

struct SelfAttention {
  AttentionCore core;
  Linear qkv;                 // (H * Dk + Hk * Dk + Hk * Dv, D): queries, keys, values
  Linear output;              // (D, H * Dv)
  Norm query_norm, key_norm;  // of each head (Qwen3), or absent

  SelfAttention() = default;
  SelfAttention(size_t layer, size_t model_size, size_t heads, size_t kv_heads, size_t head_size, bool qkv_bias, bool output_bias);
  SelfAttention(size_t layer, size_t model_size, const kernels::AttentionShape& shape, bool qkv_bias, bool output_bias);

  // x (T, D) -> (T, D). `rope` and `angles`, or `relative`: of this pass, or null.
  Tensor operator()(Context& ctx, const Tensor& x, const Batch& batch, Caches caches, const Rope* rope = nullptr,
                    const Rope::Angles* angles = nullptr, const RelativeBias::Table* relative = nullptr) const;
};

// Queries from the decoder, keys and values from the encoder's output.
struct CrossAttention {
  AttentionCore core;
  Linear query;      // (H * Dk, D)
  Linear key_value;  // (H * Dk + H * Dv, D)
  Linear output;     // (D, H * Dv)

  CrossAttention() = default;
  CrossAttention(size_t layer, size_t model_size, const kernels::AttentionShape& shape, bool with_bias);

  // Writes the keys and values of `memory` (S, D), sequence i of it into caches[i]: once a source.
  void remember(Context& ctx, const Tensor& memory, std::span<const size_t> memory_offsets, Caches caches) const;
  // x (T, D) over what the caches remember -> (T, D).
  Tensor operator()(Context& ctx, const Tensor& x, const Batch& batch, Caches caches) const;
  // x (T, D) over `memory` itself, as a tape needs it -> (T, D).
  Tensor operator()(Context& ctx, const Tensor& x, const Batch& batch, const Tensor& memory, std::span<const size_t> memory_offsets) const;

 private:
  struct KeyValue {
    Tensor key, value;  // (S, H * Dk), (S, H * Dv)
  };
  KeyValue read(Context& ctx, const Tensor& memory) const;
};

// The slopes of ALiBi for that many heads (Press et al. 2022, section 3).
std::vector<float> alibi_slopes(size_t heads);

}  // namespace wf
