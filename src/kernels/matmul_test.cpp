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
    Row y(M * F), scratch(matmul_scratch(store, M, D, F)), shared(matmul_shared(store, M, D));
    const Product product{x, D, store, panels.data(), bias, y.data(), F, M, D, F, shared.data()};
    matmul_prepare(product, 0, M);
    matmul(product, 0, panel_count(F), scratch.data());
    return y.values();
  }
};

constexpr DType kPlain[] = {DType::kF32, DType::kF16, DType::kBF16}, kQuantised[] = {DType::kQ8, DType::kQ4};
constexpr DType kAll[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8, DType::kQ4};

// What a product with quantised weights is in exact arithmetic, x being the codes it is turned into; `size` adds magnitudes, those
// of low and step code apart, for the tolerance; likewise those of a weight's low and scale code, which are at most a block's greatest
// magnitude and twice that.
void exact_product(const Packed& w, const float* x, size_t M, const float* bias, double* y, double* size) {
  std::vector<double> values(w.D), magnitudes(w.D);
  for (size_t m = 0; m < M; ++m) {
    for (size_t k = 0; k < w.D; k += 32) {
      const size_t n = std::min<size_t>(32, w.D - k);
      int32_t codes[32];
      const auto [low, step] = reference::quantised(w.store, x + m * w.D + k, n, codes);
      for (size_t i = 0; i < n; ++i) {
        const double product = static_cast<double>(step) * codes[i];
        values[k + i] = static_cast<double>(low) + product;
        magnitudes[k + i] = std::abs(static_cast<double>(low)) + std::abs(product);
      }
    }
    for (size_t f = 0; f < w.F; ++f) {
      double sum = static_cast<double>(bias[f]), all = std::abs(sum);
      double most = 0;
      for (size_t k = 0; k < w.D; ++k) {
        const float* weight = &w.W[f * w.D + k];
        if (k % 32 == 0) {
          most = 0;
          for (size_t i = 0; i < std::min<size_t>(32, w.D - k); ++i) most = std::max(most, std::abs(static_cast<double>(weight[i])));
        }
        sum += values[k] * static_cast<double>(*weight);
        all += magnitudes[k] * (w.store == DType::kQ4 ? 3 * most : std::abs(static_cast<double>(*weight)));
      }
      y[m * w.F + f] = sum;
      size[m * w.F + f] = all;
    }
  }
}

TEST_CASE("matmul by hand", "[kernels][matmul]") {
  for (const DType store : kPlain) {
    const Packed w(store, 3, 2, {1, 2, 3, 4, 5, 6});
    float x[4] = {1, 1, 10, -1};
    const float bias[3] = {0.5f, 0, -0.5f};
    CHECK(w.times(x, 2, bias) == std::vector<float>{3.5f, 7, 10.5f, 8.5f, 26, 43.5f});
    CHECK(w.times(x, 2, nullptr) == std::vector<float>{3, 7, 11, 8, 26, 44});
  }
}

TEST_CASE("matmul of many sizes; a row's bits do not depend on its company", "[kernels][matmul]") {
  for (const DType store : kPlain) {
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

TEST_CASE("matmul with quantised weights, of many sizes", "[kernels][matmul]") {
  for (const DType store : kQuantised) {
    std::vector<std::pair<size_t, size_t>> sizes;
    for (size_t F = 1; F <= 33; ++F) sizes.emplace_back(F, 70);
    for (const size_t D : {1, 2, 3, 16, 31, 32, 33, 63, 64, 65, 96, 172, 288, 576, 2048})
      sizes.emplace_back(19, D), sizes.emplace_back(32, D);
    for (const auto& [F, D] : sizes) {
      const Packed w(store, F, D, normals(F * D, F + D));
      const std::vector<float> bias = normals(F, 3);
      for (const size_t M : {1, 2, 3, 4, 5, 6, 7, 8, 9, 128}) {
        if (M == 128 && F * D > 2000) continue;
        Row x(normals(M * D, M, 3.0f, M % 2 ? 0.0f : 2.0f), (F + M) % 4);
        const std::vector<float> y = w.times(x.data(), M, bias.data());
        std::vector<double> exact(M * F), size(M * F);
        exact_product(w, x.data(), M, bias.data(), exact.data(), size.data());
        // Sums of codes are exact. Three roundings of a block's number, then a sum of blocks, of errors of random sign.
        const double error = kEps * (2 + std::sqrt(static_cast<double>(D) / 32));
        size_t wrong = 0;
        for (size_t i = 0; i < M * F; ++i) wrong += !(std::abs(static_cast<double>(y[i]) - exact[i]) <= error * size[i]);
        for (size_t m = 0; m < M; ++m) {
          const std::vector<float> alone = w.times(x.data() + m * D, 1, bias.data());
          wrong += !same_bits(alone.data(), y.data() + m * F, F);
        }
        CAPTURE(name_of(store), F, D, M);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("matmul with the greatest codes there are", "[kernels][matmul]") {
  const size_t F = 16, D = 64;
  for (const DType store : kQuantised) {
    // Blocks as a file has them, every code at an end of its range: the sums that come nearest to an overflow.
    for (const int code : store == DType::kQ8 ? std::vector<int>{-128, 127} : std::vector<int>{0, 15}) {
      std::vector<unsigned char> file;
      for (size_t b = 0; b < F * D / 32; ++b) {
        file.push_back(0x00), file.push_back(0x3c);  // 1 in f16
        for (size_t i = 0; i < (store == DType::kQ8 ? 32 : 16); ++i)
          file.push_back(static_cast<unsigned char>(store == DType::kQ8 ? code : code * 17));
      }
      Packed w(store, F, D, std::vector<float>(F * D));
      REQUIRE(pack_rows(store, w.panels.data(), F, D, 0, F, file.data(), store));
      const float weight = static_cast<float>(store == DType::kQ8 ? code : code - 8);
      for (const float sign : {1.0f, -1.0f}) {
        for (const size_t M : {1, 3, 4, 5}) {
          // kQ8: codes 127 but for one 0; kQ4: all 127 or -127. Every number is exact.
          Row x(std::vector<float>(M * D, 127 * sign));
          for (size_t i = 0; i < M * D && store == DType::kQ8; i += 32) x[i] = 0;
          const float sum = weight * 127 * sign * static_cast<float>(store == DType::kQ8 ? D - 2 : D);
          CHECK(w.times(x.data(), M, nullptr) == std::vector<float>(M * F, sum));
        }
      }
    }
  }
}

TEST_CASE("matmul of rows that quantising could spoil", "[kernels][matmul]") {
  const size_t F = 5, D = 70;
  for (const DType store : kQuantised) {
    const Packed w(store, F, D, normals(F * D, 1));
    const auto product = [&](std::vector<float> row) {
      Row x(row);
      return w.times(x.data(), 1, nullptr);
    };
    const std::vector<float> ones = product(std::vector<float>(D, 1.0f));
    for (size_t f = 0; f < F; ++f) {
      double sum = 0;
      for (size_t k = 0; k < D; ++k) sum += static_cast<double>(w.W[f * D + k]);
      CHECK(std::abs(static_cast<double>(ones[f]) - sum) < 1e-5);
    }
    CHECK(product(std::vector<float>(D, 0.0f)) == std::vector<float>(F, 0.0f));
    CHECK(product(std::vector<float>(D, -0.0f)) == std::vector<float>(F, 0.0f));
    for (const float tiny : {1e-37f, 1e-45f}) {
      for (const float y : product(std::vector<float>(D, tiny))) CHECK(std::abs(y) < 1e-34f);
    }
    // Far larger than any activation, still finite.
    std::vector<float> large(D, 1e34f);
    large[1] = -1e34f;
    for (const float y : product(large)) CHECK((std::isfinite(y) && y != 0));
    for (const float bad : {kNaN, kInf, -kInf}) {
      for (const size_t at : {size_t{0}, size_t{33}, D - 1}) {
        Row x(normals(5 * D, 2));
        x[3 * D + at] = bad;
        const std::vector<float> y = w.times(x.data(), 5, nullptr);
        for (size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i / F == 3));
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
    Row x(normals((M - 1) * x_stride + D, 2)), whole((M - 1) * y_stride + F), scratch(matmul_scratch(store, M, D, F)),
        shared(matmul_shared(store, M, D));
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = 777.0f;
    Row parts(whole.values());
    Product product{x.data(), x_stride, store, w.panels.data(), nullptr, whole.data(), y_stride, M, D, F, shared.data()};
    for (const size_t row : {2, 0, 1}) matmul_prepare(product, row, row + 1);
    matmul(product, 0, 3, scratch.data());
    product.y = parts.data();
    for (const size_t panel : {2, 0, 1}) matmul(product, panel, panel + 1, scratch.data());
    CHECK(same_bits(whole.values(), parts.values()));
    for (size_t m = 0; m < M; ++m) {
      const std::vector<float> alone = w.times(x.data() + m * x_stride, 1, nullptr);
      CHECK(same_bits(alone.data(), whole.data() + m * y_stride, F));
      for (size_t f = F; f < y_stride && m + 1 < M; ++f) CHECK(whole[m * y_stride + f] == 777.0f);
    }
  }
}

TEST_CASE("matmul of extreme weights", "[kernels][matmul]") {
  for (const DType store : kPlain) {
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
