#include "kernels/activation.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

constexpr Activation kAll[] = {Activation::kIdentity,  Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
                               Activation::kQuickGelu, Activation::kSilu, Activation::kTanh, Activation::kSigmoid};

float one(Activation a, float x) {
  float y;
  activate(a, &x, &y, 1);
  return y;
}

TEST_CASE("Activations by hand", "[kernels][activation]") {
  // Python's math module: 0.5 * x * (1 + math.erf(x / math.sqrt(2))) and so on.
  struct Case {
    Activation a;
    double at[4];
  };
  const float x[4] = {1.0f, -1.0f, 0.5f, -3.0f};
  const Case cases[] = {
      {Activation::kIdentity, {1, -1, 0.5, -3}},
      {Activation::kRelu, {1, 0, 0.5, 0}},
      {Activation::kGelu, {0.8413447460685429, -0.15865525393145707, 0.34573123063700656, -0.00404969409489031}},
      {Activation::kGeluTanh, {0.8411919906082768, -0.15880800939172324, 0.34571400982514394, -0.0036373920817729943}},
      {Activation::kQuickGelu, {0.8457957659328212, -0.15420423406717878, 0.35038843660638014, -0.01807130970778597}},
      {Activation::kSilu, {0.7310585786300049, -0.2689414213699951, 0.3112296656009273, -0.14227761953270035}},
      {Activation::kTanh, {0.7615941559557649, -0.7615941559557649, 0.46211715726000973, -0.9950547536867305}},
      {Activation::kSigmoid, {0.7310585786300049, 0.2689414213699951, 0.6224593312018546, 0.04742587317756678}},
  };
  for (const Case& c : cases) {
    float y[4];
    activate(c.a, x, y, 4);
    CAPTURE(static_cast<int>(c.a), y[0], y[1], y[2], y[3]);
    CHECK(distance(y, c.at, 4, kEps, 2 * kEps) <= 1);
  }
}

TEST_CASE("Activations, every length and misalignment, in place too, the same in a tail as in a vector", "[kernels][activation]") {
  for (const Activation a : kAll) {
    size_t wrong = 0;
    double worst = 0;
    for (size_t n = 1; n <= kLongest; ++n) {
      for (size_t skew = 0; skew < 4; ++skew) {
        Row x(normals(n, n, 3.0f), skew), up(normals(n, n + 50), 3 - skew), y(n, (skew + 2) % 4), z(n, skew);
        activate(a, x.data(), y.data(), n);
        gated(a, x.data(), up.data(), z.data(), n);
        for (size_t i = 0; i < n; ++i) {
          const double exact = reference::activate(a, static_cast<double>(x[i]));
          worst = std::max(worst, std::abs(y[i] - exact) / (kEps * (1 + std::abs(static_cast<double>(x[i])))));
          wrong += y[i] != one(a, x[i]);
          wrong += z[i] != y[i] * up[i];
        }
        Row in_place(x.values(), skew), gate(x.values(), skew), other(up.values(), skew);
        activate(a, in_place.data(), in_place.data(), n);
        gated(a, gate.data(), up.data(), gate.data(), n);
        gated(a, x.data(), other.data(), other.data(), n);
        wrong += !same_bits(in_place.values(), y.values()) + !same_bits(gate.values(), z.values()) + !same_bits(other.values(), z.values());
        wrong += !y.intact() + !z.intact() + !in_place.intact() + !gate.intact() + !other.intact();
      }
    }
    CAPTURE(static_cast<int>(a));
    CHECK(wrong == 0);
    CHECK(worst <= 2);
  }
}

TEST_CASE("Activations of extreme numbers", "[kernels][activation]") {
  for (const Activation a : kAll) {
    CAPTURE(static_cast<int>(a));
    CHECK(std::isnan(one(a, kNaN)));
    CHECK(one(a, 0.0f) == (a == Activation::kSigmoid ? 0.5f : 0.0f));
    const bool bounded = a == Activation::kTanh || a == Activation::kSigmoid;
    CHECK(one(a, 1e4f) == (bounded ? 1.0f : 1e4f));
    CHECK(one(a, kInf) == (bounded ? 1.0f : kInf));
    const float low = a == Activation::kIdentity ? -1e4f : a == Activation::kTanh ? -1.0f : 0.0f;
    CHECK(one(a, -1e4f) == low);
  }
}

TEST_CASE("Gradients of activations", "[kernels][activation][gradient]") {
  const size_t n = 23;
  const std::vector<float> x = normals(n, 3, 2.0f), up = normals(n, 4), dy = normals(n, 5), old = normals(n, 6);
  for (const Activation a : kAll) {
    const auto plain = slopes(
        [&](const std::vector<double>& v) {
          double sum = 0;
          for (size_t i = 0; i < n; ++i) sum += dy[i] * reference::activate(a, v[i]);
          return sum;
        },
        widened(x));
    Row dx(old), dgate(old), dup(old);
    activate_backward(a, x.data(), dy.data(), dx.data(), n);
    gated_backward(a, x.data(), up.data(), dy.data(), dgate.data(), dup.data(), n);
    CAPTURE(static_cast<int>(a));
    for (size_t i = 0; i < n; ++i) {
      CHECK(std::abs(dx[i] - (old[i] + plain[i])) <= 1e-6);
      CHECK(std::abs(dgate[i] - (old[i] + plain[i] * up[i])) <= 2e-6);
      CHECK(std::abs(dup[i] - (old[i] + dy[i] * reference::activate(a, static_cast<double>(x[i])))) <= 2e-6);
    }
  }
}

}  // namespace
}  // namespace wf::kernels
