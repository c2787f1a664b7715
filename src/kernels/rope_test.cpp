#include "kernels/rope.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

TEST_CASE("A quarter turn", "[kernels][rope]") {
  const float cos[2] = {0, 1}, sin[2] = {1, 0};
  float half[4] = {1, 2, 3, 4}, pairs[4] = {1, 2, 3, 4};
  rope(half, 4, 1, 1, 4, 4, cos, sin, false);
  CHECK(std::vector<float>(half, half + 4) == std::vector<float>{-3, 2, 1, 4});
  rope(pairs, 4, 1, 1, 4, 4, cos, sin, true);
  CHECK(std::vector<float>(pairs, pairs + 4) == std::vector<float>{-2, 1, 3, 4});
}

TEST_CASE("Rotations of every size and misalignment, partial too, and back", "[kernels][rope]") {
  const size_t rows = 3, heads = 2;
  for (size_t pairs = 1; pairs <= kLongest; ++pairs) {
    for (const size_t rest : {0, 1, 3}) {
      for (size_t skew = 0; skew < 4; ++skew) {
        const size_t rotary = 2 * pairs, Dk = rotary + rest, stride = heads * Dk + 1;
        Row cos(rows * pairs, skew), sin(rows * pairs, 3 - skew);
        for (size_t i = 0; i < rows * pairs; ++i) {
          cos[i] = std::cos(static_cast<float>(i)), sin[i] = std::sin(static_cast<float>(i));
        }
        const std::vector<float> start = normals(rows * stride, pairs);
        for (const bool interleaved : {false, true}) {
          Row x(start, skew);
          rope(x.data(), stride, rows, heads, Dk, rotary, cos.data(), sin.data(), interleaved);
          size_t wrong = 0;
          for (size_t r = 0; r < rows; ++r) {
            std::vector<float> row(start.begin() + static_cast<long>(r * stride), start.begin() + static_cast<long>((r + 1) * stride));
            reference::rope(row.data(), 1, heads, Dk, rotary, cos.data() + r * pairs, sin.data() + r * pairs, interleaved);
            wrong += !same_bits(row.data(), x.data() + r * stride, stride);
          }
          CHECK(wrong == 0);
          for (size_t i = 0; i < rows * pairs; ++i) sin[i] = -sin[i];
          rope(x.data(), stride, rows, heads, Dk, rotary, cos.data(), sin.data(), interleaved);
          for (size_t i = 0; i < rows * pairs; ++i) sin[i] = -sin[i];
          CHECK(distance(x.values(), start, start.size(), 8 * kEps, 8 * kEps) <= 1);
          CHECK(x.intact());
        }
      }
    }
  }
}

}  // namespace
}  // namespace wf::kernels
