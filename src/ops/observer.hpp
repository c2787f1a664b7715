// What a caller may look at inside a forward pass. A model announces; whoever listens copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor.hpp"

namespace wf {

// Decoder-only and encoder-only models use kHidden and kAttention.
enum class Site : uint8_t { kHidden, kAttention, kEncoderHidden, kEncoderAttention, kDecoderHidden, kDecoderAttention, kCrossAttention };

// One head's attention in one sequence: the query rows of this pass against all keys so far.
struct AttentionRows {
  size_t layer;
  size_t head;
  size_t sequence;       // in the batch
  size_t query_begin;    // position of the first query row in its sequence
  size_t queries;        // T
  size_t keys;           // S
  const float* weights;  // (T, S) softmax of the masked scores
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual bool wants(Site site, size_t layer) const = 0;
  virtual bool wants_head(Site, size_t /*layer*/, size_t /*head*/) const { return true; }
  virtual void observe(Site site, size_t layer, const Tensor& states) = 0;  // (T, D)
  virtual void observe_attention(Site site, const AttentionRows& rows) = 0;
};

}  // namespace wf
