#include "kernels/panels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

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

// Element `i` of a source in the format `dtype`, stored as T in the format `store`.
template <class T>
struct Element {
  const void* src;
  DType dtype, store;
  T operator()(size_t i) const {
    if constexpr (sizeof(T) == 4) {
      return read(src, dtype, i);
    } else {
      return narrow(store, read(src, dtype, i));
    }
  }
};

template <class T>
struct SameElement {
  const void* src;
  T operator()(size_t i) const {
    T value;
    std::memcpy(&value, static_cast<const char*>(src) + i * sizeof(T), sizeof(T));
    return value;
  }
};

// W[row + i][k + j] = element(i * row_step + j * k_step) for i < rows, j < count. Blocks of sixteen by sixteen keep both sides
// of the transposition in the cache.
template <class T, class Source>
void pack(DType store, T* panels, size_t D, size_t row, size_t rows, size_t k, size_t count, size_t row_step, size_t k_step,
          Source element) {
  for (size_t i = 0; i < rows;) {
    const size_t lane = (row + i) % kPanel, lanes = std::min(kPanel - lane, rows - i);
    T* panel = panels + (row + i) / kPanel * panel_length(store, D) * kPanel + lane;
    for (size_t j = 0; j < count; j += kPanel) {
      const size_t end = std::min(count, j + kPanel);
      for (size_t l = 0; l < lanes; ++l) {
        uint32_t special = 0;  // bit 15: an f16 with an exponent of 31
        for (size_t at = j; at < end; ++at) {
          const T value = element((i + l) * row_step + at * k_step);
          if constexpr (sizeof(T) == 2) special |= (value & 0x7fffu) + 0x0400u;
          panel[(k + at) * kPanel + l] = value;
        }
        if constexpr (sizeof(T) == 2) {
          if (store == DType::kF16 && (special & 0x8000u)) panel[D * kPanel + l] = 1;
        }
      }
    }
    i += lanes;
  }
}

void pack(DType store, void* panels, size_t D, size_t row, size_t rows, size_t k, size_t count, size_t row_step, size_t k_step,
          const void* src, DType dtype) {
  if (store == DType::kF32) {
    float* wide = static_cast<float*>(panels);
    if (dtype == store) return pack(store, wide, D, row, rows, k, count, row_step, k_step, SameElement<float>{src});
    return pack(store, wide, D, row, rows, k, count, row_step, k_step, Element<float>{src, dtype, store});
  }
  uint16_t* half = static_cast<uint16_t*>(panels);
  if (dtype == store) return pack(store, half, D, row, rows, k, count, row_step, k_step, SameElement<uint16_t>{src});
  pack(store, half, D, row, rows, k, count, row_step, k_step, Element<uint16_t>{src, dtype, store});
}

}  // namespace

uint16_t narrow(DType dtype, float value) { return dtype == DType::kBF16 ? narrow_bf16(value) : narrow_f16(value); }

float widen(DType dtype, uint16_t bits) {
  return dtype == DType::kBF16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16) : widen_f16(bits);
}

size_t panel_bytes(DType store, size_t F, size_t D) { return panel_count(F) * panel_length(store, D) * kPanel * block_bytes(store); }

void pack_rows(DType store, void* panels, size_t F, size_t D, size_t row, size_t count, const void* src, DType src_dtype) {
  static_cast<void>(F);
  pack(store, panels, D, row, count, 0, D, D, 1, src, src_dtype);
}

void pack_columns(DType store, void* panels, size_t F, size_t D, size_t k, size_t count, size_t row, size_t rows, const void* src,
                  DType src_dtype) {
  static_cast<void>(F);
  pack(store, panels, D, row, rows, k, count, 1, rows, src, src_dtype);
}

void unpack_row(DType store, const void* panels, size_t F, size_t D, size_t row, float* out) {
  static_cast<void>(F);
  const size_t first = row / kPanel * panel_length(store, D) * kPanel + row % kPanel;
  for (size_t k = 0; k < D; ++k) out[k] = read(panels, store, first + k * kPanel);
}

void convert(const void* src, DType src_dtype, float* dst, size_t n) {
  for (size_t i = 0; i < n; ++i) dst[i] = read(src, src_dtype, i);
}

}  // namespace wf::kernels
