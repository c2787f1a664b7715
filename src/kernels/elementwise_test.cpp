#include "kernels/elementwise.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

// Whether `got` is a * b + c, rounded twice or, where that is left to the processor, once.
bool is_sum(float got, float a, float b, float c) {
#if __wasm_relaxed_simd__
  if (got == std::fma(a, b, c)) return true;
#endif
  return got == a * b + c;
}

TEST_CASE("Elementwise operations, every length and misalignment, in place too", "[kernels][elementwise]") {
  size_t wrong = 0;
  for (size_t n = 1; n <= kLongest; ++n) {
    for (size_t skew = 0; skew < 16; ++skew) {
      Row x(normals(n, n), skew % 4), y(normals(n, n + 100), skew / 4), out(n, (skew + 1) % 4);
      const auto expect = [&](Row& got, auto value) {
        for (size_t i = 0; i < n; ++i) wrong += got[i] != value(i);
        wrong += !got.intact();
      };
      add(x.data(), y.data(), out.data(), n);
      expect(out, [&](size_t i) { return x[i] + y[i]; });
      multiply(x.data(), y.data(), out.data(), n);
      expect(out, [&](size_t i) { return x[i] * y[i]; });
      scale(x.data(), 1.7f, out.data(), n);
      expect(out, [&](size_t i) { return x[i] * 1.7f; });
      Row before(out.values());
      axpy(0.3f, x.data(), out.data(), n);
      for (size_t i = 0; i < n; ++i) wrong += !is_sum(out[i], 0.3f, x[i], before[i]);
      wrong += !out.intact();
      Row between(out.values());
      multiply_add(x.data(), y.data(), out.data(), n);
      for (size_t i = 0; i < n; ++i) wrong += !is_sum(out[i], x[i], y[i], between[i]);
      wrong += !out.intact();
      Row left(x.values(), skew % 4), right(y.values(), skew % 4);
      add(left.data(), y.data(), left.data(), n);
      expect(left, [&](size_t i) { return x[i] + y[i]; });
      multiply(x.data(), right.data(), right.data(), n);
      expect(right, [&](size_t i) { return x[i] * y[i]; });
      scale(left.data(), 2.0f, left.data(), n);
      expect(left, [&](size_t i) { return (x[i] + y[i]) * 2.0f; });
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("dot", "[kernels][elementwise]") {
  for (size_t n : {1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 1000, 4099}) {
    const std::vector<float> x = normals(n, 1), y = normals(n, 2);
    double exact = 0, size = 0;
    for (size_t i = 0; i < n; ++i) {
      exact += static_cast<double>(x[i]) * y[i];
      size += std::abs(static_cast<double>(x[i]) * y[i]);
    }
    // Runs of 8 additions, then n / 128 of them.
    CHECK(std::abs(dot(x.data(), y.data(), n) - exact) <= kEps * (12.0 + static_cast<double>(n) / 128) * size);
  }
  CHECK(dot(nullptr, nullptr, 0) == 0.0f);
}

TEST_CASE("Rows: bias, its gradient, strided copies", "[kernels][elementwise]") {
  for (size_t cols = 1; cols <= kLongest; ++cols) {
    const size_t rows = 3;
    const std::vector<float> x = normals(rows * cols, cols), b = normals(cols, 5);
    Row y(rows * cols), sum(b);
    add_bias(x.data(), b.data(), y.data(), rows, cols);
    add_rows_backward(x.data(), cols, sum.data(), rows, cols);
    Row copied(rows * (cols + 2));
    copy_rows(x.data(), cols, copied.data(), cols + 2, rows, cols);
    size_t wrong = 0;
    for (size_t c = 0; c < cols; ++c) {
      for (size_t r = 0; r < rows; ++r) {
        wrong += y[r * cols + c] != x[r * cols + c] + b[c];
        wrong += copied[r * (cols + 2) + c] != x[r * cols + c];
      }
      wrong += sum[c] != b[c] + x[c] + x[cols + c] + x[2 * cols + c];
    }
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace wf::kernels
