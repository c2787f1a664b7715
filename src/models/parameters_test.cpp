#include "models/parameters.hpp"

#include <algorithm>
#include <catch_amalgamated.hpp>
#include <limits>

#include "core/error.hpp"

namespace wf {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

// What loading numbers of 0.5 and one other says.
std::string error_of(DType store, Parameter::Layout layout, float other) {
  const size_t F = 4, D = 64;
  Weight weight = Weight::matrix(F, D);
  weight.allocate(store, false);
  const bool turned = layout == Parameter::Layout::kTransposed;
  const Parameter parameter{"h.0.proj.weight", turned ? Shape{D, F} : Shape{F, D}, &weight, 0, layout, 2, 1};
  std::vector<float> values(F * D, 0.5f);
  values[turned ? 50 * F + 1 : 1 * D + 50] = other;
  try {
    parameter.load(0, turned ? D : F, values.data(), DType::kF32);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidFile);
    return error.message();
  }
  return "";
}

TEST_CASE("Numbers that a weight's format cannot hold are refused, with tensor and value", "[models][parameters]") {
  using enum DType;
  struct Case {
    float other;
    DType store;
    std::string expected;
  };
  const std::string begin = "[load] h.0.proj.weight: expected ", f32 = "; dtype 'f32' holds it";
  const std::string sixteen = begin + "numbers up to 65504, the most that dtype 'f16' can hold, got ";
  const std::string four = begin + "numbers up to 65504, the most that dtype 'q4' can hold, got ";
  const std::string brain = begin + "numbers up to 3.38953139e+38, the most that dtype 'bf16' can hold, got ";
  const std::string quantised = begin + "finite numbers to quantise, got ";
  const Case cases[] = {
      {65519, kF16, ""},
      {65520, kF16, sixteen + "65520" + f32},
      {-1e30f, kF16, sixteen + "-1.00000002e+30" + f32},
      {-1e30f, kBF16, ""},
      {-3.4e38f, kBF16, brain + "-3.39999995e+38" + f32},
      {-3.4e38f, kF32, ""},
      {-3.4e38f, kQ8, ""},
      {65504, kQ4, ""},
      {70000, kQ4, four + "70000" + f32},
      {kNaN, kQ4, quantised + "NaN"},
      {-kNaN, kQ8, quantised + "NaN"},
      {kInf, kQ8, quantised + "Infinity"},
      {-kInf, kQ4, quantised + "-Infinity"},
  };
  for (const auto layout : {Parameter::Layout::kRows, Parameter::Layout::kTransposed, Parameter::Layout::kByHead}) {
    for (const Case& c : cases) {
      CAPTURE(c.other, name_of(c.store));
      CHECK(error_of(c.store, layout, c.other) == c.expected);
    }
    for (const DType store : {kF32, kF16, kBF16}) {
      for (const float kept : {kNaN, kInf, -kInf}) CHECK(error_of(store, layout, kept) == "");
    }
  }
}

TEST_CASE("A block of a file whose numbers are small and whose range is not", "[models][parameters]") {
  Weight weight = Weight::matrix(1, 32);
  weight.allocate(DType::kQ4, false);
  const Parameter parameter{"w", Shape{1, 32}, &weight};
  unsigned char block[18] = {0xd0, 0x70};  // a scale of 9856
  std::fill_n(block + 2, 16, static_cast<unsigned char>(0x88));
  try {
    parameter.load(0, 1, block, DType::kQ4);
    FAIL("expected an error");
  } catch (const Error& error) {
    CHECK(error.message() ==
          "[load] w: expected numbers up to 65504, the most that dtype 'q4' can hold, got a block with a larger range; "
          "dtype 'f32' holds it");
  }
}

}  // namespace
}  // namespace wf
