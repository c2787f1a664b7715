// What a caller can ask of generation. Names, meaning and defaults are those of Hugging Face's GenerationConfig (transformers 5),
// in camelCase; seed, logprobs, frequencyPenalty, presencePenalty and logitBias are this library's own.
#pragma once

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
  std::optional<int32_t> decoder_start;  // what the target of an encoder-decoder model begins with; bos when absent

  // Processors, in the order in which they run.
  std::vector<SequenceBias> sequence_bias;
  float repetition_penalty = 1;
  size_t no_repeat_ngram_size = 0;
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

  // What comes out.
  size_t return_sequences = 1;
  size_t logprobs = 0;            // best tokens reported beside the chosen one
  size_t prefill_chunk = kChunk;  // prompt tokens a step; the result does not depend on it
};

// Reads and checks every option. `vocab_size` bounds the token ids. A list of lists comes flattened under its name, with the
// lengths under "<name>.lengths"; the values of sequenceBias and logitBias under "<name>.values". An option that only samples
// turns sampling on when doSample is absent. Errors: kInvalidArgument for an unknown name, a wrong type or a value out of range;
// kUnsupported for options of Hugging Face that this version has no code for, unless they are at the value that turns them off.
Options parse_options(const Config& config, size_t vocab_size);

}  // namespace wf::generate
