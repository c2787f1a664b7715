// Logits as natural logarithms of probabilities.
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/softmax.hpp"

namespace wf {

// The logarithm of the sum of e^logit, (V).
struct LogSum {
  float highest;
  float rest;

  LogSum(const float* logits, size_t V) {
    const kernels::Peak peak = kernels::peak(logits, V);
    highest = peak.largest, rest = std::log(peak.sum);
  }
  float log_probability(float logit) const { return logit - highest - rest; }
};

}  // namespace wf
