// Against gguf-py's dequantize, bit for bit (wasm-tests/python/gguf_fixtures.py --blocks prints the table).
#include "kernels/blocks.hpp"

#include <catch_amalgamated.hpp>

#include <bit>
#include <cstdint>
#include <vector>

namespace wf::kernels {
namespace {

struct Expected {
  DType dtype;
  std::vector<size_t> scales;  // where in a block its half-precision scales stand
  float values[4];             // of elements 0, 17, n - 1 and n + n/2 + 3, n being a block's
  uint32_t hash;               // of all bits: FNV-1a, 32 bits
};

const Expected kExpected[] = {
    {DType::kQ8, {0}, {-3.1992188f, 7.198242f, 11.99707f, 4.993286f}, 0xa093c180u},
    {DType::kQ4, {0}, {0.6998291f, -0.29992676f, 0.6998291f, -1.2945557f}, 0x0027f7f9u},
    {DType::kQ4_1, {0, 2}, {0.81481934f, 0.21496582f, -0.18493652f, -0.9246519f}, 0x5e12f82bu},
    {DType::kQ5_0, {0}, {-0.6998291f, -1.199707f, 0.6998291f, -0.9246826f}, 0xbf1824c1u},
    {DType::kQ5_1, {0, 2}, {2.814331f, 0.81481934f, 0.015014648f, -1.4794614f}, 0x6eebc1b0u},
    {DType::kQ2K, {80, 82}, {0.99975586f, 1.8493652f, 2.7740479f, -4.4385686f}, 0x735d575eu},
    {DType::kQ3K, {108}, {-4.598877f, 5.598633f, 9.2977295f, 0.36987305f}, 0x59f53398u},
    {DType::kQ4K, {0, 2}, {8.342285f, 17.340088f, 47.857178f, -63.249306f}, 0x157f01eau},
    {DType::kQ5K, {0, 2}, {59.39978f, 65.198364f, 139.55054f, -59.17975f}, 0x024bae5eu},
    {DType::kQ6K, {208}, {37.990723f, 48.388184f, 110.9729f, -253.73291f}, 0x8ff6326eu},
};

TEST_CASE("Blocks are widened exactly as gguf-py does", "[blocks]") {
  constexpr size_t kBlocks = 3;
  constexpr uint16_t kScales[3] = {0x2e66, 0xb1eb, 0x0203};  // 0.1, -0.185, a subnormal number
  uint32_t seed = 2017;
  for (const auto& [dtype, spots, values, hash] : kExpected) {
    INFO(name_of(dtype));
    const size_t n = block_size(dtype), bytes = block_bytes(dtype);
    // One byte further than the allocation: no alignment is required.
    std::vector<uint8_t> stored(1 + kBlocks * bytes);
    uint8_t* blocks = stored.data() + 1;
    for (uint32_t i = 0, state = seed++; i < kBlocks * bytes; ++i) {
      state = state * 1664525u + 1013904223u;
      blocks[i] = static_cast<uint8_t>(state >> 24);
    }
    for (size_t block = 0; block < kBlocks; ++block) {
      for (size_t i = 0; i < spots.size(); ++i) {
        const uint16_t scale = kScales[(block + i) % 3];
        blocks[block * bytes + spots[i]] = static_cast<uint8_t>(scale & 255u);
        blocks[block * bytes + spots[i] + 1] = static_cast<uint8_t>(scale >> 8);
      }
    }
    std::vector<float> widened(kBlocks * n);
    read_blocks(dtype, blocks, widened.data(), widened.size());
    CHECK(widened[0] == values[0]);
    CHECK(widened[17] == values[1]);
    CHECK(widened[n - 1] == values[2]);
    CHECK(widened[n + n / 2 + 3] == values[3]);
    uint32_t sum = 0x811c9dc5u;
    for (const float value : widened) {
      for (uint32_t shift = 0; shift < 32; shift += 8) sum = (sum ^ (std::bit_cast<uint32_t>(value) >> shift & 255u)) * 0x01000193u;
    }
    CHECK(sum == hash);
  }
}

}  // namespace
}  // namespace wf::kernels
