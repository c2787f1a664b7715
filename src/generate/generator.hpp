// What greedy decoding, sampling and beam search share: prompts that are read in chunks, and a step at a time after that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  float logprob;          // from the processed distribution; with beams the processed score, as compute_transition_scores has it
  size_t top, top_count;  // its part of Step::top: the best tokens at that place, where `logprobs` asks for them
};

struct Finished {
  size_t sequence;
  Finish reason;
  std::optional<float> score = {};  // of beam search: the sum of its log-probabilities over its length to the power lengthPenalty
};

struct Step {
  bool done = false;     // nothing is left to do
  bool grew = false;     // something was chosen: a token of a sequence, or of a beam
  size_t prefilled = 0;  // prompt tokens behind us, over all prompts; those of a reused cache count
  std::vector<Emitted> tokens;
  std::vector<Finished> finished;
  std::vector<Choice> top;
};

using Lists = std::vector<std::vector<int32_t>>;

class Generator {
 public:
  virtual ~Generator() = default;
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // One chunk of prompt tokens, or one token more of all that is not finished. The reference is valid until the next call.
  const Step& advance();
  // No more tokens for this sequence; harmless when it is finished. It is not reported in Step::finished.
  void stop(size_t sequence);
  // Ends everything where it stands; the step has what beam search found so far of every prompt that has got that far.
  const Step& conclude();

  virtual bool done() const = 0;
  size_t sequences() const { return prompts_.size() * options_.return_sequences; }
  size_t slots() const { return prompts_.size() * width_; }                       // of the decoder, those of a prompt side by side
  std::span<const int32_t> prompt(size_t p) const { return prompts_.at(p).ids; }  // as it was used: an empty one has become bos

 protected:
  struct Prompt {
    std::vector<int32_t> ids;
    std::vector<int32_t> source;  // what the encoder reads; empty: the prompt itself
    size_t max_length = 0;        // tokens, the prompt's among them
  };

  // Checks everything before it asks the decoder for work. `width`: slots of the decoder a prompt. The first slot of a prompt may
  // hold tokens, a prefix of the prompt; only the rest is computed. `sources`: what the encoder reads, one a prompt, or none.
  // Errors, kInvalidArgument: no prompt; an empty one without bosTokenId; a token id outside the vocabulary; a prompt that
  // leaves no room under maxLength, or does not fit into the learned positions.
  Generator(Decoder& decoder, Lists prompts, Options options, Lists sources, size_t width);

  History history(size_t prompt, std::span<const int32_t> ids) const;
  bool is_eos(int32_t token) const;
  // Every slot of a prompt goes on from its first.
  void fork(size_t prompt);

  virtual bool wanted(size_t prompt) const = 0;             // whether anything of it is still to be done
  virtual void begin(size_t prompt, const float* row) = 0;  // it is read: row (V) are the logits after it
  virtual void decode() = 0;                                // a step of everything that is wanted
  virtual void stop_live(size_t sequence) = 0;
  virtual void conclude_prompt(size_t prompt) = 0;

  Decoder& decoder_;
  const Options options_;
  Processors processors_;
  Candidates candidates_;
  std::vector<Prompt> prompts_;
  const size_t width_;
  size_t prompt_ = 0;          // the first that is not complete
  std::vector<float> logits_;  // (slots, V)
  std::vector<float> scores_;  // (V) the row being processed
  std::vector<Append> parts_;
  std::vector<size_t> sources_;  // of a reorder, one a slot
  std::vector<size_t> asking_;   // prompts or sequences to which the rows of logits_ belong
  Step step_;

 private:
  Prompt prepared(std::vector<int32_t> ids, size_t index) const;
  size_t max_length(size_t prompt_length, size_t index) const;
  void prefill();
  void clear_step();
  const Step& ended_step();

  std::vector<size_t> prefilled_;  // tokens of each prompt behind us
};

// Beam search where the options ask for beams, else greedy decoding or sampling. Slots of the decoder: prompts times slots_a_prompt.
std::unique_ptr<Generator> make_generator(Decoder& decoder, Lists prompts, const Options& options, Lists sources = {});
size_t slots_a_prompt(const Options& options);
// Throws kInvalidArgument, naming the prompt, for an id outside the vocabulary.
void check_ids(std::span<const int32_t> ids, size_t vocab_size, size_t prompt);
// Bytes that a generator holds beside the prompts, known before it is made. kOutOfMemory where they cannot be counted.
size_t generator_bytes(size_t prompts, const Options& options, size_t vocab_size);

}  // namespace wf::generate
