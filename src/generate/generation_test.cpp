#include "generate/generation.hpp"

#include <catch_amalgamated.hpp>
#include <map>
#include <string>

#include "core/buffer.hpp"
#include "core/error.hpp"
#include "core/heap_counter.hpp"
#include "generate/testing.hpp"

namespace wf::generate {

namespace {

constexpr size_t kVocab = 50;
using Ids = std::vector<int32_t>;
using Prompts = std::vector<Ids>;
using testing::FakeDecoder;

struct Outcome {
  std::vector<Ids> tokens;
  std::vector<std::vector<float>> logprobs;
  std::vector<std::string> reasons;
  bool operator==(const Outcome&) const = default;
};

Outcome run(Generation& generation) {
  Outcome outcome;
  outcome.tokens.resize(generation.sequences());
  outcome.logprobs.resize(generation.sequences());
  outcome.reasons.resize(generation.sequences());
  for (bool done = false; !done;) {
    const Step& step = generation.advance();
    for (const Emitted& e : step.tokens) {
      CHECK(e.index == outcome.tokens[e.sequence].size());
      outcome.tokens[e.sequence].push_back(e.token);
      outcome.logprobs[e.sequence].push_back(e.logprob);
    }
    for (const Finished& f : step.finished) outcome.reasons[f.sequence] = name_of(f.reason);
    done = step.done;
  }
  return outcome;
}

Outcome run(const Prompts& prompts, const Options& options, size_t max_positions = 0) {
  FakeDecoder decoder(kVocab, prompts.size() * options.return_sequences, max_positions);
  Generation generation(decoder, prompts, options);
  Outcome outcome = run(generation);
  CHECK(decoder.releases == generation.sequences());
  return outcome;
}

// What greedy decoding means, without any machinery.
Ids greedy(Ids ids, size_t count) {
  Ids generated;
  for (size_t i = 0; i < count; ++i) {
    std::vector<float> scores(kVocab);
    FakeDecoder::scores_after(ids, scores);
    generated.push_back(static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin()));
    ids.push_back(generated.back());
  }
  return generated;
}

Options sampling(uint64_t seed, size_t count = 20) {
  Options o;
  o.sample = true;
  o.seed = seed;
  o.max_new_tokens = count;
  return o;
}

std::string message_of(const Prompts& prompts, const Options& options, size_t max_positions = 0) {
  FakeDecoder decoder(kVocab, prompts.size() * options.return_sequences, max_positions);
  try {
    Generation(decoder, prompts, options);
  } catch (const Error& error) {
    CHECK(decoder.runs == 0);
    return error.message();
  }
  return "no error";
}

const Prompts kPrompts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11, 12, 13}, {1, 2}};

}  // namespace

TEST_CASE("generation: greedy, the whole batch as one by one, whatever the chunk") {
  for (const size_t chunk : {1u, 2u, 3u, 7u, 128u}) {
    Options o;
    o.max_new_tokens = 15;
    o.prefill_chunk = chunk;
    const Outcome batch = run(kPrompts, o);
    for (size_t p = 0; p < kPrompts.size(); ++p) {
      CHECK(batch.tokens[p] == greedy(kPrompts[p], 15));
      CHECK(batch.reasons[p] == "length");
      const Outcome alone = run({kPrompts[p]}, o);
      CHECK(alone.tokens[0] == batch.tokens[p]);
      CHECK(alone.logprobs[0] == batch.logprobs[p]);
    }
  }
}

TEST_CASE("generation: a sampled sequence is the same alone and in a batch, and depends on the seed") {
  Options o = sampling(5);
  o.return_sequences = 3;
  const Outcome batch = run(kPrompts, o);
  for (size_t p = 0; p < kPrompts.size(); ++p) {
    const Outcome alone = run({kPrompts[p]}, o);
    for (size_t r = 0; r < 3; ++r) {
      CHECK(alone.tokens[r] == batch.tokens[p * 3 + r]);
      CHECK(alone.logprobs[r] == batch.logprobs[p * 3 + r]);
    }
  }
  CHECK(batch.tokens[0] != batch.tokens[1]);
  CHECK(run(kPrompts, o) == batch);
  CHECK(run({kPrompts[0]}, sampling(5)).tokens[0] == batch.tokens[0]);
  CHECK(run({kPrompts[0]}, sampling(6)).tokens[0] != batch.tokens[0]);
}

TEST_CASE("generation: default length and default top-k") {
  CHECK(run({{1}}, Options()).tokens[0].size() == 256);
  Options explicit_k = sampling(3, 40), wide = sampling(3, 40);
  explicit_k.top_k = 50;
  wide.top_k = 0;
  const auto with = [](Options o) {
    FakeDecoder decoder(200, 1);
    Generation generation(decoder, {{1}}, o);
    return run(generation).tokens;
  };
  CHECK(with(sampling(3, 40)) == with(explicit_k));
  CHECK(with(sampling(3, 40)) != with(wide));
}

TEST_CASE("generation: ends at any end-of-sequence token, which is reported") {
  const Ids expected = greedy({1, 2, 3}, 10);
  Options o;
  o.max_new_tokens = 10;
  o.eos = {-1, 4000, expected[4]};
  const Outcome outcome = run({{1, 2, 3}}, o);
  const size_t first = static_cast<size_t>(std::find(expected.begin(), expected.end(), expected[4]) - expected.begin());
  CHECK(outcome.tokens[0] == Ids(expected.begin(), expected.begin() + first + 1));
  CHECK(outcome.reasons[0] == "stop");
  o.min_new_tokens = 10;
  CHECK(run({{1, 2, 3}}, o).tokens[0].size() == 10);
}

TEST_CASE("generation: maxLength counts the prompt, maxNewTokens goes before it") {
  Options o;
  o.max_length = 8;
  CHECK(run(Prompts{{1, 2, 3}, {1}}, o).tokens[0].size() == 5);
  CHECK(run(Prompts{{1, 2, 3}, {1}}, o).tokens[1].size() == 7);
  o.max_new_tokens = 2;
  CHECK(run({{1, 2, 3}}, o).tokens[0].size() == 2);
  Options tight;
  tight.max_length = 3;
  CHECK(message_of({{1, 2, 3}}, tight) == "[generate] maxLength: expected more than the 3 tokens of prompt 0, got 3");
}

TEST_CASE("generation: learned positions are a wall") {
  Options o;
  o.max_new_tokens = 100;
  const Outcome outcome = run({{1, 2, 3}}, o, 8);
  CHECK(outcome.tokens[0].size() == 6);  // the ninth token of the sequence takes no position
  CHECK(outcome.reasons[0] == "length");
  CHECK(run({Ids(8, 1)}, o, 8).tokens[0].size() == 1);
  CHECK(message_of({{1}, Ids(9, 1)}, o, 8) == "[generate] prompt 1: expected at most 8 tokens, the model's learned positions, got 9");
}

TEST_CASE("generation: an empty prompt begins with bos, or is refused") {
  Options o;
  o.max_new_tokens = 4;
  CHECK(message_of({{}}, o) == "[generate] prompt 0: expected at least one token, or a bosTokenId to begin with, got none");
  o.bos = 7;
  CHECK(run({{}}, o).tokens[0] == greedy({7}, 4));
  CHECK(message_of({}, o) == "[generate] prompts: expected at least one, got none");
  CHECK(message_of({{1}, {2, 50}}, o) == "[generate] prompt 1: expected token ids from 0 to 49, got 50");
  CHECK(message_of({{-1}}, o) == "[generate] prompt 0: expected token ids from 0 to 49, got -1");
}

TEST_CASE("generation: a chunk holds no more than it should, and reports how far the prompts are") {
  Options o;
  o.max_new_tokens = 2;
  o.prefill_chunk = 4;
  FakeDecoder decoder(kVocab, 2);
  Generation generation(decoder, {Ids(6, 1), Ids(5, 2)}, o);
  size_t prefilled = 0;
  for (const size_t expected : {4u, 8u, 11u}) {
    prefilled = generation.advance().prefilled;
    CHECK(decoder.largest_run <= 4);
    CHECK(prefilled == expected);
  }
}

TEST_CASE("generation: a slot that already holds the beginning of the prompt is not computed again") {
  const Ids prompt = {1, 2, 3, 4, 5};
  for (const size_t held : {1u, 3u, 5u}) {
    FakeDecoder decoder(kVocab, 1);
    const Append part{0, std::span(prompt).first(held), false, prompt.size()};
    decoder.run({&part, 1}, nullptr);
    Options o;
    o.max_new_tokens = 6;
    Generation generation(decoder, {prompt}, o);
    CHECK(run(generation).tokens[0] == greedy(prompt, 6));
    CHECK(decoder.runs == 1 + 6);
  }
}

TEST_CASE("generation: a stopped sequence leaves the others as they are") {
  Options o = sampling(9, 12);
  o.return_sequences = 2;
  const Outcome whole = run(kPrompts, o);
  for (const size_t when : {0u, 1u, 4u, 9u}) {  // before the prompts, among them, and while decoding
    Options chunked = o;
    chunked.prefill_chunk = 3;
    FakeDecoder decoder(kVocab, kPrompts.size() * 2);
    Generation generation(decoder, kPrompts, chunked);
    std::map<size_t, Ids> tokens;
    size_t steps = 0;
    for (bool done = false; !done; ++steps) {
      if (steps == when) {
        for (const size_t s : {0u, 4u, 5u, 7u}) generation.stop(s);
        generation.stop(0);
      }
      const Step& step = generation.advance();
      for (const Emitted& e : step.tokens) tokens[e.sequence].push_back(e.token);
      done = step.done;
    }
    for (const size_t s : {1u, 2u, 3u, 6u}) CHECK(tokens[s] == whole.tokens[s]);
    for (const size_t s : {0u, 4u, 5u, 7u}) {
      CHECK(tokens[s].size() < 12);
      CHECK(std::equal(tokens[s].begin(), tokens[s].end(), whole.tokens[s].begin()));
    }
  }
}

TEST_CASE("generation: all stopped means done, without more work") {
  FakeDecoder decoder(kVocab, 2);
  Options o;
  Generation generation(decoder, {{1, 2}, {3}}, o);
  generation.advance();
  generation.stop(0);
  generation.stop(1);
  const size_t runs = decoder.runs;
  CHECK(generation.done());
  const Step& step = generation.advance();
  CHECK(step.done);
  CHECK(step.tokens.empty());
  CHECK(step.finished.empty());
  CHECK(decoder.runs == runs);
  CHECK_THROWS_AS(generation.stop(2), Error);
}

TEST_CASE("generation: log-probabilities of the best, from the processed distribution") {
  Options o = sampling(1, 5);
  o.top_k = 4;
  o.logprobs = 6;
  FakeDecoder decoder(kVocab, 1);
  Generation generation(decoder, {{1, 2}}, o);
  for (bool done = false; !done;) {
    const Step& step = generation.advance();
    REQUIRE(step.tokens.size() == 1);
    const Emitted& e = step.tokens[0];
    REQUIRE(e.top_count == 4);
    double mass = 0;
    bool listed = false;
    for (size_t i = 0; i < 4; ++i) {
      const Choice& choice = step.top[e.top + i];
      mass += std::exp(choice.logprob);
      if (choice.token == e.token) listed = choice.logprob == e.logprob;
      if (i) CHECK(choice.logprob <= step.top[e.top + i - 1].logprob);
    }
    CHECK(mass == Catch::Approx(1).epsilon(1e-6));
    CHECK(listed);
    done = step.done;
  }
}

TEST_CASE("generation: processors see the sequence's own history") {
  Options o;
  o.max_new_tokens = 30;
  o.no_repeat_ngram_size = 1;
  const Outcome outcome = run(Prompts{{1, 2, 3}, {4}}, o);
  for (size_t p = 0; p < 2; ++p) {
    Ids all = p ? Ids{4} : Ids{1, 2, 3};
    all.insert(all.end(), outcome.tokens[p].begin(), outcome.tokens[p].end());
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  }
}

TEST_CASE("generation: a warm step allocates nothing") {
  Options o = sampling(2, 200);
  o.return_sequences = 2;
  o.repetition_penalty = 1.1f;
  o.no_repeat_ngram_size = 3;
  o.frequency_penalty = 0.1f;
  o.top_k = 20;
  o.top_p = 0.9;
  o.logprobs = 3;
  FakeDecoder decoder(kVocab, 4);
  Generation generation(decoder, {{1, 2, 3}, {4}}, o);
  generation.advance();
  generation.advance();
  const size_t news = ::wf::testing::new_count(), buffers = allocation_count();
  for (int i = 0; i < 150; ++i) generation.advance();
  CHECK(::wf::testing::new_count() == news);
  CHECK(allocation_count() == buffers);
}

TEST_CASE("process_logits: what is ruled out is -infinity, by exactly the options that are named") {
  Options o;
  o.sample = true;
  o.top_k = 2;
  o.temperature = 0.5;
  const float out = -std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {1, 3, 2, 0};
  CHECK(process_logits(scores, Ids{0}, 1, o) == std::vector<float>{out, 6, 4, out});
  Options none;
  none.sample = true;
  CHECK(process_logits(scores, Ids{}, 0, none) == scores);
  CHECK_THROWS_AS(process_logits(scores, Ids{4}, 1, none), Error);
  CHECK_THROWS_AS(process_logits(scores, Ids{1}, 2, none), Error);
}

}  // namespace wf::generate
