#include "train/lora.hpp"

#include <catch_amalgamated.hpp>

#include "models/testing.hpp"
#include "train/trainer.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

struct Case {
  const char* name;
  const char* config;
  const char* options;
  size_t changes;
};

const Case kCases[] = {
    {"gpt2", R"({"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 64, "vocab_size": 50})",
     R"({"r": 4, "lora_alpha": 6, "target_modules": ["c_attn", "mlp.c_proj"], "seed": 3})", 8},
    {"llama, grouped heads", R"({"model_type": "llama", "hidden_size": 24, "intermediate_size": 33, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 50})",
     R"({"r": 3, "target_modules": ["q_proj", "self_attn.v_proj", "up_proj"], "use_rslora": true})", 12},
};

Config options_of(const char* json) {
  Config config("lora");
  flatten(JsonReader(json).read(), "", config);
  return config;
}

LossBatch batch() {
  LossBatch made;
  for (uint64_t s = 0; s < 3; ++s) made.inputs.push_back(random_tokens(9 + 4 * s, 50, s));
  made.labels = made.inputs;
  return made;
}

std::vector<float> read(const Parameter& parameter, bool gradient) {
  std::vector<float> values(parameter.shape.size());
  parameter.read(values.data(), gradient);
  return values;
}

void fill(const Parameters& parameters) {
  uint32_t site = 0;
  for (const Parameter& parameter : parameters.list()) {
    for (size_t i = 0; i < parameter.shape.size(); ++i) {
      parameter.weight->values()[i] = 0.1f * static_cast<float>(normal({9, 0, site}, i));
    }
    ++site;
  }
}

}  // namespace

TEST_CASE("LoRA begins without effect, and merged it is what it was beside the weights", "[lora]") {
  const Case& one = GENERATE(from_range(kCases));
  CAPTURE(one.name);
  const auto model = random_model(config_of(one.config));
  Runner runner(*model);
  const auto tokens = random_tokens(20, 50, 1);
  const auto before = runner.logits({tokens});
  {
    Lora lora(*model, options_of(one.options));
    CHECK(lora.parameters().list().size() == one.changes);
    CHECK(same_bits(runner.logits({tokens}), before));
    fill(lora.parameters());
    const auto beside = runner.logits({tokens});
    CHECK(off_by(beside, before) > 0.01);
    lora.merge();
    CHECK(off_by(runner.logits({tokens}), beside) < 1e-4);
  }
  CHECK(off_by(runner.logits({tokens}), before) > 0.01);  // still merged
}

TEST_CASE("LoRA's gradients follow from those of the matrices: dB = scale dW A^T, dA = scale B^T dW", "[lora]") {
  const Case& one = GENERATE(from_range(kCases));
  const DType dtype = GENERATE(DType::kF32, DType::kF16);
  const bool checkpoint = GENERATE(false, true);
  CAPTURE(one.name, name_of(dtype), checkpoint);
  Arena arena;
  Context ctx{arena};
  ctx.checkpoint = checkpoint;
  const auto frozen = random_model(config_of(one.config), dtype);
  Lora lora(*frozen, options_of(one.options));
  fill(lora.parameters());
  add_gradients(*frozen, ctx, batch(), 1);

  // The same model with the changes merged, all of it trainable.
  const auto whole = random_model(config_of(one.config), dtype);
  const auto full = random_model(config_of(one.config), DType::kF32, true);
  for (size_t i = 0; i < full->parameters().list().size(); ++i) {  // as the frozen weights were rounded
    full->parameters().list()[i].load(0, full->parameters().list()[i].stored_rows(), read(whole->parameters().list()[i], false).data(),
                                      DType::kF32);
  }
  Lora merged(*full, options_of(one.options));
  fill(merged.parameters());
  merged.merge();
  for (Weight* weight : full->parameters().weights()) weight->clear_gradient();
  add_gradients(*full, ctx, batch(), 1);

  const auto& list = lora.parameters().list();
  for (size_t i = 0; i < list.size(); i += 2) {
    CAPTURE(list[i].name);
    const std::string module = list[i].name.substr(0, list[i].name.find(".lora_A"));
    const auto& all = full->parameters().list();
    const auto target = std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.name == module + ".weight"; });
    REQUIRE(target != all.end());
    const bool turned = target->layout == Parameter::Layout::kTransposed;
    const auto dw = read(*target, true), a = read(list[i], false), b = read(list[i + 1], false);
    const size_t R = list[i].shape[0], D = list[i].shape[1], F = list[i + 1].shape[0];
    const double scale = std::string(one.name) == "gpt2" ? 6.0 / 4 : 8 / std::sqrt(3.0);
    std::vector<float> da(R * D), db(F * R);
    for (size_t r = 0; r < R; ++r) {
      for (size_t f = 0; f < F; ++f) {
        for (size_t d = 0; d < D; ++d) {
          const float g = static_cast<float>(scale) * (turned ? dw[d * F + f] : dw[f * D + d]);
          da[r * D + d] += b[f * R + r] * g;
          db[f * R + r] += a[r * D + d] * g;
        }
      }
    }
    CHECK(off_by(read(list[i], true), da) < 1e-4);
    CHECK(off_by(read(list[i + 1], true), db) < 1e-4);
  }
}

TEST_CASE("training LoRA changes nothing else, and lowers the loss", "[lora]") {
  const auto model = random_model(config_of(kCases[1].config), DType::kF16);
  Lora lora(*model, options_of(kCases[1].options));
  std::vector<std::vector<float>> before;
  for (const Parameter& parameter : model->parameters().list()) before.push_back(read(parameter, false));
  Arena arena;
  Config settings("train");
  settings.set("learningRate", 0.02);
  settings.set("dropout", 0.0);
  Trainer trainer(*model, lora.parameters(), arena, nullptr, TrainOptions::parse(settings, model->info()));
  const double first = trainer.evaluate(batch()).mean();
  for (int i = 0; i < 60; ++i) {
    trainer.accumulate(batch());
    trainer.update();
  }
  CHECK(trainer.evaluate(batch()).mean() < first / 2);
  for (size_t i = 0; i < before.size(); ++i) CHECK(same_bits(read(model->parameters().list()[i], false), before[i]));
}

TEST_CASE("what LoRA cannot change is refused by name", "[lora]") {
  const auto model = random_model(config_of(kCases[0].config), DType::kQ8);
  for (const char* wrong : {R"({})", R"({"target_modules": ["q_proj"]})", R"({"target_modules": ["attn"]})",
                            R"({"target_modules": ["wte"]})", R"({"target_modules": ["c_attn"], "r": 0})",
                            R"({"target_modules": ["c_attn"], "rank": 4})", R"({"target_modules": ["c_attn"], "seed": -1})"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(Lora(*model, options_of(wrong)), Error);
  }
  Lora lora(*model, options_of(kCases[0].options));
  CHECK_THROWS_AS(lora.merge(), Error);  // into eight bits
  const auto neox = random_model(config_of(R"({"model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 40,
    "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 50})"));
  CHECK_THROWS_AS(Lora(*neox, options_of(R"({"target_modules": ["query_key_value"]})")), Error);
}
