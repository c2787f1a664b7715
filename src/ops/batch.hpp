// A ragged batch: the tokens of all sequences end to end, without padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wf {

struct Batch {
  std::span<const int32_t> tokens;     // (T)
  std::span<const int32_t> positions;  // (T) where each token stands in its own sequence
  std::span<const size_t> offsets;     // (sequences + 1) rows offsets[i]..offsets[i + 1] are sequence i
  // Positions the whole call will reach in each sequence (this chunk or a later one): the length by which length-dependent
  // RoPE scalings choose their frequencies, as Python does with a whole prompt. Empty: the batch holds whole sequences.
  std::span<const size_t> extents;
  // One a sequence, or empty: what is added to the scores of its keys, a number a position from 0 on; -inf hides a position.
  std::span<const float* const> key_bias = {};
  // (T) which segment of its sequence each token belongs to (BERT's token types), or empty: all in the first.
  std::span<const int32_t> types = {};

  size_t sequences() const { return offsets.size() - 1; }
  size_t begin(size_t sequence) const { return offsets[sequence]; }
  size_t length(size_t sequence) const { return offsets[sequence + 1] - offsets[sequence]; }
};

}  // namespace wf
