// Greedy decoding and sampling over a Decoder, a step at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generate/candidates.hpp"
#include "generate/decoder.hpp"
#include "generate/options.hpp"
#include "generate/processors.hpp"

namespace wf::generate {

enum class Finish : uint8_t {
  kStop,    // an end-of-sequence token was chosen
  kLength,  // maxNewTokens or maxLength was reached, or the last learned position used
};
const char* name_of(Finish finish);  // "stop", "length"

struct Emitted {
  size_t sequence;  // prompt * numReturnSequences + index within the prompt
  size_t index;     // among the sequence's generated tokens
  int32_t token;
  float logprob;          // from the processed distribution
  size_t top, top_count;  // its part of Step::top: the best tokens at that place, where `logprobs` asks for them
};

struct Finished {
  size_t sequence;
  Finish reason;
};

struct Step {
  bool done = false;     // nothing is left to do
  size_t prefilled = 0;  // prompt tokens behind us, over all prompts; those of a reused cache count
  std::vector<Emitted> tokens;
  std::vector<Finished> finished;
  std::vector<Choice> top;
};

class Generation {
 public:
  // Checks everything before it asks the decoder for work. Slot s of the decoder becomes sequence s; a slot that already holds
  // tokens (the first of a prompt's) must hold a prefix of the prompt, and only the rest is computed.
  // Errors, kInvalidArgument: no prompt; an empty one without bosTokenId; a token id outside the vocabulary; a prompt that
  // leaves no room under maxLength, or does not fit into the learned positions.
  Generation(Decoder& decoder, std::vector<std::vector<int32_t>> prompts, Options options);

  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // One chunk of prompt tokens, or one token for every sequence that is not finished. The reference is valid until the next call.
  const Step& advance();
  // No more tokens for this sequence; harmless when it is finished. It is not reported in Step::finished.
  void stop(size_t sequence);

  bool done() const { return live_ == 0; }
  size_t sequences() const { return sequences_.size(); }
  std::span<const int32_t> prompt(size_t prompt) const;  // as it was used: an empty one has become bos
  std::span<const int32_t> generated(size_t sequence) const;

  // Bytes that an object for `sequences` sequences holds beside the prompts, known before it is made.
  static size_t bytes(size_t sequences, size_t vocab_size);

 private:
  struct Sequence {
    std::vector<int32_t> ids;  // prompt, then what was generated
    size_t prompt_length = 0;
    size_t max_length = 0;
    uint32_t site = 0;  // index within its prompt: a sequence draws the same numbers alone and in a batch
    bool live = true;
  };

  size_t returns() const { return options_.return_sequences; }
  std::vector<int32_t> prepared(std::vector<int32_t> prompt, size_t index) const;
  size_t max_length(size_t prompt_length, size_t index) const;
  bool wanted(size_t prompt) const;
  void prefill();
  void decode();
  void fork(size_t prompt);
  void choose(size_t sequence, size_t row);
  void finish(size_t sequence);

  Decoder& decoder_;
  Options options_;
  Processors processors_;
  Candidates candidates_;
  std::vector<Sequence> sequences_;
  std::vector<size_t> prefilled_;  // tokens of each prompt behind us
  size_t prompt_ = 0;              // the first that is not complete
  size_t live_ = 0;
  std::vector<float> logits_;  // (sequences, V)
  std::vector<float> scores_;  // (V) the row being processed
  std::vector<Append> parts_;
  std::vector<size_t> sources_;
  std::vector<size_t> asking_;  // prompts or sequences to which the rows of logits_ belong
  Step step_;
};

// The scores (V) after the processors and, when the options sample, the warpers: what is ruled out is -infinity. Unlike
// Generation it filters only by what the options name, without the default topK. `ids`: prompt and generated tokens.
std::vector<float> process_logits(std::span<const float> scores, std::span<const int32_t> ids, size_t prompt_length,
                                  const Options& options);

}  // namespace wf::generate
