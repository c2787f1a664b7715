#include "kernels/optimise.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

// torch 2.15: lr 0.01, betas (0.9, 0.98), eps 1e-9, weight_decay 0.1, five steps, the gradients half of what is below.
void check_against_torch(bool coupled, const std::vector<float>& p_then, const std::vector<float>& m_then,
                         const std::vector<float>& v_then) {
  Row p({0.5f, -1.25f, 2.0f, 0.0f, -0.001f, 3.5f, 1e-3f}, 1), m(7, 2), v(7, 3), g(7);
  for (int t = 1; t <= 5; ++t) {
    for (int i = 0; i < 7; ++i) g[static_cast<size_t>(i)] = static_cast<float>((i * 7 + t * 3) % 11 - 5) * 0.125f;
    adamw(p.data(), g.data(), m.data(), v.data(), 7,
          {0.01, 0.9, 0.98, 1e-9, 0.1, 1 - std::pow(0.9, t), 1 - std::pow(0.98, t), 0.5, coupled});
  }
  CHECK(distance(p.values(), p_then, 7, 1e-8, 4 * kEps) <= 1);
  CHECK(distance(m.values(), m_then, 7, 1e-8, 4 * kEps) <= 1);
  CHECK(distance(v.values(), v_then, 7, 0, 4 * kEps) <= 1);
}

TEST_CASE("AdamW and Adam as PyTorch has them", "[kernels][optimise]") {
  check_against_torch(
      false,
      {5.083003640e-01f, -1.260084391e+00f, 1.970183849e+00f, 2.455891296e-02f, -1.360701676e-02f, 3.483801603e+00f, 1.981455833e-02f},
      {-1.214500051e-02f, -7.540626917e-03f, 8.950626478e-03f, -3.773937747e-02f, 3.561500087e-02f, -1.664374955e-02f, -1.458749059e-03f},
      {2.865395509e-03f, 5.105463322e-03f, 2.838112414e-03f, 3.550383728e-03f, 4.663856234e-03f, 2.921931678e-03f, 4.143803380e-03f});
  check_against_torch(
      true,
      {4.981007576e-01f, -1.244859815e+00f, 1.958476067e+00f, 2.441486157e-02f, -1.350944489e-02f, 3.455292940e+00f, 1.966232620e-02f},
      {8.465258405e-03f, -5.888782069e-02f, 9.004237503e-02f, -3.719248250e-02f, 3.526755795e-02f, 1.258397251e-01f, -8.196248673e-04f},
      {2.870063763e-03f, 6.706641987e-03f, 7.543194108e-03f, 3.533440409e-03f, 4.659516737e-03f, 1.201389730e-02f, 4.162416793e-03f});
}

TEST_CASE("AdamW, every length and misalignment", "[kernels][optimise]") {
  const AdamStep step{0.02, 0.9, 0.999, 1e-8, 0.05, 1 - std::pow(0.9, 3), 1 - std::pow(0.999, 3), 0.25, false};
  for (size_t n = 1; n <= kLongest; ++n) {
    for (size_t skew = 0; skew < 4; ++skew) {
      std::vector<float> squares = normals(n, 3, 0.1f);
      for (float& s : squares) s *= s;
      Row p(normals(n, n), skew), g(normals(n, 1), 3 - skew), m(normals(n, 2, 0.1f), (skew + 1) % 4), v(squares, skew);
      std::vector<double> pd = widened(p.values()), md = widened(m.values()), vd = widened(v.values());
      reference::adamw(pd.data(), widened(g.values()).data(), md.data(), vd.data(), n, step);
      const Row before(p.values(), 0);
      Row alone(p.values(), 1), alone_m(m.values(), 2), alone_v(v.values(), 3);
      adamw(p.data(), g.data(), m.data(), v.data(), n, step);
      CHECK(distance(p.values(), pd, n, 8 * kEps, 4 * kEps) <= 1);
      CHECK(distance(m.values(), md, n, kEps, 4 * kEps) <= 1);
      CHECK(distance(v.values(), vd, n, 0, 4 * kEps) <= 1);
      CHECK((p.intact() && m.intact() && v.intact()));
      for (size_t i = 0; i < n; ++i) adamw(alone.data() + i, g.data() + i, alone_m.data() + i, alone_v.data() + i, 1, step);
      CHECK(same_bits(alone.values(), p.values()));
    }
  }
}

TEST_CASE("Sum of squares and what is not finite", "[kernels][optimise]") {
  CHECK(sum_of_squares(nullptr, 0) == 0);
  CHECK(first_not_finite(nullptr, 0) == 0);
  for (const size_t n : {1, 2, 5, 19, 1023, 1024, 1025, 5000}) {
    Row x(normals(n, n, 3.0f), n % 4);
    const double exact = weighed(x.values(), x.values(), n);
    CHECK(std::abs(sum_of_squares(x.data(), n) - exact) <= 1e-12 * exact);
    CHECK(first_not_finite(x.data(), n) == n);
    for (const float bad : {kNaN, kInf, -kInf}) {
      for (const size_t at : {size_t{0}, n / 2, n - 1}) {
        Row y(x.values(), n % 4);
        y[at] = bad;
        y[n - 1] = at + 1 == n ? bad : kNaN;
        CHECK(first_not_finite(y.data(), n) == at);
        CHECK(!std::isfinite(sum_of_squares(y.data(), n)));
      }
    }
  }
  const float most = std::numeric_limits<float>::max(), large[2] = {most, -most}, small[2] = {1e-30f, 0};
  CHECK(std::isfinite(sum_of_squares(large, 2)));
  CHECK(first_not_finite(large, 2) == 2);
  CHECK(sum_of_squares(small, 2) > 0);
}

}  // namespace
}  // namespace wf::kernels
