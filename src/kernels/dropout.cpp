#include "kernels/dropout.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.hpp"

namespace wf::kernels {
namespace {

constexpr size_t kDraws = 8, kStretch = 32 * kDraws;  // elements of one Philox block; and of a stretch of factors

// use(at, count, factors) for stretches of all elements.
template <class Use>
void each_stretch(const DropoutMask& mask, size_t n, const Use& use) {
  float factors[kStretch];
  for (size_t i = 0; i < n; i += kStretch) {
    const size_t count = std::min(kStretch, n - i);
    dropout_factors({mask.rate, mask.key, mask.first + i}, factors, count);
    use(i, count, factors);
  }
}

}  // namespace

void dropout_factors(const DropoutMask& mask, float* factors, size_t n) {
  const uint32_t none = std::min(static_cast<uint32_t>(mask.rate * 65536.0f + 0.5f), uint32_t{65535});
  const float whole[2] = {0.0f, 65536.0f / static_cast<float>(65536 - none)};
  uint64_t block = mask.first / kDraws;
  for (size_t i = 0, skip = mask.first % kDraws; i < n; skip = 0, ++block) {
    const auto words = philox(mask.key, block);
    float drawn[kDraws];
    for (size_t w = 0; w < 4; ++w) {
      drawn[2 * w] = whole[(words[w] & 0xffff) >= none];
      drawn[2 * w + 1] = whole[(words[w] >> 16) >= none];
    }
    const size_t count = std::min(kDraws - skip, n - i);
    std::memcpy(factors + i, drawn + skip, count * sizeof(float));
    i += count;
  }
}

void dropout(const DropoutMask& mask, const float* x, float* y, size_t n) {
  each_stretch(mask, n, [=](size_t at, size_t count, const float* factors) { multiply(x + at, factors, y + at, count); });
}

void dropout_backward(const DropoutMask& mask, const float* dy, float* dx, size_t n) {
  each_stretch(mask, n, [=](size_t at, size_t count, const float* factors) { multiply_add(dy + at, factors, dx + at, count); });
}

}  // namespace wf::kernels
