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
  out.low = 0;
  out.scale = !finite ? std::numeric_limits<float>::quiet_NaN() : scale > kSmallest ? scale : 0.0f;
  w.round(0, out.scale > 0 ? 1 / out.scale : 0.0f, out.codes);
  return finite;
}

// Scale and low that make the sum of weight (w - low - scale code)^2 small. A guess of the scale gives codes, and those the best scale
// and low for them, by least squares; the guess with the smallest sum is kept. After make_qkx3_quants of llama.cpp (ggml-quants.c) with
// the weights that quantize_row_q4_1_impl gives: large numbers count more. Guesses of fewer steps find again what was in four bits
// before and does not use all codes of a block.
bool quantise_q4(const Block& w, Codes& out) {
  const float greatest = w.greatest(), least = w.least(), range = greatest - least;
  out.scale = out.low = 0;
  std::memset(out.codes, 0, kCodes);
  if (!std::isfinite(range + w.check()) || greatest > kGreatestF16 || least < -kGreatestF16) {
    out.scale = std::numeric_limits<float>::quiet_NaN();
    return false;
  }
  F32 square = simd::zero();
  for (const F32& a : w.v) square = square + a * a;
  const F32 mean = simd::splat(simd::sum(square) * (2.0f / kCodes));
  F32 weight[kVectors], total = simd::zero(), total_w = total, total_ww = total;
  for (size_t i = 0; i < kVectors; ++i) {
    weight[i] = simd::sqrt(mean + w.v[i] * w.v[i]);
    total = total + weight[i];
    total_w = total_w + weight[i] * w.v[i];
    total_ww = total_ww + weight[i] * w.v[i] * w.v[i];
  }
  const double n = simd::sum(total), sum_w = simd::sum(total_w), sum_ww = simd::sum(total_ww);

  double best = std::numeric_limits<double>::infinity();
  double scale = 0, low = least;
  const F32 origin = simd::splat(least), last = simd::splat(15), none = simd::zero();
  constexpr float kSteps[] = {15, 15.6f, 14.4f, 15.3f, 14.7f, 15.9f, 14, 13, 12, 11};
  for (const float steps : kSteps) {
    if (range < 0x1p-24f) break;
    const F32 inverse = simd::splat(steps / range);
    F32 codes = none, squares = none, products = none;
    for (size_t i = 0; i < kVectors; ++i) {
      const F32 code = simd::max(simd::min(simd::round_small((w.v[i] - origin) * inverse), last), none), weighted = weight[i] * code;
      codes = codes + weighted;
      squares = squares + weighted * code;
      products = products + weighted * w.v[i];
    }
    const double c = simd::sum(codes), cc = simd::sum(squares), cw = simd::sum(products), determinant = n * cc - c * c;
    if (!(determinant > 0)) continue;
    const double slope = (n * cw - c * sum_w) / determinant, start = (sum_w - slope * c) / n;
    const double error = sum_ww - slope * cw - start * sum_w;
    if (error < best && std::abs(start) <= static_cast<double>(kGreatestF16)) best = error, scale = slope, low = start;
    if (error < 1e-6 * sum_ww) break;
  }
  // Codes for the two as they are stored.
  out.scale = widen(DType::kF16, narrow(DType::kF16, static_cast<float>(scale)));
  out.low = widen(DType::kF16, narrow(DType::kF16, static_cast<float>(low)));
  const F32 start = simd::splat(out.low), inverse = simd::splat(out.scale != 0 ? 1 / out.scale : 0.0f);
  for (size_t i = 0; i < kVectors; i += 4) {
    I32 codes[4];
    for (size_t j = 0; j < 4; ++j) codes[j] = simd::to_whole(simd::max(simd::min((w.v[i + j] - start) * inverse, last), none));
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
      // kQ8: repeated, since zeros could widen the range; the weights are zero there. kQ4: the weights may be anything there.
      for (size_t i = 0; i < kCodes; ++i) part[i] = store == DType::kQ8 || i < D - k ? x[k + i % (D - k)] : 0.0f;
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
      const uint32_t sum = block.round(0, most >= kSmallest ? 127 / most : 0.0f, codes) * simd::Dot::kUnit4;
      const float all = static_cast<float>(static_cast<int32_t>(sum)) * step;
      simd::Dot::put(codes, true, out);
      std::memcpy(out + 8 * simd::Dot::kStep + 4, &all, 4);
    }
    out += 8 * simd::Dot::kStep;
    std::memcpy(out, &step, 4);
    out += 8;
  }
}

}  // namespace wf::kernels
