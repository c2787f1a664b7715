#include "kernels/simd.hpp"

#include <array>
#include <catch_amalgamated.hpp>
#include <numbers>

#include "kernels/panels.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

using Function = simd::F32 (*)(simd::F32);

float one(Function f, float x) {
  float lanes[simd::kLanes];
  simd::store(lanes, f(simd::splat(x)));
  return lanes[0];
}

struct Worst {
  double error = 0;
  float at = 0;
};

// Every `stride`-th float between two bit patterns, both signs.
Worst worst(Function f, double (*exact)(double), float low, float high, uint32_t stride = 9973) {
  Worst found;
  for (uint32_t bits = std::bit_cast<uint32_t>(low); bits <= std::bit_cast<uint32_t>(high); bits += stride) {
    const float x = std::bit_cast<float>(bits);
    for (const float v : {x, -x}) {
      const double error = ulps(one(f, v), exact(static_cast<double>(v)));
      if (error > found.error) found = {error, v};
    }
  }
  return found;
}

double exact_exp(double x) { return std::exp(x); }
double exact_exp_of_negative(double x) { return x > 0 ? 1 : x < -88 ? 0 : std::exp(x); }
double exact_tanh(double x) { return std::tanh(x); }
double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

simd::F32 fast_exp(simd::F32 x) { return simd::exp(x); }
simd::F32 fast_exp_of_negative(simd::F32 x) { return simd::exp_of_negative(simd::min(x, simd::zero())); }
simd::F32 fast_tanh(simd::F32 x) { return simd::tanh(x); }
simd::F32 fast_cdf(simd::F32 x) { return simd::normal_cdf(x); }
simd::F32 fast_sigmoid(simd::F32 x) { return simd::sigmoid(x); }

TEST_CASE("exp, tanh and sigmoid keep their last places", "[kernels][simd]") {
  const Worst e = worst(fast_exp, exact_exp, 0.0f, 110.0f), t = worst(fast_tanh, exact_tanh, 0.0f, 20.0f);
  const Worst n = worst(fast_exp_of_negative, exact_exp_of_negative, 0.0f, 87.3f), s = worst(fast_sigmoid, exact_sigmoid, 0.0f, 80.0f);
  CAPTURE(e.error, e.at, n.error, n.at, t.error, t.at, s.error, s.at);
  CHECK(e.error <= 1.0);
  CHECK(n.error <= 1.0);
  CHECK(t.error <= 2.0);
  CHECK(s.error <= 2.5);
}

TEST_CASE("The normal distribution, 0 and 1 far out", "[kernels][simd]") {
  double most = 0;
  for (float x = -7; x <= 7; x += 0x1p-12f) {
    const double exact = 0.5 * std::erfc(static_cast<double>(-x) / std::numbers::sqrt2), found = one(fast_cdf, x);
    most = std::max(most, std::abs(found - exact));
    CHECK((found >= 0 && found <= 1));
  }
  CHECK(most <= 4e-7);
  for (const float x : {5.99f, 6.0f, 7.0f, 1e30f, kInf}) {
    CHECK(one(fast_cdf, x) == 1.0f);
    CHECK(one(fast_cdf, -x) == 0.0f);
  }
  CHECK(one(fast_cdf, 0.0f) == 0.5f);
  CHECK(std::isnan(one(fast_cdf, kNaN)));
}

TEST_CASE("exp and tanh at the ends of their range", "[kernels][simd]") {
  CHECK(one(fast_exp, 0.0f) == 1.0f);
  CHECK(one(fast_exp, kInf) == kInf);
  CHECK(one(fast_exp, -kInf) == 0.0f);
  CHECK(one(fast_exp, 1e30f) == kInf);
  CHECK(one(fast_exp, -1e30f) == 0.0f);
  CHECK(one(fast_exp, 88.7228317f) == std::exp(88.7228317f));  // the largest with a finite result
  CHECK(one(fast_exp, -103.97208f) == std::numeric_limits<float>::denorm_min());
  CHECK(std::isnan(one(fast_exp, kNaN)));
  CHECK(one(simd::exp_of_negative, 0.0f) == 1.0f);
  CHECK(one(simd::exp_of_negative, -87.9f) == 0.0f);
  CHECK(one(simd::exp_of_negative, -1e30f) == 0.0f);
  CHECK(one(simd::exp_of_negative, -kInf) == 0.0f);
  CHECK(std::isnan(one(simd::exp_of_negative, kNaN)));
  CHECK(one(fast_tanh, kInf) == 1.0f);
  CHECK(one(fast_tanh, -kInf) == -1.0f);
  CHECK(one(fast_tanh, 1e30f) == 1.0f);
  CHECK(std::isnan(one(fast_tanh, kNaN)));
  CHECK(std::signbit(one(fast_tanh, -0.0f)));
  CHECK(one(fast_tanh, -0.0f) == 0.0f);
  CHECK(one(fast_sigmoid, -kInf) == 0.0f);
  CHECK(one(fast_sigmoid, kInf) == 1.0f);
}

TEST_CASE("A lane does not depend on its neighbours", "[kernels][simd]") {
  const std::vector<float> values = normals(64, 7, 3.0f);
  for (const Function f : {fast_exp, fast_tanh, fast_cdf, fast_sigmoid}) {
    for (size_t i = 0; i < values.size(); i += 4) {
      float lanes[4];
      simd::store(lanes, f(simd::load(&values[i])));
      for (size_t l = 0; l < 4; ++l) {
        const float alone = one(f, values[i + l]);
        CHECK(same_bits(&lanes[l], &alone, 1));
      }
    }
  }
}

TEST_CASE("Parts of a vector", "[kernels][simd]") {
  for (size_t n = 1; n < simd::kLanes; ++n) {
    Row x(normals(n, n));
    float lanes[4];
    simd::store(lanes, simd::load_part(x.data(), n, 9.0f));
    for (size_t i = 0; i < 4; ++i) CHECK(lanes[i] == (i < n ? x[i] : 9.0f));
    Row y(n);
    simd::store_part(y.data(), simd::load(lanes), n);
    CHECK(y.values() == x.values());
  }
}

TEST_CASE("Lanes are summed, compared and moved as said", "[kernels][simd]") {
  const float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, order[4] = {1e8f, 1.0f, -1e8f, 0.5f};
  CHECK(simd::sum(simd::load(order)) == 1.5f);  // (1e8 - 1e8) + (1 + 0.5)
  CHECK(simd::maximum(simd::load(b)) == 8.0f);
  const auto lanes = [](simd::F32 v) {
    std::array<float, 4> out;
    simd::store(out.data(), v);
    return out;
  };
  CHECK(lanes(simd::interleave_low(simd::load(a), simd::load(b))) == std::array<float, 4>{1, 5, 2, 6});
  CHECK(lanes(simd::interleave_high(simd::load(a), simd::load(b))) == std::array<float, 4>{3, 7, 4, 8});
  CHECK(lanes(simd::even_lanes(simd::load(a), simd::load(b))) == std::array<float, 4>{1, 3, 5, 7});
  CHECK(lanes(simd::odd_lanes(simd::load(a), simd::load(b))) == std::array<float, 4>{2, 4, 6, 8});
  CHECK(lanes(simd::copy_sign(simd::load(a), simd::splat(-0.0f))) == std::array<float, 4>{-1, -2, -3, -4});
  CHECK(lanes(simd::min(simd::load(a), simd::splat(2.5f))) == std::array<float, 4>{1, 2, 2.5, 2.5});
  CHECK(lanes(simd::max(simd::load(a), simd::splat(2.5f))) == std::array<float, 4>{2.5, 2.5, 3, 4});
}

// f16 by its definition: (-1)^s 2^(e - 15) (1 + f / 1024), 2^-14 f / 1024 for e = 0.
double f16_value(uint16_t h) {
  const int e = h >> 10 & 31, f = h & 1023;
  const double magnitude = e == 31 ? (f ? std::nan("") : HUGE_VAL) : e == 0 ? std::ldexp(f, -24) : std::ldexp(1024 + f, e - 25);
  return h & 0x8000 ? -magnitude : magnitude;
}

TEST_CASE("All 65536 numbers of f16 and bf16 are widened exactly, by vectors and one by one", "[kernels][simd]") {
  size_t wrong = 0;
  for (uint32_t h = 0; h < 65536; h += 8) {
    uint16_t in[8];
    for (uint32_t i = 0; i < 8; ++i) in[i] = static_cast<uint16_t>(h + i);
    float half[8], brain[8], finite[8];
    const simd::Pair p = simd::widen_f16(in), q = simd::widen_bf16(in);
    simd::store(half, p.low), simd::store(half + 4, p.high);
    const simd::Pair r = simd::widen_finite_f16(in);
    simd::store(finite, r.low), simd::store(finite + 4, r.high);
    simd::store(brain, q.low), simd::store(brain + 4, q.high);
    for (uint32_t i = 0; i < 8; ++i) {
      const double exact = f16_value(in[i]);
      const float scalar = widen(DType::kF16, in[i]), brain_scalar = widen(DType::kBF16, in[i]);
      wrong += std::isnan(exact) ? !std::isnan(half[i]) : static_cast<double>(half[i]) != exact;
      wrong += std::isfinite(exact) && !same_bits(&finite[i], &half[i], 1);
      wrong += std::signbit(half[i]) != (in[i] >> 15 != 0);
      wrong += !same_bits(&half[i], &scalar, 1);
      wrong += std::bit_cast<uint32_t>(brain[i]) != (h + i) << 16;
      wrong += !same_bits(&brain[i], &brain_scalar, 1);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Whole numbers and bytes", "[kernels][simd]") {
  int32_t whole[4];
  const float halves[4] = {0.5f, 1.5f, -2.5f, 4194304.0f};
  simd::store_bytes(whole, simd::to_whole(simd::load(halves)));
  CHECK(std::vector(whole, whole + 4) == std::vector{0, 2, -2, 4194304});
  CHECK(simd::sum(simd::load_bytes(whole)) == 4194304u);
  float back[4];
  simd::store(back, simd::to_float(simd::load_bytes(whole)));
  CHECK(std::vector(back, back + 4) == std::vector{0.0f, 2.0f, -2.0f, 4194304.0f});
  int32_t numbers[16];
  for (int32_t i = 0; i < 16; ++i) numbers[i] = i * 17 - 128;
  int8_t bytes[16];
  simd::store_bytes(bytes, simd::narrow_to_bytes(simd::load_bytes(numbers), simd::load_bytes(numbers + 4), simd::load_bytes(numbers + 8),
                                                 simd::load_bytes(numbers + 12)));
  for (int32_t i = 0; i < 16; ++i) CHECK(bytes[i] == numbers[i]);
  simd::store_bytes(whole, simd::splat_bytes(bytes + 5));
  for (const int32_t lane : whole) CHECK(std::memcmp(&lane, bytes + 5, 4) == 0);
  CHECK(simd::load_float(back + 1) == 2.0f);
  const int16_t a[8] = {-32768, 32767, 1, 2, 3, 4, -5, 6}, b[8] = {32767, -32768, 10, 100, -1, 0, 7, 8};
  simd::store_bytes(whole, simd::dot_16(simd::load_bytes(a), simd::load_bytes(b)));
  CHECK(std::vector(whole, whole + 4) == std::vector{-2147418112, 210, -3, 13});
  uint16_t shifted[8];
  simd::store_bytes(shifted, simd::shift_left_16(simd::load_bytes(a), 8));
  CHECK((shifted[1] == 0xff00 && shifted[2] == 0x0100 && shifted[6] == 0xfb00));
  simd::store_bytes(shifted, simd::shift_right_16(simd::load_bytes(a), 12));
  CHECK((shifted[0] == 8 && shifted[1] == 7 && shifted[6] == 15));
}

// A block's dot products in the form `Dot`, against whole numbers.
template <class Dot>
size_t wrong_dots(uint64_t seed) {
  auto draw = [&, i = uint64_t{0}](int32_t least, int32_t most) mutable {
    // Every other number is an end of its range, so that sums come near the ends of theirs.
    const double u = uniform({seed, 0, 0}, i++);
    if (seed < 4) return seed % 2 ? most : least;
    return i % 2 ? (u < 0.5 ? least : most) : least + static_cast<int32_t>(u * (most - least + 1));
  };
  size_t wrong = 0;
  for (const bool nibbles : {false, true}) {
    int8_t x[32];
    int32_t w[4][32];
    unsigned char bytes[8][16] = {};
    for (int8_t& code : x) code = static_cast<int8_t>(nibbles ? draw(-127, 127) : draw(0, 127));
    for (size_t row = 0; row < 4; ++row) {
      for (size_t k = 0; k < 32; ++k) {
        w[row][k] = nibbles ? (seed & 2 ? draw(0, 15) : 15) : draw(-128, 127);
        if (nibbles)
          bytes[k / 4 % 4][4 * row + k % 4] |= static_cast<unsigned char>(w[row][k] << (k < 16 ? 0 : 4));
        else
          bytes[k / 4][4 * row + k % 4] = static_cast<unsigned char>(w[row][k]);
      }
    }
    char placed[8 * Dot::kStep];
    Dot::put(x, nibbles, placed);
    simd::I32 sums(0);
    for (size_t g = 0; g < (nibbles ? 4 : 8); ++g) {
      const simd::I32 weights = simd::load_bytes(bytes[g]);
      const auto low = Dot::load(placed + g * Dot::kStep);
      sums = nibbles ? Dot::add4(sums, weights, low, Dot::load(placed + (g + 4) * Dot::kStep)) : Dot::add8(sums, weights, low);
    }
    float result[4];
    simd::store(result, nibbles ? Dot::sum4(sums) : Dot::sum8(sums));
    for (size_t row = 0; row < 4; ++row) {
      int32_t exact = 0;
      for (size_t k = 0; k < 32; ++k) exact += w[row][k] * x[k];
      wrong += result[row] != static_cast<float>(exact * (nibbles ? Dot::kUnit4 : 1));
    }
  }
  return wrong;
}

TEST_CASE("Dot products of codes are exact, in every form there is", "[kernels][simd]") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    CHECK(wrong_dots<simd::WideDot>(seed) == 0);
    CHECK(wrong_dots<simd::Dot>(seed) == 0);
#if __wasm_relaxed_simd__
    CHECK(wrong_dots<simd::FusedDot>(seed) == 0);
#endif
  }
}

TEST_CASE("Products of lanes without sign, 64 bits", "[kernels][simd]") {
  const uint32_t a[4] = {0xffffffff, 0x80000000, 3, 0x12345678}, b[4] = {0xffffffff, 2, 0, 0x9abcdef0};
  uint32_t low[4], high[4];
  const simd::Products products = simd::multiply_wide(simd::load_bytes(a), simd::load_bytes(b));
  simd::store_bytes(low, products.low);
  simd::store_bytes(high, products.high);
  for (size_t i = 0; i < 4; ++i) CHECK((uint64_t{high[i]} << 32 | low[i]) == uint64_t{a[i]} * b[i]);
}

}  // namespace
}  // namespace wf::kernels
