#include "kernels/panels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/blocks.hpp"
#include "kernels/quantize.hpp"

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

// Where row `row` of W has its part of block `b` of k; `lane` is its place among the panel's rows.
struct Place {
  char* block;
  size_t lane;
};
size_t block_bytes_of(DType store) { return store == DType::kQ8 ? kQ8Block : kQ4Block; }
Place place(DType store, const void* panels, size_t D, size_t row, size_t b) {
  const size_t at = (row / kPanel * code_blocks(D) + b) * block_bytes_of(store);
  return {static_cast<char*>(const_cast<void*>(panels)) + at, row % kPanel};
}

void put(DType store, Place at, const Codes& in) {
  char* const codes = at.block + 4 * at.lane;
  if (store == DType::kQ8) {
    int32_t sum = 0;
    for (const int8_t code : in.codes) sum += code;
    for (size_t g = 0; g < 8; ++g) std::memcpy(codes + 64 * g, in.codes + 4 * g, 4);
    const uint32_t word = std::bit_cast<uint32_t>(in.scale) | (static_cast<uint32_t>(sum) & 0x1fffu);
    std::memcpy(codes + 512, &word, 4);
    return;
  }
  char pairs[kCodes / 2];
  for (size_t i = 0; i < kCodes / 2; ++i) pairs[i] = static_cast<char>(in.codes[i] | in.codes[i + kCodes / 2] << 4);
  for (size_t g = 0; g < 4; ++g) std::memcpy(codes + 64 * g, pairs + 4 * g, 4);
  const uint16_t scale = narrow_f16(in.scale);
  std::memcpy(at.block + 256 + 2 * at.lane, &scale, 2);
}

Codes get(DType store, Place at) {
  Codes out;
  const char* const codes = at.block + 4 * at.lane;
  if (store == DType::kQ8) {
    for (size_t g = 0; g < 8; ++g) std::memcpy(out.codes + 4 * g, codes + 64 * g, 4);
    uint32_t word;
    std::memcpy(&word, codes + 512, 4);
    out.scale = std::bit_cast<float>(word & ~0x1fffu);
    return out;
  }
  for (size_t i = 0; i < kCodes / 2; ++i) {
    const uint8_t pair = static_cast<uint8_t>(codes[i / 4 * 64 + i % 4]);
    out.codes[i] = pair & 15;
    out.codes[i + kCodes / 2] = static_cast<int8_t>(pair >> 4);
  }
  out.scale = read(at.block + 256, DType::kF16, at.lane);
  return out;
}

// A block of a file as it is: Q8_0 (f16 scale, 32 codes) or Q4_0 (f16 scale, 16 bytes, code k below code k + 16).
bool take(DType store, const char* block, Codes& out) {
  out.scale = read(block, DType::kF16, 0);
  if (store == DType::kQ8) {
    std::memcpy(out.codes, block + 2, kCodes);
  } else {
    for (size_t i = 0; i < kCodes / 2; ++i) {
      const uint8_t pair = static_cast<uint8_t>(block[2 + i]);
      out.codes[i] = pair & 15;
      out.codes[i + kCodes / 2] = static_cast<int8_t>(pair >> 4);
    }
  }
  return std::isfinite(out.scale);
}

constexpr size_t kChunk = 256;  // floats converted at a time: the largest block of a file

bool pack_quantised_rows(DType store, void* panels, size_t D, size_t row, size_t rows, const char* src, DType dtype) {
  bool finite = true;
  Codes codes;
  const size_t row_bytes = stored_bytes(dtype, D);
  for (size_t r = 0; r < rows; ++r, src += row_bytes) {
    if (dtype == store) {
      for (size_t b = 0; b < code_blocks(D); ++b) {
        finite &= take(store, src + b * block_bytes(dtype), codes);
        put(store, place(store, panels, D, row + r, b), codes);
      }
      continue;
    }
    for (size_t k = 0; k < D; k += kChunk) {
      float values[kChunk] = {};
      const size_t count = std::min(kChunk, D - k);
      convert(src + stored_bytes(dtype, k), dtype, values, count);
      for (size_t i = 0; i < count; i += kCodes) {
        finite &= quantise(store, values + i, codes);
        put(store, place(store, panels, D, row + r, (k + i) / kCodes), codes);
      }
    }
  }
  return finite;
}

bool pack_quantised_columns(DType store, void* panels, size_t D, size_t k, size_t count, size_t row, size_t rows, const char* src,
                            DType dtype) {
  constexpr size_t kStride = kChunk + 8;  // not a power of two: columns are read one after the other
  bool finite = true;
  Codes codes;
  float values[kCodes * kStride], column[kCodes];
  for (size_t i = 0; i < count; i += kCodes) {
    const size_t depth = std::min(kCodes, count - i);
    for (size_t j = 0; j < rows; j += kChunk) {
      const size_t width = std::min(kChunk, rows - j);
      for (size_t d = 0; d < depth; ++d) convert(src + stored_bytes(dtype, (i + d) * rows + j), dtype, values + d * kStride, width);
      for (size_t c = 0; c < width; ++c) {
        for (size_t d = 0; d < kCodes; ++d) column[d] = d < depth ? values[d * kStride + c] : 0.0f;
        finite &= quantise(store, column, codes);
        put(store, place(store, panels, D, row + j + c, (k + i) / kCodes), codes);
      }
    }
  }
  return finite;
}

}  // namespace

uint16_t narrow(DType dtype, float value) { return dtype == DType::kBF16 ? narrow_bf16(value) : narrow_f16(value); }

float widen(DType dtype, uint16_t bits) {
  return dtype == DType::kBF16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16) : widen_f16(bits);
}

size_t panel_bytes(DType store, size_t F, size_t D) {
  if (is_quantised_store(store)) return panel_count(F) * code_blocks(D) * block_bytes_of(store);
  return panel_count(F) * panel_length(store, D) * kPanel * block_bytes(store);
}

bool pack_rows(DType store, void* panels, size_t F, size_t D, size_t row, size_t count, const void* src, DType src_dtype) {
  static_cast<void>(F);
  const char* bytes = static_cast<const char*>(src);
  if (is_quantised_store(store)) return pack_quantised_rows(store, panels, D, row, count, bytes, src_dtype);
  if (!is_block(src_dtype)) {
    pack(store, panels, D, row, count, 0, D, D, 1, src, src_dtype);
    return true;
  }
  for (size_t r = 0; r < count; ++r, bytes += stored_bytes(src_dtype, D)) {
    for (size_t k = 0; k < D; k += kChunk) {
      float values[kChunk];
      const size_t part = std::min(kChunk, D - k);
      convert(bytes + stored_bytes(src_dtype, k), src_dtype, values, part);
      pack(store, panels, D, row + r, 1, k, part, part, 1, values, DType::kF32);
    }
  }
  return true;
}

bool pack_columns(DType store, void* panels, size_t F, size_t D, size_t k, size_t count, size_t row, size_t rows, const void* src,
                  DType src_dtype) {
  static_cast<void>(F);
  const char* bytes = static_cast<const char*>(src);
  if (is_quantised_store(store)) return pack_quantised_columns(store, panels, D, k, count, row, rows, bytes, src_dtype);
  if (!is_block(src_dtype)) {
    pack(store, panels, D, row, rows, k, count, 1, rows, src, src_dtype);
    return true;
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < rows; j += kChunk) {
      float values[kChunk];
      const size_t part = std::min(kChunk, rows - j);
      convert(bytes + stored_bytes(src_dtype, i * rows + j), src_dtype, values, part);
      pack(store, panels, D, row + j, part, k + i, 1, 1, part, values, DType::kF32);
    }
  }
  return true;
}

void unpack_row(DType store, const void* panels, size_t F, size_t D, size_t row, float* out) {
  static_cast<void>(F);
  if (is_quantised_store(store)) {
    for (size_t b = 0; b < code_blocks(D); ++b) {
      const Codes codes = get(store, place(store, panels, D, row, b));
      const int32_t zero = store == DType::kQ4 ? 8 : 0;
      for (size_t i = 0; i < std::min(kCodes, D - b * kCodes); ++i) {
        out[b * kCodes + i] = codes.scale * static_cast<float>(codes.codes[i] - zero);
      }
    }
    return;
  }
  const size_t first = row / kPanel * panel_length(store, D) * kPanel + row % kPanel;
  for (size_t k = 0; k < D; ++k) out[k] = read(panels, store, first + k * kPanel);
}

void convert(const void* src, DType src_dtype, float* dst, size_t n) {
  if (is_block(src_dtype)) return read_blocks(src_dtype, src, dst, n);
  for (size_t i = 0; i < n; ++i) dst[i] = read(src, src_dtype, i);
}

}  // namespace wf::kernels
