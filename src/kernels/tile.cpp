#include "kernels/tile.hpp"

#include "kernels/simd.hpp"

namespace wf::kernels {

using simd::F32;
using simd::load;
using simd::mul_add;
using simd::splat;
using simd::store;

void tile_1(const float* a, const float* b, size_t K, float* c) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0;
  for (size_t k = 0; k < K; ++k, b += 16) {
    const F32 x = splat(a[k]);
    s0 = mul_add(x, load(b), s0);
    s1 = mul_add(x, load(b + 4), s1);
    s2 = mul_add(x, load(b + 8), s2);
    s3 = mul_add(x, load(b + 12), s3);
  }
  store(c, load(c) + s0);
  store(c + 4, load(c + 4) + s1);
  store(c + 8, load(c + 8) + s2);
  store(c + 12, load(c + 12) + s3);
}

void tile_2(const float* a0, const float* a1, const float* b, size_t K, float* c0, float* c1) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
  for (size_t k = 0; k < K; ++k, b += 16) {
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
  store(c0, load(c0) + s0);
  store(c0 + 4, load(c0 + 4) + s1);
  store(c0 + 8, load(c0 + 8) + s2);
  store(c0 + 12, load(c0 + 12) + s3);
  store(c1, load(c1) + t0);
  store(c1 + 4, load(c1 + 4) + t1);
  store(c1 + 8, load(c1 + 8) + t2);
  store(c1 + 12, load(c1 + 12) + t3);
}

namespace {

template <simd::Pair (*widen)(const uint16_t*)>
void tile_1_widened(const float* a, const uint16_t* b, size_t K, float* c) {
  F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0;
  for (size_t k = 0; k < K; ++k, b += 16) {
    const F32 x = splat(a[k]);
    const simd::Pair p = widen(b), q = widen(b + 8);
    s0 = mul_add(x, p.low, s0);
    s1 = mul_add(x, p.high, s1);
    s2 = mul_add(x, q.low, s2);
    s3 = mul_add(x, q.high, s3);
  }
  store(c, load(c) + s0);
  store(c + 4, load(c + 4) + s1);
  store(c + 8, load(c + 8) + s2);
  store(c + 12, load(c + 12) + s3);
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

void tile_1_half(DType dtype, const float* a, const uint16_t* b, size_t K, float* c) {
  (dtype == DType::kF16 ? tile_1_widened<simd::widen_f16> : tile_1_widened<simd::widen_bf16>)(a, b, K, c);
}

void widen_run(DType dtype, const uint16_t* b, size_t n, float* out) {
  (dtype == DType::kF16 ? widen_all<simd::widen_f16> : widen_all<simd::widen_bf16>)(b, n, out);
}

}  // namespace wf::kernels
