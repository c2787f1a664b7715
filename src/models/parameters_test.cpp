#include "models/parameters.hpp"

#include <catch_amalgamated.hpp>
#include <limits>

#include "core/error.hpp"

namespace wf {
namespace {

TEST_CASE("Numbers that a quantised weight cannot hold are refused by name", "[models][parameters]") {
  const size_t F = 4, D = 64;
  for (const DType store : {DType::kF32, DType::kQ8, DType::kQ4}) {
    for (const auto layout : {Parameter::Layout::kRows, Parameter::Layout::kTransposed, Parameter::Layout::kByHead}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1.0f}) {
        Weight weight = Weight::matrix(F, D);
        weight.allocate(store, false);
        const bool turned = layout == Parameter::Layout::kTransposed;
        Parameter parameter{"h.0.proj.weight", turned ? Shape{D, F} : Shape{F, D}, &weight, 0, layout, 2, 1};
        std::vector<float> values(F * D, 0.5f);
        values[turned ? 50 * F + 1 : 1 * D + 50] = bad;
        const auto load = [&] { parameter.load(0, turned ? D : F, values.data(), DType::kF32); };
        if (store == DType::kF32 || bad == 1.0f) {
          CHECK_NOTHROW(load());
          continue;
        }
        try {
          load();
          FAIL("expected an error");
        } catch (const Error& error) {
          CHECK(error.code() == Code::kInvalidFile);
          CHECK(error.message().find("h.0.proj.weight") != std::string::npos);
        }
      }
    }
  }
}

}  // namespace
}  // namespace wf
