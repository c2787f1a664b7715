#include "kernels/quantize.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/panels.hpp"
#include "kernels/reference.hpp"
#include "kernels/simd.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

double value(const Codes& codes, size_t i) { return static_cast<double>(codes.low) + static_cast<double>(codes.scale) * codes.codes[i]; }

double squared_error(const Codes& codes, const float* w) {
  double sum = 0;
  for (size_t i = 0; i < kCodes; ++i) sum += std::pow(static_cast<double>(w[i]) - value(codes, i), 2);
  return sum;
}

TEST_CASE("Weights of eight bits: the nearest code to the greatest magnitude's 127th", "[kernels][quantize]") {
  for (const float spread : {1.0f, 1e-30f, 1e30f}) {
    for (size_t seed = 0; seed < 100; ++seed) {
      const std::vector<float> w = normals(kCodes, seed, spread);
      Codes codes;
      REQUIRE(quantise(DType::kQ8, w.data(), codes));
      double most = 0;
      for (const float v : w) most = std::max(most, std::abs(static_cast<double>(v)));
      const double scale = static_cast<double>(codes.scale);
      CHECK(std::abs(scale / (most / 127) - 1) <= std::ldexp(1.0, -11));
      CHECK((std::bit_cast<uint32_t>(codes.scale) & 0x1fff) == 0);
      size_t wrong = 0;
      for (size_t i = 0; i < kCodes; ++i) wrong += !(std::abs(value(codes, i) - static_cast<double>(w[i])) <= scale * 0.50001);
      CHECK(wrong == 0);
    }
  }
}

// The codes of llama.cpp's quantize_row_q4_1_ref: low = the least number, scale = a fifteenth of the range.
Codes plain_q4(const float* w) {
  const auto [least, greatest] = std::minmax_element(w, w + kCodes);
  const float scale = (*greatest - *least) / 15;
  Codes out;
  out.scale = widen(DType::kF16, narrow(DType::kF16, scale));
  out.low = widen(DType::kF16, narrow(DType::kF16, *least));
  for (size_t i = 0; i < kCodes; ++i) out.codes[i] = static_cast<int8_t>(std::min(15, static_cast<int>((w[i] - *least) / scale + 0.5f)));
  return out;
}

TEST_CASE("Weights of four bits: the searched scale beats a fifteenth of the range", "[kernels][quantize]") {
  double searched = 0, plain = 0;
  for (size_t seed = 0; seed < 500; ++seed) {
    const std::vector<float> w = normals(kCodes, seed, 0.02f);
    Codes codes;
    REQUIRE(quantise(DType::kQ4, w.data(), codes));
    CHECK(widen(DType::kF16, narrow(DType::kF16, codes.scale)) == codes.scale);
    for (const int8_t code : codes.codes) CHECK((code >= 0 && code <= 15));
    searched += squared_error(codes, w.data());
    plain += squared_error(plain_q4(w.data()), w.data());
  }
  CAPTURE(searched / plain);
  CHECK(searched < 0.9 * plain);
}

TEST_CASE("Weights that four bits hold exactly stay what they are", "[kernels][quantize]") {
  for (const float scale : {0.25f, -0.25f, 0x1p-20f, 3.0f}) {
    for (const size_t steps : {15, 14, 13, 12, 11}) {
      float w[kCodes];
      for (size_t i = 0; i < kCodes; ++i) w[i] = scale * static_cast<float>(static_cast<int>(i % (steps + 1)) - 8);
      Codes codes;
      REQUIRE(quantise(DType::kQ4, w, codes));
      for (size_t i = 0; i < kCodes; ++i) CHECK(value(codes, i) == static_cast<double>(w[i]));
    }
  }
}

TEST_CASE("Weights at the ends of what there is", "[kernels][quantize]") {
  for (const DType store : {DType::kQ8, DType::kQ4}) {
    Codes codes;
    for (const float same : {0.0f, -0.0f, 1e-44f}) {
      const std::vector<float> w(kCodes, same);
      CHECK(quantise(store, w.data(), codes));
      for (size_t i = 0; i < kCodes; ++i) CHECK(value(codes, i) == 0);
    }
    for (const float bad : {kNaN, kInf, -kInf}) {
      for (const size_t at : {0, 17, 31}) {
        std::vector<float> w = normals(kCodes, 1);
        w[at] = bad;
        CHECK_FALSE(quantise(store, w.data(), codes));
        CHECK(std::isnan(codes.scale));
      }
    }
    std::vector<float> w = normals(kCodes, 1);
    w[3] = store == DType::kQ8 ? 3e38f : 65504.0f;
    CHECK(quantise(store, w.data(), codes));
    CHECK(std::abs(value(codes, 3) / static_cast<double>(w[3]) - 1) < (store == DType::kQ8 ? 0.001 : 0.01));
  }
  std::vector<float> w(kCodes, 66000.0f);
  Codes codes;
  CHECK_FALSE(quantise(DType::kQ4, w.data(), codes));
}

TEST_CASE("Activations: what a row becomes", "[kernels][quantize]") {
  for (const DType store : {DType::kQ8, DType::kQ4}) {
    for (const size_t D : {1, 5, 31, 32, 33, 100}) {
      const std::vector<float> x = normals(D, D, 2.0f, 0.5f);
      std::vector<char> row(quantised_row_bytes(D));
      quantise_row(store, x.data(), D, row.data());
      const size_t block = quantised_row_bytes(1);
      for (size_t k = 0; k < D; k += kCodes) {
        int32_t codes[kCodes];
        const auto [low, step] = reference::quantised(store, &x[k], std::min(kCodes, D - k), codes);
        float numbers[2];
        std::memcpy(numbers, &row[k / kCodes * block + block - 8], 8);
        // Where the engine has no products of bytes, those of nibbles are in units of 1 / 256.
        CHECK((numbers[0] == step || (store == DType::kQ4 && numbers[0] * 256 == step)));
        int32_t sum = 0;
        for (size_t i = 0; i < std::min(kCodes, D - k); ++i) sum += codes[i];
        CHECK(numbers[1] == (store == DType::kQ8 ? low : static_cast<float>(sum) * step));
        if (simd::Dot::kStep == 4) {
          for (size_t i = 0; i < std::min(kCodes, D - k); ++i) CHECK(static_cast<int8_t>(row[k / kCodes * block + i]) == codes[i]);
        }
        // Half a step, in the middle of the range as at its ends.
        for (size_t i = 0; i < std::min(kCodes, D - k); ++i) {
          const double seen = static_cast<double>(low) + static_cast<double>(step) * codes[i];
          CHECK(std::abs(seen - static_cast<double>(x[k + i])) <= static_cast<double>(step) * 0.50001);
        }
      }
    }
  }
}

TEST_CASE("Codes of weights are the same in every build", "[kernels][quantize]") {
  std::vector<float> w(64 * kCodes);
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = (static_cast<float>(uniform({7, 0, 0}, i)) - 0.5f) * static_cast<float>(uniform({8, 0, 0}, i));
  for (const auto& [store, expected] : {std::pair{DType::kQ8, 0xd42826dc977ffe85u}, std::pair{DType::kQ4, 0x21a7449b86fa2e1fu}}) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (size_t b = 0; b < 64; ++b) {
      Codes codes;
      REQUIRE(quantise(store, &w[b * kCodes], codes));
      unsigned char bytes[kCodes + 8];
      std::memcpy(bytes, &codes.scale, 4);
      std::memcpy(bytes + 4, &codes.low, 4);
      std::memcpy(bytes + 8, codes.codes, kCodes);
      for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
    }
    CAPTURE(name_of(store));
    CHECK(hash == expected);
  }
}

}  // namespace
}  // namespace wf::kernels
