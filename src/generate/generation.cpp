#include "generate/generation.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/rng.hpp"
#include "core/shape.hpp"

namespace wf::generate {

namespace {

constexpr size_t kVectorsOfV = 7;                    // what scores, counts and candidates take, in floats a token of the vocabulary
constexpr size_t kReservedTokens = size_t{1} << 16;  // room for generated tokens that is set aside at once, at most

void check_ids(std::span<const int32_t> ids, size_t vocab_size, size_t prompt) {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
      fail(Code::kInvalidArgument, "generate", "prompt ", prompt, ": expected token ids from 0 to ", vocab_size - 1, ", got ", id);
    }
  }
}

Options with_defaults(Options options) {
  if (options.sample && !options.top_k) options.top_k = Options::kDefaultTopK;
  return options;
}

}  // namespace

const char* name_of(Finish finish) { return finish == Finish::kStop ? "stop" : "length"; }

size_t Generation::bytes(size_t sequences, size_t vocab_size) {
  const size_t floats = checked_product(checked_sum(sequences, kVectorsOfV, "generate"), vocab_size, "generate");
  return checked_product(floats, sizeof(float), "generate");
}

Generation::Generation(Decoder& decoder, std::vector<std::vector<int32_t>> prompts, Options options)
    : decoder_(decoder),
      options_(with_defaults(std::move(options))),
      processors_(options_, decoder.vocab_size()),
      candidates_(decoder.vocab_size()) {
  if (prompts.empty()) fail(Code::kInvalidArgument, "generate", "prompts: expected at least one, got none");
  const size_t count = checked_product(prompts.size(), returns(), "generate");
  sequences_.reserve(count);
  for (size_t p = 0; p < prompts.size(); ++p) {
    std::vector<int32_t> prompt = prepared(std::move(prompts[p]), p);
    const size_t limit = max_length(prompt.size(), p);
    for (size_t r = 0; r < returns(); ++r) {
      Sequence sequence;
      sequence.ids.reserve(prompt.size() + std::min(limit - prompt.size(), kReservedTokens));
      sequence.ids.assign(prompt.begin(), prompt.end());
      sequence.prompt_length = prompt.size();
      sequence.max_length = limit;
      sequence.site = static_cast<uint32_t>(r);
      sequences_.push_back(std::move(sequence));
    }
  }
  live_ = count;
  logits_.resize(checked_product(count, decoder_.vocab_size(), "generate"));
  scores_.resize(decoder_.vocab_size());
  parts_.reserve(count);
  asking_.reserve(count);
  sources_.resize(count);
  step_.tokens.reserve(count);
  step_.finished.reserve(count);
  step_.top.reserve(checked_product(count, options_.logprobs, "generate"));

  // The last token of a prompt is always computed: its logits are not in the cache.
  for (size_t p = 0; p < prompts.size(); ++p) {
    const size_t slot = p * returns(), most = sequences_[slot].prompt_length - 1;
    if (decoder_.length(slot) > most) decoder_.truncate(slot, most);
    prefilled_.push_back(decoder_.length(slot));
  }
}

std::vector<int32_t> Generation::prepared(std::vector<int32_t> prompt, size_t index) const {
  const size_t vocab_size = decoder_.vocab_size(), positions = decoder_.max_positions();
  if (prompt.empty()) {
    if (!options_.bos)
      fail(Code::kInvalidArgument, "generate", "prompt ", index, ": expected at least one token, or a bosTokenId to begin with, got none");
    prompt.push_back(*options_.bos);
  }
  check_ids(prompt, vocab_size, index);
  if (positions != 0 && prompt.size() > positions) {
    fail(Code::kInvalidArgument, "generate", "prompt ", index, ": expected at most ", positions,
         " tokens, the model's learned positions, got ", prompt.size());
  }
  return prompt;
}

size_t Generation::max_length(size_t prompt_length, size_t index) const {
  size_t limit = std::numeric_limits<size_t>::max();
  if (options_.max_new_tokens) {
    limit = checked_sum(prompt_length, *options_.max_new_tokens, "generate");
  } else if (options_.max_length) {
    limit = *options_.max_length;
    if (prompt_length >= limit) {
      fail(Code::kInvalidArgument, "generate", "maxLength: expected more than the ", prompt_length, " tokens of prompt ", index, ", got ",
           limit);
    }
  } else {
    limit = checked_sum(prompt_length, Options::kDefaultNewTokens, "generate");
  }
  const size_t positions = decoder_.max_positions();  // the last token generated takes none
  return positions == 0 ? limit : std::min(limit, positions + 1);
}

std::span<const int32_t> Generation::prompt(size_t prompt) const {
  const Sequence& sequence = sequences_.at(prompt * returns());
  return std::span(sequence.ids).first(sequence.prompt_length);
}

std::span<const int32_t> Generation::generated(size_t sequence) const {
  const Sequence& s = sequences_.at(sequence);
  return std::span(s.ids).subspan(s.prompt_length);
}

bool Generation::wanted(size_t prompt) const {
  const auto first = sequences_.begin() + prompt * returns();
  return std::any_of(first, first + returns(), [](const Sequence& s) { return s.live; });
}

const Step& Generation::advance() {
  step_.tokens.clear();
  step_.finished.clear();
  step_.top.clear();
  while (prompt_ < prefilled_.size() && !wanted(prompt_)) ++prompt_;
  if (!done()) prompt_ < prefilled_.size() ? prefill() : decode();
  step_.prefilled = std::accumulate(prefilled_.begin(), prefilled_.end(), size_t{0});
  step_.done = done();
  return step_;
}

// Up to a chunk of tokens, of as many prompts as it holds. A prompt that is complete chooses its first tokens at once.
void Generation::prefill() {
  parts_.clear();
  asking_.clear();
  size_t room = options_.prefill_chunk;
  for (size_t p = prompt_; p < prefilled_.size() && room > 0; ++p) {
    if (!wanted(p)) continue;
    const auto rest = prompt(p).subspan(prefilled_[p]);
    const size_t count = std::min(rest.size(), room);
    const bool complete = count == rest.size();
    parts_.push_back({p * returns(), rest.first(count), complete, prompt(p).size()});
    if (complete) asking_.push_back(p);
    room -= count;
  }
  decoder_.run(parts_, logits_.data());
  for (const Append& part : parts_) prefilled_[part.slot / returns()] += part.tokens.size();
  for (size_t row = 0; row < asking_.size(); ++row) {
    const size_t p = asking_[row];
    prompt_ = p + 1;
    fork(p);
    for (size_t r = 0; r < returns(); ++r) {
      if (sequences_[p * returns() + r].live) choose(p * returns() + r, row);
    }
  }
}

// Every return sequence of a prompt goes on from its keys and values.
void Generation::fork(size_t prompt) {
  if (returns() == 1) return;
  const size_t first = prompt * returns();
  std::iota(sources_.begin(), sources_.end(), size_t{0});
  std::fill_n(sources_.begin() + first, returns(), first);
  decoder_.reorder(sources_);
  for (size_t s = first; s < first + returns(); ++s) {
    if (!sequences_[s].live) decoder_.release(s);
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
  for (size_t row = 0; row < asking_.size(); ++row) choose(asking_[row], row);
}

// The sequence's next token, from a row of logits_.
void Generation::choose(size_t index, size_t row) {
  Sequence& sequence = sequences_[index];
  std::copy_n(logits_.begin() + row * scores_.size(), scores_.size(), scores_.begin());
  processors_.run({sequence.ids, sequence.prompt_length, sequence.max_length}, scores_);

  const size_t position = sequence.ids.size() - sequence.prompt_length;
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
  emitted.token = choice.token;
  emitted.logprob = choice.logprob;
  if (options_.logprobs > 0) {
    const auto best = candidates_.best(options_.logprobs);
    step_.top.insert(step_.top.end(), best.begin(), best.end());
    emitted.top_count = best.size();
  }
  step_.tokens.push_back(emitted);
  sequence.ids.push_back(choice.token);

  const bool is_eos = std::find(options_.eos.begin(), options_.eos.end(), choice.token) != options_.eos.end();
  if (!is_eos && sequence.ids.size() < sequence.max_length) return;
  step_.finished.push_back({index, is_eos ? Finish::kStop : Finish::kLength});
  finish(index);
}

void Generation::finish(size_t index) {
  sequences_[index].live = false;
  --live_;
  const size_t prompt = index / returns();
  if (prompt < prompt_) {
    decoder_.release(index);
  } else if (!wanted(prompt)) {
    decoder_.release(prompt * returns());
  }
}

void Generation::stop(size_t sequence) {
  if (sequence >= sequences_.size()) {
    fail(Code::kInvalidArgument, "generate", "sequence: expected one of ", sequences_.size(), ", got ", sequence);
  }
  if (sequences_[sequence].live) finish(sequence);
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
  Processors(options, scores.size()).run({ids, prompt_length, max_length}, processed);
  if (!options.sample && !options.renormalize) return processed;
  Candidates candidates(scores.size());
  candidates.take(processed);
  candidates.filter(options);
  std::fill(processed.begin(), processed.end(), -std::numeric_limits<float>::infinity());
  for (const Candidate& candidate : candidates.list()) processed[candidate.id] = candidate.score;
  return processed;
}

}  // namespace wf::generate
