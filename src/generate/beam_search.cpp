#include "generate/beam_search.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/rng.hpp"
#include "core/shape.hpp"
#include "kernels/softmax.hpp"

namespace wf::generate {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kOut = -1e9f;  // what stands for minus infinity in transformers' beam scores

// Keeps the `most` that come first by `before`, a strict order, in a heap with the last of them in front.
template <class T, class Before>
void keep_best(std::vector<T>& best, size_t most, const T& item, Before before) {
  if (best.size() < most) {
    best.push_back(item);
    std::push_heap(best.begin(), best.end(), before);
  } else if (before(item, best.front())) {
    std::pop_heap(best.begin(), best.end(), before);
    best.back() = item;
    std::push_heap(best.begin(), best.end(), before);
  }
}

// In place. As in Python, one NaN or +infinity, or nothing above -infinity, makes a row of NaN.
void log_softmax(std::span<float> row) {
  const kernels::Peak peak = kernels::peak(row.data(), row.size());
  if (!std::isfinite(peak.largest) || !std::isfinite(peak.sum)) {
    std::fill(row.begin(), row.end(), std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float log_sum = std::log(peak.sum);
  for (float& x : row) x = x - peak.largest - log_sum;
}

}  // namespace

BeamSearch::BeamSearch(Decoder& decoder, Lists prompts, Options options, Lists sources)
    : Generator(decoder, std::move(prompts), options, std::move(sources), options.beams),
      searches_(prompts_.size()),
      live_(prompts_.size()),
      most_picks_(checked_product(options_.least_candidates(), width_, "generate")) {
  for (size_t p = 0; p < searches_.size(); ++p) {
    Search& search = searches_[p];
    search.best.assign(width_, {prompts_[p].ids, {}, kOut});
    search.stopped.assign(options_.return_sequences, false);
  }
}

// All beams begin alike; that the first alone counts keeps them from choosing the same tokens.
void BeamSearch::begin(size_t prompt, const float* row) {
  Search& search = searches_[prompt];
  fork(prompt);
  search.running.assign(width_, {prompts_[prompt].ids, {}, kOut});
  search.running[0].score = 0;
  score(prompt, search.running[0], row);
  picks_.clear();
  row_top_.clear();
  for (size_t b = 0; b < width_; ++b) pick(prompt, static_cast<uint32_t>(b));
  std::iota(sources_.begin(), sources_.end(), size_t{0});
  extend(prompt);
  if (search.live) decoder_.reorder(sources_);
}

void BeamSearch::decode() {
  parts_.clear();
  for (size_t p = 0; p < searches_.size(); ++p) {
    if (!searches_[p].live) continue;
    const auto& running = searches_[p].running;
    for (size_t b = 0; b < running.size(); ++b) {
      const std::span<const int32_t> ids = running[b].ids;
      parts_.push_back({p * width_ + b, ids.last(1), true, ids.size()});
    }
  }
  decoder_.run(parts_, logits_.data());
  std::iota(sources_.begin(), sources_.end(), size_t{0});
  const float* row = logits_.data();
  for (size_t p = 0; p < searches_.size(); ++p) {
    if (!searches_[p].live) continue;
    picks_.clear();
    row_top_.clear();
    const auto& running = searches_[p].running;
    for (size_t b = 0; b < running.size(); ++b, row += scores_.size()) {
      score(p, running[b], row);
      pick(p, static_cast<uint32_t>(b));
    }
    extend(p);
  }
  step_.grew = true;
  if (!done()) decoder_.reorder(sources_);
}

// The processed log-probabilities of a beam's next token, in candidates_.
void BeamSearch::score(size_t prompt, const Beam& beam, const float* row) {
  std::copy_n(row, scores_.size(), scores_.begin());
  log_softmax(scores_);
  processors_.run(history(prompt, beam.ids), scores_);
  candidates_.take(scores_);
  candidates_.filter(options_);
}

// Adds to picks_ what a running beam could become, and keeps the best: enough that, whatever ends, as many as beams go on. Sampling
// perturbs the scores by Gumbel noise, whose largest are a draw without replacement (Kool et al. 2019, "Stochastic beams and where
// to find them").
void BeamSearch::pick(size_t prompt, uint32_t beam) {
  Search& search = searches_[prompt];
  const Beam& from = search.running[beam];
  const auto before = [](const Pick& a, const Pick& b) {
    if (a.key != b.key) return a.key > b.key;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  };
  const RngKey key{options_.seed, static_cast<uint32_t>(from.marks.size()), 0};
  for (const Candidate& candidate : candidates_.list()) {
    const float score = candidate.score + from.score;
    if (!(score > -kInfinity)) continue;
    double chosen_by = score;
    if (options_.sample) {
      const uint64_t element = uint64_t{beam} * scores_.size() + static_cast<uint64_t>(candidate.id);
      chosen_by -= std::log(-std::log(uniform(key, element)));
    } else if (picks_.size() == most_picks_ && score <= picks_.front().key) {
      continue;
    }
    keep_best(picks_, most_picks_, {chosen_by, score, candidate.score, beam, candidate.id}, before);
  }
  note_top(search);
}

void BeamSearch::note_top(Search& search) {
  if (options_.logprobs == 0) return;
  const auto before = [](const Choice& a, const Choice& b) { return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token; };
  std::vector<Choice> top;
  for (const Candidate& candidate : candidates_.list()) keep_best(top, options_.logprobs, {candidate.id, candidate.score}, before);
  std::sort_heap(top.begin(), top.end(), before);
  row_top_.push_back({0, search.top.size(), top.size()});
  search.top.insert(search.top.end(), top.begin(), top.end());
}

BeamSearch::Beam BeamSearch::extended(const Search& search, const Pick& pick, float score, bool finished) const {
  const Beam& from = search.running[pick.beam];
  Beam beam{from.ids, from.marks, score, finished};
  const Mark top = row_top_.empty() ? Mark{} : row_top_[pick.beam];
  beam.ids.push_back(pick.token);
  beam.marks.push_back({pick.logprob, top.top, top.top_count});
  return beam;
}

float BeamSearch::penalised(float score, size_t length) const {
  const float penalised = score / static_cast<float>(std::pow(static_cast<double>(length), options_.length_penalty));
  return std::isnan(penalised) ? -kInfinity : penalised;  // a certain beam over a penalty that vanishes
}

// One step of a search: from picks_, the beams that go on and those that are finished.
void BeamSearch::extend(size_t prompt) {
  Search& search = searches_[prompt];
  const size_t prompt_length = prompts_[prompt].ids.size(), max_length = prompts_[prompt].max_length;
  const bool any_finished = std::any_of(search.best.begin(), search.best.end(), [](const Beam& beam) { return beam.finished; });
  if (picks_.empty() && !any_finished) fail_without_candidates();

  std::sort(picks_.begin(), picks_.end(), [](const Pick& a, const Pick& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  });
  const size_t length = search.running[0].ids.size() + 1, generated = length - prompt_length;
  const auto ends = [&](const Pick& pick) { return length >= max_length || is_eos(pick.token); };
  const bool first_enough = options_.early_stopping == EarlyStopping::kFirst;
  const auto full = [&] {
    return first_enough && std::all_of(search.best.begin(), search.best.end(), [](const Beam& beam) { return beam.finished; });
  };
  const bool was_full = full();

  // Of picks that end, those among the first compete with what is finished; the others wait in vain, as in Python: by a score that
  // is out of reach, not by being left out.
  struct Rank {
    float score;
    size_t index;  // of search.best, then of picks_
  };
  const auto higher = [](const Rank& a, const Rank& b) { return a.score != b.score ? a.score > b.score : a.index < b.index; };
  std::vector<Rank> ranks, order;
  for (size_t i = 0; i < search.best.size(); ++i) ranks.push_back({search.best[i].score, i});
  for (size_t i = 0; i < picks_.size(); ++i) {
    float score = penalised(picks_[i].score, generated);
    if (was_full) score += kOut;
    if (!search.improvable) score += kOut;
    if (!(i < width_ && ends(picks_[i]))) score += kOut;
    ranks.push_back({score, width_ + i});
    order.push_back({ends(picks_[i]) ? picks_[i].score + kOut : picks_[i].score, i});
  }
  std::sort(ranks.begin(), ranks.end(), higher);
  std::sort(order.begin(), order.end(), higher);

  std::vector<Beam> best, running;
  for (size_t i = 0; i < width_; ++i) {
    const auto [score, index] = ranks[i];
    if (index < width_) {
      best.push_back(std::move(search.best[index]));
    } else {
      const size_t pick = index - width_;
      best.push_back(extended(search, picks_[pick], score, pick < width_ && ends(picks_[pick])));
    }
  }
  for (size_t i = 0; i < std::min(width_, order.size()); ++i) {
    const Pick& pick = picks_[order[i].index];
    running.push_back(extended(search, pick, order[i].score, false));
    sources_[prompt * width_ + i] = prompt * width_ + pick.beam;
  }
  search.best = std::move(best);
  search.running = std::move(running);

  const bool to_the_end = options_.early_stopping == EarlyStopping::kNever && options_.length_penalty > 0;
  const float hope =
      search.running.empty() ? -kInfinity : penalised(search.running[0].score, to_the_end ? max_length - prompt_length : generated);
  const float least = search.best.back().score;
  search.improvable = search.improvable && std::any_of(search.best.begin(), search.best.end(),
                                                       [&](const Beam& beam) { return hope > (beam.finished ? least : kOut); });
  const bool enough_picks = picks_.size() == most_picks_;
  const bool all_end = length >= max_length || (enough_picks && std::all_of(picks_.begin(), picks_.end(), ends));
  if (search.improvable && !full() && !all_end) return;
  finish(prompt);
}

// Emits the best of a search that is over.
void BeamSearch::finish(size_t prompt) {
  const Search& search = searches_[prompt];
  const size_t begin = prompts_[prompt].ids.size();
  for (size_t r = 0; r < options_.return_sequences; ++r) {
    if (search.stopped[r] || r >= search.best.size()) continue;
    const size_t sequence = prompt * options_.return_sequences + r;
    const Beam& beam = search.best[r];
    for (size_t i = 0; i < beam.marks.size(); ++i) {
      const auto [logprob, top, count] = beam.marks[i];
      step_.tokens.push_back({sequence, i, beam.ids[begin + i], logprob, step_.top.size(), count});
      step_.top.insert(step_.top.end(), search.top.begin() + top, search.top.begin() + top + count);
    }
    const bool stopped = !beam.marks.empty() && is_eos(beam.ids.back());
    step_.finished.push_back({sequence, stopped ? Finish::kStop : Finish::kLength, beam.score});
  }
  end(prompt);
}

void BeamSearch::end(size_t prompt) {
  Search& search = searches_[prompt];
  search.live = false;
  search.running = {};
  search.best = {};
  search.top = {};
  --live_;
  for (size_t slot = prompt * width_; slot < (prompt + 1) * width_; ++slot) decoder_.release(slot);
}

void BeamSearch::stop_live(size_t sequence) {
  const size_t prompt = sequence / options_.return_sequences;
  Search& search = searches_[prompt];
  if (!search.live) return;
  search.stopped[sequence % options_.return_sequences] = true;
  if (std::all_of(search.stopped.begin(), search.stopped.end(), [](bool stopped) { return stopped; })) end(prompt);
}

// As if every running beam ended here.
void BeamSearch::conclude_prompt(size_t prompt) {
  Search& search = searches_[prompt];
  if (search.running.empty()) return end(prompt);
  std::erase_if(search.best, [](const Beam& beam) { return !beam.finished; });
  for (Beam& beam : search.running) {
    beam.score = penalised(beam.score, beam.marks.size());
    search.best.push_back(std::move(beam));
  }
  std::sort(search.best.begin(), search.best.end(), [](const Beam& a, const Beam& b) { return a.score > b.score; });
  finish(prompt);
}

}  // namespace wf::generate
