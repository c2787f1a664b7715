// What a caller can ask of generation. Names, meaning and defaults are those of Hugging Face's GenerationConfig (transformers 5),
// in camelCase; seed, logprobs, frequencyPenalty, presencePenalty and logitBias are this library's own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/config.hpp"

namespace wf::generate {

struct SequenceBias {
  std::vector<int32_t> ids;  // the bias goes to the last, where the tokens before it are the sequence's latest
  float bias;
};

struct TokenBias {
  int32_t id;
  float bias;
};

// When beam search stops looking for something better than what it has finished.
enum class EarlyStopping : uint8_t {
  kHeuristic,  // false: by the best score that a beam has at its present length
  kFirst,      // true: as soon as there are as many as beams
  kNever,      // "never": by the best score that a beam can still have
};

struct ExponentialDecay {
  size_t start;   // tokens generated before the penalty sets in
  double factor;  // multiplies once more with every token after
};

struct Options {
  static constexpr size_t kDefaultNewTokens = 256;
  static constexpr size_t kDefaultTopK = 50;  // of sampling
  static constexpr size_t kChunk = 64;

  // How long.
  std::optional<size_t> max_new_tokens;
  std::optional<size_t> max_length;      // prompt included; max_new_tokens goes before it
  size_t min_length = 0;                 // prompt included
  std::optional<size_t> min_new_tokens;  // goes before min_length
  std::vector<int32_t> eos;              // ids outside the vocabulary never match
  std::optional<int32_t> bos;            // what an empty prompt becomes

  // What the target of an encoder-decoder model begins with: one for all, or one a prompt; absent: bos, and nothing more.
  std::vector<int32_t> decoder_start;
  std::vector<std::vector<int32_t>> decoder_prefix;  // with the start token or without

  // Processors, in the order in which they run.
  std::vector<SequenceBias> sequence_bias;
  double encoder_repetition_penalty = 1;
  float repetition_penalty = 1;
  size_t no_repeat_ngram_size = 0;
  size_t encoder_no_repeat_ngram_size = 0;
  std::vector<SequenceBias> bad_words;
  std::optional<int32_t> forced_bos;
  std::vector<int32_t> forced_eos;
  bool remove_invalid_values = false;
  std::optional<ExponentialDecay> exponential_decay;
  std::vector<int32_t> suppress;
  std::vector<int32_t> begin_suppress;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<TokenBias> logit_bias;

  // Sampling, in the order in which it filters.
  bool sample = false;
  uint64_t seed = 0;
  float temperature = 1;
  std::optional<double> top_h;
  std::optional<size_t> top_k;  // 0: off
  double top_p = 1;
  std::optional<double> min_p;
  double typical_p = 1;
  double epsilon_cutoff = 0;
  double eta_cutoff = 0;
  bool renormalize = false;

  // Beam search.
  size_t beams = 1;
  double length_penalty = 1;  // a finished beam's score is divided by the number of its generated tokens to this power
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;

  // What comes out.
  size_t return_sequences = 1;
  size_t logprobs = 0;            // best tokens reported beside the chosen one
  size_t prefill_chunk = kChunk;  // prompt tokens a step; the result does not depend on it

  // Candidates that the sampling filters leave: with beams, so many that one of them is no end-of-sequence token.
  size_t least_candidates() const { return beams > 1 ? std::max<size_t>(2, eos.size() + 1) : 1; }
};

// Reads and checks every option. `vocab_size` bounds the token ids. A list of lists comes flattened under its name, with the
// lengths under "<name>.lengths"; the values of sequenceBias and logitBias under "<name>.values". An option that only samples
// turns sampling on when doSample is absent. Errors: kInvalidArgument for an unknown name, a wrong type or a value out of range;
// kUnsupported for options of Hugging Face that this version has no code for, unless they are at the value that turns them off.
Options parse_options(const Config& config, size_t vocab_size);

}  // namespace wf::generate
