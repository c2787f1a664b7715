#include "kernels/blocks.hpp"

#include <cstdint>
#include <cstring>

#include "kernels/panels.hpp"

namespace wf::kernels {

namespace {

using Bytes = const uint8_t*;

float half_at(Bytes at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return widen(DType::kF16, bits);
}

float number(uint8_t quant) { return static_cast<float>(quant); }

// What leaves every number as it is when added, a zero's sign included.
constexpr float kNothing = -0.0f;

// Nibbles and, where kFive, a fifth bit each. Elements 0..15 are low nibbles, 16..31 high ones: scale (q - offset) + least.
template <bool kFive>
void read_32(Bytes nibbles, Bytes high, float scale, int offset, float least, float* dst) {
  uint32_t fifth = 0;
  if constexpr (kFive) std::memcpy(&fifth, high, 4);
  for (size_t i = 0; i < 16; ++i) {
    const auto low = static_cast<int>((nibbles[i] & 15u) | (fifth >> i & 1u) << 4);
    const auto upper = static_cast<int>(nibbles[i] >> 4 | (fifth >> (i + 16) & 1u) << 4);
    dst[i] = scale * static_cast<float>(low - offset) + least;
    dst[i + 16] = scale * static_cast<float>(upper - offset) + least;
  }
}

void read_q8(Bytes src, float* dst) {
  const float scale = half_at(src);
  for (size_t i = 0; i < 32; ++i) dst[i] = static_cast<float>(static_cast<int8_t>(src[2 + i])) * scale;
}

// The k-quants: 256 elements in groups of 16 or 32, each with a small scale (and minimum) of its own beside the block's.

// scales (16), quants (64), d, dmin
void read_q2k(Bytes src, float* dst) {
  const float scale = half_at(src + 80), least = half_at(src + 82);
  for (size_t group = 0; group < 16; ++group) {
    const float step = scale * number(src[group] & 15), low = least * number(src[group] >> 4);
    const Bytes quants = src + 16 + 32 * (group / 8) + 16 * (group % 2);
    const auto shift = group / 2 % 4 * 2;
    for (size_t i = 0; i < 16; ++i) dst[16 * group + i] = step * number(quants[i] >> shift & 3) - low;
  }
}

// high bits (32), quants (64), scales (12) of six bits, d
void read_q3k(Bytes src, float* dst) {
  const Bytes scales = src + 96;
  const float scale = half_at(src + 108);
  for (size_t group = 0; group < 16; ++group) {
    const int six = (scales[group % 8] >> group / 8 * 4 & 15) | (scales[8 + group % 4] >> group / 4 * 2 & 3) << 4;
    const float step = scale * static_cast<float>(six - 32);
    const Bytes quants = src + 32 + 32 * (group / 8) + 16 * (group % 2), high = src + 16 * (group % 2);
    const auto shift = group / 2 % 4 * 2, bit = group / 2;
    for (size_t i = 0; i < 16; ++i) {
      dst[16 * group + i] = step * static_cast<float>((quants[i] >> shift & 3) + (high[i] >> bit & 1) * 4 - 4);
    }
  }
}

// d, dmin, scales and minima (12) of six bits, for kFive high bits (32), nibbles (128)
template <bool kFive>
void read_q45k(Bytes src, float* dst) {
  const float scale = half_at(src), least = half_at(src + 2);
  const Bytes packed = src + 4, high = src + 16, nibbles = high + (kFive ? 32 : 0);
  for (size_t group = 0; group < 8; ++group) {
    const size_t at = group % 4;
    const int six = group < 4 ? packed[at] & 63 : (packed[8 + at] & 15) | (packed[at] >> 2 & 48);
    const int min = group < 4 ? packed[4 + at] & 63 : packed[8 + at] >> 4 | (packed[4 + at] >> 2 & 48);
    const float step = scale * static_cast<float>(six), low = least * static_cast<float>(min);
    const Bytes quants = nibbles + 32 * (group / 2);
    const auto shift = group % 2 * 4;
    for (size_t i = 0; i < 32; ++i) {
      const int fifth = kFive ? (high[i] >> group & 1) << 4 : 0;
      dst[32 * group + i] = step * static_cast<float>((quants[i] >> shift & 15) | fifth) - low;
    }
  }
}

// nibbles (128), two high bits each (64), scales (16) of eight bits, d
void read_q6k(Bytes src, float* dst) {
  const float scale = half_at(src + 208);
  for (size_t group = 0; group < 16; ++group) {
    const float step = scale * static_cast<float>(static_cast<int8_t>(src[192 + group]));
    const Bytes nibbles = src + 64 * (group / 8) + 16 * (group % 4), high = src + 128 + 32 * (group / 8) + 16 * (group % 2);
    const auto shift = group / 4 % 2 * 4, pair = group / 2 % 4 * 2;
    for (size_t i = 0; i < 16; ++i) {
      dst[16 * group + i] = step * static_cast<float>(((nibbles[i] >> shift & 15) | (high[i] >> pair & 3) << 4) - 32);
    }
  }
}

void read_block(DType dtype, Bytes src, float* dst) {
  const float scale = half_at(src);
  switch (dtype) {
    case DType::kQ8:
      return read_q8(src, dst);
    case DType::kQ4:
      return read_32<false>(src + 2, nullptr, scale, 8, kNothing, dst);
    case DType::kQ4_1:
      return read_32<false>(src + 4, nullptr, scale, 0, half_at(src + 2), dst);
    case DType::kQ5_0:
      return read_32<true>(src + 6, src + 2, scale, 16, kNothing, dst);
    case DType::kQ5_1:
      return read_32<true>(src + 8, src + 4, scale, 0, half_at(src + 2), dst);
    case DType::kQ2K:
      return read_q2k(src, dst);
    case DType::kQ3K:
      return read_q3k(src, dst);
    case DType::kQ4K:
      return read_q45k<false>(src, dst);
    case DType::kQ5K:
      return read_q45k<true>(src, dst);
    case DType::kQ6K:
      return read_q6k(src, dst);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return;  // no blocks: the caller's mistake
  }
}

}  // namespace

void read_blocks(DType dtype, const void* src, float* dst, size_t n) {
  const size_t elements = block_size(dtype), bytes = block_bytes(dtype);
  const auto* from = static_cast<Bytes>(src);
  for (size_t i = 0; i < n; i += elements, from += bytes) read_block(dtype, from, dst + i);
}

}  // namespace wf::kernels
