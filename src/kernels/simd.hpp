// The vocabulary the kernels are written in: vectors of four floats, by xsimd. The only file that names xsimd.
// Every operation gives the same bits in WebAssembly and natively, and the functions give the same bits in every lane, so a
// value's result does not depend on its place in a row: a row's last few values go through the same vectors, padded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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

// Of a stream of reads that is at `from`, less than `step` into a page: reads a byte of the page after the next, if it is before `end`.
// Returns the bytes to the end of the page, after which it is to be called again. A processor fetches ahead of a stream, but only to the
// end of a page, and waits for the beginning of the next; asked for ahead of time, once a page, that takes a quarter off reading what no
// cache holds. WebAssembly has no instruction to say so.
constexpr size_t kPage = 4096;
inline size_t touch_ahead(const void* from, const void* end, size_t step = kPage) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(from), next = (at | (kPage - 1)) + 1, ahead = next + kPage;
  const bool begins = (at & (kPage - 1)) < step;
  if (begins && ahead < reinterpret_cast<uintptr_t>(end)) static_cast<void>(*reinterpret_cast<const volatile char*>(ahead));
  return next - at;
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

// (a0, b0, a1, b1) and (a2, b2, a3, b3)
inline F32 interleave_low(F32 a, F32 b) { return xsimd::zip_lo(a, b); }
inline F32 interleave_high(F32 a, F32 b) { return xsimd::zip_hi(a, b); }
inline float first(F32 a) {
  float lanes[kLanes];
  store(lanes, a);
  return lanes[0];
}
// (a0 + a2) + (a1 + a3)
inline float sum(F32 a) {
  const F32 halves = interleave_low(a, a) + interleave_high(a, a);
  return first(halves + interleave_high(halves, halves));
}
// The largest of four, in every lane; unspecified which number where one is NaN.
inline F32 largest(F32 a) {
  const F32 halves = max(interleave_low(a, a), interleave_high(a, a));
  return max(interleave_low(halves, halves), interleave_high(halves, halves));
}
inline float maximum(F32 a) { return first(largest(a)); }

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

// e^x = fraction 2^n, n in the low bits of `shifted`: x = n ln 2 + r, |r| <= ln 2 / 2, polynomial of degree 6 in r (Cephes expf).
struct Power {
  F32 fraction, shifted;
};
inline Power power(F32 x) {
  const F32 magic = constant<12582912.0f>();  // 1.5 * 2^23: adding it rounds to a whole number, left in the low bits
  const F32 shifted = mul_add(x, constant<1.44269504088896341f>(), magic);
  const F32 n = shifted - magic;
  F32 r = mul_add(n, constant<-0.693359375f>(), x);  // ln 2 in two parts: the first product is exact
  r = mul_add(n, constant<2.12194440e-4f>(), r);
  F32 p = constant<1.9875691500e-4f>();
  p = mul_add(p, r, constant<1.3981999507e-3f>());
  p = mul_add(p, r, constant<8.3334519073e-3f>());
  p = mul_add(p, r, constant<4.1665795894e-2f>());
  p = mul_add(p, r, constant<1.6666665459e-1f>());
  p = mul_add(p, r, constant<5.0000001201e-1f>());
  return {mul_add(p, r * r, r) + constant<1.0f>(), shifted};
}

// e^x within 1 ulp, subnormal results included.
inline F32 exp(F32 x) {
  // Beyond these bounds the result is 0 or infinity, as it is on them.
  const Power e = power(max(min(x, constant<89.0f>()), constant<-104.0f>()));
  // 2^n in two factors, so that neither overflows where the result does not.
  const I32 n = bits(e.shifted) - bits(constant<12582912.0f>()), half = n >> 1, bias = constant_bits<127>();
  const F32 low = from_bits((half + bias) << 23), high = from_bits((n - half + bias) << 23);
  return (e.fraction * low) * high;
}
// e^x within 1 ulp for x <= 0, of two thirds of the instructions: 0 where it would be below 2^-126.5, about. The shift leaves the bits
// of n alone: those of the magic number that are set are all above them.
inline F32 exp_of_negative(F32 x) {
  const Power e = power(max(x, constant<-88.0f>()));
  return e.fraction * from_bits((bits(e.shifted) << 23) + constant_bits<0x3f800000>());
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

// The normal distribution's share below x, within 4e-7: a half and an odd rational function, fitted to 7e-9 where |x| <= 5.5, too large
// beyond, where it is cut off: exactly 0 and 1 there.
inline F32 normal_cdf(F32 x) {
  const F32 t = max(min(x, constant<6.0f>()), constant<-6.0f>()), s = t * t, half = constant<0.5f>();
  F32 p = constant<2.274886235e-8f>(), q = constant<1.197428219e-6f>();
  p = mul_add(p, s, constant<6.351300726e-6f>()), q = mul_add(q, s, constant<7.363137411e-5f>());
  p = mul_add(p, s, constant<1.687842450e-4f>()), q = mul_add(q, s, constant<1.884214114e-3f>());
  p = mul_add(p, s, constant<4.677004647e-3f>()), q = mul_add(q, s, constant<2.864377014e-2f>());
  p = mul_add(p, s, constant<3.384916857e-2f>()), q = mul_add(q, s, constant<2.515132129e-1f>());
  p = mul_add(p, s, constant<3.989422321e-1f>()), q = mul_add(q, s, constant<1.0f>());
  return half + max(min(t * p / q, half), zero() - half);
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

// Whole numbers. to_whole rounds to nearest, ties to even, for |a| <= 2^22; anything else gives some number.
inline I32 to_whole(F32 a) {
  const F32 magic = constant<12582912.0f>();  // 1.5 * 2^23
  return bits(a + magic) - bits(magic);
}
inline F32 round_small(F32 a) {  // the same as a float
  const F32 magic = constant<12582912.0f>();
  return (a + magic) - magic;
}
inline F32 to_float(I32 a) { return xsimd::to_float(a); }
inline I32 load_bytes(const void* p) { return I32::load_unaligned(static_cast<const int32_t*>(p)); }
inline void store_bytes(void* p, I32 a) { a.store_unaligned(static_cast<int32_t*>(p)); }
inline uint32_t sum(I32 a) {  // modulo 2^32
  uint32_t lanes[kLanes];
  store_bytes(lanes, a);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}
// Four bytes, the same in every lane.
inline I32 splat_bytes(const void* p) {
  int32_t lane;
  std::memcpy(&lane, p, sizeof lane);
  return I32(lane);
}
inline float load_float(const void* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
inline I32 shift_left_16(I32 a, int32_t n) { return xsimd::bitwise_cast<int32_t>(xsimd::bitwise_cast<uint16_t>(a) << n); }
inline I32 shift_right_16(I32 a, int32_t n) { return xsimd::bitwise_cast<int32_t>(xsimd::bitwise_cast<uint16_t>(a) >> n); }

// Sixteen numbers of -128..127 as bytes, in order.
inline I32 narrow_to_bytes(I32 a, I32 b, I32 c, I32 d) {
#if XSIMD_WITH_WASM
  return I32(wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(a, b), wasm_i16x8_narrow_i32x4(c, d)));
#elif XSIMD_WITH_SSE2
  return I32(_mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d)));
#else
  int32_t lanes[16];
  int8_t bytes[16];
  store_bytes(lanes, a), store_bytes(lanes + 4, b), store_bytes(lanes + 8, c), store_bytes(lanes + 12, d);
  for (size_t i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(lanes[i]);
  return load_bytes(bytes);
#endif
}

// The products of lanes without sign, 64 bits each, in two halves.
struct Products {
  I32 low, high;
};
inline Products multiply_wide(I32 a, I32 b) {
#if XSIMD_WITH_WASM
  const v128_t p = wasm_u64x2_extmul_low_u32x4(a, b), q = wasm_u64x2_extmul_high_u32x4(a, b);
  return {I32(wasm_i32x4_shuffle(p, q, 0, 2, 4, 6)), I32(wasm_i32x4_shuffle(p, q, 1, 3, 5, 7))};
#elif XSIMD_WITH_SSE2
  const __m128i p = _mm_mul_epu32(a, b), q = _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32));  // of lanes 0 and 2, 1 and 3
  return {I32(_mm_unpacklo_epi32(_mm_shuffle_epi32(p, 0x08), _mm_shuffle_epi32(q, 0x08))),
          I32(_mm_unpacklo_epi32(_mm_shuffle_epi32(p, 0x0d), _mm_shuffle_epi32(q, 0x0d)))};
#else
  uint32_t x[4], y[4], low[4], high[4];
  store_bytes(x, a), store_bytes(y, b);
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t product = uint64_t{x[i]} * y[i];
    low[i] = static_cast<uint32_t>(product), high[i] = static_cast<uint32_t>(product >> 32);
  }
  return {load_bytes(low), load_bytes(high)};
#endif
}

// Each lane: the products of its two pairs of signed 16-bit numbers, added.
inline I32 dot_16(I32 a, I32 b) {
#if XSIMD_WITH_WASM
  return I32(wasm_i32x4_dot_i16x8(a, b));
#elif XSIMD_WITH_SSE2
  return I32(_mm_madd_epi16(a, b));
#else
  int16_t x[8], y[8];
  int32_t sums[4];
  store_bytes(x, a), store_bytes(y, b);
  for (size_t i = 0; i < 4; ++i) sums[i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
  return load_bytes(sums);
#endif
}

// Dot products of a block of 32 codes of weights with 32 codes of activations. A lane is a row of weights and takes four codes at
// a time; the four activations are the same in every lane. Two kinds of weights: signed bytes, times activations of 0..127; and
// nibbles 0..15, a byte holding one of the first 16 codes below one of the last 16, times activations of -127..127. The sums are
// exact, hence the same in all three forms below. A form says how activations lie in memory (`put`: 32 codes into 8 kStep bytes),
// how they are loaded, how a vector of weights is added to the sums, and what the sums are as floats; those of nibbles are in units
// of 1 / kUnit4. kRows rows of activations times two vectors of weights, or one row times
// kVectors of them, keep their sums in registers.

// On any engine: bytes become 16-bit numbers where they stand, by a mask or a shift, and keep what the place multiplied them by;
// activations of nibbles are multiplied by what makes all places equal, which is 256.
struct WideDot {
  static constexpr size_t kStep = 8;
  static constexpr int32_t kUnit4 = 256;
  static constexpr size_t kRows = 3, kVectors = 2;
  struct Activations {
    I32 even, odd;
  };
  static void put(const int8_t* codes, bool nibbles, void* out) {
    int16_t wide[64];
    for (size_t g = 0; g < 8; ++g) {
      const int32_t even = !nibbles ? 1 : g < 4 ? 256 : 16, odd = nibbles && g >= 4 ? 256 : 1;
      for (size_t i = 0; i < 2; ++i) {
        wide[4 * g + i] = static_cast<int16_t>(codes[4 * g + 2 * i] * even);
        wide[4 * g + 2 + i] = static_cast<int16_t>(codes[4 * g + 2 * i + 1] * odd);
      }
    }
    std::memcpy(out, wide, 64);
  }
  static Activations load(const char* p) { return {splat_bytes(p), splat_bytes(p + 4)}; }
  static I32 add8(I32 sums, I32 weights, Activations x) {
    sums = sums + dot_16(shift_left_16(weights, 8), x.even);
    return sums + dot_16(weights & constant_bits<0xff00ff00>(), x.odd);
  }
  static I32 add4(I32 sums, I32 weights, Activations low, Activations high) {
    sums = sums + dot_16(weights & constant_bits<0x000f000f>(), low.even);
    sums = sums + dot_16(weights & constant_bits<0x0f000f00>(), low.odd);
    sums = sums + dot_16(weights & constant_bits<0x00f000f0>(), high.even);
    return sums + dot_16(shift_right_16(weights, 12), high.odd);
  }
  static F32 sum8(I32 sums) { return to_float(sums >> 8); }
  static F32 sum4(I32 sums) { return to_float(sums); }
};

#if __wasm_relaxed_simd__ || __SSSE3__
struct ByteActivations {
  static constexpr size_t kStep = 4;
  static constexpr int32_t kUnit4 = 1;
  static constexpr size_t kRows = 4, kVectors = 4;
  using Activations = I32;
  static void put(const int8_t* codes, bool, void* out) { std::memcpy(out, codes, 32); }
  static Activations load(const char* p) { return splat_bytes(p); }
};

// Where products of bytes are added in pairs to 16 bits: x86 since SSSE3. No sum leaves its range: 2 * 128 * 127 < 2^15, and
// sixteen products with nibbles, a whole block's, are 16 * 15 * 127 < 2^15.
struct PairDot : ByteActivations {
  static I32 pairs(I32 any, I32 seven_bits) {
#if __wasm_relaxed_simd__
    return I32(wasm_i16x8_relaxed_dot_i8x16_i7x16(any, seven_bits));
#else
    return I32(_mm_maddubs_epi16(seven_bits, any));
#endif
  }
  static I32 add_16(I32 a, I32 b) {
    return xsimd::bitwise_cast<int32_t>(xsimd::bitwise_cast<uint16_t>(a) + xsimd::bitwise_cast<uint16_t>(b));
  }
  static I32 add8(I32 sums, I32 weights, I32 x) { return sums + dot_16(pairs(weights, x), constant_bits<0x00010001>()); }
  static I32 add4(I32 sums, I32 weights, I32 low, I32 high) {
    const I32 mask = constant_bits<0x0f0f0f0f>();
    sums = add_16(sums, pairs(low, weights & mask));
    return add_16(sums, pairs(high, shift_right_16(weights, 4) & mask));
  }
  static F32 sum8(I32 sums) { return to_float(sums); }
  static F32 sum4(I32 sums) { return to_float(dot_16(sums, constant_bits<0x00010001>())); }
};
#endif

#if __wasm_relaxed_simd__
// Where one instruction adds four products to 32 bits: ARM since 8.2, x86 with AVX-VNNI.
struct FusedDot : ByteActivations {
  static I32 dot(I32 any, I32 seven_bits, I32 sums) { return I32(wasm_i32x4_relaxed_dot_i8x16_i7x16_add(any, seven_bits, sums)); }
  static I32 add8(I32 sums, I32 weights, I32 x) { return dot(weights, x, sums); }
  static I32 add4(I32 sums, I32 weights, I32 low, I32 high) {
    const I32 mask = constant_bits<0x0f0f0f0f>();
    return dot(high, shift_right_16(weights, 4) & mask, dot(low, weights & mask, sums));
  }
  static F32 sum8(I32 sums) { return to_float(sums); }
  static F32 sum4(I32 sums) { return to_float(sums); }
};
// An engine without that instruction makes it of others, on x86 of the one that adds in pairs and saturates, which shows where the
// second operand has eight bits: 4 * 127 * 255, or with the eighth as a sign, or twice 2^15 - 1.
inline bool has_fused_dot() {
  int32_t sums[4];
  store_bytes(sums, FusedDot::dot(constant_bits<0x7f7f7f7f>(), constant_bits<0xffffffff>(), I32(0)));
  return sums[0] != 2 * 32767;
}
using Dot = PairDot;
#elif __SSSE3__
using Dot = PairDot;
#else
using Dot = WideDot;
#endif

}  // namespace wf::simd
