// How likely texts are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "session/runtime.hpp"

namespace wf {

class Score {
 public:
  // Errors: kInvalidArgument for an empty sequence, a token outside the vocabulary, more tokens than learned positions, or a model
  // with an encoder (kUnsupported); kOutOfMemory, before any work.
  Score(std::shared_ptr<Runtime> runtime, std::vector<std::vector<int32_t>> sequences);

  // One chunk of a sequence; true when all is done.
  bool advance();
  // Natural logarithm of the probability of each token given those before it; NaN for the first of a sequence.
  const std::vector<std::vector<float>>& results() const;

 private:
  std::shared_ptr<Runtime> runtime_;
  std::vector<std::vector<int32_t>> sequences_;
  std::vector<std::vector<float>> results_;
  size_t sequence_ = 0;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace wf
