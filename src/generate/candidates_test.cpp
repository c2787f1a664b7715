#include "generate/candidates.hpp"

#include <algorithm>
#include <catch_amalgamated.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.hpp"
#include "core/heap_counter.hpp"
#include "core/rng.hpp"

namespace wf::generate {

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> scores;
  for (const double p : probabilities) scores.push_back(p > 0 ? static_cast<float>(std::log(p)) : kOut);
  return scores;
}

std::vector<int32_t> ids(const Candidates& candidates) {
  std::vector<int32_t> ids;
  for (const Candidate& candidate : candidates.list()) ids.push_back(candidate.id);
  return ids;
}

template <class Filter>
std::vector<int32_t> kept(const std::vector<float>& scores, Filter filter) {
  Candidates candidates(scores.size());
  candidates.take(scores);
  filter(candidates);
  return ids(candidates);
}

std::vector<float> random_scores(size_t size, uint64_t seed) {
  std::vector<float> scores(size);
  for (size_t i = 0; i < size; ++i) scores[i] = static_cast<float>(3 * normal({seed}, i));
  return scores;
}

using Ids = std::vector<int32_t>;

}  // namespace

TEST_CASE("candidates: top-k keeps every token equal to the k-th") {
  CHECK(kept({1, 5, 3, 3, 2}, [](Candidates& c) { c.top_k(2); }) == Ids{1, 2, 3});
  CHECK(kept({1, 5, 3, 3, 2}, [](Candidates& c) { c.top_k(1); }) == Ids{1});
  CHECK(kept({1, 5, 3, 3, 2}, [](Candidates& c) { c.top_k(9); }) == Ids{0, 1, 2, 3, 4});
  CHECK(kept({1, kOut, 3}, [](Candidates& c) { c.top_k(3); }) == Ids{0, 2});
}

TEST_CASE("candidates: top-k equals sorting, by heap and by selection") {
  const auto scores = random_scores(5000, 7);
  auto sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (const size_t k : {1u, 2u, 50u, 1024u, 1025u, 4999u}) {
    const auto list = kept(scores, [&](Candidates& c) { c.top_k(k); });
    CHECK(list.size() == k);
    CHECK(std::all_of(list.begin(), list.end(), [&](int32_t id) { return scores[id] >= sorted[k - 1]; }));
  }
}

TEST_CASE("candidates: top-p keeps the smallest set of at least that mass") {
  const auto scores = logs({0.1, 0.5, 0.15, 0.25});
  CHECK(kept(scores, [](Candidates& c) { c.top_p(0.6); }) == Ids{1, 3});
  CHECK(kept(scores, [](Candidates& c) { c.top_p(0.76); }) == Ids{1, 2, 3});
  CHECK(kept(scores, [](Candidates& c) { c.top_p(0.4); }) == Ids{1});
  CHECK(kept(scores, [](Candidates& c) { c.top_p(0.0); }) == Ids{1});
}

TEST_CASE("candidates: top-p equals a full sort whatever the size of the nucleus") {
  const auto scores = random_scores(3000, 11);
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  double total = 0;
  for (const float score : scores) total += std::exp(static_cast<double>(score));
  for (const double mass : {0.01, 0.3, 0.9, 0.99, 0.9999}) {
    double above = 0;
    size_t expected = 0;
    while (above < mass) above += std::exp(static_cast<double>(scores[order[expected++]])) / total;
    auto set = Ids(order.begin(), order.begin() + expected);
    std::sort(set.begin(), set.end());
    CHECK(kept(scores, [&](Candidates& c) { c.top_p(mass); }) == set);
  }
}

TEST_CASE("candidates: min-p keeps what is likely enough beside the best") {
  const auto scores = logs({0.1, 0.5, 0.15, 0.25});
  CHECK(kept(scores, [](Candidates& c) { c.min_p(0.25); }) == Ids{1, 2, 3});
  CHECK(kept(scores, [](Candidates& c) { c.min_p(1.0); }) == Ids{1});
  CHECK(kept(scores, [](Candidates& c) { c.min_p(0.0); }) == Ids{0, 1, 2, 3});
}

TEST_CASE("candidates: typical-p prefers tokens whose information is near the entropy") {
  // Entropy of (0.5, 0.25, 0.125, 0.125) is 1.75 bits; informations 1, 2, 3, 3 bits lie 0.75, 0.25, 1.25, 1.25 away.
  const auto scores = logs({0.5, 0.25, 0.125, 0.125});
  CHECK(kept(scores, [](Candidates& c) { c.typical_p(0.2); }) == Ids{1});
  CHECK(kept(scores, [](Candidates& c) { c.typical_p(0.7); }) == Ids{0, 1});
  CHECK(kept(scores, [](Candidates& c) { c.typical_p(0.8); }) == Ids{0, 1, 2, 3});  // equals go together
}

TEST_CASE("candidates: epsilon and eta cut the tail but never the best") {
  const auto scores = logs({0.5, 0.25, 0.125, 0.125});
  CHECK(kept(scores, [](Candidates& c) { c.epsilon_cutoff(0.2); }) == Ids{0, 1});
  CHECK(kept(scores, [](Candidates& c) { c.epsilon_cutoff(0.9); }) == Ids{0});
  // exp(-1.75 bits) = 0.2973; eta = min(0.36, 0.6 * 0.2973 = 0.178).
  CHECK(kept(scores, [](Candidates& c) { c.eta_cutoff(0.36); }) == Ids{0, 1});
  CHECK(kept(scores, [](Candidates& c) { c.eta_cutoff(0.01); }) == Ids{0, 1, 2, 3});
}

TEST_CASE("candidates: top-h keeps a share of the entropy") {
  // Terms of the entropy in bits, best first: 0.5, 0.5, 0.375, 0.375 of 1.75.
  const auto scores = logs({0.5, 0.25, 0.125, 0.125});
  CHECK(kept(scores, [](Candidates& c) { c.top_h(0.1); }) == Ids{0});
  CHECK(kept(scores, [](Candidates& c) { c.top_h(0.58); }) == Ids{0, 1});
  CHECK(kept(scores, [](Candidates& c) { c.top_h(0.8); }) == Ids{0, 1, 2});
}

TEST_CASE("candidates: filters run in the order of generate()") {
  // Top-k first leaves (2/3, 1/3); of that, top-p 0.6 needs only the best.
  Options o;
  o.sample = true;
  o.top_k = 2;
  o.top_p = 0.6;
  CHECK(kept(logs({0.5, 0.25, 0.125, 0.125}), [&](Candidates& c) { c.filter(o); }) == Ids{0});
  Options hot;  // temperature first: at 2 the best has 0.354 / 1.56 = 0.41 of the mass
  hot.sample = true;
  hot.temperature = 0.5;
  hot.min_p = 0.2;
  CHECK(kept(logs({0.5, 0.25, 0.125, 0.125}), [&](Candidates& c) { c.filter(hot); }) == Ids{0, 1});
}

TEST_CASE("candidates: a draw inverts the cumulative distribution in the order of ids") {
  Candidates candidates(4);
  candidates.take(logs({0.5, 0, 0.25, 0.25}));
  CHECK(candidates.draw(0.0).token == 0);
  CHECK(candidates.draw(0.4999).token == 0);
  CHECK(candidates.draw(0.5001).token == 2);
  CHECK(candidates.draw(0.7501).token == 3);
  CHECK(candidates.draw(0.9999999999).token == 3);
  CHECK(candidates.draw(0.6).logprob == Catch::Approx(std::log(0.25)));
}

TEST_CASE("candidates: the frequencies of draws are the probabilities") {
  const std::vector<double> p = {0.05, 0.4, 0.3, 0.25};
  Candidates candidates(4);
  candidates.take(logs(p));
  std::vector<int> count(4, 0);
  constexpr int kDraws = 100000;
  for (uint32_t i = 0; i < kDraws; ++i) ++count[candidates.draw(uniform({42, i, 0}, 0)).token];
  for (size_t i = 0; i < 4; ++i) {
    CHECK(std::abs(count[i] - kDraws * p[i]) < 4 * std::sqrt(kDraws * p[i] * (1 - p[i])));  // four standard deviations
  }
}

TEST_CASE("candidates: the best, with log-probabilities of the filtered distribution") {
  Candidates candidates(4);
  candidates.take(logs({0.125, 0.5, 0.125, 0.25}));
  candidates.top_k(2);
  const auto best = candidates.best(3);
  REQUIRE(best.size() == 2);
  CHECK(best[0].token == 1);
  CHECK(best[0].logprob == Catch::Approx(std::log(2.0 / 3)));
  CHECK(best[1].token == 3);
  CHECK(best_of(logs({0.125, 0.375, 0.375, 0.125})).token == 1);
  CHECK(best_of(logs({0.25, 0.75})).logprob == Catch::Approx(std::log(0.75)));
}

TEST_CASE("candidates: scores that are no numbers, or nothing left, are errors") {
  Candidates candidates(2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(candidates.take(std::vector<float>{1, nan}), Error);
  CHECK_THROWS_AS(candidates.take(std::vector<float>{-kOut, 1}), Error);
  CHECK_THROWS_AS(best_of(std::vector<float>{nan, 1}), Error);
  CHECK_THROWS_AS(best_of(std::vector<float>{kOut, kOut}), Error);
  candidates.take(std::vector<float>{kOut, kOut});
  CHECK_THROWS_AS(candidates.draw(0.5), Error);
}

TEST_CASE("candidates: greedy search takes a score of plus infinity, the first of them, as an overflowing penalty makes it") {
  const std::vector<float> scores{3, -kOut, kOut, -kOut};
  CHECK(best_of(scores).token == 1);
  CHECK(best_of(scores).logprob == Catch::Approx(std::log(0.5)));
  Candidates candidates(4);
  candidates.take(scores, Infinite::kCertain);
  const auto best = candidates.best(4);
  REQUIRE(best.size() == 2);
  CHECK(best[0].token == 1);
  CHECK(best[1].token == 3);
  CHECK(best[0].logprob == best_of(scores).logprob);
}

TEST_CASE("candidates: a score that a low temperature makes minus infinity is ruled out") {
  Candidates candidates(4);
  candidates.take(std::vector<float>{1, std::numeric_limits<float>::lowest(), 0.5f, 0});
  candidates.temperature(0.77f);
  REQUIRE(candidates.list().size() == 3);
  candidates.top_h(0.9);  // TopHLogitsWarper(0.9) keeps 1.0 and 0.5 of [1.0, -inf, 0.5, 0.0] / 0.77
  REQUIRE(candidates.list().size() == 2);
  CHECK(candidates.list()[0].id == 0);
  CHECK(candidates.list()[1].id == 2);
}

TEST_CASE("candidates: a large vocabulary is filtered without allocating") {
  const auto scores = random_scores(150000, 3);
  Candidates candidates(scores.size());
  Options o;
  o.sample = true;
  o.temperature = 0.8f;
  o.top_p = 0.95;
  o.min_p = 0.001;
  o.typical_p = 0.9;
  o.eta_cutoff = 1e-4;
  candidates.take(scores);
  candidates.filter(o);
  candidates.best(5);
  const size_t before = ::wf::testing::new_count();
  candidates.take(scores);
  candidates.filter(o);
  candidates.draw(0.3);
  candidates.best(5);
  CHECK(::wf::testing::new_count() == before);
}

}  // namespace wf::generate
