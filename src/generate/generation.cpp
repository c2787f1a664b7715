#include "generate/generation.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "core/rng.hpp"
#include "core/shape.hpp"

namespace wf::generate {

namespace {

constexpr size_t kReservedTokens = size_t{1} << 16;  // room for generated tokens that is set aside at once, at most

}  // namespace

Generation::Generation(Decoder& decoder, Lists prompts, Options options, Lists sources)
    : Generator(decoder, std::move(prompts), options, std::move(sources), options.return_sequences) {
  sequences_.reserve(sequences());
  for (const Prompt& prompt : prompts_) {
    for (size_t r = 0; r < width_; ++r) {
      Sequence sequence;
      sequence.ids.reserve(prompt.ids.size() + std::min(prompt.max_length - prompt.ids.size(), kReservedTokens));
      sequence.ids.assign(prompt.ids.begin(), prompt.ids.end());
      sequence.site = static_cast<uint32_t>(r);
      sequences_.push_back(std::move(sequence));
    }
  }
  live_ = sequences();
  step_.tokens.reserve(live_);
  step_.finished.reserve(live_);
  step_.top.reserve(checked_product(live_, options_.logprobs, "generate"));
}

std::span<const int32_t> Generation::generated(size_t sequence) const {
  return std::span(sequences_.at(sequence).ids).subspan(prompt(sequence / width_).size());
}

bool Generation::wanted(size_t prompt) const {
  const auto first = sequences_.begin() + prompt * width_;
  return std::any_of(first, first + width_, [](const Sequence& s) { return s.live; });
}

// Every return sequence goes on from the prompt's keys and values.
void Generation::begin(size_t prompt, const float* row) {
  fork(prompt);
  for (size_t s = prompt * width_; s < (prompt + 1) * width_; ++s) {
    sequences_[s].live ? choose(s, row) : decoder_.release(s);
  }
}

void Generation::decode() {
  parts_.clear();
  asking_.clear();
  for (size_t s = 0; s < sequences_.size(); ++s) {
    if (!sequences_[s].live) continue;
    parts_.push_back({s, std::span<const int32_t>(sequences_[s].ids).last(1), true, sequences_[s].ids.size()});
    asking_.push_back(s);
  }
  decoder_.run(parts_, logits_.data());
  for (size_t row = 0; row < asking_.size(); ++row) choose(asking_[row], logits_.data() + row * scores_.size());
  step_.grew = true;
}

// The sequence's next token, by the logits after it.
void Generation::choose(size_t index, const float* row) {
  Sequence& sequence = sequences_[index];
  const size_t prompt = index / width_;
  std::copy_n(row, scores_.size(), scores_.begin());
  processors_.run(history(prompt, sequence.ids), scores_);

  const size_t position = sequence.ids.size() - prompts_[prompt].ids.size();
  Emitted emitted{index, position, 0, 0, step_.top.size(), 0};
  Choice choice;
  if (options_.sample || options_.logprobs > 0) {
    candidates_.take(scores_, options_.sample ? Infinite::kRefused : Infinite::kCertain);
    candidates_.filter(options_);
  }
  if (options_.sample) {
    choice = candidates_.draw(uniform({options_.seed, static_cast<uint32_t>(position), sequence.site}, 0));
  } else {
    choice = best_of(scores_);
  }
  if (options_.logprobs > 0) {
    const auto best = options_.sample ? candidates_.best(options_.logprobs) : candidates_.best(options_.logprobs, -choice.logprob);
    step_.top.insert(step_.top.end(), best.begin(), best.end());
    emitted.top_count = best.size();
  }
  emitted.token = choice.token;
  emitted.logprob = choice.logprob;
  step_.tokens.push_back(emitted);
  sequence.ids.push_back(choice.token);

  const bool ends = is_eos(choice.token);
  if (!ends && sequence.ids.size() < prompts_[prompt].max_length) return;
  step_.finished.push_back({index, ends ? Finish::kStop : Finish::kLength});
  finish(index);
}

void Generation::finish(size_t index) {
  sequences_[index].live = false;
  --live_;
  const size_t prompt = index / width_;
  if (prompt < prompt_) {
    decoder_.release(index);
  } else if (!wanted(prompt)) {
    decoder_.release(prompt * width_);
  }
}

void Generation::stop_live(size_t sequence) {
  if (sequences_[sequence].live) finish(sequence);
}

void Generation::conclude_prompt(size_t prompt) {
  for (size_t s = prompt * width_; s < (prompt + 1) * width_; ++s) stop_live(s);
}

std::vector<float> process_logits(std::span<const float> scores, std::span<const int32_t> ids, size_t prompt_length,
                                  const Options& options) {
  check_ids(ids, scores.size(), 0);
  if (prompt_length > ids.size()) {
    fail(Code::kInvalidArgument, "generate", "promptLength: expected at most the ", ids.size(), " ids, got ", prompt_length);
  }
  std::vector<float> processed(scores.begin(), scores.end());
  size_t max_length = prompt_length + options.max_new_tokens.value_or(Options::kDefaultNewTokens);
  if (!options.max_new_tokens && options.max_length) max_length = *options.max_length;
  Processors(options, scores.size()).run({ids, prompt_length, max_length, ids.first(prompt_length)}, processed);
  if (!options.sample && !options.renormalize) return processed;
  Candidates candidates(scores.size());
  candidates.take(processed);
  candidates.filter(options);
  std::fill(processed.begin(), processed.end(), -std::numeric_limits<float>::infinity());
  for (const Candidate& candidate : candidates.list()) processed[candidate.id] = candidate.score;
  return processed;
}

}  // namespace wf::generate
