// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) over rows.
#pragma once

#include <cstddef>

namespace wf::kernels {

// y (rows, cols) = (x - mean) / sqrt(variance + eps) * weight + bias; weight (cols) or null for ones, bias (cols) or null.
// y may be x. Rows far from zero keep their digits: the mean is corrected before deviations are squared.
void layer_norm(const float* x, const float* weight, const float* bias, float* y, size_t rows, size_t cols, float eps);
// dx (rows, cols) +=, dweight (cols) += or null, dbias (cols) += or null.
void layer_norm_backward(const float* x, const float* weight, const float* dy, float* dx, float* dweight, float* dbias, size_t rows,
                         size_t cols, float eps);

// y (rows, cols) = x / sqrt(mean of x^2 + eps) * (weight + offset); weight (cols) or null for a factor of 1. y may be x.
void rms_norm(const float* x, const float* weight, float offset, float* y, size_t rows, size_t cols, float eps);
// dx (rows, cols) +=, dweight (cols) += or null.
void rms_norm_backward(const float* x, const float* weight, float offset, const float* dy, float* dx, float* dweight, size_t rows,
                       size_t cols, float eps);

}  // namespace wf::kernels
