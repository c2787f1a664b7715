#include "session/unpadded.hpp"

#include <algorithm>
#include <limits>

namespace wf {

Unpadded without_padding(const ModelInfo& info, const PaddedText& text, bool keep_holes) {
  const size_t T = text.ids.size();
  const auto visible = [&](size_t i) { return text.mask.empty() || text.mask[i] != 0; };
  Unpadded result;
  result.tokens = T;
  size_t first = 0, last = T, seen = 0;
  while (first < last && !visible(first)) ++first;
  while (first < last && !visible(last - 1)) --last;
  bool holes = false;
  for (size_t i = first; i < last; ++i) holes |= !visible(i);

  const bool not_pad = info.position_rule == PositionRule::kNotPad, by_mask = info.position_rule == PositionRule::kVisible;
  size_t counted = 0;  // tokens that are not the padding token
  for (size_t i = 0; i < T; ++i) {
    const bool is_pad = !info.takes_position(text.ids[i]);
    counted += !is_pad;
    if (i < first || i >= last || (!visible(i) && !keep_holes)) continue;
    // Python counts the positions of this rule's models from behind the padding token's.
    const int32_t given = text.positions.empty() ? 0 : text.positions[i] - (not_pad ? info.padding + 1 : 0);
    const int32_t ruled = is_pad ? -1 : static_cast<int32_t>(not_pad ? counted - 1 : by_mask ? seen : i);
    seen += visible(i);
    result.ids.push_back(text.ids[i]);
    result.positions.push_back(text.positions.empty() ? ruled : given);
    result.places.push_back(i);
    if (!text.types.empty()) result.types.push_back(text.types[i]);
    if (holes && keep_holes) result.key_bias.push_back(visible(i) ? 0 : -std::numeric_limits<float>::infinity());
  }
  // Python looks at the positions of padding too.
  result.extent = by_mask ? seen : T;
  if (!text.positions.empty()) result.extent = static_cast<size_t>(*std::max_element(text.positions.begin(), text.positions.end())) + 1;
  return result;
}

}  // namespace wf
