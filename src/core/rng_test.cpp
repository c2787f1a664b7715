#include "core/rng.hpp"

#include <catch_amalgamated.hpp>
#include <cmath>

using namespace wf;

TEST_CASE("Philox4x32-10 gives its published answers", "[rng]") {
  // kat_vectors of Random123 (Salmon et al. 2011): counter, key, result.
  const auto at = [](uint64_t element, uint32_t step, uint32_t site, uint64_t seed) { return philox({seed, step, site}, element); };
  CHECK(at(0, 0, 0, 0) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(at(0xffffffffffffffff, 0xffffffff, 0xffffffff, 0xffffffffffffffff) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(at(0x85a308d3243f6a88, 0x13198a2e, 0x03707344, 0x299f31d0a4093822) ==
        std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform numbers fill [0, 1) evenly and normal ones are normal", "[rng]") {
  const size_t n = 100000;
  double sum = 0, square = 0, fourth = 0, uniform_sum = 0, least = 1, most = 0;
  for (size_t i = 0; i < n; ++i) {
    const double u = uniform({1, 2, 3}, i), z = normal({4, 5, 6}, i);
    least = std::min(least, u);
    most = std::max(most, u);
    uniform_sum += u;
    sum += z;
    square += z * z;
    fourth += z * z * z * z;
  }
  const double count = static_cast<double>(n);
  CHECK(least >= 0);
  CHECK(most < 1);
  CHECK(std::abs(uniform_sum / count - 0.5) < 0.005);  // five standard errors
  CHECK(std::abs(sum / count) < 0.016);
  CHECK(std::abs(square / count - 1) < 0.023);
  CHECK(std::abs(fourth / count - 3) < 0.16);
}

TEST_CASE("draws differ by seed, step, site and element", "[rng]") {
  const double a = uniform({1, 1, 1}, 1);
  CHECK(a != uniform({2, 1, 1}, 1));
  CHECK(a != uniform({1, 2, 1}, 1));
  CHECK(a != uniform({1, 1, 2}, 1));
  CHECK(a != uniform({1, 1, 1}, 2));
  CHECK(a == uniform({1, 1, 1}, 1));
}
