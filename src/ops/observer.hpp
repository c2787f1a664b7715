// What a caller may look at inside a forward pass. A model announces; whoever listens copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor.hpp"

namespace wf {

// Decoder-only and encoder-only models use kHidden and kAttention.
enum class Site : uint8_t { kHidden, kAttention, kEncoderHidden, kEncoderAttention, kDecoderHidden, kDecoderAttention, kCrossAttention };

// What happens inside a block. That of a decoder's cross-attention has the site of cross-attention; a feed-forward network has
// the site of its layer's self-attention.
enum class Part : uint8_t {
  kQuery,  // (T, H * Dk), as it meets the keys: normed and rotated where the model does so
  kKey,    // (S, Hk * Dk)
  kValue,  // (S, Hk * Dv)
  kHeads,  // (T, H * Dv) what the heads give, before the output projection
  kInner,  // (T, F) the feed-forward network's activations, what its second matrix reads
};

// One head's attention in one sequence: the query rows of this pass against all keys so far.
struct AttentionRows {
  size_t layer;
  size_t head;
  size_t sequence;       // in the batch
  size_t query_begin;    // position of the first query row in its sequence
  size_t queries;        // T
  size_t keys;           // S
  const float* weights;  // (T, S) softmax of the masked scores
  const float* scores;   // (T, S) what it is the softmax of, -inf where hidden; null unless wanted
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual bool wants(Site site, size_t layer) const = 0;
  virtual bool wants_head(Site, size_t /*layer*/, size_t /*head*/) const { return true; }
  virtual bool wants_scores(Site, size_t /*layer*/) const { return false; }
  virtual bool wants_part(Site, Part, size_t /*layer*/) const { return false; }
  virtual void observe(Site site, size_t layer, const Tensor& states) = 0;  // (T, D)
  // `heads`: how many lie side by side in a row; 1 for what has none.
  virtual void observe_part(Site, Part, size_t /*layer*/, const Tensor& /*rows*/, size_t /*heads*/) {}
  virtual void observe_attention(Site site, const AttentionRows& rows) = 0;
};

}  // namespace wf
