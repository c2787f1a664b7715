// Dropout (Srivastava et al. 2014): numbers are zero with probability `rate`, and otherwise divided by 1 - rate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/rng.hpp"

namespace wf::kernels {

// What elements first.. of one call are multiplied by: a function of `rate`, the key and the element's number alone. Sixteen bits
// are drawn an element: the rate in [0, 1) counts as the nearest multiple of 2^-16 below 1, of which the divisor is made too.
struct DropoutMask {
  float rate;
  RngKey key;
  uint64_t first;
};

// factors (n)
void dropout_factors(const DropoutMask& mask, float* factors, size_t n);
// y (n) = x factors; y may be x.
void dropout(const DropoutMask& mask, const float* x, float* y, size_t n);
// dx (n) += dy factors
void dropout_backward(const DropoutMask& mask, const float* dy, float* dx, size_t n);

}  // namespace wf::kernels
