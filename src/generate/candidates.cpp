#include "generate/candidates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "kernels/softmax.hpp"

namespace wf::generate {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kFirstSelection = 64;

[[noreturn]] void fail_on_score(size_t id, float score) {
  fail(Code::kInvalidArgument, "generate", "score of token ", id, ": expected a finite number or -Infinity, got ", score,
       "; removeInvalidValues: true replaces such scores");
}

}  // namespace

void fail_without_candidates() {
  fail(Code::kInvalidArgument, "generate", "no token is left to choose from: the options rule out the whole vocabulary");
}

Choice best_of(std::span<const float> scores) {
  const kernels::Peak peak = kernels::peak(scores.data(), scores.size());
  if (std::isfinite(peak.largest) && std::isfinite(peak.sum)) {
    const auto best = std::find(scores.begin(), scores.end(), peak.largest);
    return {static_cast<int32_t>(best - scores.begin()), -std::log(peak.sum)};
  }
  size_t best = 0;
  for (size_t id = 0; id < scores.size(); ++id) {
    if (std::isnan(scores[id])) fail_on_score(id, scores[id]);
    if (scores[id] > scores[best]) best = id;
  }
  if (scores[best] == -kInfinity) fail_without_candidates();
  const auto equals = std::count(scores.begin(), scores.end(), kInfinity);
  return {static_cast<int32_t>(best), -static_cast<float>(std::log(static_cast<double>(equals)))};
}

Candidates::Candidates(size_t vocab_size) {
  list_.reserve(vocab_size);
  probabilities_.reserve(vocab_size);
  ranked_.reserve(vocab_size);
}

// Keeps the candidates for whose index `keep` holds, in their order.
template <class Keep>
void Candidates::keep_if(Keep keep) {
  size_t kept = 0;
  for (size_t i = 0; i < list_.size(); ++i) {
    if (keep(i)) list_[kept++] = list_[i];
  }
  list_.resize(kept);
}

void Candidates::take(std::span<const float> scores, Infinite infinite) {
  list_.clear();
  bool certain = false;
  for (size_t id = 0; id < scores.size(); ++id) {
    certain |= scores[id] == kInfinity;
    if (std::isnan(scores[id]) || (certain && infinite == Infinite::kRefused)) fail_on_score(id, scores[id]);
    if (scores[id] > -kInfinity) list_.push_back({scores[id], static_cast<int32_t>(id)});
  }
  if (!certain) return;
  keep_if([&](size_t i) { return list_[i].score == kInfinity; });
  for (Candidate& candidate : list_) candidate.score = 0;
}

float Candidates::highest() const {
  float highest = -kInfinity;
  for (const Candidate& candidate : list_) highest = std::max(highest, candidate.score);
  return highest;
}

void Candidates::rank() {
  ranked_.clear();
  for (size_t i = 0; i < list_.size(); ++i) ranked_.push_back({list_[i].score, static_cast<uint32_t>(i)});
}

float Candidates::nth_highest(size_t n) {
  if (n == 1) return highest();
  if (n > list_.size()) return -kInfinity;
  rank();
  const auto nth = ranked_.begin() + (n - 1);
  std::nth_element(ranked_.begin(), nth, ranked_.end(), [](const Ranked& a, const Ranked& b) { return a.key > b.key; });
  return nth->key;
}

void Candidates::softmax() {
  const float highest = this->highest();
  double sum = 0;
  probabilities_.resize(list_.size());
  for (size_t i = 0; i < list_.size(); ++i) {
    probabilities_[i] = std::exp(list_[i].score - highest);
    sum += probabilities_[i];
  }
  const float divisor = static_cast<float>(sum);
  for (float& probability : probabilities_) probability /= divisor;
}

double Candidates::entropy() const {
  double entropy = 0;
  for (const float p : probabilities_) {
    if (p > 0) entropy -= static_cast<double>(p) * std::log(static_cast<double>(p));
  }
  return entropy;
}

// Visits ranked_ in the order of `before` until `visit` returns false, sorting no more than a multiple of what is visited.
template <class Before, class Visit>
void Candidates::walk(Before before, Visit visit) {
  size_t begin = 0, count = kFirstSelection;
  while (begin < ranked_.size()) {
    const size_t end = std::min(ranked_.size(), begin + count);
    const auto first = ranked_.begin() + begin, last = ranked_.begin() + end;
    if (last != ranked_.end()) std::nth_element(first, last, ranked_.end(), before);
    std::sort(first, last, before);
    for (auto item = first; item != last; ++item) {
      if (!visit(*item)) return;
    }
    begin = end;
    count *= 4;
  }
}

void Candidates::temperature(float temperature) {
  for (Candidate& candidate : list_) candidate.score /= temperature;
  keep_if([&](size_t i) { return list_[i].score > -kInfinity; });  // the lowest float, say, which removeInvalidValues puts in
}

void Candidates::top_h(double share) {
  constexpr size_t kConsidered = 100;
  rank();
  const auto before = [](const Ranked& a, const Ranked& b) { return a.key != b.key ? a.key > b.key : a.index < b.index; };
  const size_t considered = std::min(kConsidered, ranked_.size());
  std::partial_sort(ranked_.begin(), ranked_.begin() + considered, ranked_.end(), before);
  if (considered == 0) return;

  // The two entropies that are compared round differently in Python: one from the normalised logits, one from log(p).
  double sum = 0, entropy = 0, cumulative = 0;
  for (size_t i = 0; i < considered; ++i) sum += std::exp(ranked_[i].key - ranked_[0].key);
  const float log_sum = ranked_[0].key + static_cast<float>(std::log(sum));
  const auto probability = [&](size_t i) { return std::exp(ranked_[i].key - ranked_[0].key) / static_cast<float>(sum); };
  for (size_t i = 0; i < considered; ++i) entropy -= static_cast<double>((ranked_[i].key - log_sum) * probability(i));
  const float most = static_cast<float>(entropy) * static_cast<float>(share);
  size_t kept = 0;
  for (; kept < considered; ++kept) {
    const float p = probability(kept);
    if (p > 0) cumulative -= static_cast<double>(p * std::log(p));
    if (kept > 0 && !(p > 0 && static_cast<float>(cumulative) <= most)) break;
  }
  const Ranked last = ranked_[kept - 1];
  keep_if([&](size_t i) { return !before(last, {list_[i].score, static_cast<uint32_t>(i)}); });
}

void Candidates::top_k(size_t k) {
  if (k >= list_.size()) return;
  ranked_.clear();
  const auto lowest_first = [](const Ranked& a, const Ranked& b) { return a.key > b.key; };
  constexpr size_t kHeap = 1024;
  float least;
  if (k <= kHeap) {  // a heap of the k best so far: one comparison for almost every token
    for (size_t i = 0; i < list_.size(); ++i) {
      if (ranked_.size() < k) {
        ranked_.push_back({list_[i].score, 0});
        std::push_heap(ranked_.begin(), ranked_.end(), lowest_first);
      } else if (list_[i].score > ranked_.front().key) {
        std::pop_heap(ranked_.begin(), ranked_.end(), lowest_first);
        ranked_.back().key = list_[i].score;
        std::push_heap(ranked_.begin(), ranked_.end(), lowest_first);
      }
    }
    least = ranked_.front().key;
  } else {
    for (const Candidate& candidate : list_) ranked_.push_back({candidate.score, 0});
    std::nth_element(ranked_.begin(), ranked_.begin() + (k - 1), ranked_.end(), lowest_first);
    least = ranked_[k - 1].key;
  }
  keep_if([&](size_t i) { return list_[i].score >= least; });
}

void Candidates::top_p(double mass, size_t least) {
  if (list_.empty()) return;
  softmax();
  double total = 0;
  ranked_.clear();
  for (size_t i = 0; i < list_.size(); ++i) {
    total += probabilities_[i];
    ranked_.push_back({list_[i].score, static_cast<uint32_t>(i)});
  }
  // In Python the scores ascend and those go whose cumulative probability stays at or below 1 - mass; of equal scores the lower
  // id goes first.
  const auto before = [](const Ranked& a, const Ranked& b) { return a.key != b.key ? a.key > b.key : a.index > b.index; };
  const float removed = static_cast<float>(1 - mass);
  double above = 0;
  Ranked last = {};
  size_t kept = 0;
  walk(before, [&](const Ranked& item) {
    if (kept >= least && static_cast<float>(total - above) <= removed) return false;
    ++kept;
    last = item;
    above += probabilities_[item.index];
    return true;
  });
  keep_if([&](size_t i) { return !before(last, {list_[i].score, static_cast<uint32_t>(i)}); });
}

void Candidates::min_p(double share, size_t least) {
  if (list_.empty()) return;
  softmax();
  const float most = *std::max_element(probabilities_.begin(), probabilities_.end());
  const float enough = static_cast<float>(share) * most, score = nth_highest(least);
  keep_if([&](size_t i) { return probabilities_[i] >= enough || list_[i].score >= score; });
}

void Candidates::typical_p(double mass, size_t least) {
  if (list_.empty()) return;
  const float highest = this->highest();
  double sum = 0;
  for (const Candidate& candidate : list_) sum += std::exp(candidate.score - highest);
  const float log_sum = static_cast<float>(std::log(sum));
  const auto information = [&](size_t i) { return log_sum - (list_[i].score - highest); };  // -log p
  double entropy = 0;
  for (size_t i = 0; i < list_.size(); ++i) {
    const float p = std::exp(-information(i));
    if (p > 0) entropy += static_cast<double>(information(i) * p);
  }
  ranked_.clear();
  for (size_t i = 0; i < list_.size(); ++i) {
    ranked_.push_back({std::abs(information(i) - static_cast<float>(entropy)), static_cast<uint32_t>(i)});
  }
  softmax();
  const float enough = static_cast<float>(mass);
  float farthest = 0;
  double cumulative = 0;
  size_t seen = 0;
  Ranked last = {};
  const auto before = [](const Ranked& a, const Ranked& b) { return a.key != b.key ? a.key < b.key : a.index < b.index; };
  walk(before, [&](const Ranked& item) {
    if (seen++ < least) last = item;
    if (static_cast<float>(cumulative) < enough) farthest = item.key;
    cumulative += probabilities_[item.index];
    return static_cast<float>(cumulative) < enough || seen < least;
  });
  keep_if([&](size_t i) {
    const Ranked item{std::abs(information(i) - static_cast<float>(entropy)), static_cast<uint32_t>(i)};
    return item.key <= farthest || !before(last, item);
  });
}

void Candidates::epsilon_cutoff(double epsilon, size_t least) {
  softmax();
  const float enough = static_cast<float>(epsilon), score = nth_highest(least);
  keep_if([&](size_t i) { return probabilities_[i] >= enough || list_[i].score >= score; });
}

void Candidates::eta_cutoff(double epsilon, size_t least) {
  softmax();
  const float bound = static_cast<float>(epsilon), score = nth_highest(least);
  const float enough = std::min(bound, std::sqrt(bound) * std::exp(-static_cast<float>(entropy())));
  keep_if([&](size_t i) { return probabilities_[i] >= enough || list_[i].score >= score; });
}

void Candidates::normalize() {
  const float highest = this->highest();
  double sum = 0;
  for (const Candidate& candidate : list_) sum += std::exp(candidate.score - highest);
  const float log_sum = static_cast<float>(std::log(sum));
  for (Candidate& candidate : list_) candidate.score = candidate.score - highest - log_sum;
}

void Candidates::filter(const Options& options) {
  if (options.sample) {
    if (options.temperature != 1) temperature(options.temperature);
    if (options.top_h) top_h(*options.top_h);
    const size_t least = options.least_candidates();
    if (options.top_k.value_or(0) != 0) top_k(std::max(*options.top_k, least));
    if (options.top_p < 1) top_p(options.top_p, least);
    if (options.min_p) min_p(*options.min_p, least);
    if (options.typical_p < 1) typical_p(options.typical_p, least);
    if (options.epsilon_cutoff > 0) epsilon_cutoff(options.epsilon_cutoff, least);
    if (options.eta_cutoff > 0) eta_cutoff(options.eta_cutoff, least);
  }
  if (options.renormalize) normalize();
}

Choice Candidates::draw(double u) {
  if (list_.empty()) fail_without_candidates();
  const float highest = this->highest();
  double total = 0;
  probabilities_.resize(list_.size());
  for (size_t i = 0; i < list_.size(); ++i) total += probabilities_[i] = std::exp(list_[i].score - highest);
  if (!std::isfinite(total)) fail_on_score(list_.front().id, highest);
  const double target = u * total;
  double cumulative = 0;
  size_t chosen = 0;
  for (size_t i = 0; i < list_.size(); ++i) {
    if (probabilities_[i] == 0) continue;
    chosen = i;
    cumulative += probabilities_[i];
    if (cumulative > target) break;
  }
  return {list_[chosen].id, list_[chosen].score - highest - static_cast<float>(std::log(total))};
}

std::span<const Choice> Candidates::best(size_t n) {
  const float highest = this->highest();
  double sum = 0;
  for (const Candidate& candidate : list_) sum += std::exp(candidate.score - highest);
  return best(n, static_cast<float>(std::log(sum)));
}

std::span<const Choice> Candidates::best(size_t n, float log_sum) {
  n = std::min(n, list_.size());
  const float highest = this->highest();
  rank();
  std::partial_sort(ranked_.begin(), ranked_.begin() + n, ranked_.end(),
                    [](const Ranked& a, const Ranked& b) { return a.key != b.key ? a.key > b.key : a.index < b.index; });
  best_.clear();
  for (size_t i = 0; i < n; ++i) {
    best_.push_back({list_[ranked_[i].index].id, ranked_[i].key - highest - log_sum});
  }
  return best_;
}

}  // namespace wf::generate
