// The tokens that may come next: filtered by the sampling options ("warpers"), then drawn from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generate/options.hpp"

namespace wf::generate {

struct Candidate {
  float score;
  int32_t id;
};

struct Choice {
  int32_t token;
  float logprob;  // natural logarithm of its probability in the distribution it was taken from
};

// The token of the highest score, the first of equals; scores of +infinity share all the probability. Throws kInvalidArgument where
// a score is NaN, or none is above -infinity.
Choice best_of(std::span<const float> scores);  // (V)

// Throws kInvalidArgument: the options rule out the whole vocabulary.
[[noreturn]] void fail_without_candidates();

// What scores of +infinity are: an error, as nothing can be drawn by them, or all the probability, as a maximum takes them.
enum class Infinite : uint8_t { kRefused, kCertain };

// The filters have the semantics of transformers' warpers, ties included, without sorting the vocabulary: a selection grows
// until the filter's condition is met. Probabilities are f32, sums of them double. Nothing is allocated after construction.
class Candidates {
 public:
  explicit Candidates(size_t vocab_size);

  // Starts over from scores (V): every token above -infinity. Throws kInvalidArgument where a score is NaN, or +infinity and refused.
  void take(std::span<const float> scores, Infinite infinite = Infinite::kRefused);
  // All filters that the options ask for, in the order of transformers' generate(); renormalizeLogits last. Each but top_h leaves
  // at least `options.least_candidates()`, where there are so many.
  void filter(const Options& options);

  void temperature(float temperature);
  void top_h(double share);  // Top-H (Potraghloo et al. 2025)
  void top_k(size_t k);
  void top_p(double mass, size_t least = 1);              // nucleus (Holtzman et al. 2020)
  void min_p(double share, size_t least = 1);             // min-p (Nguyen et al. 2024)
  void typical_p(double mass, size_t least = 1);          // locally typical (Meister et al. 2022)
  void epsilon_cutoff(double epsilon, size_t least = 1);  // epsilon and eta (Hewitt et al. 2022)
  void eta_cutoff(double epsilon, size_t least = 1);
  void normalize();  // scores become log-probabilities

  std::span<const Candidate> list() const { return list_; }  // by ascending id
  // The candidate at u in [0, 1) of the cumulative distribution, taken in the order of ids. Throws kInvalidArgument when none is left.
  Choice draw(double u);
  // The n of the highest probability, best first, lower ids first among equals; fewer where fewer are left. Valid until the next call.
  std::span<const Choice> best(size_t n);
  std::span<const Choice> best(size_t n, float log_sum);  // the same where the logarithm of the sum of e^(score - highest) is known

 private:
  struct Ranked {
    float key;
    uint32_t index;  // into list_
  };

  float highest() const;
  float nth_highest(size_t n);  // -infinity where there are fewer; ranks list_
  void rank();                  // fills ranked_ with the scores of list_
  void softmax();               // fills probabilities_ with those of list_
  double entropy() const;       // of probabilities_, in nats
  template <class Keep>
  void keep_if(Keep keep);
  template <class Before, class Visit>
  void walk(Before before, Visit visit);

  std::vector<Candidate> list_;
  std::vector<float> probabilities_;
  std::vector<Ranked> ranked_;
  std::vector<Choice> best_;
};

}  // namespace wf::generate
