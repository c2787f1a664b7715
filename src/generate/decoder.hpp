// The little that generation needs of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace wf::generate {

// Tokens to append to the sequence in `slot`; `logits`: whether those of its last token are wanted.
struct Append {
  size_t slot;
  std::span<const int32_t> tokens;
  bool logits;
  size_t extent;  // tokens the sequence will hold when the prompt or step these belong to is complete
};

// Sequences in numbered slots, empty at first, each with the keys and values of its tokens. What a sequence's logits are depends
// on its own tokens alone: not on the slot, on the other sequences, or on how the tokens were split into calls.
class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual size_t vocab_size() const = 0;         // V
  virtual size_t max_positions() const = 0;      // tokens that a sequence can hold at most; 0: no wall
  virtual size_t length(size_t slot) const = 0;  // tokens held

  // Appends; `logits` receives (parts that ask, V), in the order of the parts.
  virtual void run(std::span<const Append> parts, float* logits) = 0;
  // Slot i goes on from what slot sources[i] held before the call; copies share memory until they differ.
  virtual void reorder(std::span<const size_t> sources) = 0;
  // Keeps the first `length` tokens.
  virtual void truncate(size_t slot, size_t length) = 0;
  // The sequence is complete: nothing is appended to it any more.
  virtual void release(size_t slot) = 0;
};

}  // namespace wf::generate
