#include "kernels/tile_codes.hpp"

#include <algorithm>

#include "kernels/panels.hpp"
#include "kernels/quantize.hpp"
#include "kernels/simd.hpp"

namespace wf::kernels {
namespace {

using simd::F32;
using simd::I32;

constexpr size_t kVectors = kPanel / simd::kLanes;
constexpr size_t kPair = 2;  // vectors of a panel taken together

// One block of k: R rows of x times the rows of W in vectors first and first + 1 of the panel, added to `total`.
template <class Dot, size_t R>
struct Q8 {
  static constexpr size_t kWeights = kQ8Block, kNumbers = 8 * Dot::kStep;
  static constexpr bool kAhead = true;

  static void add(const char* x, size_t x_stride, const char* w, size_t first, F32 (*total)[kVectors]) {
    I32 sums[R][kPair];
    for (auto& row : sums) row[0] = row[1] = I32(0);
    w += 16 * first;
    const auto step = [&](size_t g) {
      const I32 w0 = simd::load_bytes(w + 64 * g), w1 = simd::load_bytes(w + 64 * g + 16);
      for (size_t r = 0; r < R; ++r) {
        const auto codes = Dot::load(x + r * x_stride + g * Dot::kStep);
        sums[r][0] = Dot::add8(sums[r][0], w0, codes);
        sums[r][1] = Dot::add8(sums[r][1], w1, codes);
      }
    };
    // The first two are apart, since they begin the sums; V8 is short of registers where the others are unrolled as well.
    step(0), step(1);
#ifdef __clang__
#pragma clang loop unroll(disable)
#endif
    for (size_t g = 2; g < 8; g += 2) step(g), step(g + 1);
    for (size_t v = 0; v < kPair; ++v) {
      const I32 word = simd::load_bytes(w + 512 + 16 * v);
      const F32 scale = simd::from_bits(word & simd::constant_bits<0xffffe000>()), sum = simd::to_float((word << 19) >> 19);
      for (size_t r = 0; r < R; ++r) {
        const char* numbers = x + r * x_stride + kNumbers;
        const F32 step = simd::splat(simd::load_float(numbers)), low = simd::splat(simd::load_float(numbers + 4));
        F32& y = total[r][first + v];
        y = simd::mul_add(simd::mul_add(sum, low, Dot::sum8(sums[r][v]) * step), scale, y);
      }
    }
  }
};

template <class Dot, size_t R>
struct Q4 {
  static constexpr size_t kWeights = kQ4Block, kNumbers = 8 * Dot::kStep;
  static constexpr bool kAhead = false;  // the loop around the loop costs V8 more than waiting for the memory does

  static void add(const char* x, size_t x_stride, const char* w, size_t first, F32 (*total)[kVectors]) {
    I32 sums[R][kPair];
    for (auto& row : sums) row[0] = row[1] = I32(0);
    for (size_t g = 0; g < 4; ++g) {
      const char* codes = w + 64 + 64 * g + 16 * first;
      const I32 w0 = simd::load_bytes(codes), w1 = simd::load_bytes(codes + 16);
      for (size_t r = 0; r < R; ++r) {
        const char* row = x + r * x_stride + g * Dot::kStep;
        const auto low = Dot::load(row), high = Dot::load(row + 4 * Dot::kStep);
        sums[r][0] = Dot::add4(sums[r][0], w0, low, high);
        sums[r][1] = Dot::add4(sums[r][1], w1, low, high);
      }
    }
    const uint16_t* const halves = reinterpret_cast<const uint16_t*>(w) + 4 * first;
    const simd::Pair scales = simd::widen_finite_f16(halves), lows = simd::widen_finite_f16(halves + kPanel);
    for (size_t r = 0; r < R; ++r) {
      const char* numbers = x + r * x_stride + kNumbers;
      const F32 step = simd::splat(simd::load_float(numbers)), sum = simd::splat(simd::load_float(numbers + 4));
      F32* y = total[r] + first;
      y[0] = simd::mul_add(sum, lows.low, simd::mul_add(Dot::sum4(sums[r][0]) * step, scales.low, y[0]));
      y[1] = simd::mul_add(sum, lows.high, simd::mul_add(Dot::sum4(sums[r][1]) * step, scales.high, y[1]));
    }
  }
};

// kWidth vectors of sums at a time: what the registers hold of R rows.
template <class Block, size_t R, size_t kWidth>
void tile(const char* x, size_t x_stride, const char* panel, size_t blocks, const char* end, const float* from, float* y, size_t y_stride) {
  for (size_t begin = 0; begin < kVectors; begin += kWidth) {
    F32 total[R][kVectors];
    for (size_t r = 0; r < R; ++r) {
      for (size_t v = begin; v < begin + kWidth; ++v) total[r][v] = simd::load(from + 4 * v);
    }
    const char *w = panel, *row = x;
    // Loops in a loop: a test in the inner one costs V8 more than it saves.
    for (size_t b = 0; b < blocks;) {
      size_t stop = blocks;
      if (R == 1 && Block::kAhead) stop = std::min(blocks, b + simd::touch_ahead(w, end, Block::kWeights) / Block::kWeights + 1);
      for (; b < stop; ++b, w += Block::kWeights, row += Block::kNumbers + 8) {
        for (size_t v = begin; v < begin + kWidth; v += kPair) Block::add(row, x_stride, w, v, total);
      }
    }
    for (size_t r = 0; r < R; ++r) {
      for (size_t v = begin; v < begin + kWidth; ++v) simd::store(y + r * y_stride + 4 * v, total[r][v]);
    }
  }
}

template <class Dot>
CodeTiles tiles(DType store) {
  if (store == DType::kQ8) return {tile<Q8<Dot, 1>, 1, Dot::kVectors>, tile<Q8<Dot, Dot::kRows>, Dot::kRows, kPair>, Dot::kRows};
  return {tile<Q4<Dot, 1>, 1, Dot::kVectors>, tile<Q4<Dot, Dot::kRows>, Dot::kRows, kPair>, Dot::kRows};
}

}  // namespace

CodeTiles code_tiles(DType store) {
#if __wasm_relaxed_simd__
  if (simd::has_fused_dot()) return tiles<simd::FusedDot>(store);
#endif
  return tiles<simd::Dot>(store);
}

}  // namespace wf::kernels
