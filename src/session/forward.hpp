// One forward pass over whole sequences, with what the caller wants to look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/config.hpp"
#include "ops/observer.hpp"
#include "session/runtime.hpp"

namespace wf {

struct ForwardInput {
  std::vector<std::vector<int32_t>> ids;          // a list a sequence
  std::vector<std::vector<int32_t>> positions;    // where each token stands, or none
  std::vector<std::vector<uint8_t>> masks;        // 0: the token is padding; or none
  std::vector<std::vector<int32_t>> decoder_ids;  // the targets of an encoder-decoder model, otherwise none
};

struct ForwardRequest {
  bool logits = true;
  bool hidden_states = false;
  bool attentions = false;
  std::vector<size_t> layers, heads;  // whose attention, in the order it is returned; empty: all
};

// Keys: logits, hiddenStates, attentions (flags); attentions.layers, attentions.heads (lists). An unknown key is kInvalidArgument.
ForwardRequest parse_forward_request(const Config& config);

struct Array {
  std::vector<size_t> shape;
  std::vector<float> data;
};

// Rows and columns of padding are zeros. T: tokens of the sequence, padding included; S: keys.
struct ForwardResult {
  Array logits;                                   // (T, V)
  std::map<Site, std::vector<Array>> states;      // the sites of hidden states: (T, D), the embedding first
  std::map<Site, std::vector<Array>> attentions;  // the sites of attention: (heads asked for, T, S), one a layer asked for
};

class Forward {
 public:
  // Checks the input against the model, and the memory that the results and the pass will take against the limit (kOutOfMemory,
  // with the bytes), before any work.
  Forward(std::shared_ptr<Runtime> runtime, ForwardInput input, ForwardRequest request);

  // One chunk of a sequence; true when all is done.
  bool advance();
  const std::vector<ForwardResult>& results() const;

 private:
  class Collector;

  void check(size_t sequence);
  void expect_room() const;
  void begin();
  void finish();

  std::shared_ptr<Runtime> runtime_;
  ForwardInput input_;
  ForwardRequest request_;
  std::vector<ForwardResult> results_;
  size_t sequence_ = 0;
  // The sequence under way.
  std::unique_ptr<KvCache> cache_, source_cache_;
  std::vector<int32_t> ids_, positions_;  // of the tokens that are not padding
  std::vector<size_t> places_, sources_;  // where those stand among all: of the sequence that is continued, and of the encoder's
  std::vector<float> key_bias_;           // hides padding between tokens where it cannot be taken out, otherwise empty
  size_t extent_ = 0;                     // positions of the whole sequence, padding included: scaled rotary positions depend on it
  bool started_ = false;
};

}  // namespace wf
