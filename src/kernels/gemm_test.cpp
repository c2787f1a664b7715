#include "kernels/gemm.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

void check(size_t M, size_t N, size_t K) {
  for (int form = 0; form < 8; ++form) {
    const bool trans_a = form & 1, trans_b = form & 2, accumulate = form & 4;
    const size_t a_rows = trans_a ? K : M, a_cols = trans_a ? M : K, b_rows = trans_b ? N : K, b_cols = trans_b ? K : N;
    const size_t lda = a_cols + 3, ldb = b_cols + 1, ldc = N + 2;
    Row A(normals((a_rows - 1) * lda + a_cols, M), form % 4), B(normals((b_rows - 1) * ldb + b_cols, N), 1),
        C(normals((M - 1) * ldc + N, K), 2);
    const std::vector<float> before = C.values();
    std::vector<double> a, b, c, size;
    for (size_t i = 0; i < a_rows; ++i) a.insert(a.end(), A.data() + i * lda, A.data() + i * lda + a_cols);
    for (size_t i = 0; i < b_rows; ++i) b.insert(b.end(), B.data() + i * ldb, B.data() + i * ldb + b_cols);
    for (size_t i = 0; i < M; ++i) c.insert(c.end(), C.data() + i * ldc, C.data() + i * ldc + N);
    size = c;
    reference::gemm(trans_a, trans_b, M, N, K, a.data(), b.data(), accumulate, c.data());
    for (auto* v : {&a, &b, &size}) {
      for (double& value : *v) value = std::abs(value);
    }
    reference::gemm(trans_a, trans_b, M, N, K, a.data(), b.data(), accumulate, size.data());
    Row scratch(gemm_scratch(M, N, K));
    gemm(trans_a, trans_b, M, N, K, A.data(), lda, B.data(), ldb, accumulate, C.data(), ldc, scratch.data());
    const double error = kEps * (2 + 2 * std::sqrt(std::min(static_cast<double>(K), 256.0)) + static_cast<double>(K) / 256);
    size_t wrong = 0;
    for (size_t m = 0; m < M; ++m) {
      for (size_t n = 0; n < N; ++n) wrong += !(std::abs(C[m * ldc + n] - c[m * N + n]) <= error * size[m * N + n]);
      for (size_t n = N; n < ldc && m + 1 < M; ++n) wrong += C[m * ldc + n] != before[m * ldc + n];
    }
    CAPTURE(M, N, K, trans_a, trans_b, accumulate);
    CHECK(wrong == 0);
    CHECK(C.intact());
  }
}

TEST_CASE("gemm by hand", "[kernels][gemm]") {
  const float A[6] = {1, 2, 3, 4, 5, 6}, B[6] = {1, 0, 0, 1, 1, 1};  // (2, 3), (3, 2)
  float C[4] = {100, 100, 100, 100};
  Row scratch(gemm_scratch(2, 2, 3));
  gemm(false, false, 2, 2, 3, A, 3, B, 2, true, C, 2, scratch.data());
  CHECK(std::vector<float>(C, C + 4) == std::vector<float>{104, 105, 110, 111});
}

TEST_CASE("gemm of every small size", "[kernels][gemm]") {
  for (size_t M = 1; M <= 5; ++M) {
    for (size_t N = 1; N <= kLongest; ++N) {
      for (size_t K = 1; K <= 6; ++K) check(M, N, K);
    }
  }
}

TEST_CASE("gemm of sizes around its blocks", "[kernels][gemm]") {
  check(64, 16, 256);
  check(65, 17, 257);
  check(3, 257, 300);
  check(130, 255, 20);
  check(1, 1, 1000);
  check(40, 33, 513);
}

TEST_CASE("gemm of no terms", "[kernels][gemm]") {
  float C[2] = {3, 4}, none = 0;
  gemm(false, false, 1, 2, 0, &none, 0, &none, 2, true, C, 2, &none);
  CHECK(C[0] == 3.0f);
  gemm(false, false, 1, 2, 0, &none, 0, &none, 2, false, C, 2, &none);
  CHECK(C[1] == 0.0f);
}

}  // namespace
}  // namespace wf::kernels
