#include "generate/generator.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "generate/beam_search.hpp"
#include "generate/generation.hpp"

namespace wf::generate {

namespace {

constexpr size_t kVectorsOfV = 7;  // what scores, counts and candidates take, in floats a token of the vocabulary

Options with_defaults(Options options) {
  if (options.sample && !options.top_k) options.top_k = Options::kDefaultTopK;
  return options;
}

}  // namespace

const char* name_of(Finish finish) { return finish == Finish::kStop ? "stop" : "length"; }

void check_ids(std::span<const int32_t> ids, size_t vocab_size, size_t prompt) {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
      fail(Code::kInvalidArgument, "generate", "prompt ", prompt, ": expected token ids from 0 to ", vocab_size - 1, ", got ", id);
    }
  }
}

Generator::Generator(Decoder& decoder, Lists prompts, Options options, Lists sources, size_t width)
    : decoder_(decoder),
      options_(with_defaults(std::move(options))),
      processors_(options_, decoder.vocab_size()),
      candidates_(decoder.vocab_size()),
      width_(width) {
  if (prompts.empty()) fail(Code::kInvalidArgument, "generate", "prompts: expected at least one, got none");
  const size_t slots = checked_product(prompts.size(), width_, "generate");
  prompts_.reserve(prompts.size());
  for (size_t p = 0; p < prompts.size(); ++p) prompts_.push_back(prepared(std::move(prompts[p]), p));
  for (size_t p = 0; p < sources.size(); ++p) prompts_.at(p).source = std::move(sources[p]);
  logits_.resize(checked_product(slots, decoder_.vocab_size(), "generate"));
  scores_.resize(decoder_.vocab_size());
  parts_.reserve(slots);
  asking_.reserve(slots);
  sources_.resize(slots);

  // The last token of a prompt is always computed: its logits are not in the cache.
  for (size_t p = 0; p < prompts_.size(); ++p) {
    const size_t slot = p * width_, most = prompts_[p].ids.size() - 1;
    if (decoder_.length(slot) > most) decoder_.truncate(slot, most);
    prefilled_.push_back(decoder_.length(slot));
  }
}

Generator::Prompt Generator::prepared(std::vector<int32_t> ids, size_t index) const {
  const size_t vocab_size = decoder_.vocab_size(), positions = decoder_.max_positions();
  if (ids.empty()) {
    if (!options_.bos)
      fail(Code::kInvalidArgument, "generate", "prompt ", index, ": expected at least one token, or a bosTokenId to begin with, got none");
    ids.push_back(*options_.bos);
  }
  check_ids(ids, vocab_size, index);
  if (positions != 0 && ids.size() > positions) {
    fail(Code::kInvalidArgument, "generate", "prompt ", index, ": expected at most ", positions,
         " tokens, the model's learned positions, got ", ids.size());
  }
  const size_t limit = max_length(ids.size(), index);
  return {std::move(ids), {}, limit};
}

size_t Generator::max_length(size_t prompt_length, size_t index) const {
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

History Generator::history(size_t prompt, std::span<const int32_t> ids) const {
  const Prompt& p = prompts_[prompt];
  return {ids, p.ids.size(), p.max_length, p.source.empty() ? p.ids : p.source};
}

bool Generator::is_eos(int32_t token) const { return std::find(options_.eos.begin(), options_.eos.end(), token) != options_.eos.end(); }

void Generator::clear_step() {
  step_.grew = false;
  step_.tokens.clear();
  step_.finished.clear();
  step_.top.clear();
}

const Step& Generator::ended_step() {
  step_.prefilled = std::accumulate(prefilled_.begin(), prefilled_.end(), size_t{0});
  step_.done = done();
  return step_;
}

const Step& Generator::advance() {
  clear_step();
  while (prompt_ < prompts_.size() && !wanted(prompt_)) ++prompt_;
  if (!done()) prompt_ < prompts_.size() ? prefill() : decode();
  return ended_step();
}

// Up to a chunk of tokens, of as many prompts as it holds. A prompt that is complete chooses its first tokens at once.
void Generator::prefill() {
  parts_.clear();
  asking_.clear();
  size_t room = options_.prefill_chunk;
  for (size_t p = prompt_; p < prompts_.size() && room > 0; ++p) {
    if (!wanted(p)) continue;
    const auto rest = prompt(p).subspan(prefilled_[p]);
    const size_t count = std::min(rest.size(), room);
    const bool complete = count == rest.size();
    parts_.push_back({p * width_, rest.first(count), complete, prompt(p).size()});
    if (complete) asking_.push_back(p);
    room -= count;
  }
  decoder_.run(parts_, logits_.data());
  for (const Append& part : parts_) prefilled_[part.slot / width_] += part.tokens.size();
  for (size_t row = 0; row < asking_.size(); ++row) {
    const size_t p = asking_[row];
    prompt_ = p + 1;
    begin(p, logits_.data() + row * scores_.size());
    step_.grew = true;
  }
}

void Generator::fork(size_t prompt) {
  if (width_ == 1) return;
  const size_t first = prompt * width_;
  std::iota(sources_.begin(), sources_.end(), size_t{0});
  std::fill_n(sources_.begin() + first, width_, first);
  decoder_.reorder(sources_);
}

void Generator::stop(size_t sequence) {
  if (sequence >= sequences()) {
    fail(Code::kInvalidArgument, "generate", "sequence: expected one of ", sequences(), ", got ", sequence);
  }
  stop_live(sequence);
}

const Step& Generator::conclude() {
  clear_step();
  for (size_t p = 0; p < prompts_.size(); ++p) {
    if (wanted(p)) conclude_prompt(p);
  }
  return ended_step();
}

size_t slots_a_prompt(const Options& options) { return options.beams > 1 ? options.beams : options.return_sequences; }

std::unique_ptr<Generator> make_generator(Decoder& decoder, Lists prompts, const Options& options, Lists sources) {
  if (options.beams > 1) return std::make_unique<BeamSearch>(decoder, std::move(prompts), options, std::move(sources));
  return std::make_unique<Generation>(decoder, std::move(prompts), options, std::move(sources));
}

size_t generator_bytes(size_t prompts, const Options& options, size_t vocab_size) {
  const size_t slots = checked_product(prompts, slots_a_prompt(options), "generate");
  const size_t floats = checked_product(checked_sum(slots, kVectorsOfV, "generate"), vocab_size, "generate");
  return checked_product(floats, sizeof(float), "generate");
}

}  // namespace wf::generate
