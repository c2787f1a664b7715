#include "kernels/dropout.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "kernels/simd.hpp"

namespace wf::kernels {
namespace {

// Four Philox blocks are drawn together. Of the 32 elements that are theirs, number 4 (2 w + h) + b is half h of word w of block b.
constexpr size_t kBlocks = 4, kGroup = 8 * kBlocks, kStretch = 8 * kGroup;

// philox(key, block + b), lane b of each word.
struct Words {
  simd::I32 word[4];
};
Words draw(const RngKey& key, uint64_t block) {
  const auto splat = [](uint32_t bits) { return simd::I32(static_cast<int32_t>(bits)); };
  uint32_t low[kBlocks], high[kBlocks];
  for (size_t b = 0; b < kBlocks; ++b) low[b] = static_cast<uint32_t>(block + b), high[b] = static_cast<uint32_t>((block + b) >> 32);
  simd::I32 c0 = simd::load_bytes(low), c1 = simd::load_bytes(high), c2 = splat(key.step), c3 = splat(key.site);
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  const simd::I32 m0 = splat(0xD2511F53), m1 = splat(0xCD9E8D57);
  for (int round = 0; round < 10; ++round) {
    const simd::Products p0 = simd::multiply_wide(m0, c0), p1 = simd::multiply_wide(m1, c2);
    c0 = p1.high ^ c1 ^ splat(k0);
    c1 = p1.low;
    c2 = p0.high ^ c3 ^ splat(k1);
    c3 = p0.low;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

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
  const auto dropped = static_cast<float>(std::min(static_cast<uint32_t>(mask.rate * 65536.0f + 0.5f), uint32_t{65535}));
  const simd::F32 none = simd::splat(dropped), whole = simd::splat(65536.0f / (65536.0f - dropped));
  const simd::I32 low_half(0xffff);
  uint64_t group = mask.first / kGroup;
  for (size_t i = 0, skip = mask.first % kGroup; i < n; skip = 0, ++group) {
    const Words words = draw(mask.key, group * kBlocks);
    const bool all = skip == 0 && n - i >= kGroup;
    float room[kGroup];
    float* to = all ? factors + i : room;
    for (size_t w = 0; w < 4; ++w) {
      const simd::I32 word = words.word[w];
      for (const simd::I32 half : {word & low_half, (word >> 16) & low_half}) {
        simd::store(to, simd::select(simd::to_float(half) < none, simd::zero(), whole));
        to += kBlocks;
      }
    }
    const size_t count = std::min(kGroup - skip, n - i);
    if (!all) std::copy_n(room + skip, count, factors + i);
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
