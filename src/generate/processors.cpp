#include "generate/processors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace wf::generate {

namespace {

constexpr float kRuledOut = -std::numeric_limits<float>::infinity();

bool inside(int32_t id, std::span<const float> scores) { return id >= 0 && static_cast<size_t>(id) < scores.size(); }

void rule_out(std::span<const int32_t> ids, std::span<float> scores) {
  for (const int32_t id : ids) {
    if (inside(id, scores)) scores[id] = kRuledOut;
  }
}

void force(std::span<const int32_t> ids, std::span<float> scores) {
  std::fill(scores.begin(), scores.end(), kRuledOut);
  for (const int32_t id : ids) scores[id] = 0;
}

void remove_invalid_values(std::span<float> scores) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (float& score : scores) score = std::isnan(score) ? 0 : std::clamp(score, -kMost, kMost);
}

void favour_eos(const ExponentialDecay& decay, std::span<const int32_t> eos, size_t generated, std::span<float> scores) {
  if (generated <= decay.start) return;
  const float growth = static_cast<float>(std::pow(decay.factor, static_cast<double>(generated - decay.start)) - 1);
  for (size_t i = 0; i < eos.size(); ++i) {
    const bool again = std::find(eos.begin(), eos.begin() + i, eos[i]) != eos.begin() + i;
    if (again || !inside(eos[i], scores) || !std::isfinite(scores[eos[i]])) continue;
    scores[eos[i]] += std::abs(scores[eos[i]]) * growth;
  }
}

}  // namespace

void add_sequence_bias(std::span<const SequenceBias> biases, std::span<const int32_t> ids, std::span<float> scores) {
  for (const SequenceBias& entry : biases) {
    const size_t before = entry.ids.size() - 1;
    if (before > ids.size()) continue;
    if (std::equal(ids.end() - before, ids.end(), entry.ids.begin())) scores[entry.ids.back()] += entry.bias;
  }
}

void forbid_repeated_ngrams(size_t n, std::span<const int32_t> text, std::span<const int32_t> ids, std::span<float> scores) {
  if (n > text.size() || n - 1 > ids.size()) return;
  const auto latest = ids.last(n - 1);
  for (size_t i = 0; i + n <= text.size(); ++i) {
    if (std::equal(latest.begin(), latest.end(), text.begin() + i)) rule_out(text.subspan(i + n - 1, 1), scores);
  }
}

Processors::Processors(const Options& options, size_t vocab_size) : options_(options), count_(vocab_size, 0) {}

// A source may have a vocabulary of its own: ids beyond this one mean nothing here.
void Processors::repetition_penalty(float penalty, std::span<const int32_t> ids, std::span<float> scores) {
  for (const int32_t id : ids) {
    if (!inside(id, scores) || count_[id]++) continue;
    scores[id] = scores[id] < 0 ? scores[id] * penalty : scores[id] / penalty;
  }
  for (const int32_t id : ids) {
    if (inside(id, scores)) count_[id] = 0;
  }
}

void Processors::count_penalties(std::span<const int32_t> generated, std::span<float> scores) {
  for (const int32_t id : generated) ++count_[id];
  for (const int32_t id : generated) {
    if (count_[id] == 0) continue;
    scores[id] -= static_cast<float>(count_[id]) * options_.frequency_penalty;
    scores[id] -= options_.presence_penalty;
    count_[id] = 0;
  }
}

void Processors::run(const History& history, std::span<float> scores) {
  const Options& o = options_;
  const size_t length = history.ids.size(), generated = length - history.prompt_length;
  add_sequence_bias(o.sequence_bias, history.ids, scores);
  if (o.encoder_repetition_penalty != 1) {
    repetition_penalty(static_cast<float>(1 / o.encoder_repetition_penalty), history.source, scores);
  }
  if (o.repetition_penalty != 1) repetition_penalty(o.repetition_penalty, history.ids, scores);
  if (o.no_repeat_ngram_size > 0) forbid_repeated_ngrams(o.no_repeat_ngram_size, history.ids, history.ids, scores);
  if (o.encoder_no_repeat_ngram_size > 0) {
    forbid_repeated_ngrams(o.encoder_no_repeat_ngram_size, history.source, history.ids, scores);
  }
  add_sequence_bias(o.bad_words, history.ids, scores);
  const bool too_short = o.min_new_tokens ? generated < *o.min_new_tokens : length < o.min_length;
  if (too_short) rule_out(o.eos, scores);
  if (o.forced_bos && length == 1) force({&*o.forced_bos, 1}, scores);
  if (!o.forced_eos.empty() && length + 1 == history.max_length) force(o.forced_eos, scores);
  if (o.remove_invalid_values) remove_invalid_values(scores);
  if (o.exponential_decay) favour_eos(*o.exponential_decay, o.eos, generated, scores);
  rule_out(o.suppress, scores);
  // A forced first token takes the place of the beginning.
  const size_t begin = history.prompt_length + (history.prompt_length <= 1 && o.forced_bos ? 1 : 0);
  if (length == begin) rule_out(o.begin_suppress, scores);
  if (o.frequency_penalty != 0 || o.presence_penalty != 0) count_penalties(history.ids.subspan(history.prompt_length), scores);
  for (const TokenBias& entry : o.logit_bias) scores[entry.id] += entry.bias;
}

}  // namespace wf::generate
