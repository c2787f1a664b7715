// The scalar definition of every kernel, in float or double: the specification. In float the kernels are compared with it, in
// double gradients are checked against its finite differences. Written to be read, not to be fast.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/dtype.hpp"
#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/optimise.hpp"

namespace wf::kernels::reference {

// y (M, F) = x (M, D) W^T + b; W (F, D), row-major; b (F) or null.
template <class Real>
void matmul(const Real* x, const Real* W, const Real* b, Real* y, size_t M, size_t D, size_t F) {
  for (size_t m = 0; m < M; ++m) {
    for (size_t f = 0; f < F; ++f) {
      Real sum = b ? b[f] : Real(0);
      for (size_t k = 0; k < D; ++k) sum += x[m * D + k] * W[f * D + k];
      y[m * F + f] = sum;
    }
  }
}

// n <= 32 activations as a product with quantised weights sees them: low + step code, the codes in out. kQ8: codes 0..127 between
// least and greatest; kQ4: low = 0, codes -127..127. In float, for the codes are the kernel's own.
struct Affine {
  float low, step;
};
inline Affine quantised(DType store, const float* x, size_t n, int32_t* out) {
  const auto [least, greatest] = std::minmax_element(x, x + n);
  const float low = store == DType::kQ8 ? *least : 0;
  const float range = store == DType::kQ8 ? *greatest - *least : std::max(std::abs(*least), std::abs(*greatest));
  for (size_t i = 0; i < n; ++i) out[i] = range < 1e-36f ? 0 : static_cast<int32_t>(std::nearbyint((x[i] - low) * (127 / range)));
  return {low, range < 1e-36f ? 0 : range / 127};
}

// C (M, N) = op(A) op(B), or += with accumulate; rows packed without gaps.
template <class Real>
void gemm(bool trans_a, bool trans_b, size_t M, size_t N, size_t K, const Real* A, const Real* B, bool accumulate, Real* C) {
  for (size_t m = 0; m < M; ++m) {
    for (size_t n = 0; n < N; ++n) {
      Real sum = accumulate ? C[m * N + n] : Real(0);
      for (size_t k = 0; k < K; ++k) sum += (trans_a ? A[k * M + m] : A[m * K + k]) * (trans_b ? B[n * K + k] : B[k * N + n]);
      C[m * N + n] = sum;
    }
  }
}

template <class Real>
void softmax(const Real* x, Real* y, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const Real most = *std::max_element(x, x + cols);
    Real sum = 0;
    for (size_t i = 0; i < cols; ++i) sum += y[i] = most == -std::numeric_limits<Real>::infinity() ? 0 : std::exp(x[i] - most);
    for (size_t i = 0; i < cols; ++i) y[i] = sum == 0 ? 0 : y[i] / sum;
  }
}

template <class Real>
void log_softmax(const Real* x, Real* y, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const Real most = *std::max_element(x, x + cols);
    Real sum = 0;
    for (size_t i = 0; i < cols; ++i) sum += std::exp(x[i] - most);
    for (size_t i = 0; i < cols; ++i) y[i] = x[i] - most - std::log(sum);
  }
}

template <class Real>
void cross_entropy(const Real* x, const int32_t* target, Real smoothing, Real* loss, size_t rows, size_t cols) {
  std::vector<Real> log_p(cols);
  for (size_t r = 0; r < rows; ++r) {
    loss[r] = 0;
    if (target[r] < 0) continue;
    log_softmax(x + r * cols, log_p.data(), 1, cols);
    for (size_t i = 0; i < cols; ++i) {
      const Real truth = (i == static_cast<size_t>(target[r]) ? 1 - smoothing : Real(0)) + smoothing / static_cast<Real>(cols);
      if (truth != 0) loss[r] -= truth * log_p[i];
    }
  }
}

template <class Real>
void layer_norm(const Real* x, const Real* weight, const Real* bias, Real* y, size_t rows, size_t cols, Real eps) {
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    Real mean = 0, variance = 0;
    for (size_t i = 0; i < cols; ++i) mean += x[i] / static_cast<Real>(cols);
    for (size_t i = 0; i < cols; ++i) variance += (x[i] - mean) * (x[i] - mean) / static_cast<Real>(cols);
    for (size_t i = 0; i < cols; ++i) {
      y[i] = (x[i] - mean) / std::sqrt(variance + eps) * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
    }
  }
}

template <class Real>
void rms_norm(const Real* x, const Real* weight, Real offset, Real* y, size_t rows, size_t cols, Real eps) {
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    Real square = 0;
    for (size_t i = 0; i < cols; ++i) square += x[i] * x[i] / static_cast<Real>(cols);
    for (size_t i = 0; i < cols; ++i) y[i] = x[i] / std::sqrt(square + eps) * (weight ? weight[i] + offset : 1);
  }
}

template <class Real>
Real activate(Activation a, Real x) {
  switch (a) {
    case Activation::kIdentity:
      return x;
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return x * Real(0.5) * (1 + std::erf(x * Real(0.707106781186547524401)));
    case Activation::kGeluTanh:
      return Real(0.5) * x * (1 + std::tanh(Real(0.797884560802865355880) * (x + Real(0.044715) * x * x * x)));
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-Real(1.702) * x));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

// x (rows, heads * Dk), cos and sin (rows, rotary / 2).
template <class Real>
void rope(Real* x, size_t rows, size_t heads, size_t Dk, size_t rotary, const Real* cos, const Real* sin, bool interleaved) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t h = 0; h < heads; ++h) {
      Real* head = x + (r * heads + h) * Dk;
      for (size_t i = 0; i < rotary / 2; ++i) {
        Real& a = head[interleaved ? 2 * i : i];
        Real& b = head[interleaved ? 2 * i + 1 : i + rotary / 2];
        const Real c = cos[r * (rotary / 2) + i], s = sin[r * (rotary / 2) + i], old = a;
        a = old * c - b * s;
        b = b * c + old * s;
      }
    }
  }
}

// q (T, H * Dk) at positions q_begin.., k (S, Hk * Dk), v (S, Hk * Dv); scores and weights (H, T, S), out (T, H * Dv).
template <class Real>
void attention(const AttentionShape& shape, const AttentionMask& mask, const Real* q, const Real* k, const Real* v, size_t T,
               size_t q_begin, size_t S, Real* scores, Real* weights, Real* out) {
  const size_t group = shape.H / shape.Hk;
  for (size_t h = 0; h < shape.H; ++h) {
    const size_t g = h / group;
    for (size_t t = 0; t < T; ++t) {
      const size_t i = q_begin + t;
      Real* score = scores + (h * T + t) * S;
      Real* weight = weights + (h * T + t) * S;
      for (size_t j = 0; j < S; ++j) {
        const bool hidden = (mask.causal && j > i) || (mask.window != 0 && i >= j + mask.window);
        Real sum = 0;
        for (size_t d = 0; d < shape.Dk; ++d) sum += q[(t * shape.H + h) * shape.Dk + d] * k[(j * shape.Hk + g) * shape.Dk + d];
        sum *= static_cast<Real>(mask.scale);
        if (mask.slopes) sum += static_cast<Real>(mask.slopes[h]) * static_cast<Real>(j);
        if (mask.bias) {
          const ptrdiff_t row = static_cast<ptrdiff_t>(h) * mask.bias_head_stride + static_cast<ptrdiff_t>(t) * mask.bias_row_stride;
          sum += static_cast<Real>(mask.bias[row + static_cast<ptrdiff_t>(j)]);
        }
        if (mask.key_bias) sum += static_cast<Real>(mask.key_bias[j]);
        score[j] = hidden ? -std::numeric_limits<Real>::infinity() : sum;
      }
      softmax(score, weight, S == 0 ? 0 : 1, S);
      for (size_t d = 0; d < shape.Dv; ++d) {
        Real sum = 0;
        for (size_t j = 0; j < S; ++j) sum += weight[j] * v[(j * shape.Hk + g) * shape.Dv + d];
        out[(t * shape.H + h) * shape.Dv + d] = sum;
      }
    }
  }
}

template <class Real>
void adamw(Real* p, const Real* g, Real* m, Real* v, size_t n, const AdamStep& step) {
  const auto real = [](double a) { return static_cast<Real>(a); };
  for (size_t i = 0; i < n; ++i) {
    const Real gradient = g[i] * real(step.scale) + (step.coupled ? real(step.weight_decay) * p[i] : 0);
    if (!step.coupled) p[i] *= real(1 - step.learning_rate * step.weight_decay);
    m[i] += real(1 - step.beta1) * (gradient - m[i]);
    v[i] = v[i] * real(step.beta2) + real(1 - step.beta2) * gradient * gradient;
    const Real root = std::sqrt(v[i]) / real(std::sqrt(step.correction2)) + real(step.epsilon);
    p[i] -= real(step.learning_rate / step.correction1) * m[i] / root;
  }
}

}  // namespace wf::kernels::reference
