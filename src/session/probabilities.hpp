// Logits as natural logarithms of probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace wf {

// The logarithm of the sum of e^logit, (V).
struct LogSum {
  float highest;
  float rest;

  LogSum(const float* logits, size_t V) : highest(*std::max_element(logits, logits + V)) {
    double sum = 0;
    for (size_t v = 0; v < V; ++v) sum += std::exp(logits[v] - highest);
    rest = static_cast<float>(std::log(sum));
  }
  float log_probability(float logit) const { return logit - highest - rest; }
};

}  // namespace wf
