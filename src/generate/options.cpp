#include "generate/options.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace wf::generate {

namespace {

constexpr std::string_view kSampling[] = {"temperature", "topH", "topK", "topP", "minP", "epsilonCutoff", "etaCutoff", "typicalP"};

constexpr std::string_view kKnown[] = {"badWordsIds",
                                       "badWordsIds.lengths",
                                       "beginSuppressTokens",
                                       "bosTokenId",
                                       "decoderInputIds",
                                       "decoderInputIds.lengths",
                                       "decoderStartTokenId",
                                       "doSample",
                                       "earlyStopping",
                                       "encoderNoRepeatNgramSize",
                                       "encoderRepetitionPenalty",
                                       "eosTokenId",
                                       "epsilonCutoff",
                                       "etaCutoff",
                                       "exponentialDecayLengthPenalty",
                                       "forcedBosTokenId",
                                       "forcedEosTokenId",
                                       "frequencyPenalty",
                                       "lengthPenalty",
                                       "logitBias",
                                       "logitBias.values",
                                       "logprobs",
                                       "maxLength",
                                       "maxNewTokens",
                                       "minLength",
                                       "minNewTokens",
                                       "minP",
                                       "noRepeatNgramSize",
                                       "numBeams",
                                       "numReturnSequences",
                                       "prefillChunk",
                                       "presencePenalty",
                                       "removeInvalidValues",
                                       "renormalizeLogits",
                                       "repetitionPenalty",
                                       "seed",
                                       "sequenceBias",
                                       "sequenceBias.lengths",
                                       "sequenceBias.values",
                                       "suppressTokens",
                                       "temperature",
                                       "topH",
                                       "topK",
                                       "topP",
                                       "typicalP"};

// Options of Hugging Face that nothing here implements, with the value at which they change nothing.
struct Unsupported {
  std::string_view name;
  double neutral;
};
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr Unsupported kUnsupported[] = {
    {"numBeamGroups", 1},         {"diversityPenalty", 0},  {"guidanceScale", 1},   {"penaltyAlpha", 0},
    {"promptLookupNumTokens", 0}, {"tokenHealing", 0},      {"useCache", 1},        {"lowMemory", 0},
    {"dolaLayers", kNone},        {"forceWordsIds", kNone}, {"constraints", kNone}, {"watermarkingConfig", kNone}};

class Reader {
 public:
  Reader(const Config& config, size_t vocab_size) : config_(config), vocab_size_(vocab_size) {}

  bool has(std::string_view key) const { return config_.has(key); }

  double number(std::string_view key, double fallback, double least, double most, std::string_view expected) const {
    const double value = config_.number(key, fallback);
    if (has(key) && !(value >= least && value <= most)) config_.reject(key, expected);
    return value;
  }
  std::optional<double> probability(std::string_view key) const {
    if (!has(key)) return std::nullopt;
    return number(key, 0, 0, 1, "a number from 0 to 1");
  }
  double positive(std::string_view key, double fallback) const {
    constexpr double kMost = std::numeric_limits<float>::max();
    const double value = number(key, fallback, std::numeric_limits<float>::min(), kMost, "a number above 0, from 1.2e-38 to 3.4e38");
    return value;
  }
  double finite(std::string_view key) const {
    constexpr double kMost = std::numeric_limits<float>::max();
    return number(key, 0, -kMost, kMost, "a finite number");
  }
  std::optional<size_t> size(std::string_view key) const {
    if (!has(key)) return std::nullopt;
    return config_.size(key);
  }
  size_t at_least_one(std::string_view key, size_t fallback) const {
    const size_t value = config_.size(key, fallback);
    if (value == 0) config_.reject(key, "a whole number from 1");
    return value;
  }

  int32_t token(std::string_view key, double value) const {
    if (!(value >= 0 && value < static_cast<double>(vocab_size_)) || value != std::floor(value)) {
      fail(Code::kInvalidArgument, "generate", key, ": expected token ids from 0 to ", vocab_size_ - 1, ", got ", value);
    }
    return static_cast<int32_t>(value);
  }
  std::vector<int32_t> tokens(std::string_view key) const {
    std::vector<int32_t> ids;
    for (const double value : config_.numbers(key)) ids.push_back(token(key, value));
    return ids;
  }
  std::vector<double> values_of(std::string_view key, size_t expected) const {
    const std::string values = join(key, ".values");
    std::vector<double> list = config_.numbers(values);
    if (list.size() != expected) {
      fail(Code::kInvalidArgument, "generate", values, ": expected ", expected, " numbers, got ", list.size());
    }
    for (const double value : list) {
      if (!(value < std::numeric_limits<float>::infinity())) {
        fail(Code::kInvalidArgument, "generate", values, ": expected finite numbers or -Infinity, got ", value);
      }
    }
    return list;
  }
  std::vector<std::vector<int32_t>> lists(std::string_view key) const {
    const std::vector<int32_t> ids = tokens(key);
    const std::string lengths = join(key, ".lengths");
    std::vector<std::vector<int32_t>> lists;
    size_t at = 0;
    for (const double value : config_.numbers(lengths)) {
      if (!(value >= 1 && value <= static_cast<double>(ids.size() - at)) || value != std::floor(value)) {
        fail(Code::kInvalidArgument, "generate", lengths, ": expected lengths from 1 that add up to ", ids.size(), ", got ", value);
      }
      const size_t length = static_cast<size_t>(value);
      lists.emplace_back(ids.begin() + at, ids.begin() + at + length);
      at += length;
    }
    if (at != ids.size() || (has(key) && lists.empty())) {
      fail(Code::kInvalidArgument, "generate", lengths, ": expected lengths from 1 that add up to ", ids.size(), ", got ", at);
    }
    return lists;
  }

 private:
  const Config& config_;
  size_t vocab_size_;
};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void refuse_unknown(const Config& config) {
  for (const auto& [name, value] : config.values()) {
    if (contains(kKnown, name)) continue;
    const auto known = std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                                    [&name = name](const Unsupported& option) { return option.name == name; });
    if (known == std::end(kUnsupported)) fail(Code::kInvalidArgument, "generate", name, ": unknown option");
    const double* number = std::get_if<double>(&value);
    const bool* flag = std::get_if<bool>(&value);
    const bool neutral = (number && *number == known->neutral) || (flag && static_cast<double>(*flag) == known->neutral);
    if (!neutral) fail(Code::kUnsupported, "generate", name, ": this version generates without it");
  }
}

// A later entry of the same ids replaces an earlier one, as in Python's dictionary.
void add_bias(std::vector<SequenceBias>& list, std::vector<int32_t> ids, float bias) {
  const auto same = std::find_if(list.begin(), list.end(), [&](const SequenceBias& entry) { return entry.ids == ids; });
  if (same != list.end()) {
    same->bias = bias;
  } else {
    list.push_back({std::move(ids), bias});
  }
}

EarlyStopping early_stopping(const Config& config) {
  constexpr std::string_view kKey = "earlyStopping";
  const auto found = config.values().find(kKey);
  if (found == config.values().end() || config.is_null(kKey)) return EarlyStopping::kHeuristic;
  if (const bool* flag = std::get_if<bool>(&found->second)) return *flag ? EarlyStopping::kFirst : EarlyStopping::kHeuristic;
  const std::string* word = std::get_if<std::string>(&found->second);
  if (!word || *word != "never") config.reject(kKey, "true, false or \"never\"");
  return EarlyStopping::kNever;
}

}  // namespace

Options parse_options(const Config& config, size_t vocab_size) {
  refuse_unknown(config);
  const Reader read(config, vocab_size);
  Options o;

  if (read.has("maxNewTokens")) o.max_new_tokens = read.at_least_one("maxNewTokens", 1);
  if (read.has("maxLength")) o.max_length = read.at_least_one("maxLength", 1);
  o.min_length = config.size("minLength", 0);
  o.min_new_tokens = read.size("minNewTokens");
  for (const double id : config.numbers("eosTokenId")) {
    if (!(std::abs(id) <= 2147483647.0) || id != std::floor(id)) config.reject("eosTokenId", "token ids");
    o.eos.push_back(static_cast<int32_t>(id));
  }
  if (read.has("bosTokenId")) o.bos = read.token("bosTokenId", config.number("bosTokenId"));
  o.decoder_start = read.tokens("decoderStartTokenId");
  o.decoder_prefix = read.lists("decoderInputIds");

  const auto biased = read.lists("sequenceBias");
  const auto biases = read.values_of("sequenceBias", biased.size());
  for (size_t i = 0; i < biased.size(); ++i) add_bias(o.sequence_bias, biased[i], static_cast<float>(biases[i]));
  o.encoder_repetition_penalty = read.positive("encoderRepetitionPenalty", 1);
  o.repetition_penalty = static_cast<float>(read.positive("repetitionPenalty", 1));
  o.no_repeat_ngram_size = config.size("noRepeatNgramSize", 0);
  o.encoder_no_repeat_ngram_size = config.size("encoderNoRepeatNgramSize", 0);
  for (auto& ids : read.lists("badWordsIds")) {
    const bool is_eos = ids.size() == 1 && std::find(o.eos.begin(), o.eos.end(), ids[0]) != o.eos.end();
    if (!is_eos) add_bias(o.bad_words, std::move(ids), -std::numeric_limits<float>::infinity());
  }
  if (read.has("forcedBosTokenId")) o.forced_bos = read.token("forcedBosTokenId", config.number("forcedBosTokenId"));
  o.forced_eos = read.tokens("forcedEosTokenId");
  o.remove_invalid_values = config.boolean("removeInvalidValues", false);
  if (read.has("exponentialDecayLengthPenalty")) {
    constexpr std::string_view kKey = "exponentialDecayLengthPenalty";
    const auto pair = config.numbers(kKey);
    if (pair.size() != 2 || !(pair[0] >= 0 && pair[0] <= 2147483647.0) || pair[0] != std::floor(pair[0]) || !std::isfinite(pair[1])) {
      config.reject(kKey, "[start, factor], a whole number from 0 and a finite number");
    }
    if (o.eos.empty()) fail(Code::kInvalidArgument, "generate", kKey, ": expected an eosTokenId to favour, got none");
    o.exponential_decay = ExponentialDecay{static_cast<size_t>(pair[0]), pair[1]};
  }
  o.suppress = read.tokens("suppressTokens");
  o.begin_suppress = read.tokens("beginSuppressTokens");
  o.frequency_penalty = static_cast<float>(read.finite("frequencyPenalty"));
  o.presence_penalty = static_cast<float>(read.finite("presencePenalty"));
  const auto ids = read.tokens("logitBias");
  const auto values = read.values_of("logitBias", ids.size());
  std::set<int32_t> seen;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!seen.insert(ids[i]).second) fail(Code::kInvalidArgument, "generate", "logitBias: token id ", ids[i], " is given twice");
    o.logit_bias.push_back({ids[i], static_cast<float>(values[i])});
  }

  const auto sampling = std::find_if(std::begin(kSampling), std::end(kSampling), [&](std::string_view name) { return read.has(name); });
  o.sample = config.boolean("doSample", sampling != std::end(kSampling));
  if (!o.sample && sampling != std::end(kSampling)) {
    fail(Code::kInvalidArgument, "generate", *sampling, ": expected doSample true, got false: the option only matters when sampling");
  }
  const double seed = read.number("seed", 0, 0, 0x1p53, "a whole number from 0 to 2^53");
  if (seed != std::floor(seed)) config.reject("seed", "a whole number from 0 to 2^53");
  o.seed = static_cast<uint64_t>(seed);
  o.temperature = static_cast<float>(read.positive("temperature", 1));
  o.top_h = read.probability("topH");
  if (o.top_h == 0.0) config.reject("topH", "a number above 0, at most 1");
  o.top_k = read.size("topK");
  o.top_p = read.probability("topP").value_or(1);
  o.min_p = read.probability("minP");
  o.typical_p = read.probability("typicalP").value_or(1);
  if (o.typical_p == 0) config.reject("typicalP", "a number above 0, at most 1");
  o.epsilon_cutoff = read.probability("epsilonCutoff").value_or(0);
  if (o.epsilon_cutoff == 1) config.reject("epsilonCutoff", "a number from 0 and below 1");
  o.eta_cutoff = read.probability("etaCutoff").value_or(0);
  if (o.eta_cutoff == 1) config.reject("etaCutoff", "a number from 0 and below 1");
  o.renormalize = config.boolean("renormalizeLogits", false);

  o.beams = read.at_least_one("numBeams", 1);
  o.length_penalty = config.number("lengthPenalty", 1);
  if (!std::isfinite(o.length_penalty)) config.reject("lengthPenalty", "a finite number");
  o.early_stopping = early_stopping(config);

  o.return_sequences = read.at_least_one("numReturnSequences", 1);
  if (o.beams > 1 && o.return_sequences > o.beams) config.reject("numReturnSequences", join("at most the ", o.beams, " of numBeams"));
  if (o.beams == 1 && o.return_sequences > 1 && !o.sample) config.reject("numReturnSequences", "1, or numBeams > 1, or doSample true");
  o.logprobs = config.size("logprobs", 0);
  if (o.logprobs > vocab_size) config.reject("logprobs", join("at most the vocabulary's ", vocab_size));
  o.prefill_chunk = read.at_least_one("prefillChunk", o.prefill_chunk);
  return o;
}

}  // namespace wf::generate
