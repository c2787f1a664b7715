// The vocabulary the kernels are written in: vectors of four floats, by xsimd. The only file that names xsimd.
// Every operation gives the same bits in WebAssembly and natively, and the functions give the same bits in every lane, so a
// value's result does not depend on its place in a row: a row's last few values go through the same vectors, padded.
#pragma once

#include <cstddef>
#include <cstdint>
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

// A constant of a loop. It lies in memory as a variable, so that the compiler cannot see its value: V8 (12 and later) builds a
// vector constant anew, in several instructions, in every round of a loop, but broadcasts a number from memory in one.
template <float kValue>
inline float stored = kValue;
template <float kValue>
inline F32 constant() {
  return F32(stored<kValue>);
}
template <uint32_t kValue>
inline int32_t stored_bits = static_cast<int32_t>(kValue);
template <uint32_t kValue>
inline I32 constant_bits() {
  return I32(stored_bits<kValue>);
}

// a * b + c: rounded twice, or where SIMD is relaxed once, if that is what the processor does.
#if __wasm_relaxed_simd__
inline F32 mul_add(F32 a, F32 b, F32 c) { return F32(wasm_f32x4_relaxed_madd(a, b, c)); }
#else
inline F32 mul_add(F32 a, F32 b, F32 c) { return a * b + c; }
#endif

// b < a ? b : a and a < b ? b : a: where `a` is NaN the result is NaN, where `b` is, it is unspecified.
#if XSIMD_WITH_WASM
inline F32 min(F32 a, F32 b) { return xsimd::min(a, b); }
inline F32 max(F32 a, F32 b) { return xsimd::max(a, b); }
#else
inline F32 min(F32 a, F32 b) { return xsimd::min(b, a); }
inline F32 max(F32 a, F32 b) { return xsimd::max(b, a); }
#endif

inline F32 select(Mask mask, F32 yes, F32 no) { return xsimd::select(mask, yes, no); }
inline F32 abs(F32 a) { return xsimd::abs(a); }
inline F32 sqrt(F32 a) { return xsimd::sqrt(a); }
inline I32 bits(F32 a) { return xsimd::bitwise_cast<int32_t>(a); }
inline F32 from_bits(I32 a) { return xsimd::bitwise_cast<float>(a); }
// The magnitude of `a` with the sign of `b`.
inline F32 copy_sign(F32 a, F32 b) {
  const I32 sign = constant_bits<0x80000000>();
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
  // Beyond these bounds the result is 0 or infinity, as it is on them.
  x = max(min(x, constant<89.0f>()), constant<-104.0f>());
  const F32 magic = constant<12582912.0f>();  // 1.5 * 2^23: adding it rounds to a whole number, left in the low bits
  const F32 shifted = mul_add(x, constant<1.44269504088896341f>(), magic);
  const F32 n = shifted - magic;
  F32 r = x - n * constant<0.693359375f>();  // ln 2 in two parts: the first product is exact
  r = r - n * constant<-2.12194440e-4f>();
  F32 p = constant<1.9875691500e-4f>();
  p = mul_add(p, r, constant<1.3981999507e-3f>());
  p = mul_add(p, r, constant<8.3334519073e-3f>());
  p = mul_add(p, r, constant<4.1665795894e-2f>());
  p = mul_add(p, r, constant<1.6666665459e-1f>());
  p = mul_add(p, r, constant<5.0000001201e-1f>());
  p = mul_add(p, r * r, r) + constant<1.0f>();
  // 2^n in two factors, so that neither overflows where the result does not.
  const I32 k = bits(shifted) - bits(magic), half = k >> 1, bias = constant_bits<127>();
  const F32 low = from_bits((half + bias) << 23), high = from_bits((k - half + bias) << 23);
  return (p * low) * high;
}

// tanh x within 2 ulp (Cephes tanhf).
inline F32 tanh(F32 x) {
  const F32 a = abs(x), z = x * x, one = constant<1.0f>();
  F32 p = constant<-5.70498872745e-3f>();
  p = mul_add(p, z, constant<2.06390887954e-2f>());
  p = mul_add(p, z, constant<-5.37397155531e-2f>());
  p = mul_add(p, z, constant<1.33314422036e-1f>());
  p = mul_add(p, z, constant<-3.33332819422e-1f>());
  const F32 small = mul_add(p * z, a, a), large = one - constant<2.0f>() / (exp(a + a) + one);
  return copy_sign(select(a < constant<0.625f>(), small, large), x);
}

// 1 / (1 + e^-x)
inline F32 sigmoid(F32 x) { return constant<1.0f>() / (constant<1.0f>() + exp(zero() - x)); }

// erf x within 2 ulp (polynomials after N. Juffa's erff, public domain).
inline F32 erf(F32 x) {
  const F32 t = min(abs(x), constant<4.0f>()), s = t * t;  // beyond 4 erf is 1 to the last bit
  F32 large = mul_add(constant<-1.72853470e-5f>(), t, constant<3.83197126e-4f>());
  large = mul_add(large, s, mul_add(constant<-3.88396438e-3f>(), t, constant<2.42546219e-2f>()));
  large = mul_add(large, t, constant<-1.06777877e-1f>());
  large = mul_add(large, t, constant<-6.34846687e-1f>());
  large = mul_add(large, t, constant<-1.28717512e-1f>());
  large = constant<1.0f>() - exp(mul_add(large, t, zero() - t));
  F32 small = constant<-5.96761703e-4f>();
  small = mul_add(small, s, constant<4.99119423e-3f>());
  small = mul_add(small, s, constant<-2.67681349e-2f>());
  small = mul_add(small, s, constant<1.12819925e-1f>());
  small = mul_add(small, s, constant<-3.76125336e-1f>());
  small = mul_add(small, s, constant<1.28379166e-1f>());
  return copy_sign(select(t > constant<0.927734375f>(), large, mul_add(small, t, t)), x);
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
// Finite ones: sign, then exponent and fraction where a float has them, 112 too small in exponent; the product also normalises
// subnormals.
inline F32 widen_finite_f16_lane(F32 word) {
  return from_bits((bits(word) >> 3) & constant_bits<0x8fffe000>()) * constant<5.192296858534828e33f>();  // 2^112
}
inline Pair widen_finite_f16(const uint16_t* p) {
  const Pair w = words(p);
  return {widen_finite_f16_lane(w.low), widen_finite_f16_lane(w.high)};
}
// All: an exponent of 31 becomes the float's 255.
inline F32 widen_f16_lane(F32 word) {
  const I32 top = constant_bits<0x7c000000>();
  const I32 special = xsimd::select((bits(word) & top) == top, constant_bits<0x7f800000>(), I32(0));
  return from_bits(bits(widen_finite_f16_lane(word)) | special);
}
inline Pair widen_f16(const uint16_t* p) {
  const Pair w = words(p);
  return {widen_f16_lane(w.low), widen_f16_lane(w.high)};
}

}  // namespace wf::simd
