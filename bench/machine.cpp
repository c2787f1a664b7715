// What a page asks to compare with: the machine's own peaks, one matrix product, and attention beside the feed-forward network
// around it at any length. JavaScript calls these and holds the clock.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/buffer.hpp"
#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "kernels/panels.hpp"
#include "kernels/simd.hpp"

using namespace wf;
using namespace wf::kernels;

namespace {

Buffer random(size_t count, float spread) {
  Buffer buffer(count * sizeof(float), "bench");
  uint32_t state = 12345;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    buffer.floats()[i] = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * spread;
  }
  return buffer;
}

// y (M, F) = x (M, D) W^T, all made here.
struct Linear {
  size_t D, F;
  Buffer panels;

  Linear(size_t inputs, size_t outputs) : D(inputs), F(outputs), panels(panel_bytes(DType::kF32, F, D), "bench") {
    const Buffer w = random(D * F, 0.1f);
    pack_rows(DType::kF32, panels.data(), F, D, 0, F, w.data(), DType::kF32);
  }

  void operator()(const float* x, float* y, size_t M) const {
    Product product{x, D, DType::kF32, panels.data(), nullptr, y, F, M, D, F};
    Buffer shared(matmul_shared(DType::kF32, M, D) * sizeof(float) + 1, "bench");
    Buffer scratch(matmul_scratch(DType::kF32, M, D, F) * sizeof(float) + 1, "bench");
    product.shared = shared.floats();
    matmul_prepare(product, 0, M);
    matmul(product, 0, panel_count(F), scratch.floats());
  }
};

struct State {
  Linear linear{1, 1};
  Buffer x, y;
  size_t M = 0;
} state;

// Out of line and called often: an engine replaces a function's first, slow code only between calls.
[[gnu::noinline]] void multiply_add_once(float* out) {
  simd::F32 s[12], a = simd::splat(out[0]), b = simd::splat(out[1]);
  for (auto& v : s) v = a;
  for (size_t i = 0; i < 1000; ++i) {
    for (auto& v : s) v = simd::mul_add(v, a, b);
  }
  for (size_t i = 0; i < 12; ++i) simd::store(out + 4 * i, s[i]);
}

[[gnu::noinline]] void read_once(const float* p, size_t n, float* out) {
  simd::F32 s[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  for (size_t i = 0; i + 16 <= n; i += 16) {
    for (size_t j = 0; j < 4; ++j) s[j] = s[j] + simd::load(p + i + 4 * j);
  }
  for (size_t j = 0; j < 4; ++j) simd::store(out + 4 * j, s[j]);
}

constexpr size_t kHeads = 8, kHead = 64, kModel = kHeads * kHead;  // the base model of Vaswani et al. 2017

}  // namespace

extern "C" {

// `rounds` times 96000 floating-point operations in registers. The result keeps them from being left out.
float multiply_add(size_t rounds) {
  static float out[48] = {0.5f, 0.25f};
  for (size_t i = 0; i < rounds; ++i) multiply_add_once(out);
  return std::accumulate(out, out + 48, 0.0f);
}

// Reads 64 MB once.
float read_memory() {
  static const Buffer memory = random(size_t{1} << 24, 1);
  static float out[16];
  constexpr size_t kPiece = size_t{1} << 14;
  float sum = 0;
  for (size_t i = 0; i < (size_t{1} << 24); i += kPiece) {
    read_once(memory.floats() + i, kPiece, out);
    sum += std::accumulate(out, out + 16, 0.0f);
  }
  return sum;
}

void prepare_product(size_t M, size_t D, size_t F) { state = {Linear(D, F), random(M * D, 1), random(M * F, 0), M}; }
void product() { state.linear(state.x.floats(), state.y.floats(), state.M); }

// Self-attention of n tokens: softmax(q k^T) v of 8 heads of 64, every token seeing all.
void prepare_attention(size_t n) {
  state.M = n;
  state.x = random(n * kModel, 1);
  state.y = random(n * kModel, 0);
}
void attention() {
  const AttentionShape shape{kHeads, kHeads, kHead, kHead};
  const size_t n = state.M, count = (n + kBlock - 1) / kBlock, bytes = cache_block_bytes(shape, DType::kF32);
  Buffer cache(count * bytes, "bench");
  std::vector<const void*> blocks(count);
  const float* x = state.x.floats();
  for (size_t i = 0; i < count; ++i) {
    char* block = static_cast<char*>(cache.data()) + i * bytes;
    const float* rows = x + i * kBlock * kModel;
    write_block(shape, DType::kF32, block, 0, std::min(kBlock, n - i * kBlock), rows, kModel, rows, kModel);
    blocks[i] = block;
  }
  Buffer scratch(attention_scratch(shape, n, n) * sizeof(float) + 1, "bench");
  AttentionMask mask;
  mask.scale = 0.125f;
  attention(shape, mask, x, kModel, n, 0, {DType::kF32, blocks.data(), 0, n}, state.y.floats(), kModel, 0, attention_parts(shape, n),
            scratch.floats());
}

// The feed-forward network of n tokens, 512 to 2048 to 512. It needs prepare_attention(n).
void feed_forward() {
  static const Linear up(kModel, 4 * kModel), down(4 * kModel, kModel);
  Buffer inner(state.M * 4 * kModel * sizeof(float), "bench");
  up(state.x.floats(), inner.floats(), state.M);
  activate(Activation::kRelu, inner.floats(), inner.floats(), state.M * 4 * kModel);
  down(inner.floats(), state.y.floats(), state.M);
}
}
