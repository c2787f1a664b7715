// The vocabulary the kernels are written in: vectors of four floats, by xsimd. The only file that names xsimd.
// Every operation gives the same bits in WebAssembly and natively, and the functions give the same bits in every lane, so a
// value's result does not depend on its place in a row: a row's last few values go through the same vectors, padded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <xsimd/xsimd.hpp>

namespace wf::simd {

constexpr size_t kLanes = 4;
using F32 = xsimd::make_sized_batch_t<float, kLanes>;
using I32 = xsimd::make_sized_batch_t<int32_t, kLanes>;
using U32 = xsimd::make_sized_batch_t<uint32_t, kLanes>;
using U16 = xsimd::make_sized_batch_t<uint16_t, 2 * kLanes>;
using Mask = F32::batch_bool_type;

inline F32 splat(float a) { return F32(a); }
inline F32 zero() { return F32(0.0f); }
inline F32 load(const float* p) { return F32::load_unaligned(p); }
inline void store(float* p, F32 a) { a.store_unaligned(p); }

// The first `n` of four floats, 1 <= n <= 3; the other lanes hold `fill`, and no memory beyond p + n is touched.
inline F32 load_part(const float* p, size_t n, float fill = 0.0f) {
  float lanes[kLanes] = {p[0], fill, fill, fill};
  if (n > 1) lanes[1] = p[1];
  if (n > 2) lanes[2] = p[2];
  return load(lanes);
}
inline void store_part(float* p, F32 a, size_t n) {
  float lanes[kLanes];
  store(lanes, a);
  p[0] = lanes[0];
  if (n > 1) p[1] = lanes[1];
  if (n > 2) p[2] = lanes[2];
}

// a * b + c, rounded twice.
inline F32 mul_add(F32 a, F32 b, F32 c) { return a * b + c; }

// Neither is defined where an operand is NaN.
inline F32 min(F32 a, F32 b) { return xsimd::min(a, b); }
inline F32 max(F32 a, F32 b) { return xsimd::max(a, b); }

inline F32 select(Mask mask, F32 yes, F32 no) { return xsimd::select(mask, yes, no); }
inline F32 abs(F32 a) { return xsimd::abs(a); }
inline F32 sqrt(F32 a) { return xsimd::sqrt(a); }
inline I32 bits(F32 a) { return xsimd::bitwise_cast<int32_t>(a); }
inline F32 from_bits(I32 a) { return xsimd::bitwise_cast<float>(a); }
// The magnitude of `a` with the sign of `b`.
inline F32 copy_sign(F32 a, F32 b) {
  const I32 sign(std::numeric_limits<int32_t>::min());
  return from_bits((bits(a) & ~sign) | (bits(b) & sign));
}

// (a0 + a2) + (a1 + a3)
inline float sum(F32 a) {
  float lanes[kLanes];
  store(lanes, a);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}
inline float maximum(F32 a) {
  float lanes[kLanes];
  store(lanes, a);
  const float x = lanes[0] < lanes[2] ? lanes[2] : lanes[0];
  const float y = lanes[1] < lanes[3] ? lanes[3] : lanes[1];
  return x < y ? y : x;
}

// (a0, b0, a1, b1) and (a2, b2, a3, b3)
inline F32 interleave_low(F32 a, F32 b) { return xsimd::zip_lo(a, b); }
inline F32 interleave_high(F32 a, F32 b) { return xsimd::zip_hi(a, b); }
// (a0, a2, b0, b2) and (a1, a3, b1, b3)
inline F32 even_lanes(F32 a, F32 b) {
  const F32 x = xsimd::zip_lo(a, b), y = xsimd::zip_hi(a, b);  // a0 b0 a1 b1, a2 b2 a3 b3
  const F32 p = xsimd::zip_lo(x, y);                           // a0 a2 b0 b2
  return p;
}
inline F32 odd_lanes(F32 a, F32 b) {
  const F32 x = xsimd::zip_lo(a, b), y = xsimd::zip_hi(a, b);
  return xsimd::zip_hi(x, y);  // a1 a3 b1 b3
}

// e^x within 1 ulp, subnormal results included: x = n ln 2 + r, |r| <= ln 2 / 2, polynomial of degree 6 in r (Cephes expf).
inline F32 exp(F32 x) {
  const F32 magic(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number, left in the low bits
  const F32 shifted = mul_add(x, splat(1.44269504088896341f), magic);
  const F32 n = shifted - magic;
  F32 r = x - n * splat(0.693359375f);  // ln 2 in two parts: the first product is exact
  r = r - n * splat(-2.12194440e-4f);
  F32 p = splat(1.9875691500e-4f);
  p = mul_add(p, r, splat(1.3981999507e-3f));
  p = mul_add(p, r, splat(8.3334519073e-3f));
  p = mul_add(p, r, splat(4.1665795894e-2f));
  p = mul_add(p, r, splat(1.6666665459e-1f));
  p = mul_add(p, r, splat(5.0000001201e-1f));
  p = mul_add(p, r * r, r) + splat(1.0f);
  // 2^n in two factors, so that neither overflows where the result does not.
  const I32 k = bits(shifted) - bits(magic);
  const I32 half = k >> 1;
  const F32 low = from_bits((half + I32(127)) << 23), high = from_bits((k - half + I32(127)) << 23);
  F32 y = (p * low) * high;
  y = select(x > splat(88.7228394f), splat(std::numeric_limits<float>::infinity()), y);
  return select(x < splat(-103.972084f), zero(), y);
}

// tanh x within 2 ulp (Cephes tanhf).
inline F32 tanh(F32 x) {
  const F32 a = abs(x), z = x * x;
  F32 p = splat(-5.70498872745e-3f);
  p = mul_add(p, z, splat(2.06390887954e-2f));
  p = mul_add(p, z, splat(-5.37397155531e-2f));
  p = mul_add(p, z, splat(1.33314422036e-1f));
  p = mul_add(p, z, splat(-3.33332819422e-1f));
  const F32 small = mul_add(p * z, x, x);
  const F32 large = splat(1.0f) - splat(2.0f) / (exp(a + a) + splat(1.0f));
  return copy_sign(select(a < splat(0.625f), small, large), x);
}

// 1 / (1 + e^-x)
inline F32 sigmoid(F32 x) { return splat(1.0f) / (splat(1.0f) + exp(zero() - x)); }

// erf x within 2 ulp (polynomials after N. Juffa's erff, public domain).
inline F32 erf(F32 x) {
  const F32 t = abs(x), s = x * x;
  F32 large = mul_add(splat(-1.72853470e-5f), t, splat(3.83197126e-4f));
  const F32 u = mul_add(splat(-3.88396438e-3f), t, splat(2.42546219e-2f));
  large = mul_add(large, s, u);
  large = mul_add(large, t, splat(-1.06777877e-1f));
  large = mul_add(large, t, splat(-6.34846687e-1f));
  large = mul_add(large, t, splat(-1.28717512e-1f));
  large = mul_add(large, t, zero() - t);
  large = copy_sign(splat(1.0f) - exp(large), x);
  // The polynomial of degree 6 turns upwards far out, where erf is 1 to the last bit anyway.
  large = select(t > splat(4.0f), copy_sign(splat(1.0f), x), large);
  F32 small = splat(-5.96761703e-4f);
  small = mul_add(small, s, splat(4.99119423e-3f));
  small = mul_add(small, s, splat(-2.67681349e-2f));
  small = mul_add(small, s, splat(1.12819925e-1f));
  small = mul_add(small, s, splat(-3.76125336e-1f));
  small = mul_add(small, s, splat(1.28379166e-1f));
  small = mul_add(small, x, x);
  return select(t > splat(0.927734375f), large, small);
}

// Eight 16-bit numbers widened exactly, subnormals, infinities and NaN included.
struct Pair {
  F32 low, high;
};
inline Pair words(const uint16_t* p) {  // each number in the upper half of a lane, zeros below
  const U16 h = U16::load_unaligned(p), none(uint16_t{0});
  return {xsimd::bitwise_cast<float>(xsimd::zip_lo(none, h)), xsimd::bitwise_cast<float>(xsimd::zip_hi(none, h))};
}
inline Pair widen_bf16(const uint16_t* p) { return words(p); }
inline F32 widen_f16_lane(F32 word) {
  // Sign, then exponent and fraction where a float has them, 112 too small in exponent; the product also normalises
  // subnormals. An exponent of 31 becomes the float's 255.
  const I32 moved = (bits(word) >> 3) & I32(static_cast<int32_t>(0x8fffe000u));
  const I32 value = bits(from_bits(moved) * splat(5.192296858534828e33f));  // 2^112
  const I32 top(0x0f800000);
  return from_bits(value | xsimd::select((moved & top) == top, I32(0x7f800000), I32(0)));
}
inline Pair widen_f16(const uint16_t* p) {
  const Pair w = words(p);
  return {widen_f16_lane(w.low), widen_f16_lane(w.high)};
}

}  // namespace wf::simd
