// Softmax over rows, its logarithm, and cross-entropy.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wf::kernels {

// y (rows, cols) = e^(x - max) / sum e^(x - max), row by row; y may be x. A row that is all -inf gives zeros, NaN gives NaN.
void softmax(const float* x, float* y, size_t rows, size_t cols);
// dx += y (dy - sum y dy); all (rows, cols); y is softmax's result. dx may not overlap the others.
void softmax_backward(const float* y, const float* dy, float* dx, size_t rows, size_t cols);
// y (rows, cols) = x - max - log sum e^(x - max); y may be x.
void log_softmax(const float* x, float* y, size_t rows, size_t cols);

// Of x (n), n > 0: the largest number, and the sum of e^(x - largest), which is NaN where x has NaN or an infinity above zero.
struct Peak {
  float largest, sum;
};
Peak peak(const float* x, size_t n);

// loss (rows): -(1 - smoothing) log p[target] - smoothing / cols * sum log p, p = softmax of the row, as PyTorch has it.
// A target below 0 is ignored: its loss is 0.
void cross_entropy(const float* x, const int32_t* target, float smoothing, float* loss, size_t rows, size_t cols);
// The same, and what the gradient is made of: numerators (rows, cols) e^(x - max) and factors (rows), one over their sum.
void cross_entropy_forward(const float* x, const int32_t* target, float smoothing, float* loss, float* numerators, float* factors,
                           size_t rows, size_t cols);
// Numerators become dloss (rows) * d loss / d x, zeros where the target does not count.
void cross_entropy_backward(const int32_t* target, float smoothing, const float* dloss, const float* factors, float* numerators,
                            size_t rows, size_t cols);

}  // namespace wf::kernels
