// The kernels give the same bits on every machine and in WebAssembly: digests of their results, recorded once. Not where SIMD
// is relaxed: there the last bits are the processor's.
#if !__wasm_relaxed_simd__

#include <catch_amalgamated.hpp>

#include "core/buffer.hpp"
#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/gemm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/norm.hpp"
#include "kernels/panels.hpp"
#include "kernels/rope.hpp"
#include "kernels/softmax.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

// Between -spread and spread, without a function of any math library.
std::vector<float> inputs(size_t n, uint64_t seed, float spread = 1.0f) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = (static_cast<float>(uniform({seed, 0, 0}, i)) * 2.0f - 1.0f) * spread;
  return values;
}

// FNV-1a over the bits.
uint64_t digest(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : values) {
    for (uint32_t bits = std::bit_cast<uint32_t>(value), i = 0; i < 4; ++i, bits >>= 8) hash = (hash ^ (bits & 255u)) * 0x100000001b3u;
  }
  return hash;
}

TEST_CASE("The same bits everywhere", "[kernels][bits]") {
  const size_t rows = 5, cols = 333, n = rows * cols;
  std::vector<float> y(n);
  const std::vector<float> x = inputs(n, 1, 8.0f), w = inputs(cols, 2), b = inputs(cols, 3);
  for (const auto& [a, expected] :
       {std::pair{Activation::kGelu, 0x0aab12242e65da26u}, std::pair{Activation::kGeluTanh, 0xccb36f952b830178u},
        std::pair{Activation::kQuickGelu, 0x02d4a1b431876fdeu}, std::pair{Activation::kSilu, 0xd968de1c53483f20u},
        std::pair{Activation::kTanh, 0xf8034e5979c12acau}, std::pair{Activation::kSigmoid, 0x639a8be0daa66ca7u}}) {
    activate(a, x.data(), y.data(), n);
    CAPTURE(static_cast<int>(a));
    CHECK(digest(y) == expected);
  }
  softmax(x.data(), y.data(), rows, cols);
  CHECK(digest(y) == 0x00d0bdf0f9b5bc06u);
  layer_norm(x.data(), w.data(), b.data(), y.data(), rows, cols, 1e-5f);
  CHECK(digest(y) == 0xadd843c643d17a14u);
  rms_norm(x.data(), w.data(), 1.0f, y.data(), rows, cols, 1e-5f);
  CHECK(digest(y) == 0x28e573bade459bbdu);

  const size_t D = 300, F = 50, M = 3;
  const std::vector<float> W = inputs(F * D, 4), in = inputs(M * D, 5);
  for (const auto& [store, expected] : {std::pair{DType::kF32, 0xb0e109e1bacc3ef1u}, std::pair{DType::kF16, 0x0a3d4bdf4ce1464cu},
                                        std::pair{DType::kBF16, 0x77e780acf21d4792u}, std::pair{DType::kQ8, 0x095c2a112cdfc01fu},
                                        std::pair{DType::kQ4, 0xbaa05f546a8c3985u}}) {
    Buffer panels(panel_bytes(store, F, D), "test");
    pack_rows(store, panels.data(), F, D, 0, F, W.data(), DType::kF32);
    std::vector<float> out(M * F), scratch(matmul_scratch(store, M, D, F) + 1), shared(matmul_shared(store, M, D) + 1);
    const Product product{in.data(), D, store, panels.data(), b.data(), out.data(), F, M, D, F, shared.data()};
    matmul_prepare(product, 0, M);
    matmul(product, 0, panel_count(F), scratch.data());
    CAPTURE(name_of(store));
    CHECK(digest(out) == expected);
  }
  std::vector<float> product(M * M), scratch(gemm_scratch(M, M, D));
  gemm(false, true, M, M, D, in.data(), D, in.data(), D, false, product.data(), M, scratch.data());
  CHECK(digest(product) == 0xb5bc76e0b634f7d6u);

  const AttentionShape shape{4, 2, 20, 24};
  const size_t S = 45;
  const std::vector<float> q = inputs(S * 80, 6, 2.0f), k = inputs(S * 40, 7, 2.0f), v = inputs(S * 48, 8), slopes = inputs(4, 9);
  std::vector<std::vector<float>> memory((S + kBlock - 1) / kBlock, std::vector<float>(cache_block_bytes(shape, DType::kF32) / 4));
  std::vector<const void*> blocks;
  for (size_t i = 0; i < memory.size(); ++i) {
    write_block(shape, DType::kF32, memory[i].data(), 0, std::min(kBlock, S - i * kBlock), &k[i * kBlock * 40], 40, &v[i * kBlock * 48],
                48);
    blocks.push_back(memory[i].data());
  }
  AttentionMask mask;
  mask.causal = true;
  mask.slopes = slopes.data();
  mask.scale = 0.25f;
  std::vector<float> out(S * 96), rest(attention_scratch(shape, S, S) + 1);
  attention(shape, mask, q.data(), 80, S, 0, {DType::kF32, blocks.data(), 0, S}, out.data(), 96, 0, attention_parts(shape, S), rest.data());
  CHECK(digest(out) == 0xb9035121d0321030u);
}

}  // namespace
}  // namespace wf::kernels

#endif
