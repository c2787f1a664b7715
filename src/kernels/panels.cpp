#include "kernels/panels.hpp"

#include <bit>
#include <cstring>

#include "kernels/simd.hpp"

namespace wf::kernels {
namespace {

uint16_t narrow_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN, kept quiet
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

uint16_t narrow_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal: added to 1/2, the float's last place is 2^-24, f16's smallest step.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

float widen_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f);
  return std::bit_cast<float>(sign | bits | (rest >= 0x0f800000u ? 0x7f800000u : 0u));
}

float read(const void* src, DType dtype, size_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(src) + i * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(src) + i * 2, 2);
  return widen(dtype, bits);
}

// Element (row, k) of the packed W.
size_t place(size_t D, size_t row, size_t k) { return (row / kPanel * D + k) * kPanel + row % kPanel; }

void write(DType store, void* panels, size_t i, const void* src, DType src_dtype, size_t j) {
  if (store == src_dtype) {
    const size_t size = store == DType::kF32 ? 4 : 2;
    std::memcpy(static_cast<char*>(panels) + i * size, static_cast<const char*>(src) + j * size, size);
  } else if (store == DType::kF32) {
    static_cast<float*>(panels)[i] = read(src, src_dtype, j);
  } else {
    static_cast<uint16_t*>(panels)[i] = narrow(store, read(src, src_dtype, j));
  }
}

}  // namespace

uint16_t narrow(DType dtype, float value) { return dtype == DType::kBF16 ? narrow_bf16(value) : narrow_f16(value); }

float widen(DType dtype, uint16_t bits) {
  return dtype == DType::kBF16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16) : widen_f16(bits);
}

size_t panel_bytes(DType store, size_t F, size_t D) { return panel_count(F) * kPanel * D * size_of(store); }

void pack_rows(DType store, void* panels, size_t F, size_t D, size_t row, size_t count, const void* src, DType src_dtype) {
  static_cast<void>(F);
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < D; ++k) write(store, panels, place(D, row + i, k), src, src_dtype, i * D + k);
  }
}

void pack_columns(DType store, void* panels, size_t F, size_t D, size_t k, size_t count, size_t row, size_t rows, const void* src,
                  DType src_dtype) {
  static_cast<void>(F);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < rows; ++j) write(store, panels, place(D, row + j, k + i), src, src_dtype, i * rows + j);
  }
}

void unpack_row(DType store, const void* panels, size_t F, size_t D, size_t row, float* out) {
  static_cast<void>(F);
  for (size_t k = 0; k < D; ++k) out[k] = read(panels, store, place(D, row, k));
}

void convert(const void* src, DType src_dtype, float* dst, size_t n) {
  for (size_t i = 0; i < n; ++i) dst[i] = read(src, src_dtype, i);
}

}  // namespace wf::kernels
