#include "kernels/attention.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"
#include "kernels/loops.hpp"
#include "kernels/softmax.hpp"
#include "kernels/tile.hpp"

namespace wf::kernels {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The keys [begin, end) that the query at a position sees.
struct Seen {
  size_t begin, end;
};

Seen seen(const AttentionMask& mask, size_t position, size_t S) {
  Seen keys{0, S};
  if (mask.causal) keys.end = std::min(S, position + 1);
  if (mask.window != 0 && position + 1 > mask.window) keys.begin = position + 1 - mask.window;
  keys.begin = std::min(keys.begin, keys.end);
  return keys;
}

// score (kBlock) of block number `number`: scaled, biased, -inf where hidden. raw: q k of the block's sixteen lanes.
void mask_scores(const AttentionMask& mask, size_t h, size_t t, size_t number, Seen keys, float* score) {
  const size_t first = number * kBlock;
  const float slope = mask.slopes ? mask.slopes[h] : 0.0f;
  const float* bias = mask.bias ? mask.bias + h * mask.bias_head_stride + t * mask.bias_row_stride : nullptr;
  for (size_t i = 0; i < kBlock; ++i) {
    const size_t j = first + i;
    if (j < keys.begin || j >= keys.end) {
      score[i] = kHidden;
      continue;
    }
    float value = score[i] * mask.scale;
    if (mask.slopes) value = value + slope * static_cast<float>(j);
    if (bias) value = value + bias[j];
    score[i] = value;
  }
}

}  // namespace

size_t block_floats(const AttentionShape& shape) { return shape.Hk * kBlock * (shape.Dk + shape.Dv); }

void write_block(const AttentionShape& shape, float* block, size_t offset, size_t count, const float* k, size_t k_stride, const float* v,
                 size_t v_stride) {
  float* values = block + shape.Hk * shape.Dk * kBlock;
  for (size_t i = 0; i < count; ++i, k += k_stride, v += v_stride) {
    for (size_t d = 0; d < shape.Hk * shape.Dk; ++d) block[d * kBlock + offset + i] = k[d];
    for (size_t h = 0; h < shape.Hk; ++h) {
      std::memcpy(values + (h * kBlock + offset + i) * shape.Dv, v + h * shape.Dv, shape.Dv * sizeof(float));
    }
  }
}

size_t attention_scratch(const AttentionShape& shape, size_t T, size_t S) {
  static_cast<void>(shape), static_cast<void>(T), static_cast<void>(S);
  return 0;
}

void attention(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
               const float* const* blocks, size_t first_block, size_t S, float* out, size_t out_stride, float* scratch) {
  static_cast<void>(scratch);
  const size_t group = shape.H / shape.Hk;
  for (size_t t = 0; t < T; ++t) {
    const Seen keys = seen(mask, q_begin + t, S);
    for (size_t h = 0; h < shape.H; ++h) {
      const float* query = q + t * q_stride + h * shape.Dk;
      float* result = out + t * out_stride + h * shape.Dv;
      std::memset(result, 0, shape.Dv * sizeof(float));
      float most = kHidden, sum = 0.0f;
      for (size_t number = keys.begin / kBlock; number * kBlock < keys.end; ++number) {
        const float* block = blocks[number - first_block];
        float score[kBlock] = {};
        tile_1(query, block + h / group * shape.Dk * kBlock, shape.Dk, score);
        mask_scores(mask, h, t, number, keys, score);
        const float now = std::max(most, largest(score, kBlock));
        const float shift = now == kHidden ? 0.0f : now;
        float change[simd::kLanes];
        simd::store(change, simd::exp(simd::splat(most - shift)));
        sum = sum * change[0] + total(kBlock, [&](auto at) {
                const F32 e = simd::exp(at.get(score) - simd::splat(shift));
                at.put(score, e);
                return e;
              });
        scale(result, change[0], result, shape.Dv);
        most = now;
        const float* values = block + shape.Hk * shape.Dk * kBlock + h / group * kBlock * shape.Dv;
        const size_t first = number * kBlock;
        for (size_t j = std::max(first, keys.begin); j < std::min(first + kBlock, keys.end); ++j) {
          axpy(score[j - first], values + (j - first) * shape.Dv, result, shape.Dv);
        }
      }
      scale(result, sum == 0.0f ? 0.0f : 1.0f / sum, result, shape.Dv);
    }
  }
}

void attention_weights(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
                       const float* const* blocks, size_t first_block, size_t S, size_t head_begin, size_t head_end, float* weights,
                       float* scores, float* scratch) {
  static_cast<void>(scratch);
  const size_t group = shape.H / shape.Hk;
  for (size_t h = head_begin; h < head_end; ++h) {
    for (size_t t = 0; t < T; ++t) {
      const Seen keys = seen(mask, q_begin + t, S);
      const size_t row = ((h - head_begin) * T + t) * S;
      float* target = weights ? weights + row : scores + row;
      std::fill(target, target + S, kHidden);
      for (size_t number = keys.begin / kBlock; number * kBlock < keys.end; ++number) {
        float score[kBlock] = {};
        tile_1(q + t * q_stride + h * shape.Dk, blocks[number - first_block] + h / group * shape.Dk * kBlock, shape.Dk, score);
        mask_scores(mask, h, t, number, keys, score);
        std::memcpy(target + number * kBlock, score, std::min(kBlock, S - number * kBlock) * sizeof(float));
      }
      if (weights && scores) std::memcpy(scores + row, target, S * sizeof(float));
      if (weights) softmax(target, target, 1, S);
    }
  }
}

size_t attention_exact_scratch(const AttentionShape& shape, size_t T, size_t S) {
  const size_t D = std::max(shape.Dk, shape.Dv);
  return T * S + std::max({gemm_scratch(T, S, D), gemm_scratch(T, D, S), gemm_scratch(S, D, T)});
}

void attention_forward_exact(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, const float* k,
                             size_t k_stride, const float* v, size_t v_stride, size_t T, size_t S, float* weights, float* out,
                             size_t out_stride, float* scratch) {
  const size_t group = shape.H / shape.Hk;
  for (size_t h = 0; h < shape.H; ++h, weights += T * S) {
    gemm(false, true, T, S, shape.Dk, q + h * shape.Dk, q_stride, k + h / group * shape.Dk, k_stride, false, weights, S, scratch);
    for (size_t t = 0; t < T; ++t) {
      const Seen keys = seen(mask, t, S);
      float* row = weights + t * S;
      for (size_t j = 0; j < S; j += kBlock) {
        float score[kBlock] = {};
        const size_t count = std::min(kBlock, S - j);
        std::memcpy(score, row + j, count * sizeof(float));
        mask_scores(mask, h, t, j / kBlock, keys, score);
        std::memcpy(row + j, score, count * sizeof(float));
      }
    }
    softmax(weights, weights, T, S);
    gemm(false, false, T, shape.Dv, S, weights, S, v + h / group * shape.Dv, v_stride, false, out + h * shape.Dv, out_stride, scratch);
  }
}

void attention_backward(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, const float* k,
                        size_t k_stride, const float* v, size_t v_stride, const float* weights, const float* dout, size_t dout_stride,
                        float* dq, size_t dq_stride, float* dk, size_t dk_stride, float* dv, size_t dv_stride, size_t T, size_t S,
                        float* scratch) {
  const size_t group = shape.H / shape.Hk, Dk = shape.Dk, Dv = shape.Dv;
  float* ds = scratch;  // (T, S)
  float* rest = scratch + T * S;
  for (size_t h = 0; h < shape.H; ++h, weights += T * S) {
    const size_t g = h / group;
    gemm(true, false, S, Dv, T, weights, S, dout + h * Dv, dout_stride, true, dv + g * Dv, dv_stride, rest);
    gemm(false, true, T, S, Dv, dout + h * Dv, dout_stride, v + g * Dv, v_stride, false, ds, S, rest);
    for (size_t t = 0; t < T; ++t) {
      const float* w = weights + t * S;
      float* d = ds + t * S;
      const F32 mean = simd::splat(dot(w, d, S)), factor = simd::splat(mask.scale);
      each(S, [=](auto at) { at.put(d, factor * (at.get(w) * (at.get(d) - mean))); });
    }
    gemm(false, false, T, Dk, S, ds, S, k + g * Dk, k_stride, true, dq + h * Dk, dq_stride, rest);
    gemm(true, false, S, Dk, T, ds, S, q + h * Dk, q_stride, true, dk + g * Dk, dk_stride, rest);
  }
}

}  // namespace wf::kernels
