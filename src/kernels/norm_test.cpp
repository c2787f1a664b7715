#include "kernels/norm.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

constexpr float kSmall = 1e-5f;

TEST_CASE("Norms by hand", "[kernels][norm]") {
  // mean 2.5, variance 1.25; mean square 7.5
  const float x[4] = {1, 2, 3, 4}, weight[4] = {1, 2, 1, 1}, bias[4] = {0, 0, 0, 10};
  float y[4];
  layer_norm(x, weight, bias, y, 1, 4, 0.0f);
  const double d = std::sqrt(1.25), layer[4] = {-1.5 / d, -1 / d, 0.5 / d, 10 + 1.5 / d};
  CHECK(distance(y, layer, 4, 0, 4 * kEps) <= 1);
  rms_norm(x, weight, 1.0f, y, 1, 4, 0.0f);
  const double r = std::sqrt(7.5), root[4] = {2 / r, 6 / r, 6 / r, 8 / r};
  CHECK(distance(y, root, 4, 0, 4 * kEps) <= 1);
}

TEST_CASE("Norms, every length and misalignment, in place too", "[kernels][norm]") {
  for (size_t n = 1; n <= kLongest; ++n) {
    for (size_t skew = 0; skew < 4; ++skew) {
      const size_t rows = 3;
      Row x(normals(rows * n, n, 2.0f, 1.0f), skew), w(normals(n, 1), 3 - skew), b(normals(n, 2), skew), y(rows * n, (skew + 1) % 4);
      const std::vector<double> xd = widened(x.values()), wd = widened(w.values()), bd = widened(b.values());
      std::vector<double> exact(rows * n);
      for (int with = 0; with < 4; ++with) {
        const bool weighted = with & 1, biased = with & 2;
        layer_norm(x.data(), weighted ? w.data() : nullptr, biased ? b.data() : nullptr, y.data(), rows, n, kSmall);
        reference::layer_norm(xd.data(), weighted ? wd.data() : nullptr, biased ? bd.data() : nullptr, exact.data(), rows, n,
                              static_cast<double>(kSmall));
        CHECK(distance(y.values(), exact, rows * n, 16 * kEps, 8 * kEps) <= 1);
        Row same(x.values(), skew), alone(n, skew);
        layer_norm(same.data(), weighted ? w.data() : nullptr, biased ? b.data() : nullptr, same.data(), rows, n, kSmall);
        CHECK(same_bits(same.values(), y.values()));
        layer_norm(x.data() + n, weighted ? w.data() : nullptr, biased ? b.data() : nullptr, alone.data(), 1, n, kSmall);
        CHECK(same_bits(alone.data(), y.data() + n, n));
        const float offset = biased ? 1.0f : 0.0f;
        rms_norm(x.data(), weighted ? w.data() : nullptr, offset, y.data(), rows, n, kSmall);
        reference::rms_norm(xd.data(), weighted ? wd.data() : nullptr, static_cast<double>(offset), exact.data(), rows, n,
                            static_cast<double>(kSmall));
        CHECK(distance(y.values(), exact, rows * n, 4 * kEps, 8 * kEps) <= 1);
        Row root(x.values(), skew);
        rms_norm(root.data(), weighted ? w.data() : nullptr, offset, root.data(), rows, n, kSmall);
        CHECK(same_bits(root.values(), y.values()));
        CHECK((y.intact() && same.intact() && root.intact()));
      }
    }
  }
}

TEST_CASE("Norms keep their digits far from zero", "[kernels][norm]") {
  for (const size_t n : {64, 768, 1000, 8192}) {
    for (const float mean : {1e4f, -1e4f}) {
      const std::vector<float> x = normals(n, n, 1.0f, mean);
      std::vector<float> y(n);
      std::vector<double> exact(n);
      layer_norm(x.data(), nullptr, nullptr, y.data(), 1, n, kSmall);
      reference::layer_norm<double>(widened(x).data(), nullptr, nullptr, exact.data(), 1, n, static_cast<double>(kSmall));
      CHECK(distance(y, exact, n, 1e-6, 1e-6) <= 1);
      rms_norm(x.data(), nullptr, 0.0f, y.data(), 1, n, kSmall);
      reference::rms_norm<double>(widened(x).data(), nullptr, 0.0, exact.data(), 1, n, static_cast<double>(kSmall));
      CHECK(distance(y, exact, n, 0, 2e-6) <= 1);
    }
  }
}

TEST_CASE("Norms of extreme rows", "[kernels][norm]") {
  for (const size_t n : {1, 5, 16, 1000}) {
    std::vector<float> level(n, 1e4f), y(n);
    layer_norm(level.data(), nullptr, nullptr, y.data(), 1, n, kSmall);
    CHECK(y == std::vector<float>(n, 0.0f));
    rms_norm(std::vector<float>(n, 0.0f).data(), nullptr, 0.0f, y.data(), 1, n, kSmall);
    CHECK(y == std::vector<float>(n, 0.0f));
    for (const float bad : {kNaN, kInf}) {
      std::vector<float> x = normals(n, n);
      x[n / 2] = bad;
      layer_norm(x.data(), nullptr, nullptr, y.data(), 1, n, kSmall);
      for (const float v : y) CHECK(std::isnan(v));
      rms_norm(x.data(), nullptr, 0.0f, y.data(), 1, n, kSmall);
      CHECK(std::isnan(y[n / 2]));
    }
  }
}

TEST_CASE("Gradients of the norms", "[kernels][norm][gradient]") {
  for (const size_t n : {1, 2, 5, 16, 19}) {
    const size_t rows = 3;
    const double eps = static_cast<double>(kSmall);
    const std::vector<float> x = normals(rows * n, 1, 2.0f, 0.5f), w = normals(n, 2), b = normals(n, 3), dy = normals(rows * n, 4);
    const std::vector<float> old = normals(rows * n, 5), old_w = normals(n, 6), old_b = normals(n, 7);
    const std::vector<double> xd = widened(x), wd = widened(w), bd = widened(b);
    // Deviations of a row of one are exactly 0, of two almost only a sign: the slope is steep only where eps rules.
    const double tolerance = 4e-6;
    for (const bool weighted : {true, false}) {
      const auto layer = [&](const std::vector<double>& xs, const std::vector<double>& ws, const std::vector<double>& bs) {
        std::vector<double> y(rows * n);
        reference::layer_norm(xs.data(), weighted ? ws.data() : nullptr, bs.data(), y.data(), rows, n, eps);
        return weighed(y, dy, rows * n);
      };
      std::vector<float> dx = old, dw = old_w, db = old_b;
      layer_norm_backward(x.data(), weighted ? w.data() : nullptr, dy.data(), dx.data(), weighted ? dw.data() : nullptr, db.data(), rows, n,
                          kSmall);
      const auto ex = slopes([&](const std::vector<double>& v) { return layer(v, wd, bd); }, xd);
      const auto ew = slopes([&](const std::vector<double>& v) { return layer(xd, v, bd); }, wd);
      const auto eb = slopes([&](const std::vector<double>& v) { return layer(xd, wd, v); }, bd);
      CAPTURE(n, weighted);
      for (size_t i = 0; i < rows * n; ++i) CHECK(std::abs(dx[i] - (old[i] + ex[i])) <= tolerance);
      for (size_t i = 0; i < n; ++i) CHECK(std::abs(dw[i] - (old_w[i] + (weighted ? ew[i] : 0))) <= tolerance);
      for (size_t i = 0; i < n; ++i) CHECK(std::abs(db[i] - (old_b[i] + eb[i])) <= tolerance);

      const auto root = [&](const std::vector<double>& xs, const std::vector<double>& ws) {
        std::vector<double> y(rows * n);
        reference::rms_norm(xs.data(), weighted ? ws.data() : nullptr, 1.0, y.data(), rows, n, eps);
        return weighed(y, dy, rows * n);
      };
      dx = old, dw = old_w;
      rms_norm_backward(x.data(), weighted ? w.data() : nullptr, 1.0f, dy.data(), dx.data(), weighted ? dw.data() : nullptr, rows, n,
                        kSmall);
      const auto rx = slopes([&](const std::vector<double>& v) { return root(v, wd); }, xd);
      const auto rw = slopes([&](const std::vector<double>& v) { return root(xd, v); }, wd);
      for (size_t i = 0; i < rows * n; ++i) CHECK(std::abs(dx[i] - (old[i] + rx[i])) <= tolerance);
      for (size_t i = 0; i < n; ++i) CHECK(std::abs(dw[i] - (old_w[i] + (weighted ? rw[i] : 0))) <= tolerance);
    }
  }
}

}  // namespace
}  // namespace wf::kernels
