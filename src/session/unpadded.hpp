// One text without its padding: what a model reads, and where each of its tokens stands among all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/model.hpp"

namespace wf {

// Of one sequence, one entry a token; all but the ids may be empty.
struct PaddedText {
  std::span<const int32_t> ids;
  std::span<const int32_t> positions;  // as Python counts them
  std::span<const uint8_t> mask;       // 0: padding
  std::span<const int32_t> types;
};

struct Unpadded {
  std::vector<int32_t> ids, positions, types;
  std::vector<size_t> places;   // where each stands among all
  std::vector<float> key_bias;  // -inf hides padding that had to stay between the tokens; otherwise empty
  size_t tokens = 0;            // padding included
  size_t extent = 0;            // positions of the whole, padding included: scaled rotary positions depend on it

  bool hides(size_t row) const { return !key_bias.empty() && key_bias[row] != 0; }
};

// `keep_holes`: padding between tokens stays, because their distance counts it. Positions that are not given are those of the
// model's rule.
Unpadded without_padding(const ModelInfo& info, const PaddedText& text, bool keep_holes);

}  // namespace wf
