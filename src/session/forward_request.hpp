// What a caller wants of a forward pass, and what comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "ops/observer.hpp"
#include "session/array.hpp"

namespace wf {

struct ForwardInput {
  std::vector<std::vector<int32_t>> ids;          // a list a sequence
  std::vector<std::vector<int32_t>> positions;    // where each token stands, or none
  std::vector<std::vector<uint8_t>> masks;        // 0: the token is padding; or none
  std::vector<std::vector<int32_t>> decoder_ids;  // the targets of an encoder-decoder model, otherwise none
  std::vector<std::vector<int32_t>> types = {};   // which segment each token belongs to, or none
  std::vector<std::vector<uint8_t>> decoder_masks = {};
};

// Some layers and heads, in the order in which they are returned; empty: all.
struct Selection {
  bool wanted = false;
  std::vector<size_t> layers, heads;

  bool has_layer(size_t layer) const { return wanted && contains(layers, layer); }
  bool has_head(size_t head) const { return wanted && contains(heads, head); }

 private:
  static bool contains(const std::vector<size_t>& list, size_t value);
};

struct ForwardRequest {
  bool logits = true;  // and whatever else the head gives
  bool hidden_states = false;
  Selection attentions, trace;
  bool logit_lens = false;
  size_t top_k = 0;  // of the lens: likeliest tokens to keep; 0: the logits of all
};

// Keys: logits, hiddenStates, attentions, trace, logitLens (flags); attentions.layers, attentions.heads, trace.layers, trace.heads
// (lists); logitLens.topK. An unknown key is kInvalidArgument.
ForwardRequest parse_forward_request(const Config& config);

// Rows and columns of padding are zeros, of scores -inf. T: tokens of the sequence, padding included; S: keys. What was not asked for,
// or the model does not have, has no shape.
struct ForwardResult {
  Array logits;                                   // (T, V); of a head over tokens (T, labels), over the sequence (labels)
  Array start_logits, end_logits;                 // (T), of a head for questions
  Array last_hidden_state, pooled;                // (T, D) and (D), of a model without a head
  std::map<Site, std::vector<Array>> states;      // the sites of hidden states: (T, D), the embedding first
  std::map<Site, std::vector<Array>> attentions;  // the sites of attention: (heads asked for, T, S), one a layer asked for
  // By names like "decoder.0.crossAttention.query" (ops/observer.hpp, Part): (heads, T, Dk), scores (heads, T, S), inner (T, F).
  std::vector<std::pair<std::string, Array>> trace;
  std::vector<Array> lens;                     // one a hidden state: (T, V) logits, or (T, top_k) log-probabilities, the highest first
  std::vector<std::vector<int32_t>> lens_ids;  // with top_k, the tokens they belong to; -1 in rows of padding
};

}  // namespace wf
