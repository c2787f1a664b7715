#include "generate/beam_search.hpp"

#include <catch_amalgamated.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "core/error.hpp"
#include "generate/generation.hpp"
#include "generate/testing.hpp"

namespace wf::generate {

namespace {

using Ids = std::vector<int32_t>;
using testing::FakeDecoder;

struct Found {
  Ids tokens;
  std::vector<float> logprobs;
  float score = 0;
  std::string reason;
  bool operator==(const Found&) const = default;
};

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
      for (size_t t = 0; t < count; ++t) CHECK(std::abs(found[s].logprobs[t] - c.expected[s].logprobs[t]) <= tolerance(c.expected[s].logprobs[t], 1));
    }
  }
}

}  // namespace wf::generate
