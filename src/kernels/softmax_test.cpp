#include "kernels/softmax.hpp"

#include <algorithm>
#include <catch_amalgamated.hpp>

#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

TEST_CASE("Softmax by hand", "[kernels][softmax]") {
  const float x[4] = {0.0f, std::log(2.0f), std::log(3.0f), -kInf};
  float y[4];
  softmax(x, y, 1, 4);
  const double exact[4] = {1.0 / 6, 2.0 / 6, 3.0 / 6, 0};
  CHECK(distance(y, exact, 4, 0, 2 * kEps) <= 1);
  CHECK(y[3] == 0.0f);
  log_softmax(x, y, 1, 4);
  const double logs[4] = {std::log(1.0 / 6), std::log(2.0 / 6), std::log(3.0 / 6), -HUGE_VAL};
  CHECK(distance(y, logs, 4, 2 * kEps, 2 * kEps) <= 1);
}

TEST_CASE("Softmax, every length and misalignment, in place too", "[kernels][softmax]") {
  for (size_t n = 1; n <= kLongest; ++n) {
    for (size_t skew = 0; skew < 4; ++skew) {
      const size_t rows = 3;
      Row x(normals(rows * n, n, 4.0f), skew), y(rows * n, 3 - skew), z(rows * n, skew);
      const std::vector<double> wide = widened(x.values());
      std::vector<double> exact(rows * n);
      softmax(x.data(), y.data(), rows, n);
      log_softmax(x.data(), z.data(), rows, n);
      reference::softmax(wide.data(), exact.data(), rows, n);
      // exp of a difference of size up to 32 that was rounded, and its own error.
      CHECK(distance(y.values(), exact, rows * n, 0, 20 * kEps) <= 1);
      reference::log_softmax(wide.data(), exact.data(), rows, n);
      CHECK(distance(z.values(), exact, rows * n, 4 * kEps, 4 * kEps) <= 1);
      Row alone(n, skew), in_place(x.values(), (skew + 1) % 4), logs(x.values(), skew);
      softmax(in_place.data(), in_place.data(), rows, n);
      log_softmax(logs.data(), logs.data(), rows, n);
      CHECK(same_bits(in_place.values(), y.values()));
      CHECK(same_bits(logs.values(), z.values()));
      softmax(x.data() + 2 * n, alone.data(), 1, n);
      CHECK(same_bits(alone.data(), y.data() + 2 * n, n));
      CHECK((y.intact() && z.intact() && in_place.intact() && logs.intact()));
    }
  }
}

TEST_CASE("The largest number and the sum of the numerators", "[kernels][softmax]") {
  for (size_t n = 1; n <= kLongest; ++n) {
    for (size_t skew = 0; skew < 4; ++skew) {
      Row x(normals(n, n, 4.0f), skew);
      const std::vector<float> values = x.values();
      const float most = *std::max_element(values.begin(), values.end());
      double sum = 0;
      for (const float value : values) sum += std::exp(static_cast<double>(value) - static_cast<double>(most));
      const Peak found = peak(x.data(), n);
      CHECK(found.largest == most);
      CHECK(std::abs(static_cast<double>(found.sum) - sum) <= 20 * kEps * sum);
      for (const float odd : {kNaN, kInf}) {
        for (size_t at = 0; at < n; ++at) {
          Row bad(values, skew);
          bad[at] = odd;
          CHECK(std::isnan(peak(bad.data(), n).sum));
        }
      }
      x[n / 2] = -kInf;
      CHECK((n == 1 || std::isfinite(peak(x.data(), n).sum)));
    }
  }
}

TEST_CASE("Softmax of long rows sums to one", "[kernels][softmax]") {
  for (const size_t n : {1000, 50257, 151936}) {
    std::vector<float> x = normals(n, n, 2.0f), y(n), z(n);
    std::vector<double> exact(n);
    softmax(x.data(), y.data(), 1, n);
    double sum = 0;
    for (const float p : y) sum += static_cast<double>(p);
    CHECK(std::abs(sum - 1) <= kEps * (2 + std::sqrt(static_cast<double>(n) / 128)));
    log_softmax(x.data(), z.data(), 1, n);
    reference::log_softmax(widened(x).data(), exact.data(), 1, n);
    CHECK(distance(z, exact, n, 0, 8 * kEps) <= 1);
  }
}

TEST_CASE("Softmax of extreme rows", "[kernels][softmax]") {
  for (const size_t n : {1, 3, 4, 7, 16, 19}) {
    Row hidden(std::vector<float>(n, -kInf)), y(n);
    softmax(hidden.data(), y.data(), 1, n);
    CHECK(y.values() == std::vector<float>(n, 0.0f));
    for (size_t at = 0; at < n; ++at) {
      Row one(std::vector<float>(n, -kInf)), far(std::vector<float>(n, -3e38f)), broken(normals(n, at)),
          mixed(std::vector<float>(n, -kInf));
      one[at] = -3e38f;
      softmax(one.data(), y.data(), 1, n);
      for (size_t i = 0; i < n; ++i) CHECK(y[i] == (i == at ? 1.0f : 0.0f));
      far[at] = 3e38f;
      softmax(far.data(), y.data(), 1, n);
      for (size_t i = 0; i < n; ++i) CHECK(y[i] == (i == at ? 1.0f : 0.0f));
      broken[at] = mixed[at] = kNaN;
      softmax(broken.data(), y.data(), 1, n);
      for (size_t i = 0; i < n; ++i) CHECK(std::isnan(y[i]));
      softmax(mixed.data(), y.data(), 1, n);
      for (size_t i = 0; i < n; ++i) CHECK(std::isnan(y[i]));
    }
  }
}

TEST_CASE("Cross-entropy, with label smoothing and ignored targets", "[kernels][softmax]") {
  for (const size_t cols : {1, 2, 3, 5, 16, 19, 1000}) {
    const size_t rows = 4;
    const std::vector<float> x = normals(rows * cols, cols, 3.0f);
    const int32_t target[rows] = {0, static_cast<int32_t>(cols - 1), -100, static_cast<int32_t>(cols / 2)};
    for (const float smoothing : {0.0f, 0.1f, 1.0f}) {
      float loss[rows];
      double exact[rows];
      cross_entropy(x.data(), target, smoothing, loss, rows, cols);
      reference::cross_entropy(widened(x).data(), target, static_cast<double>(smoothing), exact, rows, cols);
      CAPTURE(cols, smoothing);
      CHECK(distance(loss, exact, rows, 16 * kEps, 8 * kEps) <= 1);
      CHECK(loss[2] == 0.0f);
    }
  }
  const float certain[3] = {0.0f, -kInf, -kInf};
  const int32_t target[1] = {0};
  float loss;
  cross_entropy(certain, target, 0.0f, &loss, 1, 3);
  CHECK(loss == 0.0f);
}

TEST_CASE("Gradients of softmax and cross-entropy", "[kernels][softmax][gradient]") {
  for (const size_t cols : {1, 2, 5, 8, 19}) {
    const size_t rows = 3, n = rows * cols;
    const std::vector<float> x = normals(n, 3, 1.5f), dy = normals(n, 4), old = normals(n, 5);
    std::vector<float> y(n), dx(old);
    softmax(x.data(), y.data(), rows, cols);
    softmax_backward(y.data(), dy.data(), dx.data(), rows, cols);
    const auto expect = slopes(
        [&](const std::vector<double>& v) {
          std::vector<double> out(n);
          reference::softmax(v.data(), out.data(), rows, cols);
          return weighed(out, dy, n);
        },
        widened(x));
    for (size_t i = 0; i < n; ++i) CHECK(std::abs(dx[i] - (old[i] + expect[i])) <= 1e-6);

    const int32_t target[rows] = {static_cast<int32_t>(cols - 1), -1, 0};
    const std::vector<float> dloss = normals(rows, 6);
    for (const float smoothing : {0.0f, 0.2f}) {
      std::vector<float> each(rows), factors(rows), same(rows);
      cross_entropy_forward(x.data(), target, smoothing, each.data(), dx.data(), factors.data(), rows, cols);
      cross_entropy(x.data(), target, smoothing, same.data(), rows, cols);
      CHECK(same_bits(each, same));
      cross_entropy_backward(target, smoothing, dloss.data(), factors.data(), dx.data(), rows, cols);
      const auto loss_slopes = slopes(
          [&](const std::vector<double>& v) {
            double loss[rows];
            reference::cross_entropy(v.data(), target, static_cast<double>(smoothing), loss, rows, cols);
            return weighed(loss, dloss, rows);
          },
          widened(x));
      for (size_t i = 0; i < n; ++i) CHECK(std::abs(dx[i] - loss_slopes[i]) <= 1e-6);
    }
  }
}

}  // namespace
}  // namespace wf::kernels
