#include "generate/beam_search.hpp"

#include <algorithm>
#include <catch_amalgamated.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>

#include "core/error.hpp"
#include "generate/generation.hpp"
#include "generate/testing.hpp"

namespace wf::generate {

namespace {

constexpr size_t kVocab = 12;
constexpr int32_t kEos = 5;
using Ids = std::vector<int32_t>;
using testing::FakeDecoder;

struct Found {
  Ids tokens;
  std::vector<float> logprobs;
  float score = 0;
  std::string reason;
  bool operator==(const Found&) const = default;
};

Options beams(size_t count, size_t length) {
  Options o;
  o.beams = count;
  o.max_new_tokens = length;
  o.eos = {kEos};
  return o;
}

void collect(const Step& step, std::vector<Found>& found) {
  for (const Emitted& e : step.tokens) {
    CHECK(e.index == found[e.sequence].tokens.size());
    found[e.sequence].tokens.push_back(e.token);
    found[e.sequence].logprobs.push_back(e.logprob);
  }
  for (const Finished& f : step.finished) {
    found[f.sequence].reason = name_of(f.reason);
    found[f.sequence].score = f.score.value();
  }
}

std::vector<Found> run(Generator& generator) {
  std::vector<Found> found(generator.sequences());
  for (bool done = false; !done;) {
    const Step& step = generator.advance();
    collect(step, found);
    done = step.done;
  }
  return found;
}

std::vector<Found> run(size_t vocab_size, const Lists& prompts, const Options& options, const Lists& sources = {}) {
  FakeDecoder decoder(vocab_size, prompts.size() * slots_a_prompt(options));
  const auto generator = make_generator(decoder, prompts, options, sources);
  auto found = run(*generator);
  for (size_t slot = 0; slot < generator->slots(); ++slot) CHECK(decoder.length(slot) == 0);
  return found;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

template <class T>
std::vector<T> numbers(const std::string& text) {
  std::vector<T> values;
  for (const std::string& part : split(text, ',')) values.push_back(static_cast<T>(std::stod(part)));
  return values;
}

Lists lists(const std::string& text) {
  Lists all;
  for (const std::string& part : split(text, ';')) all.push_back(numbers<int32_t>(part));
  return all;
}

Config::Value value_of(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (text == "never") return text;
  const auto values = numbers<double>(text);
  if (values.size() == 1) return values[0];
  return values;
}

// As wasm-tests/python/beam_oracle.py writes it.
struct Case {
  size_t vocab_size;
  std::string text;
  Options options;
  Lists prompts, sources;
  std::vector<Found> expected;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const char* other = std::getenv("WASMFORMER_BEAMS");
  std::ifstream in(other ? other : WASMFORMER_SOURCE_DIR "/wasm-tests/fixtures/beams.txt");
  for (std::string line; std::getline(in, line);) {
    const auto fields = split(line, '|');
    Case c;
    c.vocab_size = static_cast<size_t>(std::stoul(fields.at(0)));
    c.text = line;
    Config config("generate");
    for (const std::string& option : split(fields.at(1), ' ')) {
      const size_t at = option.find('=');
      config.set(option.substr(0, at), value_of(option.substr(at + 1)));
    }
    c.options = parse_options(config, c.vocab_size);
    c.prompts = lists(fields.at(2));
    c.sources = lists(fields.at(3));
    for (const std::string& sequence : split(fields.at(4), ';')) {
      const auto parts = split(sequence, '@');
      c.expected.push_back({numbers<int32_t>(parts.at(0)), parts.size() > 2 ? numbers<float>(parts.at(2)) : std::vector<float>(),
                            std::stof(parts.at(1)), ""});
    }
    all.push_back(std::move(c));
  }
  return all;
}

// A sum of so many log-probabilities, each a few roundings off.
float tolerance(float value, size_t count) { return 4e-6f * static_cast<float>(count + 1) * std::max(1.0f, std::abs(value)); }

}  // namespace

TEST_CASE("beam search: sequences, scores and log-probabilities are those of transformers, in batches too", "[beams]") {
  const auto all = cases();
  REQUIRE(all.size() >= 100);
  for (const Case& c : all) {
    INFO(c.text);
    const auto found = run(c.vocab_size, c.prompts, c.options, c.sources);
    REQUIRE(found.size() == c.expected.size());
    for (size_t s = 0; s < found.size(); ++s) {
      INFO("sequence " << s);
      CHECK(found[s].tokens == c.expected[s].tokens);
      if (found[s].tokens != c.expected[s].tokens) continue;
      const size_t count = found[s].tokens.size();
      CHECK(std::abs(found[s].score - c.expected[s].score) <= tolerance(c.expected[s].score, count));
      for (size_t t = 0; t < count; ++t)
        CHECK(std::abs(found[s].logprobs[t] - c.expected[s].logprobs[t]) <= tolerance(c.expected[s].logprobs[t], 1));
    }
  }
}

TEST_CASE("beam search: a batch of prompts of different lengths finds what each finds alone, whatever the chunk", "[beams]") {
  const Lists prompts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11, 0, 2}, {1, 2}};
  for (const bool sample : {false, true}) {
    Options o = beams(3, 12);
    o.return_sequences = 2;
    o.sample = sample;
    o.seed = 11;
    const auto batch = run(kVocab, prompts, o);
    for (const size_t chunk : {1u, 4u, 128u}) {
      o.prefill_chunk = chunk;
      CHECK(run(kVocab, prompts, o) == batch);
    }
    for (size_t p = 0; p < prompts.size(); ++p) {
      const auto alone = run(kVocab, {prompts[p]}, o);
      CHECK(alone[0] == batch[2 * p]);
      CHECK(alone[1] == batch[2 * p + 1]);
    }
  }
}

TEST_CASE("beam search: the score is the sum of the log-probabilities over the penalised length", "[beams]") {
  for (const double penalty : {0.0, 1.0, 2.0, -1.0}) {
    Options o = beams(4, 10);
    o.return_sequences = 4;
    o.length_penalty = penalty;
    const auto found = run(kVocab, {{1, 2}}, o);
    for (size_t r = 0; r < found.size(); ++r) {
      double sum = 0;
      for (const float logprob : found[r].logprobs) sum += logprob;
      CHECK(found[r].score == Catch::Approx(sum / std::pow(found[r].tokens.size(), penalty)).epsilon(1e-5));
      if (r > 0) CHECK(found[r].score <= found[r - 1].score);
      CHECK((found[r].reason == "stop") == (found[r].tokens.back() == kEos));
      if (found[r].reason == "length") CHECK(found[r].tokens.size() == 10);
    }
    CHECK(std::set<Ids>{found[0].tokens, found[1].tokens, found[2].tokens, found[3].tokens}.size() == 4);
  }
}

TEST_CASE("beam search: with as many beams as there are sequences it finds the likeliest of all", "[beams]") {
  constexpr size_t kSmall = 4, kLength = 3;
  Options o = beams(kSmall * kSmall, kLength);
  o.eos = {};
  const auto found = run(kSmall, {{1, 2}}, o);
  double best = -1e9;
  for (size_t code = 0; code < kSmall * kSmall * kSmall; ++code) {
    Ids ids = {1, 2};
    double sum = 0;
    for (size_t t = 0, rest = code; t < kLength; ++t, rest /= kSmall) {
      std::vector<float> scores(kSmall);
      FakeDecoder::scores_after(ids, scores);
      double total = 0;
      for (const float score : scores) total += std::exp(static_cast<double>(score));
      sum += scores[rest % kSmall] - std::log(total);
      ids.push_back(static_cast<int32_t>(rest % kSmall));
    }
    best = std::max(best, sum);
  }
  CHECK(found[0].score == Catch::Approx(best / kLength).epsilon(1e-5));
}

TEST_CASE("beam search: beam sampling draws by the seed, without replacement, from what the filters leave", "[beams]") {
  Options o = beams(3, 8);
  o.sample = true;
  o.seed = 1;
  o.return_sequences = 3;
  const auto found = run(kVocab, {{1, 2}}, o);
  CHECK(run(kVocab, {{1, 2}}, o) == found);
  o.seed = 2;
  CHECK(run(kVocab, {{1, 2}}, o) != found);
  // Two candidates are left at each place, whatever topK says: one of them is no end of a sequence.
  o.top_k = 1;
  for (const Found& sequence : run(kVocab, {{1, 2}}, o)) {
    Ids ids = {1, 2};
    for (const int32_t token : sequence.tokens) {
      std::vector<float> scores(kVocab);
      FakeDecoder::scores_after(ids, scores);
      CHECK(std::count_if(scores.begin(), scores.end(), [&](float score) { return score > scores[token]; }) < 2);
      ids.push_back(token);
    }
  }
}

TEST_CASE("beam search: the first beam of a step is drawn as often as it is likely", "[beams]") {
  std::vector<float> scores(kVocab);
  FakeDecoder::scores_after(Ids{1, 2}, scores);
  double total = 0;
  for (const float score : scores) total += std::exp(static_cast<double>(score));
  // Of a draw of four without replacement, a token of probability p is among them at least as often as it would be the first.
  Options o = beams(2, 1);
  o.sample = true;
  o.eos = {};
  o.top_k = 0;
  o.return_sequences = 2;
  std::vector<size_t> counts(kVocab);
  constexpr size_t kDraws = 4000;
  for (size_t seed = 0; seed < kDraws; ++seed) {
    o.seed = seed;
    for (const Found& sequence : run(kVocab, {{1, 2}}, o)) ++counts[static_cast<size_t>(sequence.tokens[0])];
  }
  // The two returned are the likelier two of four drawn, by Plackett and Luce's model: summed over all ordered draws.
  std::vector<double> p, expected(kVocab);
  for (const float score : scores) p.push_back(std::exp(static_cast<double>(score)) / total);
  const auto visit = [&](auto&& self, std::vector<size_t> drawn, double probability, double left) -> void {
    if (drawn.size() == 4) {
      std::sort(drawn.begin(), drawn.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
      expected[drawn[0]] += probability;
      expected[drawn[1]] += probability;
      return;
    }
    for (size_t v = 0; v < kVocab; ++v) {
      if (std::find(drawn.begin(), drawn.end(), v) != drawn.end()) continue;
      auto next = drawn;
      next.push_back(v);
      self(self, next, probability * p[v] / left, left - p[v]);
    }
  };
  visit(visit, {}, 1, 1);
  for (size_t v = 0; v < kVocab; ++v) {
    INFO(v);
    const double deviation = std::sqrt(kDraws * expected[v] * (1 - expected[v]));
    CHECK(std::abs(static_cast<double>(counts[v]) - kDraws * expected[v]) <= 5 * deviation + 1);
  }
}

TEST_CASE("beam search: a forced beginning, one token for a vocabulary, more beams than tokens", "[beams]") {
  Options o = beams(4, 6);
  o.forced_bos = 7;
  o.return_sequences = 4;
  for (const Found& sequence : run(kVocab, {{3}}, o)) {
    CHECK(sequence.tokens[0] == 7);
    CHECK(sequence.logprobs[0] == 0);
    CHECK(sequence.score > -1e8);
  }
  Options one = beams(3, 5);
  one.eos = {};
  CHECK(run(1, {{0}}, one)[0].tokens == Ids{0, 0, 0, 0, 0});
  CHECK(run(1, {{0}}, one)[0].score == 0);
  one.eos = {0};
  CHECK(run(1, {{0}}, one)[0].tokens == Ids{0});
  CHECK(run(1, {{0}}, one)[0].reason == "stop");
  Options many = beams(40, 1);
  many.return_sequences = kVocab;
  std::set<int32_t> seen;
  for (const Found& sequence : run(kVocab, {{1}}, many)) seen.insert(sequence.tokens.at(0));
  CHECK(seen.size() == kVocab);
  CHECK(run(kVocab, {{1}}, beams(2, 1))[0].tokens.size() == 1);
}

TEST_CASE("beam search: learned positions are a wall, and a prompt that fills maxLength is refused", "[beams]") {
  Options o = beams(2, 100);
  o.eos = {};
  FakeDecoder decoder(kVocab, 2, 8);
  BeamSearch search(decoder, {{1, 2, 3}}, o);
  const auto found = run(search);
  CHECK(found[0].tokens.size() == 6);  // the ninth token of a sequence takes no position
  CHECK(found[0].reason == "length");
  o.max_new_tokens.reset();
  o.max_length = 3;
  CHECK_THROWS_AS(run(kVocab, {{1, 2, 3}}, o), Error);
}

TEST_CASE("beam search: log-probabilities of the best, at every place of the sequence that is returned", "[beams]") {
  Options o = beams(3, 6);
  o.logprobs = 2;
  FakeDecoder decoder(kVocab, 3);
  BeamSearch search(decoder, {{1, 2}}, o);
  Ids ids = {1, 2};
  for (bool done = false; !done;) {
    const Step& step = search.advance();
    for (const Emitted& e : step.tokens) {
      std::vector<float> scores(kVocab);
      FakeDecoder::scores_after(ids, scores);
      REQUIRE(e.top_count == 2);
      const Choice &first = step.top[e.top], &second = step.top[e.top + 1];
      CHECK(first.token == std::max_element(scores.begin(), scores.end()) - scores.begin());
      CHECK(first.logprob >= second.logprob);
      CHECK(e.logprob <= first.logprob);
      if (e.token == first.token) CHECK(e.logprob == first.logprob);
      CHECK(second.logprob - first.logprob == Catch::Approx(scores[second.token] - scores[first.token]).margin(1e-6));
      ids.push_back(e.token);
    }
    done = step.done;
  }
  CHECK(ids.size() > 2);
}

TEST_CASE("beam search: concluded at any step it gives the best so far, and gives everything back", "[beams]") {
  const Lists prompts = {{1, 2, 3, 4, 5, 6, 7, 8}, {4, 5}};
  Options o = beams(3, 9);
  o.return_sequences = 2;
  o.prefill_chunk = 4;
  for (size_t when = 0; when < 14; ++when) {
    INFO("after " << when << " steps");
    FakeDecoder decoder(kVocab, 6);
    BeamSearch search(decoder, prompts, o);
    std::vector<Found> found(4);
    size_t grown = 0;
    for (size_t i = 0; i < when && !search.done(); ++i) {
      const Step& step = search.advance();
      collect(step, found);
      grown += step.grew;
    }
    const bool over = search.done();
    const Step& last = search.conclude();
    CHECK(last.done);
    if (over) CHECK(last.tokens.empty());
    collect(last, found);
    CHECK(search.done());
    for (size_t slot = 0; slot < 6; ++slot) CHECK(decoder.length(slot) == 0);
    if (grown == 0) CHECK(found[0].tokens.empty());
    if (grown >= 2) {
      for (size_t p = 0; p < 2; ++p) {
        CHECK(!found[2 * p].tokens.empty());
        CHECK(found[2 * p].score >= found[2 * p + 1].score);
      }
    }
    const size_t runs = decoder.runs;
    CHECK(search.advance().done);
    CHECK(search.conclude().tokens.empty());
    CHECK(decoder.runs == runs);
  }
}

TEST_CASE("beam search: a stopped sequence is left out; all of a prompt's end its search", "[beams]") {
  const Lists prompts = {{1, 2, 3}, {4}};
  Options o = beams(3, 9);
  o.return_sequences = 2;
  const auto whole = run(kVocab, prompts, o);
  for (const size_t when : {0u, 1u, 3u}) {
    FakeDecoder decoder(kVocab, 6);
    BeamSearch search(decoder, prompts, o);
    for (size_t i = 0; i < when; ++i) search.advance();
    search.stop(0);
    search.stop(2);
    search.stop(3);
    search.stop(3);
    const auto found = run(search);
    CHECK(found[0].tokens.empty());
    CHECK(found[1] == whole[1]);
    CHECK(found[2].tokens.empty());
    CHECK(found[3].tokens.empty());
    for (size_t slot = 0; slot < 6; ++slot) CHECK(decoder.length(slot) == 0);
    CHECK_THROWS_AS(search.stop(4), Error);
  }
}

TEST_CASE("beam search: scores that are no numbers, or rule everything out, are errors that name it", "[beams]") {
  class Broken : public FakeDecoder {
   public:
    Broken(float value, bool everywhere) : FakeDecoder(kVocab, 2), value_(value), everywhere_(everywhere) {}
    void run(std::span<const Append> parts, float* logits) override {
      FakeDecoder::run(parts, logits);
      for (size_t i = 0; i < (everywhere_ ? kVocab : 1); ++i) logits[i] = value_;
    }

   private:
    float value_;
    bool everywhere_;
  };
  const auto message = [](float value, bool everywhere, const Options& options) {
    Broken decoder(value, everywhere);
    BeamSearch search(decoder, {{1, 2}}, options);
    try {
      run(search);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::string expected = "[generate] score of token 0: expected a finite number or -Infinity, got ";
  for (const float odd : {nan, -nan, infinity}) CHECK(message(odd, false, beams(2, 5)).starts_with(expected + "NaN;"));
  CHECK(message(-infinity, true, beams(2, 5)).starts_with("[generate] score of token 0: expected"));
  CHECK(message(-infinity, false, beams(2, 5)) == "no error");
  Options patched = beams(2, 5);
  patched.remove_invalid_values = true;
  CHECK(message(nan, false, patched) == "no error");
  Options none = beams(2, 5);
  for (int32_t id = 0; id < static_cast<int32_t>(kVocab); ++id) none.suppress.push_back(id);
  CHECK(message(0, false, none) == "[generate] no token is left to choose from: the options rule out the whole vocabulary");
}

}  // namespace wf::generate
