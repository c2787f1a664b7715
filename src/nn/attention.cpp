#include "nn/attention.hpp"

#include <algorithm>
#include <cmath>

#include "core/shape.hpp"

namespace wf {

kernels::AttentionMask AttentionCore::mask(size_t query_begin, const float* key_bias, const RelativeBias::Table* relative) const {
  kernels::AttentionMask mask{};
  mask.causal = causal;
  mask.window = window;
  mask.slopes = slopes.empty() ? nullptr : slopes.data();
  mask.scale = scale;
  mask.key_bias = key_bias;
  if (relative != nullptr) {
    mask.bias = relative->values.data + (relative->zero - query_begin);
    mask.bias_head_stride = static_cast<ptrdiff_t>(relative->values.stride);
    mask.bias_row_stride = -1;
  }
  return mask;
}

void AttentionCore::streamed(Context& ctx, size_t sequence, const Tensor& q, size_t query_begin, const Keys& keys,
                             const Tensor& out) const {
  const Scratch scratch(ctx, kernels::attention_scratch(shape, q.rows, keys.count), ctx.threads());
  const kernels::AttentionMask masked = mask(query_begin, keys.bias, keys.relative);
  const kernels::KeyValues cached{keys.store, keys.blocks, keys.first_block, keys.count};
  const uint64_t cost = uint64_t{q.rows} * keys.count * shape.H * (shape.Dk + shape.Dv);
  ctx.share(kernels::attention_parts(shape, q.rows), cost, [&](size_t begin, size_t end, size_t thread) {
    kernels::attention(shape, masked, q.data, q.stride, q.rows, query_begin, cached, out.data, out.stride, begin, end, scratch.of(thread));
  });
  const size_t shown = layer + ctx.layer_shift;
  if (ctx.observer == nullptr || !ctx.observer->wants(site, shown)) return;
  const size_t one_head = checked_product(q.rows, keys.count, "attention weights");
  const bool with_scores = ctx.observer->wants_scores(site, shown);
  const Scratch weights(ctx, one_head), room(ctx, with_scores ? one_head : 0);
  float* scores = with_scores ? static_cast<float*>(room) : nullptr;
  for (size_t h = 0; h < shape.H; ++h) {
    if (!ctx.observer->wants_head(site, shown, h)) continue;
    kernels::attention_weights(shape, masked, q.data, q.stride, q.rows, query_begin, cached, h, h + 1, weights, scores, scratch);
    ctx.observer->observe_attention(site, {shown, h, sequence, query_begin, q.rows, keys.count, weights, scores});
  }
}

Tensor AttentionCore::exact(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, std::span<const size_t> query_offsets,
                            std::span<const size_t> key_offsets, std::span<const float* const> key_bias,
                            const RelativeBias::Table* relative) const {
  constexpr const char* kWhat = "attention weights";
  size_t total = 0;
  for (size_t s = 0; s + 1 < query_offsets.size(); ++s) {
    const size_t one_head = checked_product(query_offsets[s + 1] - query_offsets[s], key_offsets[s + 1] - key_offsets[s], kWhat);
    total = checked_sum(total, checked_product(shape.H, one_head, kWhat), kWhat);
  }
  float* weights = ctx.arena.floats(total);
  const Tensor out = attention(ctx, shape, mask(0, nullptr, relative), q, k, v, query_offsets, key_offsets, key_bias, weights,
                               relative == nullptr ? Tensor{} : relative->values);
  const size_t shown = layer + ctx.layer_shift;
  if (ctx.observer == nullptr || !ctx.observer->wants(site, shown)) return out;
  for (size_t s = 0; s + 1 < query_offsets.size(); ++s) {
    const size_t T = query_offsets[s + 1] - query_offsets[s], S = key_offsets[s + 1] - key_offsets[s];
    for (size_t h = 0; h < shape.H; ++h, weights += T * S) {
      if (!ctx.observer->wants_head(site, shown, h)) continue;
      ctx.observer->observe_attention(site, {shown, h, s, 0, T, S, weights, nullptr});
    }
  }
  return out;
}

Tensor AttentionCore::over_caches(Context& ctx, const Tensor& q, const Batch& batch, Caches caches, bool own,
                                  const RelativeBias::Table* relative) const {
  Tensor out = ctx.tensor(q.rows, shape.H * shape.Dv);
  for (size_t s = 0; s < batch.sequences(); ++s) {
    const KvCache& cache = *caches[s];
    const size_t begin = batch.begin(s), T = batch.length(s);
    const float* bias = own && !batch.key_bias.empty() ? batch.key_bias[s] : nullptr;
    const Keys keys{cache.store(), cache.blocks(layer), cache.first_block(layer), cache.length() + (own ? T : 0), bias, relative};
    if (T != 0) streamed(ctx, s, q.slice(begin, T), own ? cache.length() : 0, keys, out.slice(begin, T));
  }
  ctx.observe(site, Part::kHeads, layer, out, shape.H);
  return out;
}

Tensor AttentionCore::over_rows(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, std::span<const size_t> query_offsets,
                                std::span<const size_t> key_offsets, std::span<const float* const> key_bias,
                                const RelativeBias::Table* relative) const {
  if (ctx.tape != nullptr) {
    const Tensor out = exact(ctx, q, k, v, query_offsets, key_offsets, key_bias, relative);
    ctx.observe(site, Part::kHeads, layer, out, shape.H);
    return out;
  }
  Tensor out = ctx.tensor(q.rows, shape.H * shape.Dv);
  for (size_t s = 0; s + 1 < query_offsets.size(); ++s) {
    const size_t T = query_offsets[s + 1] - query_offsets[s], S = key_offsets[s + 1] - key_offsets[s];
    const Tensor queries = q.slice(query_offsets[s], T), result = out.slice(query_offsets[s], T);
    const Tensor keys = k.slice(key_offsets[s], S), values = v.slice(key_offsets[s], S);
    const float* bias = key_bias.empty() ? nullptr : key_bias[s];
    const size_t block_floats = kernels::cache_block_bytes(shape, DType::kF32) / sizeof(float);
    const size_t count = (S + kernels::kBlock - 1) / kernels::kBlock;
    Scratch memory(ctx, checked_product(count, block_floats, "keys and values"));
    std::vector<const void*> blocks(count);
    for (size_t i = 0; i < count; ++i) {
      const size_t begin = i * kernels::kBlock, rows = std::min(kernels::kBlock, S - begin);
      float* block = memory + i * block_floats;
      kernels::write_block(shape, DType::kF32, block, 0, rows, keys.row(begin), keys.stride, values.row(begin), values.stride);
      blocks[i] = block;
    }
    streamed(ctx, s, queries, 0, {DType::kF32, blocks.data(), 0, S, bias, relative}, result);
  }
  ctx.observe(site, Part::kHeads, layer, out, shape.H);
  return out;
}

SelfAttention::SelfAttention(size_t layer, size_t model_size, size_t heads, size_t kv_heads, size_t head_size, bool qkv_bias,
                             bool output_bias)
    : SelfAttention(layer, model_size, {heads, kv_heads, head_size, head_size}, qkv_bias, output_bias) {}

SelfAttention::SelfAttention(size_t layer, size_t model_size, const kernels::AttentionShape& shape, bool qkv_bias, bool output_bias)
    : qkv((shape.H + shape.Hk) * shape.Dk + shape.Hk * shape.Dv, model_size, qkv_bias),
      output(model_size, shape.H * shape.Dv, output_bias) {
  core.shape = shape;
  core.scale = 1 / std::sqrt(static_cast<float>(shape.Dk));
  core.layer = layer;
}

Tensor SelfAttention::operator()(Context& ctx, const Tensor& x, const Batch& batch, Caches caches, const Rope* rope,
                                 const Rope::Angles* angles, const RelativeBias::Table* relative) const {
  const auto& [H, Hk, Dk, Dv] = core.shape;
  const Tensor all = qkv(ctx, x);
  Tensor q = all.columns(0, H * Dk), k = all.columns(H * Dk, Hk * Dk);
  const Tensor v = all.columns((H + Hk) * Dk, Hk * Dv);
  if (query_norm.present()) {
    q = query_norm(ctx, q);
    k = key_norm(ctx, k);
  }
  if (rope != nullptr) {
    rotate(ctx, q, Dk, rope->rotary(), angles->cos, angles->sin, rope->interleaved());
    rotate(ctx, k, Dk, rope->rotary(), angles->cos, angles->sin, rope->interleaved());
  }
  ctx.observe(core.site, Part::kQuery, core.layer, q, H);
  ctx.observe(core.site, Part::kKey, core.layer, k, Hk);
  ctx.observe(core.site, Part::kValue, core.layer, v, Hk);
  if (caches.empty()) return output(ctx, core.over_rows(ctx, q, k, v, batch.offsets, batch.offsets, batch.key_bias, relative));
  for (size_t s = 0; s < batch.sequences(); ++s) {
    caches[s]->write(core.layer, k.slice(batch.begin(s), batch.length(s)), v.slice(batch.begin(s), batch.length(s)));
  }
  return output(ctx, core.over_caches(ctx, q, batch, caches, true, relative));
}

CrossAttention::CrossAttention(size_t layer, size_t model_size, const kernels::AttentionShape& shape, bool with_bias)
    : query(shape.H * shape.Dk, model_size, with_bias),
      key_value(shape.Hk * (shape.Dk + shape.Dv), model_size, with_bias),
      output(model_size, shape.H * shape.Dv, with_bias) {
  core.shape = shape;
  core.scale = 1 / std::sqrt(static_cast<float>(shape.Dk));
  core.causal = false;
  core.site = Site::kCrossAttention;
  core.layer = layer;
}

CrossAttention::KeyValue CrossAttention::read(Context& ctx, const Tensor& memory) const {
  const auto& [H, Hk, Dk, Dv] = core.shape;
  const Tensor all = key_value(ctx, memory);
  const KeyValue both{all.columns(0, Hk * Dk), all.columns(Hk * Dk, Hk * Dv)};
  ctx.observe(core.site, Part::kKey, core.layer, both.key, Hk);
  ctx.observe(core.site, Part::kValue, core.layer, both.value, Hk);
  return both;
}

void CrossAttention::remember(Context& ctx, const Tensor& memory, std::span<const size_t> memory_offsets, Caches caches) const {
  Scope scope(ctx);
  const auto [key, value] = read(ctx, memory);
  for (size_t s = 0; s < caches.size(); ++s) {
    const size_t begin = memory_offsets[s], S = memory_offsets[s + 1] - begin;
    caches[s]->write(core.layer, key.slice(begin, S), value.slice(begin, S));
  }
}

Tensor CrossAttention::operator()(Context& ctx, const Tensor& x, const Batch& batch, Caches caches) const {
  const Tensor q = query(ctx, x);
  ctx.observe(core.site, Part::kQuery, core.layer, q, core.shape.H);
  return output(ctx, core.over_caches(ctx, q, batch, caches, false));
}

Tensor CrossAttention::operator()(Context& ctx, const Tensor& x, const Batch& batch, const Tensor& memory,
                                  std::span<const size_t> memory_offsets) const {
  const Tensor q = query(ctx, x);
  ctx.observe(core.site, Part::kQuery, core.layer, q, core.shape.H);
  const auto [key, value] = read(ctx, memory);
  return output(ctx, core.over_rows(ctx, q, key, value, batch.offsets, memory_offsets));
}

std::vector<float> alibi_slopes(size_t heads) {
  size_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<float> slopes(heads);
  const double base = std::pow(2.0, -8.0 / static_cast<double>(power)), between = std::pow(2.0, -4.0 / static_cast<double>(power));
  for (size_t h = 0; h < heads; ++h) {
    slopes[h] = static_cast<float>(h < power ? std::pow(base, static_cast<double>(h + 1))
                                             : std::pow(between, static_cast<double>(2 * (h - power) + 1)));
  }
  return slopes;
}

}  // namespace wf
