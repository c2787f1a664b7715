#include "kernels/quantize.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/panels.hpp"
#include "kernels/simd.hpp"

namespace wf::kernels {
namespace {

using simd::F32;
using simd::I32;

constexpr size_t kVectors = kCodes / simd::kLanes;
constexpr float kSmallest = 1e-36f;  // its reciprocal, times 127, is still a float
constexpr float kGreatestF16 = 65504;

struct Block {
  F32 v[kVectors];

  explicit Block(const float* p) {
    for (size_t i = 0; i < kVectors; ++i) v[i] = simd::load(p + 4 * i);
  }
  // 0, or NaN where a number is infinite or NaN.
  float check() const {
    F32 sum = simd::zero();
    for (const F32& a : v) sum = sum + (a - a);
    return simd::sum(sum);
  }
  float greatest() const {
    F32 most = v[0];
    for (const F32& a : v) most = simd::max(most, a);
    return simd::maximum(most);
  }
  float least() const {
    F32 most = simd::zero() - v[0];
    for (const F32& a : v) most = simd::max(most, simd::zero() - a);
    return -simd::maximum(most);
  }
  float magnitude() const {
    F32 most = simd::abs(v[0]);
    for (const F32& a : v) most = simd::max(most, simd::abs(a));
    return simd::maximum(most);
  }
  // The numbers less `from`, times `factor`, rounded to bytes. Returns their sum.
  uint32_t round(float from, float factor, int8_t* codes) const {
    const F32 origin = simd::splat(from), scale = simd::splat(factor);
    I32 whole[kVectors], sum(0);
    for (size_t i = 0; i < kVectors; ++i) sum = sum + (whole[i] = simd::to_whole((v[i] - origin) * scale));
    simd::store_bytes(codes, simd::narrow_to_bytes(whole[0], whole[1], whole[2], whole[3]));
    simd::store_bytes(codes + 16, simd::narrow_to_bytes(whole[4], whole[5], whole[6], whole[7]));
    return simd::sum(sum);
  }
};

// To 11 significant bits, to nearest, ties to even.
float shortened(float a) {
  const uint32_t bits = std::bit_cast<uint32_t>(a);
  return std::bit_cast<float>((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
}

bool quantise_q8(const Block& w, Codes& out) {
  const float scale = shortened(w.magnitude() / 127) + w.check();
  const bool finite = std::isfinite(scale);
  out.scale = !finite ? std::numeric_limits<float>::quiet_NaN() : scale > kSmallest ? scale : 0.0f;
  w.round(0, out.scale > 0 ? 1 / out.scale : 0.0f, out.codes);
  return finite;
}

// The codes and scale that make sum weight (w - scale code)^2 small, tried from a number of first guesses of the scale, the best
// scale for each guess's codes being sum weight w code / sum weight code^2. After make_qx_quants of llama.cpp (ggml-quants.c), with
// the weights that quantize_row_q4_0_impl gives and half its guesses, which lose nothing: large weights count more.
bool quantise_q4(const Block& w, Codes& out) {
  // The code range is -8..7: the number of greatest magnitude gets -8 or, in the other guesses, something near it.
  const float greatest = w.greatest(), least = w.least(), most = greatest > -least ? greatest : least;
  out.scale = 0;
  std::memset(out.codes, 8, kCodes);
  if (!std::isfinite(most + w.check()) || std::abs(most) > 8 * kGreatestF16) {
    out.scale = std::numeric_limits<float>::quiet_NaN();
    return false;
  }
  if (std::abs(most) < 0x1p-24f) return true;
  F32 square = simd::zero();
  for (const F32& a : w.v) square = square + a * a;
  const F32 mean = simd::splat(simd::sum(square) * (2.0f / kCodes));
  F32 weight[kVectors], weighted[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    weight[i] = simd::sqrt(mean + w.v[i] * w.v[i]);
    weighted[i] = weight[i] * w.v[i];
  }

  float best = -1;
  const F32 eight = simd::splat(8), low = simd::splat(-8), high = simd::splat(7);
  for (int guess = -4; guess <= 4; ++guess) {
    const F32 inverse = simd::splat(-(8 + 0.2f * static_cast<float>(guess)) / most);
    F32 product[2] = {simd::zero(), simd::zero()}, norm[2] = {product[0], product[0]};  // two chains of additions, not one
    for (size_t i = 0; i < kVectors; ++i) {
      const F32 code = simd::round_small(simd::max(simd::min(w.v[i] * inverse, high), low));
      product[i % 2] = product[i % 2] + weighted[i] * code;
      norm[i % 2] = norm[i % 2] + weight[i] * code * code;
    }
    const float p = simd::sum(product[0] + product[1]), n = simd::sum(norm[0] + norm[1]);
    if (n > 0 && p * p > best * n && std::abs(p) <= kGreatestF16 * n) {
      best = p * p / n;
      out.scale = p / n;
    }
  }
  // Codes for the scale as it is stored.
  out.scale = widen(DType::kF16, narrow(DType::kF16, out.scale));
  const F32 inverse = simd::splat(out.scale != 0 ? 1 / out.scale : 0.0f);
  for (size_t i = 0; i < kVectors; i += 4) {
    I32 codes[4];
    for (size_t j = 0; j < 4; ++j) codes[j] = simd::to_whole(simd::max(simd::min(w.v[i + j] * inverse, high), low) + eight);
    simd::store_bytes(out.codes + 4 * i, simd::narrow_to_bytes(codes[0], codes[1], codes[2], codes[3]));
  }
  return true;
}

}  // namespace

bool quantise(DType store, const float* w, Codes& out) {
  return store == DType::kQ8 ? quantise_q8(Block(w), out) : quantise_q4(Block(w), out);
}

size_t quantised_row_bytes(size_t D) { return code_blocks(D) * (8 * simd::Dot::kStep + 8); }

void quantise_row(DType store, const float* x, size_t D, char* out) {
  for (size_t k = 0; k < D; k += kCodes) {
    float part[kCodes];
    const float* numbers = x + k;
    if (D - k < kCodes) {
      // Repeated, since zeros could widen the range; the weights are zero there.
      for (size_t i = 0; i < kCodes; ++i) part[i] = x[k + i % (D - k)];
      numbers = part;
    }
    const Block block(numbers);
    int8_t codes[kCodes];
    float step;
    if (store == DType::kQ8) {
      const float low = block.least(), range = block.greatest() - low;
      step = (range >= kSmallest ? range : 0.0f) / 127 + block.check();
      block.round(low, range >= kSmallest ? 127 / range : 0.0f, codes);
      simd::Dot::put(codes, false, out);
      std::memcpy(out + 8 * simd::Dot::kStep + 4, &low, 4);
    } else {
      const float most = block.magnitude();
      step = (most >= kSmallest ? most : 0.0f) / (127 * simd::Dot::kUnit4) + block.check();
      const uint32_t start = block.round(0, most >= kSmallest ? 127 / most : 0.0f, codes) * -(8u * simd::Dot::kUnit4);
      simd::Dot::put(codes, true, out);
      std::memcpy(out + 8 * simd::Dot::kStep + 4, &start, 4);
    }
    out += 8 * simd::Dot::kStep;
    std::memcpy(out, &step, 4);
    out += 8;
  }
}

}  // namespace wf::kernels
