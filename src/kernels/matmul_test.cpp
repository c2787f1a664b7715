#include "kernels/matmul.hpp"

#include <catch_amalgamated.hpp>

#include "core/buffer.hpp"
#include "kernels/panels.hpp"
#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

struct Packed {
  DType store;
  size_t F, D;
  Buffer panels;
  std::vector<float> W;  // (F, D), as stored

  Packed(DType dtype, size_t rows, size_t cols, const std::vector<float>& values)
      : store(dtype), F(rows), D(cols), panels(panel_bytes(dtype, rows, cols), "test"), W(values.size()) {
    pack_rows(store, panels.data(), F, D, 0, F, values.data(), DType::kF32);
    for (size_t f = 0; f < F; ++f) unpack_row(store, panels.data(), F, D, f, W.data() + f * D);
  }

  std::vector<float> times(float* x, size_t M, const float* bias) const {
    Row y(M * F), scratch(matmul_scratch(store, M, D, F));
    matmul({x, D, store, panels.data(), bias, y.data(), F, M, D, F}, 0, panel_count(F), scratch.data());
    return y.values();
  }
};

constexpr DType kAll[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST_CASE("matmul by hand", "[kernels][matmul]") {
  for (const DType store : kAll) {
    const Packed w(store, 3, 2, {1, 2, 3, 4, 5, 6});
    float x[4] = {1, 1, 10, -1};
    const float bias[3] = {0.5f, 0, -0.5f};
    CHECK(w.times(x, 2, bias) == std::vector<float>{3.5f, 7, 10.5f, 8.5f, 26, 43.5f});
    CHECK(w.times(x, 2, nullptr) == std::vector<float>{3, 7, 11, 8, 26, 44});
  }
}

TEST_CASE("matmul of many sizes; a row's bits do not depend on its company", "[kernels][matmul]") {
  for (const DType store : kAll) {
    for (const size_t F : {1, 5, 16, 17, 31, 33, 100}) {
      for (const size_t D : {1, 2, 3, 7, 16, 19, 255, 256, 257, 600}) {
        const Packed w(store, F, D, normals(F * D, F + D));
        const std::vector<float> bias = normals(F, 3);
        for (const size_t M : {1, 2, 3, 4, 5, 8, 9}) {
          Row x(normals(M * D, M), (F + M) % 4);
          const std::vector<float> y = w.times(x.data(), M, bias.data());
          std::vector<double> exact(M * F), size(M * F);
          reference::matmul(widened(x.values()).data(), widened(w.W).data(), widened(bias).data(), exact.data(), M, D, F);
          std::vector<double> ax = widened(x.values()), aw = widened(w.W), ab = widened(bias);
          for (auto* v : {&ax, &aw, &ab}) {
            for (double& value : *v) value = std::abs(value);
          }
          reference::matmul(ax.data(), aw.data(), ab.data(), size.data(), M, D, F);
          // Runs of 256 additions, then one a run; errors of random sign grow like the square root.
          const double error = kEps * (2 + 2 * std::sqrt(std::min(static_cast<double>(D), 256.0)) + static_cast<double>(D) / 256);
          size_t wrong = 0;
          for (size_t i = 0; i < M * F; ++i) wrong += !(std::abs(y[i] - exact[i]) <= error * size[i]);
          for (size_t m = 0; m < M; ++m) {
            const std::vector<float> alone = w.times(x.data() + m * D, 1, bias.data());
            wrong += !same_bits(alone.data(), y.data() + m * F, F);
          }
          CAPTURE(F, D, M);
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("matmul of more rows than a block holds", "[kernels][matmul]") {
  for (const DType store : kAll) {
    const size_t F = 300, D = 300, M = 203;
    const Packed w(store, F, D, normals(F * D, 1));
    Row x(normals(M * D, 2));
    const std::vector<float> y = w.times(x.data(), M, nullptr);
    size_t wrong = 0;
    for (size_t m = 0; m < M; ++m) {
      const std::vector<float> alone = w.times(x.data() + m * D, 1, nullptr);
      wrong += !same_bits(alone.data(), y.data() + m * F, F);
    }
    for (size_t m = 0; m + 7 < M; m += 7) {
      const std::vector<float> some = w.times(x.data() + m * D, 7, nullptr);
      wrong += !same_bits(some.data(), y.data() + m * F, 7 * F);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("matmul keeps to its columns, rows and strides", "[kernels][matmul]") {
  for (const DType store : kAll) {
    const size_t F = 37, D = 20, M = 3, x_stride = 23, y_stride = 41;
    const Packed w(store, F, D, normals(F * D, 1));
    Row x(normals((M - 1) * x_stride + D, 2)), whole((M - 1) * y_stride + F), scratch(matmul_scratch(store, M, D, F));
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = 777.0f;
    Row parts(whole.values());
    matmul({x.data(), x_stride, store, w.panels.data(), nullptr, whole.data(), y_stride, M, D, F}, 0, 3, scratch.data());
    for (const size_t panel : {2, 0, 1}) {
      matmul({x.data(), x_stride, store, w.panels.data(), nullptr, parts.data(), y_stride, M, D, F}, panel, panel + 1, scratch.data());
    }
    CHECK(same_bits(whole.values(), parts.values()));
    for (size_t m = 0; m < M; ++m) {
      const std::vector<float> alone = w.times(x.data() + m * x_stride, 1, nullptr);
      CHECK(same_bits(alone.data(), whole.data() + m * y_stride, F));
      for (size_t f = F; f < y_stride && m + 1 < M; ++f) CHECK(whole[m * y_stride + f] == 777.0f);
    }
  }
}

TEST_CASE("matmul of extreme weights", "[kernels][matmul]") {
  for (const DType store : kAll) {
    const size_t F = 20, D = 5;
    std::vector<float> values(F * D, 0.0f);
    values[0 * D + 1] = kInf;
    values[1 * D + 1] = -kInf;
    values[2 * D + 1] = kNaN;
    values[17 * D + 1] = kInf;
    values[18 * D + 3] = kNaN;
    values[3 * D + 2] = store == DType::kF16 ? 0x1p-24f : 0x1p-130f;  // subnormal
    const Packed w(store, F, D, values);
    for (const size_t M : {1, 2, 3}) {
      Row x(std::vector<float>(M * D, 1.0f));
      const std::vector<float> y = w.times(x.data(), M, nullptr);
      for (size_t m = 0; m < M; ++m) {
        const float* row = y.data() + m * F;
        CHECK(row[0] == kInf);
        CHECK(row[1] == -kInf);
        CHECK(std::isnan(row[2]));
        CHECK(row[3] == values[3 * D + 2]);
        CHECK(row[4] == 0.0f);
        CHECK(row[17] == kInf);
        CHECK(std::isnan(row[18]));
        CHECK(row[19] == 0.0f);
      }
    }
  }
  const size_t D = 4;
  const Packed w(DType::kF32, 16, D, normals(16 * D, 1));
  Row x(normals(3 * D, 2));
  x[D + 1] = kNaN;
  const std::vector<float> y = w.times(x.data(), 3, nullptr);
  for (size_t f = 0; f < 16; ++f) {
    CHECK(std::isfinite(y[f]));
    CHECK(std::isnan(y[16 + f]));
    CHECK(std::isfinite(y[32 + f]));
  }
}

TEST_CASE("matmul of no inputs is the bias", "[kernels][matmul]") {
  const Packed w(DType::kF32, 3, 0, {});
  const float bias[3] = {1, 2, 3};
  float none = 0;
  CHECK(w.times(&none, 2, bias) == std::vector<float>{1, 2, 3, 1, 2, 3});
}

}  // namespace
}  // namespace wf::kernels
