// Losses and gradients against PyTorch's (wasm-tests/python/original.py).
#include <catch_amalgamated.hpp>

#include "models/testing.hpp"
#include "train/gradients.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

// Each tensor of `expected` (names after `prefix`) against the gradient of the parameter of that name, relative to its own largest.
void check_gradients(const Model& model, const Tensors& expected, const std::string& prefix) {
  size_t compared = 0;
  for (const Parameter& parameter : model.parameters().list()) {
    const auto found = expected.find(prefix + parameter.name);
    if (found == expected.end()) continue;
    CAPTURE(parameter.name);
    const auto want = found->second.floats();
    std::vector<float> got(parameter.shape.size());
    parameter.read(got.data(), true);
    REQUIRE(got.size() == want.size());
    double worst = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    }
    // The softmax ignores what all scores share, so a key bias has no gradient but noise.
    if (parameter.name.ends_with("k_proj.bias")) {
      CHECK(worst < 1e-6);
    } else {
      CHECK(worst < 1e-4 * largest);
    }
    ++compared;
  }
  size_t wanted = 0;
  for (const auto& [name, tensor] : expected) wanted += name.starts_with(prefix);
  CHECK(compared == wanted);
}

}  // namespace

TEST_CASE("the original Transformer's loss and gradients are PyTorch's", "[gradients]") {
  const Fixture fixture = read_fixture("transformer");
  const auto model = load_model(fixture, true);
  LossBatch batch;
  for (const Json& one : fixture.answers["cases"].items) {
    batch.inputs.push_back(one["inputIds"].list<int32_t>());
    batch.decoder_inputs.push_back(one["decoderInputIds"].list<int32_t>());
    batch.labels.push_back(one["labels"].list<int32_t>());
  }
  Arena arena;
  for (int round = 0; round < 2; ++round) {  // the second time over: gradients are cleared, memory is reused
    const double loss = gradients(*model, Context{arena}, batch);
    CHECK(std::abs(loss - fixture.answers["loss"].number()) < 1e-5 * loss);
    check_gradients(*model, fixture.expected, "grad.");
  }
}

TEST_CASE("decoder-only losses and gradients are PyTorch's", "[gradients]") {
  const std::string name = GENERATE("gpt2-minimal", "llama-gqa");
  CAPTURE(name);
  const auto model = load_model(read_fixture(name), true);
  const Json answers = JsonReader(read_file(fixtures() / "gradients" / "expected.json")).read();
  Tensors expected;
  read_safetensors(fixtures() / "gradients" / (name + ".safetensors"), expected);
  LossBatch batch;
  batch.inputs = batch.labels = answers[name]["inputIds"].lists<int32_t>();
  Arena arena;
  const double loss = gradients(*model, Context{arena}, batch);
  CHECK(std::abs(loss - answers[name]["loss"].number()) < 1e-5 * loss);
  check_gradients(*model, expected, "");
}

TEST_CASE("T5's losses and gradients are PyTorch's", "[gradients]") {
  const std::string name = GENERATE("t5", "flan-t5");
  CAPTURE(name);
  const Json answers = JsonReader(read_file(fixtures() / "gradients" / "expected.json")).read()[name];
  Tensors expected;
  read_safetensors(fixtures() / "gradients" / (name + ".safetensors"), expected);
  LossBatch batch{answers["inputIds"].lists<int32_t>(), answers["decoderInputIds"].lists<int32_t>(), answers["labels"].lists<int32_t>()};
  const auto model = load_model(read_fixture(name), true);
  Arena arena;
  const double loss = gradients(*model, Context{arena}, batch);
  CHECK(std::abs(loss - answers["loss"].number()) < 1e-5 * loss);
  check_gradients(*model, expected, "");
}

TEST_CASE("a batch that makes no sense is an error", "[gradients]") {
  const Fixture fixture = read_fixture("gpt2");
  const auto model = load_model(fixture, true);
  Arena arena;
  const auto fails = [&](const LossBatch& batch) { CHECK_THROWS_AS(gradients(*model, Context{arena}, batch), Error); };
  fails({{{1, 2}}, {}, {{1, 2, 3}}});
  fails({{{1, 2}}, {}, {}});
  fails({{{1, 2}}, {{1}}, {{1, 2}}});
  fails({{{1, 2}}, {}, {{-100, -100}}});
  fails({{{1, 2}}, {}, {{1, -100}}});  // only position 0's successor counts, and it does not
  fails({{{1, 96}}, {}, {{1, 2}}});
  fails({{{1, 2}}, {}, {{1, 96}}});
  fails({{{1, 2}}, {}, {{1, 2}}, 1.0f});
  fails({});
  CHECK(gradients(*model, Context{arena}, {{{1, 2}}, {}, {{1, 2}}}) > 0);
  CHECK_THROWS_AS(gradients(*load_model(fixture), Context{arena}, {{{1, 2}}, {}, {{1, 2}}}), Error);
}
