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
  for (size_t g = 0; g < 4; ++g) std::memcpy(codes + 64 * (g + 1), pairs + 4 * g, 4);
  const uint16_t scale = narrow_f16(in.scale), low = narrow_f16(in.low);
  std::memcpy(at.block + 2 * at.lane, &scale, 2);
  std::memcpy(at.block + 2 * (kPanel + at.lane), &low, 2);
}

// n bytes of two codes each: code i below code i + 16.
void split(const char* pairs, size_t n, int8_t* codes) {
  for (size_t i = 0; i < n; ++i) {
    codes[i] = pairs[i] & 15;
    codes[i + kCodes / 2] = static_cast<int8_t>(static_cast<uint8_t>(pairs[i]) >> 4);
  }
}

Codes get(DType store, Place at) {
  Codes out;
  const char* const codes = at.block + 4 * at.lane;
  if (store == DType::kQ8) {
    for (size_t g = 0; g < 8; ++g) std::memcpy(out.codes + 4 * g, codes + 64 * g, 4);
    uint32_t word;
    std::memcpy(&word, codes + 512, 4);
    out.scale = std::bit_cast<float>(word & ~0x1fffu);
    out.low = 0;
    return out;
  }
  for (size_t g = 0; g < 4; ++g) split(codes + 64 * (g + 1), 4, out.codes + 4 * g);
  out.scale = read(at.block, DType::kF16, at.lane);
  out.low = read(at.block, DType::kF16, kPanel + at.lane);
  return out;
}

// Whether panels in the format `store` hold blocks of a file's format as they are.
bool is_taken(DType store, DType dtype) { return dtype == store || (store == DType::kQ4 && dtype == DType::kQ4_1); }

// Such a block: f16 scale and 32 codes (Q8_0); f16 scale, in Q4_1 f16 low, and 16 bytes of two codes (Q4_0, Q4_1).
bool take(DType dtype, const char* block, Codes& out) {
  out.scale = read(block, DType::kF16, 0);
  if (dtype == DType::kQ8) {
    out.low = 0;
    std::memcpy(out.codes, block + 2, kCodes);
  } else {
    out.low = dtype == DType::kQ4_1 ? read(block, DType::kF16, 1) : -8 * out.scale;
    split(block + block_bytes(dtype) - kCodes / 2, kCodes / 2, out.codes);
  }
  return std::isfinite(out.scale) && std::abs(out.low) <= 65504;
}

// n numbers of f16 or bf16, `number(i)`, become W[row][k + i]; `run` is where W[row][0] is. Whether one is an infinity or NaN.
template <class Number>
bool put_halves(DType store, uint16_t* run, size_t D, size_t k, size_t n, Number number) {
  const uint32_t exponent_step = store == DType::kF16 ? 0x0400u : 0x0080u;
  uint32_t sums = 0;  // bit 15: an exponent of all ones
  for (size_t i = 0; i < n; ++i) {
    const uint16_t value = number(i);
    sums |= (value & 0x7fffu) + exponent_step;
    run[(k + i) * kPanel] = value;
  }
  const bool special = (sums & 0x8000u) != 0;
  if (store == DType::kF16 && special) run[D * kPanel] = 1;
  return special;
}

// n numbers, followed by zeros up to a multiple of 32, become W[row][k + i]; where store is quantised k is a multiple of 32.
bool put_numbers(DType store, void* panels, size_t D, size_t row, size_t k, const float* values, size_t n) {
  bool fits = true;
  const size_t first = row / kPanel * panel_length(store, D) * kPanel + row % kPanel;
  if (is_quantised_store(store)) {
    Codes codes;
    for (size_t i = 0; i < n; i += kCodes) {
      fits &= quantise(store, values + i, codes);
      put(store, place(store, panels, D, row, (k + i) / kCodes), codes);
    }
  } else if (store == DType::kF32) {
    float* const run = static_cast<float*>(panels) + first;
    for (size_t i = 0; i < n; ++i) run[(k + i) * kPanel] = values[i];
  } else {
    uint16_t* const run = static_cast<uint16_t*>(panels) + first;
    const bool special = put_halves(store, run, D, k, n, [&](size_t i) { return narrow(store, values[i]); });
    for (size_t i = 0; special && i < n; ++i) {
      fits &= !std::isfinite(values[i]) || std::isfinite(widen(store, run[(k + i) * kPanel]));
    }
  }
  return fits;
}

// n numbers of a file's format `dtype`, as they are.
bool put_taken(DType store, DType dtype, void* panels, size_t D, size_t row, size_t k, const char* src, size_t n) {
  if (!is_quantised_store(store)) {
    uint16_t* const run = static_cast<uint16_t*>(panels) + row / kPanel * panel_length(store, D) * kPanel + row % kPanel;
    put_halves(store, run, D, k, n, [&](size_t i) {
      uint16_t value;
      std::memcpy(&value, src + 2 * i, 2);
      return value;
    });
    return true;
  }
  bool fits = true;
  Codes codes;
  for (size_t i = 0; i < n; i += kCodes, src += block_bytes(dtype)) {
    fits &= take(dtype, src, codes);
    put(store, place(store, panels, D, row, (k + i) / kCodes), codes);
  }
  return fits;
}

constexpr size_t kChunk = 256;  // numbers converted at a time: the largest block of a file, and a panel's part stays in the cache

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
  const char* const bytes = static_cast<const char*>(src);
  const size_t row_bytes = stored_bytes(src_dtype, D);
  bool fits = true;
  for (size_t i = 0, end; i < count; i = end) {
    end = std::min(count, i + kPanel - (row + i) % kPanel);
    for (size_t k = 0; k < D; k += kChunk) {
      const size_t part = std::min(kChunk, D - k);
      for (size_t r = i; r < end; ++r) {
        const char* const at = bytes + r * row_bytes + stored_bytes(src_dtype, k);
        if (store != DType::kF32 && is_taken(store, src_dtype)) {
          fits &= put_taken(store, src_dtype, panels, D, row + r, k, at, part);
        } else {
          float values[kChunk] = {};
          convert(at, src_dtype, values, part);
          fits &= put_numbers(store, panels, D, row + r, k, values, part);
        }
      }
    }
  }
  return fits;
}

bool pack_columns(DType store, void* panels, size_t F, size_t D, size_t k, size_t count, size_t row, size_t rows, const void* src,
                  DType src_dtype) {
  static_cast<void>(F);
  constexpr size_t kStride = kChunk + 8;  // not a power of two: columns are read one after the other
  const char* const bytes = static_cast<const char*>(src);
  float values[kCodes * kStride], column[kCodes] = {};
  bool fits = true;
  for (size_t i = 0; i < count; i += kCodes) {
    const size_t depth = std::min(kCodes, count - i);
    for (size_t j = 0; j < rows; j += kChunk) {
      const size_t width = std::min(kChunk, rows - j);
      for (size_t d = 0; d < depth; ++d) {
        convert(bytes + stored_bytes(src_dtype, (i + d) * rows + j), src_dtype, values + d * kStride, width);
      }
      for (size_t c = 0; c < width; ++c) {
        for (size_t d = 0; d < kCodes; ++d) column[d] = d < depth ? values[d * kStride + c] : 0.0f;
        fits &= put_numbers(store, panels, D, row + j + c, k + i, column, depth);
      }
    }
  }
  return fits;
}

void unpack_row(DType store, const void* panels, size_t F, size_t D, size_t row, float* out) {
  static_cast<void>(F);
  if (is_quantised_store(store)) {
    for (size_t b = 0; b < code_blocks(D); ++b) {
      const Codes codes = get(store, place(store, panels, D, row, b));
      for (size_t i = 0; i < std::min(kCodes, D - b * kCodes); ++i) {
        out[b * kCodes + i] = codes.low + codes.scale * static_cast<float>(codes.codes[i]);
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
