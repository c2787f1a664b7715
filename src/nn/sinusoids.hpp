// Positions as sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5): computed, so no position is too large.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/context.hpp"

namespace wf {

class Sinusoids {
 public:
  Sinusoids() = default;
  explicit Sinusoids(size_t model_size);  // D, even
  // The sines in the first half of the features, the cosines in the second.
  static Sinusoids halves(size_t model_size);
  // The same with frequencies 10000^(-i / (D / 2 - 1)) in single precision, positions counted from `offset` (at least 1), and zeros
  // at offset - 1, where padding stands: fairseq's and tensor2tensor's.
  static Sinusoids spread(size_t model_size, size_t offset);

  // y (T, D): feature 2i of row t is sin(positions[t] / 10000^(2i / D)), feature 2i + 1 its cosine. No gradient flows into it.
  Tensor operator()(Context& ctx, std::span<const int32_t> positions) const;

 private:
  std::vector<double> frequencies_;  // (D / 2)
  bool halves_ = false;
  int32_t offset_ = 0;  // 0: not `spread`
};

}  // namespace wf
