// Speeds of the kernels beside what the machine can do at all: arithmetic from registers, and reading memory once.
// Every figure is the best of several interleaved rounds, since a shared machine is only ever slower than itself.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/buffer.hpp"
#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/gemm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/norm.hpp"
#include "kernels/panels.hpp"
#include "kernels/rope.hpp"
#include "kernels/simd.hpp"
#include "kernels/softmax.hpp"

using namespace wf;
using namespace wf::kernels;

namespace {

struct Entry {
  std::string name, unit;
  double work;  // in units of 1e9 a second
  std::function<void()> run;
  double best = 1e30;
};

std::vector<Buffer> memory;
volatile float sink;

float* floats(size_t n, float spread = 0.1f) {
  memory.emplace_back(n * sizeof(float), "bench");
  float* p = memory.back().floats();
  uint32_t state = 12345;
  for (size_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    p[i] = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * spread;
  }
  return p;
}

// As many sums as hide the latency of an addition, in no more registers than an engine has. Out of line and called often, so that it
// does not stay in the tier in which it was called first.
constexpr size_t kSums = 10;
[[gnu::noinline]] void arithmetic(size_t rounds, float* out) {
  simd::F32 s[kSums], a = simd::splat(out[0]), b = simd::splat(out[1]);
  for (auto& v : s) v = simd::zero();
#pragma clang loop unroll(disable)
  for (size_t i = 0; i < rounds; ++i) {
    for (auto& v : s) v = simd::mul_add(a, b, v);
  }
  for (size_t i = 0; i < kSums; ++i) simd::store(out + 4 * i, s[i]);
}

// Products of eight bits, four times sixteen weights with four activations a round, in the form that this build or engine takes.
template <class Dot>
void products(size_t rounds, float* out) {
  const auto x = Dot::load(reinterpret_cast<const char*>(out));
  simd::I32 sums[8], weights = simd::load_bytes(out + 4);
  for (auto& sum : sums) sum = simd::I32(0);
  for (size_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) sum = Dot::add8(sum, weights, x);
    weights = weights ^ sums[0];  // so that no product can be taken out of the loop
  }
  for (size_t i = 0; i < 8; ++i) simd::store_bytes(out + 8 + 4 * i, sums[i]);
}

void read_all(const float* p, size_t n, float* out) {
  simd::F32 s[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  for (size_t i = 0; i + 16 <= n; i += 16) {
    for (size_t j = 0; j < 4; ++j) s[j] = s[j] + simd::load(p + i + 4 * j);
  }
  for (size_t j = 0; j < 4; ++j) simd::store(out + 4 * j, s[j]);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::string only = argc > 2 ? argv[2] : "";
  std::vector<Entry> entries;
  const auto measure = [&](std::string name, std::string unit, double work, std::function<void()> run) {
    if (name.find(only) != std::string::npos) entries.push_back({std::move(name), std::move(unit), work, std::move(run)});
  };

  float* out = floats(1 << 20);
  const size_t loops = 1000000;
  measure("peak: multiply and add in registers", "GFLOP/s", loops * 8 * kSums / 1e9, [=] {
    for (size_t i = 0; i < loops; i += 1000) arithmetic(1000, out);
  });
  measure("peak: products of 8 bits in registers", "Gop/s", loops * 8 * 32 / 1e9, [=] {
#if __wasm_relaxed_simd__
    if (simd::has_fused_dot()) return products<simd::FusedDot>(loops, out);
#endif
    products<simd::Dot>(loops, out);
  });
  const size_t big = size_t{16} << 20;
  const float* stream = floats(big);
  measure("peak: reading memory", "GB/s", big * 4 / 1e9, [=] { read_all(stream, big, out); });

  const size_t D = 576, F = 1536;
  for (const DType store : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8, DType::kQ4}) {
    for (const auto& [d, f] : {std::pair{D, F}, std::pair{F, D}, std::pair{size_t{2048}, size_t{2048}}}) {
      const size_t bytes = panel_bytes(store, f, d);
      const size_t copies = (size_t{48} << 20) / bytes;  // of the weights, so that one row reads them from memory
      memory.emplace_back(bytes * copies, "bench");
      char* panels = static_cast<char*>(memory.back().data());
      const float* w = floats(d * f);
      pack_rows(store, panels, f, d, 0, f, w, DType::kF32);
      for (size_t i = 1; i < copies; ++i) std::memcpy(panels + i * bytes, panels, bytes);
      for (const size_t M : {1, 2, 4, 16, 64, 128}) {
        Product product{floats(M * d, 1), d, store, panels, nullptr, floats(M * f), f, M, d, f, floats(matmul_shared(store, M, d) + 1)};
        float* scratch = floats(matmul_scratch(store, M, d, f) + 1);
        const size_t used = M == 1 ? copies : std::max<size_t>(1, std::min(copies, 256 / M / (d * f / 1000000 + 1)));
        const std::string shape = std::to_string(M) + " x " + std::to_string(d) + " x " + std::to_string(f) + " " + name_of(store);
        const auto run = [=]() mutable {
          for (size_t i = 0; i < used; ++i) {
            product.panels = panels + i * bytes;
            matmul_prepare(product, 0, M);
            matmul(product, 0, panel_count(f), scratch);
          }
        };
        if (M == 1) measure("matmul " + shape, "GB/s", static_cast<double>(bytes * used) / 1e9, run);
        measure("matmul " + shape, is_quantised_store(store) ? "Gop/s" : "GFLOP/s", 2.0 * static_cast<double>(M * d * f * used) / 1e9, run);
      }
    }
    memory.emplace_back(panel_bytes(store, F, D), "bench");
    memory.emplace_back(D * F * 2, "bench");  // zeros would be quantised faster than weights are
    void* packed = memory[memory.size() - 2].data();
    uint16_t* brain = static_cast<uint16_t*>(memory.back().data());
    const float* w = floats(D * F);
    for (size_t i = 0; i < D * F; ++i) brain[i] = narrow(DType::kBF16, w[i]);
    const double weights = static_cast<double>(D * F) / 1e9;
    measure(std::string("pack rows of BF16 as ") + name_of(store), "G/s", weights,
            [=] { pack_rows(store, packed, F, D, 0, F, brain, DType::kBF16); });
    measure(std::string("pack columns of BF16 as ") + name_of(store), "G/s", weights,
            [=] { pack_columns(store, packed, F, D, 0, D, 0, F, brain, DType::kBF16); });
  }
  for (int form = 0; form < 4; ++form) {
    const size_t n = 512;
    const float *a = floats(n * n), *b = floats(n * n);
    float *c = floats(n * n), *scratch = floats(gemm_scratch(n, n, n));
    measure(std::string("gemm 512 ") + (form & 1 ? "A^T " : "A ") + (form & 2 ? "B^T" : "B"), "GFLOP/s", 2.0 * n * n * n / 1e9,
            [=] { gemm(form & 1, form & 2, n, n, n, a, n, b, n, false, c, n, scratch); });
  }

  // Over the caches of several layers in turn, so that one query reads its keys and values from memory.
  for (const auto& [shape, name] :
       {std::pair{AttentionShape{12, 12, 64, 64}, "12 heads"}, {AttentionShape{9, 3, 64, 64}, "9 heads on 3"}}) {
    for (const DType store : {DType::kF32, DType::kF16}) {
      const size_t longest = 4096, count = longest / kBlock, layers = 3, block = cache_block_bytes(shape, store);
      memory.emplace_back(layers * count * block, "bench");  // zeros
      char* cache = static_cast<char*>(memory.back().data());
      const std::vector<float> numbers(kBlock * shape.Hk * 64, 0.1f);
      for (size_t i = 0; i < layers * count; ++i) {
        write_block(shape, store, cache + i * block, 0, kBlock, numbers.data(), shape.Hk * 64, numbers.data(), shape.Hk * 64);
      }
      memory.emplace_back(layers * count * sizeof(void*), "bench");
      const void** blocks = static_cast<const void**>(memory.back().data());
      for (size_t i = 0; i < layers * count; ++i) blocks[i] = cache + i * block;
      for (const auto& [T, S] : {std::pair{size_t{1}, size_t{128}}, {1, longest}, {128, 128}, {128, 1024}, {128, longest}}) {
        const size_t row = shape.H * 64;
        const float* q = floats(T * row, 1);
        float *y = floats(T * row), *scratch = floats(attention_scratch(shape, T, S));
        AttentionMask mask;
        mask.causal = true;
        mask.scale = 0.125f;
        const double work = T == 1 ? static_cast<double>(S / kBlock * block) : 4.0 * 64 * static_cast<double>(shape.H * T * (S - T / 2));
        const size_t used = T == 1 ? layers : 1;
        measure("attention of " + std::to_string(T) + " to " + std::to_string(S) + ", " + name + " of 64, " + name_of(store),
                T == 1 ? "GB/s" : "GFLOP/s", work * static_cast<double>(used) / 1e9, [=, shape = shape, T = T, S = S] {
                  for (size_t i = 0; i < used; ++i) {
                    attention(shape, mask, q, row, T, S - T, {store, blocks + i * count, 0, S}, y, row, 0, attention_parts(shape, T),
                              scratch);
                  }
                });
      }
    }
  }

  {
    const AttentionShape shape{12, 12, 32, 32};  // an encoder's: nothing is hidden
    const size_t T = 128, row = shape.H * 32, block = cache_block_bytes(shape, DType::kF32) / sizeof(float);
    float *cache = floats(T / kBlock * block, 1), *q = floats(T * row, 1), *y = floats(T * row), *scratch = floats(attention_scratch(shape, T, T));
    memory.emplace_back(T / kBlock * sizeof(void*), "bench");
    const void** blocks = static_cast<const void**>(memory.back().data());
    for (size_t i = 0; i < T / kBlock; ++i) blocks[i] = cache + i * block;
    AttentionMask mask;
    mask.scale = 0.17677669f;
    measure("attention of 128 to all 128, 12 heads of 32", "GFLOP/s", 4.0 * 32 * static_cast<double>(shape.H * T * T) / 1e9, [=] {
      attention(shape, mask, q, row, T, 0, {DType::kF32, blocks, 0, T}, y, row, 0, attention_parts(shape, T), scratch);
    });
  }

  const size_t rows = 64, cols = 1536, n = rows * cols;
  const float *x = floats(n, 3), *w = floats(cols, 1);
  float* y = floats(n);
  const double size = static_cast<double>(n) / 1e9;
  measure("softmax 1536", "G/s", size, [=] { softmax(x, y, rows, cols); });
  measure("layer_norm 1536", "G/s", size, [=] { layer_norm(x, w, w, y, rows, cols, 1e-5f); });
  measure("rms_norm 1536", "G/s", size, [=] { rms_norm(x, w, 0, y, rows, cols, 1e-5f); });
  measure("gelu", "G/s", size, [=] { activate(Activation::kGelu, x, y, n); });
  measure("gelu, tanh", "G/s", size, [=] { activate(Activation::kGeluTanh, x, y, n); });
  measure("silu, gated", "G/s", size, [=] { gated(Activation::kSilu, x, x, y, n); });
  const float *cos = floats(rows * 32, 1), *sin = floats(rows * 32, 1);
  measure("rope, halves", "G/s", size, [=] { rope(y, cols, rows, cols / 64, 64, 64, cos, sin, false); });
  measure("rope, pairs", "G/s", size, [=] { rope(y, cols, rows, cols / 64, 64, 64, cos, sin, true); });

  using Clock = std::chrono::steady_clock;
  for (int round = 0; round < rounds; ++round) {
    for (Entry& entry : entries) {
      const auto begin = Clock::now();
      entry.run();
      entry.best = std::min(entry.best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
  }
  for (const Entry& entry : entries) std::printf("%-55s %8.2f %s\n", entry.name.c_str(), entry.work / entry.best, entry.unit.c_str());
  sink = out[0];
}
