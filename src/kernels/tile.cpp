#include "kernels/tile.hpp"

#include <cstring>

#include "kernels/simd.hpp"

namespace wf::kernels {

using simd::F32;
using simd::kPage;
using simd::load;
using simd::mul_add;
using simd::splat;
using simd::store;

namespace {

// c = factor c + s
void finish(F32 factor, F32 s0, F32 s1, F32 s2, F32 s3, float* c) {
  store(c, mul_add(factor, load(c), s0));
  store(c + 4, mul_add(factor, load(c + 4), s1));
  store(c + 8, mul_add(factor, load(c + 8), s2));
  store(c + 12, mul_add(factor, load(c + 12), s3));
}

}  // namespace

void tile_1(const float* a, const float* b, size_t stride, size_t K, float factor, float* c) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0;
  for (size_t k = 0; k < K; ++k, b += stride) {
    const F32 x = splat(a[k]);
    s0 = mul_add(x, load(b), s0);
    s1 = mul_add(x, load(b + 4), s1);
    s2 = mul_add(x, load(b + 8), s2);
    s3 = mul_add(x, load(b + 12), s3);
  }
  finish(splat(factor), s0, s1, s2, s3, c);
}

void tile_1_stream(const float* a, const float* b, size_t K, const void* end, float* c) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0;
  for (size_t k = 0; k < K;) {
    simd::touch_ahead(b, end);
    const size_t stop = k + kPage / (16 * sizeof(float)) < K ? k + kPage / (16 * sizeof(float)) : K;
    for (; k < stop; ++k, b += 16) {
      const F32 x = splat(a[k]);
      s0 = mul_add(x, load(b), s0);
      s1 = mul_add(x, load(b + 4), s1);
      s2 = mul_add(x, load(b + 8), s2);
      s3 = mul_add(x, load(b + 12), s3);
    }
  }
  finish(splat(1.0f), s0, s1, s2, s3, c);
}

void tile_2(const float* a0, const float* a1, const float* b, size_t stride, size_t K, float factor0, float factor1, float* c0, float* c1) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
  for (size_t k = 0; k < K; ++k, b += stride) {
    const F32 b0 = load(b), b1 = load(b + 4), b2 = load(b + 8), b3 = load(b + 12);
    const F32 x = splat(a0[k]), y = splat(a1[k]);
    s0 = mul_add(x, b0, s0);
    s1 = mul_add(x, b1, s1);
    s2 = mul_add(x, b2, s2);
    s3 = mul_add(x, b3, s3);
    t0 = mul_add(y, b0, t0);
    t1 = mul_add(y, b1, t1);
    t2 = mul_add(y, b2, t2);
    t3 = mul_add(y, b3, t3);
  }
  finish(splat(factor0), s0, s1, s2, s3, c0);
  finish(splat(factor1), t0, t1, t2, t3, c1);
}

namespace {

// Sixteen numbers, widened where they are f16.
struct Row {
  simd::Pair low, high;
};
inline Row row_of(const float* b) { return {{load(b), load(b + 4)}, {load(b + 8), load(b + 12)}}; }
inline Row row_of(const uint16_t* b) { return {simd::widen_finite_f16(b), simd::widen_finite_f16(b + 8)}; }

template <class Number>
inline void add_blocks(const float* a, const Number* const* blocks, size_t begin, size_t end, float factor, float* c) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0;
  for (size_t k = begin; k < end;) {
    const Number* b = blocks[k / 16] + k % 16 * 16;
    const size_t stop = k / 16 * 16 + 16 < end ? k / 16 * 16 + 16 : end;
    for (; k < stop; ++k, b += 16) {
      const F32 x = splat(a[k]);
      const Row row = row_of(b);
      s0 = mul_add(x, row.low.low, s0);
      s1 = mul_add(x, row.low.high, s1);
      s2 = mul_add(x, row.high.low, s2);
      s3 = mul_add(x, row.high.high, s3);
    }
  }
  finish(splat(factor), s0, s1, s2, s3, c);
}

}  // namespace

void tile_1_blocks(const float* a, const float* const* blocks, size_t begin, size_t end, float factor, float* c) {
  add_blocks(a, blocks, begin, end, factor, c);
}

void tile_1_blocks_half(const float* a, const uint16_t* const* blocks, size_t begin, size_t end, float factor, float* c) {
  add_blocks(a, blocks, begin, end, factor, c);
}

void add_product(const float* a, size_t a_stride, size_t M, const float* b, size_t K, float* c, size_t c_stride, size_t width) {
  if (width == 16) {
    size_t m = 0;
    for (; m + 2 <= M; m += 2, a += 2 * a_stride, c += 2 * c_stride) tile_2(a, a + a_stride, b, 16, K, 1.0f, 1.0f, c, c + c_stride);
    if (m < M) tile_1(a, b, 16, K, 1.0f, c);
    return;
  }
  for (size_t m = 0; m < M; ++m, a += a_stride, c += c_stride) {
    float edge[16] = {};
    std::memcpy(edge, c, width * sizeof(float));
    tile_1(a, b, 16, K, 1.0f, edge);
    std::memcpy(c, edge, width * sizeof(float));
  }
}

// Four by four at a time; blocks keep both sides in the cache.
void transpose(const float* x, size_t x_stride, size_t rows, size_t cols, float* y, size_t y_stride) {
  constexpr size_t kBlock = 16;
  for (size_t c = 0; c < cols; c += kBlock) {
    const size_t end = cols - c < kBlock ? cols : c + kBlock;
    for (size_t r = 0; r < rows; r += simd::kLanes) {
      size_t i = c;
      if (r + simd::kLanes <= rows) {
        const float* from = x + r * x_stride;
        for (; i + simd::kLanes <= end; i += simd::kLanes) {
          const F32 a = load(from + i), b = load(from + x_stride + i), e = load(from + 2 * x_stride + i), f = load(from + 3 * x_stride + i);
          const F32 p = simd::interleave_low(a, e), q = simd::interleave_high(a, e);  // a0 e0 a1 e1, a2 e2 a3 e3
          const F32 s = simd::interleave_low(b, f), t = simd::interleave_high(b, f);
          float* to = y + i * y_stride + r;
          store(to, simd::interleave_low(p, s));
          store(to + y_stride, simd::interleave_high(p, s));
          store(to + 2 * y_stride, simd::interleave_low(q, t));
          store(to + 3 * y_stride, simd::interleave_high(q, t));
        }
      }
      const size_t last = rows - r < simd::kLanes ? rows : r + simd::kLanes;
      for (; i < end; ++i) {
        for (size_t k = r; k < last; ++k) y[i * y_stride + k] = x[k * x_stride + i];
      }
    }
  }
}

void pack_panel(bool trans, const float* B, size_t ldb, size_t k, size_t run, size_t n, size_t width, float* out) {
  constexpr size_t kPanel = 16;
  if (width < kPanel) std::memset(out, 0, run * kPanel * sizeof(float));
  if (trans) return transpose(B + n * ldb + k, ldb, width, run, out, kPanel);
  for (size_t i = 0; i < run; ++i) std::memcpy(out + i * kPanel, B + (k + i) * ldb + n, width * sizeof(float));
}

namespace {

template <simd::Pair (*widen)(const uint16_t*)>
void tile_1_widened(const float* a, const uint16_t* b, size_t K, const void* end, float* c) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0;
  for (size_t k = 0; k < K;) {
    simd::touch_ahead(b, end);
    const size_t stop = k + kPage / (16 * sizeof(uint16_t)) < K ? k + kPage / (16 * sizeof(uint16_t)) : K;
    for (; k < stop; ++k, b += 16) {
      const F32 x = splat(a[k]);
      const simd::Pair p = widen(b), q = widen(b + 8);
      s0 = mul_add(x, p.low, s0);
      s1 = mul_add(x, p.high, s1);
      s2 = mul_add(x, q.low, s2);
      s3 = mul_add(x, q.high, s3);
    }
  }
  finish(splat(1.0f), s0, s1, s2, s3, c);
}

template <simd::Pair (*widen)(const uint16_t*)>
void widen_all(const uint16_t* b, size_t n, float* out) {
  for (size_t i = 0; i < n; i += 8) {
    const simd::Pair p = widen(b + i);
    store(out + i, p.low);
    store(out + i + 4, p.high);
  }
}

}  // namespace

// Called through tables, which keeps these loops out of line too.
void tile_1_half(Half half, const float* a, const uint16_t* b, size_t K, const void* end, float* c) {
  static constexpr decltype(&tile_1_widened<simd::widen_f16>) kTiles[] = {
      tile_1_widened<simd::widen_finite_f16>, tile_1_widened<simd::widen_f16>, tile_1_widened<simd::widen_bf16>};
  kTiles[static_cast<size_t>(half)](a, b, K, end, c);
}

void widen_run(Half half, const uint16_t* b, size_t n, float* out) {
  static constexpr decltype(&widen_all<simd::widen_f16>) kRuns[] = {widen_all<simd::widen_finite_f16>, widen_all<simd::widen_f16>,
                                                                    widen_all<simd::widen_bf16>};
  kRuns[static_cast<size_t>(half)](b, n, out);
}

}  // namespace wf::kernels
