// Values worked by hand from the definitions in transformers' generation/logits_process.py.
#include "generate/processors.hpp"

#include <catch_amalgamated.hpp>
#include <limits>

namespace wf::generate {

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();
using Floats = std::vector<float>;

Floats processed(const Options& options, Floats scores, const std::vector<int32_t>& ids, size_t prompt_length, size_t max_length = 100,
                 std::span<const int32_t> source = {}) {
  Processors(options, scores.size())
      .run({ids, prompt_length, max_length, source.empty() ? std::span(ids).first(prompt_length) : source}, scores);
  return scores;
}

}  // namespace

TEST_CASE("processors: repetition penalty multiplies negative scores and divides positive ones, once a token") {
  Options o;
  o.repetition_penalty = 2;
  CHECK(processed(o, {1, -1, 3, 4}, {0, 1, 0}, 2) == Floats{0.5, -2, 3, 4});
}

TEST_CASE("processors: no n-gram is repeated") {
  Options o;
  o.no_repeat_ngram_size = 2;
  CHECK(processed(o, {1, 1, 1, 1}, {0, 1, 0, 2, 0}, 2) == Floats{1, kOut, kOut, 1});
  CHECK(processed(o, {1, 1, 1, 1}, {0}, 1) == Floats{1, 1, 1, 1});
  o.no_repeat_ngram_size = 1;
  CHECK(processed(o, {1, 1, 1, 1}, {0, 3}, 1) == Floats{kOut, 1, 1, kOut});
  o.no_repeat_ngram_size = 3;
  CHECK(processed(o, {1, 1, 1, 1}, {1, 2, 3, 1, 2}, 2) == Floats{1, 1, 1, kOut});
}

TEST_CASE("processors: the source's tokens are penalised the other way round, its n-grams are not said again") {
  const std::vector<int32_t> source = {1, 1, 3, 90};  // 90 is of the source's own vocabulary
  Options o;
  o.encoder_repetition_penalty = 2;
  CHECK(processed(o, {1, -1, 3, 4}, {0, 0}, 1, 100, source) == Floats{1, -0.5, 3, 8});
  CHECK(processed(o, {1, -1, 3, 4}, {0, 2}, 1) == Floats{2, -1, 3, 4});  // without an encoder: the prompt, {0}
  Options n;
  n.encoder_no_repeat_ngram_size = 1;
  CHECK(processed(n, {1, 1, 1, 1}, {0}, 1, 100, source) == Floats{1, kOut, 1, kOut});
  n.encoder_no_repeat_ngram_size = 2;
  CHECK(processed(n, {1, 1, 1, 1}, {0, 1}, 1, 100, source) == Floats{1, kOut, 1, kOut});
  CHECK(processed(n, {1, 1, 1, 1}, {0, 3}, 1, 100, source) == Floats{1, 1, 1, 1});
  n.encoder_no_repeat_ngram_size = 3;
  CHECK(processed(n, {1, 1, 1, 1}, {1, 1}, 1, 100, source) == Floats{1, 1, 1, kOut});
  CHECK(processed(n, {1, 1, 1, 1}, {1}, 1, 100, source) == Floats{1, 1, 1, 1});
}

TEST_CASE("processors: sequence bias and bad words apply to the last token of a sequence whose beginning was just generated") {
  Options o;
  o.sequence_bias = {{{0}, 1.5}, {{2, 3}, -4}, {{1, 2, 3}, 8}, {{9, 9, 9, 9, 9, 9}, 1}};
  CHECK(processed(o, {0, 0, 0, 0}, {1, 2}, 1) == Floats{1.5, 0, 0, 4});
  CHECK(processed(o, {0, 0, 0, 0}, {2}, 1) == Floats{1.5, 0, 0, -4});
  CHECK(processed(o, {0, 0, 0, 0}, {2, 0}, 1) == Floats{1.5, 0, 0, 0});
  Options bad;
  bad.bad_words = {{{1}, kOut}, {{2, 3}, kOut}};
  CHECK(processed(bad, {0, 0, 0, 0}, {2}, 1) == Floats{0, kOut, 0, kOut});
}

TEST_CASE("processors: minimum lengths rule out every end-of-sequence token") {
  Options o;
  o.eos = {1, 3, 77};
  o.min_length = 3;
  CHECK(processed(o, {0, 0, 0, 0}, {2, 2}, 2) == Floats{0, kOut, 0, kOut});
  CHECK(processed(o, {0, 0, 0, 0}, {2, 2, 2}, 2) == Floats{0, 0, 0, 0});
  o.min_new_tokens = 2;  // goes before min_length
  CHECK(processed(o, {0, 0, 0, 0}, {2, 2, 2}, 2) == Floats{0, kOut, 0, kOut});
  CHECK(processed(o, {0, 0, 0, 0}, {2, 2, 2, 2}, 2) == Floats{0, 0, 0, 0});
}

TEST_CASE("processors: forced first and last tokens") {
  Options o;
  o.forced_bos = 2;
  CHECK(processed(o, {5, 5, 5}, {1}, 1) == Floats{kOut, kOut, 0});
  CHECK(processed(o, {5, 5, 5}, {1, 1}, 2) == Floats{5, 5, 5});
  Options last;
  last.forced_eos = {0, 1};
  CHECK(processed(last, {5, 5, 5}, {1, 1, 1}, 1, 4) == Floats{0, 0, kOut});
  CHECK(processed(last, {5, 5, 5}, {1, 1, 1}, 1, 5) == Floats{5, 5, 5});
}

TEST_CASE("processors: invalid values become finite") {
  Options o;
  o.remove_invalid_values = true;
  const float most = std::numeric_limits<float>::max();
  CHECK(processed(o, {std::numeric_limits<float>::quiet_NaN(), -kOut, kOut, 1}, {0}, 1) == Floats{0, most, -most, 1});
}

TEST_CASE("processors: exponential decay adds |score| (factor^n - 1) to the end-of-sequence tokens") {
  Options o;
  o.eos = {0, 1, 0};
  o.exponential_decay = ExponentialDecay{1, 2.0};
  CHECK(processed(o, {-1, kOut, 3}, {2, 2, 2}, 2) == Floats{-1, kOut, 3});
  CHECK(processed(o, {-1, kOut, 3}, {2, 2, 2, 2, 2}, 2) == Floats{2, kOut, 3});  // two tokens past the start: -1 + 1 * (2^2 - 1)
}

TEST_CASE("processors: suppressed tokens, always and at the beginning") {
  Options o;
  o.suppress = {0};
  o.begin_suppress = {1};
  CHECK(processed(o, {1, 1, 1}, {2, 2}, 2) == Floats{kOut, kOut, 1});
  CHECK(processed(o, {1, 1, 1}, {2, 2, 2}, 2) == Floats{kOut, 1, 1});
  o.forced_bos = 2;  // a prompt of one token: the beginning is behind the forced token
  CHECK(processed(o, {1, 1, 1}, {2, 2}, 1) == Floats{kOut, kOut, 1});
}

TEST_CASE("processors: frequency and presence count what was generated, not the prompt") {
  Options o;
  o.frequency_penalty = 0.5;
  o.presence_penalty = 0.25;
  CHECK(processed(o, {1, 1, 1}, {0, 1, 1, 2}, 1) == Floats{1, -0.25, 0.25});
  CHECK(processed(o, {1, 1, 1}, {0, 1, 1, 2}, 1) == Floats{1, -0.25, 0.25});  // counts start over
}

TEST_CASE("processors: logit bias, and the order of all") {
  Options o;
  o.logit_bias = {{1, 2.5}, {2, kOut}};
  CHECK(processed(o, {1, 1, 1}, {0}, 1) == Floats{1, 3.5, kOut});

  Options both;  // the bias is added before the penalty scales
  both.sequence_bias = {{{0}, 3}};
  both.repetition_penalty = 2;
  CHECK(processed(both, {-1, 1}, {0}, 1) == Floats{1, 1});
  Options removed;  // values are repaired after the bad words, before the suppressed tokens
  removed.bad_words = {{{0}, kOut}};
  removed.remove_invalid_values = true;
  removed.suppress = {1};
  CHECK(processed(removed, {1, 1}, {0}, 1) == Floats{-std::numeric_limits<float>::max(), kOut});
}

}  // namespace wf::generate
