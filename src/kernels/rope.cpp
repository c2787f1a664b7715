#include "kernels/rope.hpp"

#include "kernels/loops.hpp"

namespace wf::kernels {
namespace {

void rotate_halves(float* x, size_t pairs, const float* cos, const float* sin) {
  float* y = x + pairs;
  each(pairs, [=](auto at) {
    const F32 a = at.get(x), b = at.get(y), c = at.get(cos), s = at.get(sin);
    at.put(x, a * c - b * s);
    at.put(y, b * c + a * s);
  });
}

void rotate_pairs(float* x, size_t pairs, const float* cos, const float* sin) {
  size_t i = 0;
  for (; i + simd::kLanes <= pairs; i += simd::kLanes, x += 2 * simd::kLanes) {
    const F32 low = simd::load(x), high = simd::load(x + simd::kLanes);
    const F32 a = simd::even_lanes(low, high), b = simd::odd_lanes(low, high);
    const F32 c = simd::load(cos + i), s = simd::load(sin + i);
    const F32 p = a * c - b * s, q = b * c + a * s;
    simd::store(x, simd::interleave_low(p, q));
    simd::store(x + simd::kLanes, simd::interleave_high(p, q));
  }
  for (; i < pairs; ++i, x += 2) {
    const float a = x[0], b = x[1];
    x[0] = a * cos[i] - b * sin[i];
    x[1] = b * cos[i] + a * sin[i];
  }
}

}  // namespace

void rope(float* x, size_t stride, size_t rows, size_t heads, size_t Dk, size_t rotary, const float* cos, const float* sin,
          bool interleaved) {
  const size_t pairs = rotary / 2;
  for (size_t r = 0; r < rows; ++r, x += stride, cos += pairs, sin += pairs) {
    for (size_t h = 0; h < heads; ++h) (interleaved ? rotate_pairs : rotate_halves)(x + h * Dk, pairs, cos, sin);
  }
}

}  // namespace wf::kernels
