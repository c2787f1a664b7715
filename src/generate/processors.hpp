// Logits processors: rules that change the scores of the next token by what the sequence holds so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generate/options.hpp"

namespace wf::generate {

// A sequence as the rules see it.
struct History {
  std::span<const int32_t> ids;  // prompt and what was generated, in order
  size_t prompt_length;
  size_t max_length;                // tokens, prompt included, at which generation ends
  std::span<const int32_t> source;  // what the encoder reads; of a model without one, the prompt
};

// Every processor that the options ask for, in the order of transformers' generate(); after them frequencyPenalty,
// presencePenalty and logitBias, where generate() puts a caller's own processors. f32 throughout.
class Processors {
 public:
  Processors(const Options& options, size_t vocab_size);  // keeps the reference

  // scores (V), in place. Allocates nothing.
  void run(const History& history, std::span<float> scores);

 private:
  void repetition_penalty(float penalty, std::span<const int32_t> ids, std::span<float> scores);
  void count_penalties(std::span<const int32_t> generated, std::span<float> scores);

  const Options& options_;
  std::vector<uint32_t> count_;  // (V) zeros between calls
};

// Adds to scores[last of each entry] its bias where the entry's other tokens are the latest of `ids`.
void add_sequence_bias(std::span<const SequenceBias> biases, std::span<const int32_t> ids, std::span<float> scores);
// Rules out every token with which `ids` would end in an n-gram of `text`.
void forbid_repeated_ngrams(size_t n, std::span<const int32_t> text, std::span<const int32_t> ids, std::span<float> scores);

}  // namespace wf::generate
