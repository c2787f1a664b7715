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

// The same within block number `number`: lanes [begin, end). The block is one of those seen.
Seen lanes_of(Seen keys, size_t number) {
  const size_t first = number * kBlock;
  return {keys.begin > first ? keys.begin - first : 0, std::min(kBlock, keys.end - first)};
}

const float* bias_row(const AttentionMask& mask, size_t h, size_t t) {
  return mask.bias + static_cast<ptrdiff_t>(h) * mask.bias_head_stride + static_cast<ptrdiff_t>(t) * mask.bias_row_stride;
}

// The scores (kBlock) of one query and block number `number`: in, q k of its sixteen lanes; out, scaled and biased, -inf where
// hidden. Returns the largest.
float finish_scores(const AttentionMask& mask, size_t h, size_t t, size_t number, Seen lanes, float* score) {
  const size_t first = number * kBlock;
  const F32 factor = simd::splat(mask.scale);
  each(kBlock, [=](auto at) { at.put(score, at.get(score) * factor); });
  if (mask.slopes) {
    for (size_t i = lanes.begin; i < lanes.end; ++i) score[i] += mask.slopes[h] * static_cast<float>(first + i);
  }
  if (mask.bias) {
    const float* bias = bias_row(mask, h, t) + first;
    for (size_t i = lanes.begin; i < lanes.end; ++i) score[i] += bias[i];
  }
  if (mask.key_bias) {
    for (size_t i = lanes.begin; i < lanes.end; ++i) score[i] += mask.key_bias[first + i];
  }
  std::fill(score, score + lanes.begin, kHidden);
  std::fill(score + lanes.end, score + kBlock, kHidden);
  return largest(score, kBlock);
}

constexpr size_t kTile = 16;  // queries that share the reading of a block

// One query head's way through the blocks: the softmax of what was seen so far is e^(score - most) / sum, and `out` holds the
// values weighed by the numerators.
struct Stream {
  const float* query;
  float* out;
  Seen keys;
  size_t h, t;
  float most, sum;
  float change;         // factor of `out` and `sum` when `most` has risen
  float score[kBlock];  // of the block at hand, then the numerators
  Seen lanes;           // of the block at hand

  bool sees(size_t number) const { return number * kBlock < keys.end && (number + 1) * kBlock > keys.begin; }

  void weigh(const AttentionMask& mask, size_t number) {
    lanes = lanes_of(keys, number);
    const float now = std::max(most, finish_scores(mask, h, t, number, lanes, score));
    const F32 shift = simd::splat(now == kHidden ? 0.0f : now);
    change = 1.0f;
    if (now != most) {
      float factor[simd::kLanes];
      simd::store(factor, simd::exp(simd::splat(most) - shift));
      change = factor[0];
    }
    F32 part = simd::zero();
    each(kBlock, [&](auto at) {
      const F32 e = simd::exp(at.get(score) - shift);
      at.put(score, e);
      part = part + e;
    });
    sum = sum * change + simd::sum(part);
    most = now;
  }
};

// One or two streams (a == b) over the block's values (kBlock, Dv): out = change out + numerators values, over the lanes seen.
void add_values(const Stream& a, const Stream& b, const float* values, size_t Dv) {
  const size_t n = a.lanes.end - a.lanes.begin;
  values += a.lanes.begin * Dv;
  const float *p = a.score + a.lanes.begin, *q = b.score + b.lanes.begin;
  size_t d = 0;
  for (; d + 16 <= Dv; d += 16) {
    if (&a == &b) {
      tile_1(p, values + d, Dv, n, a.change, a.out + d);
    } else {
      tile_2(p, q, values + d, Dv, n, a.change, b.change, a.out + d, b.out + d);
    }
  }
  for (const Stream* s = &a; d < Dv; s = &b) {
    const float* weight = s->score + s->lanes.begin;
    for (size_t i = d; i < Dv; ++i) {
      float sum = 0.0f;
      for (size_t j = 0; j < n; ++j) sum += weight[j] * values[j * Dv + i];
      s->out[i] = s->out[i] * s->change + sum;
    }
    if (s == &b) break;
  }
}

}  // namespace

size_t cache_block_bytes(const AttentionShape& shape, DType store) {
  return shape.Hk * kBlock * (shape.Dk + shape.Dv) * block_bytes(store);
}

void write_block(const AttentionShape& shape, DType store, void* block, size_t offset, size_t count, const float* k, size_t k_stride,
                 const float* v, size_t v_stride) {
  static_cast<void>(store);
  float* keys = static_cast<float*>(block);
  float* values = keys + shape.Hk * shape.Dk * kBlock;
  for (size_t i = 0; i < count; ++i, k += k_stride, v += v_stride) {
    for (size_t d = 0; d < shape.Hk * shape.Dk; ++d) keys[d * kBlock + offset + i] = k[d];
    for (size_t h = 0; h < shape.Hk; ++h) {
      std::memcpy(values + (h * kBlock + offset + i) * shape.Dv, v + h * shape.Dv, shape.Dv * sizeof(float));
    }
  }
}

size_t attention_scratch(const AttentionShape& shape, size_t T, size_t S) {
  static_cast<void>(shape), static_cast<void>(T), static_cast<void>(S);
  return 0;
}

// A part is a tile of queries of one key/value head.
size_t attention_parts(const AttentionShape& shape, size_t T) { return shape.Hk * ((T * (shape.H / shape.Hk) + kTile - 1) / kTile); }

void attention(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
               const KeyValues& cache, float* out, size_t out_stride, size_t part_begin, size_t part_end, float* scratch) {
  static_cast<void>(scratch);
  const size_t group = shape.H / shape.Hk, Dk = shape.Dk, Dv = shape.Dv, S = cache.S, tiles = attention_parts(shape, T) / shape.Hk;
  for (size_t part = part_begin; part < part_end; ++part) {
    const size_t g = part / tiles, row = part % tiles * kTile;
    {
      Stream streams[kTile];
      const size_t count = std::min(kTile, T * group - row);
      Seen all{S, 0};
      for (size_t i = 0; i < count; ++i) {
        const size_t t = (row + i) / group, h = g * group + (row + i) % group;
        Stream& s = streams[i];
        s.query = q + t * q_stride + h * Dk, s.out = out + t * out_stride + h * Dv;
        s.keys = seen(mask, q_begin + t, S), s.h = h, s.t = t, s.most = kHidden, s.sum = 0.0f;
        std::memset(s.out, 0, Dv * sizeof(float));
        all.begin = std::min(all.begin, s.keys.begin), all.end = std::max(all.end, s.keys.end);
      }
      for (size_t number = all.begin / kBlock; number * kBlock < all.end; ++number) {
        const float* block = static_cast<const float*>(cache.blocks[number - cache.first_block]);
        const float* keys = block + g * Dk * kBlock;
        const float* values = block + shape.Hk * Dk * kBlock + g * kBlock * Dv;
        for (size_t i = 0; i < count;) {
          Stream& a = streams[i];
          if (!a.sees(number)) {
            ++i;
            continue;
          }
          const bool pair = i + 1 < count && streams[i + 1].sees(number);
          Stream& b = streams[pair ? i + 1 : i];
          std::memset(a.score, 0, sizeof a.score);
          std::memset(b.score, 0, sizeof b.score);
          if (pair) {
            tile_2(a.query, b.query, keys, kBlock, Dk, 1.0f, 1.0f, a.score, b.score);
            b.weigh(mask, number);
          } else {
            tile_1(a.query, keys, kBlock, Dk, 1.0f, a.score);
          }
          a.weigh(mask, number);
          if (a.lanes.begin == b.lanes.begin && a.lanes.end == b.lanes.end) {
            add_values(a, b, values, Dv);
          } else {
            add_values(a, a, values, Dv);
            add_values(b, b, values, Dv);
          }
          i += pair ? 2 : 1;
        }
      }
      for (size_t i = 0; i < count; ++i) scale(streams[i].out, streams[i].sum == 0.0f ? 0.0f : 1.0f / streams[i].sum, streams[i].out, Dv);
    }
  }
}

void attention_weights(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
                       const KeyValues& cache, size_t head_begin, size_t head_end, float* weights, float* scores, float* scratch) {
  static_cast<void>(scratch);
  const size_t group = shape.H / shape.Hk, S = cache.S;
  for (size_t h = head_begin; h < head_end; ++h) {
    for (size_t t = 0; t < T; ++t) {
      const Seen keys = seen(mask, q_begin + t, S);
      const size_t row = ((h - head_begin) * T + t) * S;
      float* target = weights ? weights + row : scores + row;
      std::fill(target, target + S, kHidden);
      for (size_t number = keys.begin / kBlock; number * kBlock < keys.end; ++number) {
        float score[kBlock] = {};
        const float* block = static_cast<const float*>(cache.blocks[number - cache.first_block]);
        tile_1(q + t * q_stride + h * shape.Dk, block + h / group * shape.Dk * kBlock, kBlock, shape.Dk, 1.0f, score);
        finish_scores(mask, h, t, number, lanes_of(keys, number), score);
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
      for (size_t j = 0; j < S; ++j) {
        if (j < keys.begin || j >= keys.end) {
          row[j] = kHidden;
          continue;
        }
        row[j] *= mask.scale;
        if (mask.slopes) row[j] += mask.slopes[h] * static_cast<float>(j);
        if (mask.bias) row[j] += bias_row(mask, h, t)[j];
        if (mask.key_bias) row[j] += mask.key_bias[j];
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
