// Activation functions, plain and gated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wf::kernels {

enum class Activation : uint8_t {
  kIdentity,
  kRelu,
  kGelu,       // x (1 + erf(x / sqrt 2)) / 2 (Hendrycks and Gimpel 2016)
  kGeluTanh,   // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kQuickGelu,  // x sigmoid(1.702 x)
  kSilu,       // x sigmoid(x)
  kTanh,
  kSigmoid,
};

// y (n) = a(x); y may be x.
void activate(Activation a, const float* x, float* y, size_t n);
// dx (n) += dy a'(x)
void activate_backward(Activation a, const float* x, const float* dy, float* dx, size_t n);

// y (n) = a(gate) up (Shazeer 2020, "GLU variants"); y may be gate or up.
void gated(Activation a, const float* gate, const float* up, float* y, size_t n);
// dgate (n) += dy up a'(gate), dup (n) += dy a(gate)
void gated_backward(Activation a, const float* gate, const float* up, const float* dy, float* dgate, float* dup, size_t n);

}  // namespace wf::kernels
