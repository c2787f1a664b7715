#include "kernels/dropout.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

TEST_CASE("A mask drops its share, evenly, and divides the rest", "[kernels][dropout]") {
  const size_t n = 200000;
  std::vector<float> factors(n);
  for (const float rate : {0.1f, 0.5f, 0.9f}) {
    dropout_factors({rate, {7, 3, 2}, 5}, factors.data(), n);
    const double p = static_cast<double>(rate);
    double dropped = 0, sum = 0, pairs = 0;
    size_t in_lane[8] = {};
    for (size_t i = 0; i < n; ++i) {
      const bool is_dropped = factors[i] == 0.0f;
      if (!is_dropped) CHECK(std::abs(static_cast<double>(factors[i]) * (1 - p) - 1) < 2e-4);
      dropped += is_dropped, sum += static_cast<double>(factors[i]);
      in_lane[i % 8] += is_dropped;
      pairs += i > 0 && is_dropped && factors[i - 1] == 0.0f;
    }
    const double count = static_cast<double>(n), deviation = std::sqrt(count * p * (1 - p));
    CHECK(std::abs(dropped - count * p) < 4 * deviation);
    CHECK(std::abs(sum - count) < 4 * deviation / (1 - p));
    CHECK(std::abs(pairs - count * p * p) < 4 * std::sqrt(3 * count * p * p * (1 - p)));
    for (const size_t lane : in_lane) CHECK(std::abs(static_cast<double>(lane) - count / 8 * p) < 4 * deviation / std::sqrt(8.0));
  }
  dropout_factors({0, {7, 3, 2}, 0}, factors.data(), n);
  CHECK(factors == std::vector<float>(n, 1.0f));
}

TEST_CASE("A mask is drawn by Philox, sixteen bits an element", "[kernels][dropout]") {
  const RngKey key{0x123456789abcdefULL, 7, 9};
  for (const uint64_t first : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 35) - 16}) {
    std::vector<float> factors(100);
    dropout_factors({0.25f, key, first}, factors.data(), factors.size());
    for (uint64_t i = 0; i < factors.size(); ++i) {
      const uint64_t group = (first + i) / 32, at = (first + i) % 32;
      const uint32_t word = philox(key, group * 4 + at % 4)[at / 8], half = at / 4 % 2 == 0 ? word & 0xffff : word >> 16;
      CHECK(factors[i] == (half < 16384 ? 0.0f : 4.0f / 3.0f));
    }
  }
}

TEST_CASE("A mask is another for every part of its key", "[kernels][dropout]") {
  const size_t n = 4096;
  const auto drawn = [&](RngKey key, uint64_t first) {
    std::vector<float> factors(n);
    dropout_factors({0.5f, key, first}, factors.data(), n);
    return factors;
  };
  const std::vector<float> one = drawn({1, 2, 3}, 0);
  CHECK(drawn({1, 2, 3}, 0) == one);
  for (const auto& other : {drawn({2, 2, 3}, 0), drawn({1, 3, 3}, 0), drawn({1, 2, 4}, 0), drawn({1, 2, 3}, n)}) {
    size_t same = 0;
    for (size_t i = 0; i < n; ++i) same += one[i] == other[i];
    CHECK(std::abs(static_cast<double>(same) - n / 2.0) < 4 * std::sqrt(n / 4.0));
  }
}

TEST_CASE("Dropout of any stretch, in place and backwards", "[kernels][dropout]") {
  const RngKey key{11, 0, 1};
  std::vector<float> factors(700);
  dropout_factors({0.25f, key, 0}, factors.data(), factors.size());
  for (size_t first = 0; first < 20; ++first) {
    for (const size_t n : {1, 2, 7, 8, 9, 19, 255, 257, 600}) {
      const DropoutMask mask{0.25f, key, first};
      Row x(normals(n, n), first % 4), y(n, 1), dx(normals(n, 3), 2);
      const std::vector<float> before = dx.values();
      dropout(mask, x.data(), y.data(), n);
      dropout_backward(mask, x.data(), dx.data(), n);
      Row same(x.values(), 3);
      dropout(mask, same.data(), same.data(), n);
      CHECK(same_bits(same.values(), y.values()));
      size_t wrong = 0;
      for (size_t i = 0; i < n; ++i) {
        const float product = x[i] * factors[first + i];
        wrong += y[i] != product || std::abs(dx[i] - (before[i] + product)) > kEps * (std::abs(product) + std::abs(before[i]));
      }
      CHECK(wrong == 0);
      CHECK((y.intact() && dx.intact() && same.intact()));
    }
  }
}

}  // namespace
}  // namespace wf::kernels
