// Decoder-only models against what Hugging Face transformers computes from the same files.
#include <catch_amalgamated.hpp>

#include "models/testing.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

// Fixtures whose weights are safetensors; the others differ only in how they are stored.
const char* const kFixtures[] = {"gpt2",
                                 "gpt2-minimal",
                                 "gpt2-stray",
                                 "llama",
                                 "llama-gqa",
                                 "llama-bias",
                                 "llama-no-prefix",
                                 "llama-rope-parameters",
                                 "llama-eos-list",
                                 "llama-linear",
                                 "llama-dynamic",
                                 "llama-llama3",
                                 "llama-llama3-v5",
                                 "llama-yarn",
                                 "llama-yarn-options",
                                 "llama-longrope",
                                 "mistral",
                                 "mistral-full",
                                 "qwen2",
                                 "qwen2-sliding",
                                 "qwen3",
                                 "gemma",
                                 "gemma-legacy",
                                 "gpt_neox",
                                 "opt",
                                 "bloom",
                                 "bloom-heads"};

// Of several best, the first, as Python takes it.
int32_t best(const std::vector<float>& logits, size_t row, size_t V) {
  const auto begin = logits.begin() + static_cast<ptrdiff_t>(row * V);
  return static_cast<int32_t>(std::max_element(begin, begin + static_cast<ptrdiff_t>(V)) - begin);
}

}  // namespace

TEST_CASE("logits, hidden states and attention are those of transformers", "[models]") {
  const char* const name = GENERATE(from_range(kFixtures));
  CAPTURE(name);
  const Fixture fixture = read_fixture(name);
  const auto model = load_model(fixture);
  const size_t layers = model->info().layers;
  const bool trainable = GENERATE(false, true);
  const auto trained = trainable ? load_model(fixture, true) : nullptr;
  Runner runner(trainable ? *trained : *model);
  for (size_t i = 0; i < fixture.answers["prompts"].items.size(); ++i) {
    CAPTURE(i, trainable);
    const auto ids = fixture.answers["prompts"].items[i]["inputIds"].list<int32_t>();
    const std::string at = "prompt." + std::to_string(i) + ".";
    Recorder recorder;
    const auto logits = runner.logits({ids}, {}, &recorder);
    CHECK(off_by(logits, fixture.expected.at(at + "logits").floats()) < 1e-4);
    for (size_t l = 0; l <= layers; ++l) {
      CAPTURE(l);
      CHECK(off_by(recorder.states.at({Site::kHidden, l}), fixture.expected.at(at + "hidden." + std::to_string(l)).floats()) < 1e-4);
      if (l == layers) break;
      const auto expected = fixture.expected.at(at + "attention." + std::to_string(l)).floats();
      const auto got = recorder.attention(Site::kAttention, l);
      REQUIRE(got.size() == expected.size());
      double worst = 0;
      for (size_t j = 0; j < got.size(); ++j)
        worst = std::max(worst, std::abs(static_cast<double>(got[j]) - static_cast<double>(expected[j])));
      CHECK(worst < 2e-5);
    }
  }
}

TEST_CASE("greedy text is that of transformers", "[models]") {
  const char* const name = GENERATE(from_range(kFixtures));
  CAPTURE(name);
  if (std::string_view(name) == "qwen2") return;  // its generation_config.json penalises repetition: a matter of src/generate
  const Fixture fixture = read_fixture(name);
  const auto model = load_model(fixture);
  Runner runner(*model);
  for (const Json& prompt : fixture.answers["prompts"].items) {
    const auto expected = prompt["greedy"].list<int32_t>();
    KvCache cache = runner.cache();
    std::vector<int32_t> tokens = prompt["inputIds"].list<int32_t>(), got;
    while (got.size() < expected.size()) {
      const auto logits = runner.logits({tokens}, {&cache});
      tokens = {best(logits, tokens.size() - 1, model->info().vocab_size)};
      got.push_back(tokens[0]);
    }
    CHECK(got == expected);
  }
}
