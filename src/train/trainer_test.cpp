#include "train/trainer.hpp"

#include <catch_amalgamated.hpp>
#include <numeric>

#include "models/testing.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

constexpr size_t V = 50;

struct Case {
  const char* name;
  const char* config;
  bool has_source = false;
};

const Case kCases[] = {
    {"gpt2", R"({"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 3, "n_positions": 64, "vocab_size": 50})"},
    {"llama, grouped heads", R"({"model_type": "llama", "hidden_size": 24, "intermediate_size": 33, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 50, "tie_word_embeddings": true})"},
    {"bert", R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 24, "intermediate_size": 33,
      "num_attention_heads": 3, "num_hidden_layers": 3, "vocab_size": 50, "max_position_embeddings": 64})"},
    {"transformer", R"({"model_type": "transformer", "vocab_size": 50, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3,
      "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40})",
     true},
};

LossBatch batch_for(const Case& one, uint64_t seed, size_t sequences = 3) {
  LossBatch batch;
  for (size_t s = 0; s < sequences; ++s) {
    batch.inputs.push_back(random_tokens(7 + 5 * s, V, seed + s));
    if (one.has_source) batch.decoder_inputs.push_back(random_tokens(4 + 3 * s, V, seed + 50 + s));
    batch.labels.push_back(random_tokens(one.has_source ? 4 + 3 * s : 7 + 5 * s, V, seed + 100 + s));
    batch.labels.back()[1] = -100;
  }
  return batch;
}

std::vector<float> all_gradients(const Model& model) {
  std::vector<float> all;
  for (const Parameter& parameter : model.parameters().list()) {
    all.resize(all.size() + parameter.shape.size());
    parameter.read(all.data() + all.size() - parameter.shape.size(), true);
  }
  return all;
}

std::vector<float> all_weights(const Model& model) {
  std::vector<float> all;
  for (const Parameter& parameter : model.parameters().list()) {
    all.resize(all.size() + parameter.shape.size());
    parameter.read(all.data() + all.size() - parameter.shape.size(), false);
  }
  return all;
}

TrainOptions options_of(const char* json, const Model& model) {
  Config config("train");
  flatten(JsonReader(json).read(), "", config);
  return TrainOptions::parse(config, model.info());
}

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + " " + error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("learning rates are those of transformers' schedulers", "[train]") {
  using Kind = Schedule::Kind;
  struct Rates {
    Schedule schedule;
    std::vector<double> at;
  };
  // get_*_schedule(_with_warmup) of transformers 5.24, as the optimiser sees them at its steps 1, 2, ...; the paper's by its formula.
  const Rates all[] = {
      {{Kind::kCosine, 1, 3, 9, 0}, {0, 1 / 3.0, 2 / 3.0, 1, 0.933012701892219, 0.75, 0.5, 0.25, 0.0669872981077806}},
      {{Kind::kCosine, 1, 0, 4, 0}, {1, 0.853553390593274, 0.5, 0.146446609406726, 0, 0}},
      {{Kind::kLinear, 1, 3, 9, 0}, {0, 1 / 3.0, 2 / 3.0, 1, 0.833333333333333, 2 / 3.0, 0.5, 1 / 3.0, 1 / 6.0, 0, 0}},
      {{Kind::kInverseSqrt, 1, 4, 0, 0}, {0, 0.25, 0.5, 0.75, 1, 0.894427190999916, 0.816496580927726, 0.755928946018454}},
      {{Kind::kInverseSqrt, 1, 0, 0, 0}, {1, 0.999950003749688, 0.999900014997501, 0.999850033741565}},
      {{Kind::kConstant, 1, 2, 0, 0}, {0, 0.5, 1, 1}},
      {{Kind::kPaper, 9, 4, 0, 64}, {0.015625, 0.03125, 0.046875, 0.0625, 0.05590169943749474}},
  };
  for (const auto& [schedule, at] : all) {
    for (size_t n = 0; n < at.size(); ++n) {
      CAPTURE(static_cast<int>(schedule.kind), n);
      CHECK(std::abs(schedule.at(static_cast<uint32_t>(n + 1)) - at[n]) < 1e-12);
    }
  }
}

TEST_CASE("blocks that run again give the very gradients of blocks that are kept, with dropout too", "[train]") {
  const Case& one = GENERATE(from_range(kCases));
  const float rate = GENERATE(0.0f, 0.3f);
  CAPTURE(one.name, rate);
  const auto model = random_model(config_of(one.config), DType::kF32, true);
  const LossBatch batch = batch_for(one, 1);
  const auto gradients_with = [&](bool checkpoint, uint64_t seed) {
    Arena arena;
    Dropout dropout{rate, {seed, 1, 0}};
    const Context ctx{arena, nullptr, nullptr, 0, nullptr, &dropout, checkpoint};
    for (Weight* weight : model->parameters().weights()) weight->clear_gradient();
    add_gradients(*model, ctx, batch, 1);
    return all_gradients(*model);
  };
  const auto kept = gradients_with(false, 5);
  CHECK(same_bits(gradients_with(true, 5), kept));
  CHECK(same_bits(gradients_with(true, 6), kept) == (rate == 0));  // other draws
}

TEST_CASE("checkpointing holds the inputs of blocks and the activations of one", "[train]") {
  const auto peak = [](size_t layers, bool checkpoint) {
    const auto model = random_model(config_of(join(R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 50,
                                                       "n_layer": )",
                                                   layers, "}")),
                                    DType::kF32, true);
    Arena arena(size_t{1} << 12);
    Context ctx{arena};
    ctx.checkpoint = checkpoint;
    rehearse(*model, ctx, 8, 32);
    return static_cast<double>(arena.peak_bytes());
  };
  const double inputs = 8 * 32 * 64 * sizeof(float), one = peak(1, false);
  CHECK(peak(12, true) <= 1.1 * (12 * inputs + one));
  CHECK(peak(12, false) > 4 * peak(12, true));
}

TEST_CASE("micro-batches add up to the batch", "[train]") {
  const Case& one = GENERATE(from_range(kCases));
  CAPTURE(one.name);
  const auto together = random_model(config_of(one.config), DType::kF32, true),
             apart = random_model(config_of(one.config), DType::kF32, true);
  Arena arena;
  const char* const options = R"({"dropout": 0, "learningRate": 0.01, "maxGradNorm": 0.5})";
  Trainer first(*together, together->parameters(), arena, nullptr, options_of(options, *together)),
      second(*apart, apart->parameters(), arena, nullptr, options_of(options, *apart));
  const LossBatch whole = batch_for(one, 1);
  first.accumulate(whole);
  for (size_t s = 0; s < 3; ++s) {
    LossBatch part{{whole.inputs[s]}, {}, {whole.labels[s]}};
    if (one.has_source) part.decoder_inputs.push_back(whole.decoder_inputs[s]);
    second.accumulate(part);
  }
  const TrainStep a = first.update(), b = second.update();
  CHECK(std::abs(a.loss - b.loss) < 1e-6 * a.loss);
  CHECK(std::abs(a.gradient_norm - b.gradient_norm) < 1e-5 * a.gradient_norm);
  CHECK(off_by(all_weights(*apart), all_weights(*together)) < 1e-3);  // Adam's first step is nearly a sign
}

TEST_CASE("training lowers the loss, and evaluation changes nothing", "[train]") {
  const Case& one = GENERATE(from_range(kCases));
  CAPTURE(one.name);
  const auto model = random_model(config_of(one.config), DType::kF32, true);
  Arena arena;
  Trainer trainer(*model, model->parameters(), arena, nullptr, options_of(R"({"learningRate": 0.003, "dropout": 0.05})", *model));
  const LossBatch batch = batch_for(one, 1);
  const double before = trainer.evaluate(batch).mean();
  const auto weights = all_weights(*model);
  CHECK(trainer.evaluate(batch).mean() == before);
  CHECK(same_bits(all_weights(*model), weights));
  CHECK(std::abs(before - gradients(*model, Context{arena}, batch)) < 1e-6 * before);
  for (Weight* weight : model->parameters().weights()) weight->clear_gradient();
  for (uint32_t step = 1; step <= 120; ++step) {
    trainer.accumulate(batch);
    CHECK(trainer.update().step == step);
  }
  CHECK(trainer.evaluate(batch).mean() < before / 3);
  CHECK(message_of([&] { trainer.update(); }) == "invalid-argument [train] update: expected at least one micro-batch, got none");
}

TEST_CASE("a trainer that goes on from another's moments takes the same steps, bit for bit", "[train]") {
  const auto straight = random_model(config_of(kCases[0].config), DType::kF32, true);
  Arena arena;
  const char* const options = R"({"learningRate": 0.01, "schedule": "cosine", "warmup": 2, "steps": 8, "seed": 3})";
  const auto steps = [&](Trainer& trainer, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      trainer.accumulate(batch_for(kCases[0], 10 * i));
      trainer.accumulate(batch_for(kCases[0], 10 * i + 1));
      trainer.update();
    }
  };
  Trainer whole(*straight, straight->parameters(), arena, nullptr, options_of(options, *straight));
  steps(whole, 0, 6);
  const auto resumed = random_model(config_of(kCases[0].config), DType::kF32, true);
  Trainer first(*resumed, resumed->parameters(), arena, nullptr, options_of(options, *resumed));
  steps(first, 0, 3);
  Trainer second(*resumed, resumed->parameters(), arena, nullptr, options_of(options, *resumed));
  for (const Parameter& parameter : resumed->parameters().list()) {
    std::vector<float> m(parameter.shape.size()), v(parameter.shape.size());
    first.read_moments(parameter, m.data(), v.data());
    second.write_moments(parameter, m.data(), v.data());
  }
  second.set_step(first.step());
  steps(second, 3, 6);
  CHECK(same_bits(all_weights(*resumed), all_weights(*straight)));
}

TEST_CASE("what diverges stops with the step and the tensor, and leaves the weights of the last step", "[train]") {
  const auto model = random_model(config_of(kCases[0].config), DType::kF32, true);
  Arena arena;
  Trainer trainer(*model, model->parameters(), arena, nullptr, options_of(R"({"dropout": 0})", *model));
  const LossBatch batch = batch_for(kCases[0], 1);
  trainer.accumulate(batch);
  trainer.update();
  const Parameter* broken = nullptr;
  for (const Parameter& parameter : model->parameters().list()) {
    if (parameter.name == "transformer.h.1.mlp.c_fc.weight") broken = &parameter;
  }
  REQUIRE(broken != nullptr);
  const float before = std::exchange(broken->weight->values()[3], NAN);
  CHECK(message_of([&] { trainer.accumulate(batch); }) ==
        "diverged [train] step 2: expected a finite loss, got NaN; not finite first is transformer.h.1.mlp.c_fc.weight");
  broken->weight->values()[3] = before;
  trainer.accumulate(batch);
  CHECK(trainer.update().step == 2);
  // Positions that grow a thousandfold: the loss explodes, though all is finite.
  for (Weight* weight : model->parameters().weights()) {
    if (weight->use() == Weight::Use::kVocabulary) {
      for (size_t i = 0; i < weight->rows() * weight->cols(); ++i) weight->values()[i] *= 1000;
    }
  }
  CHECK(message_of([&] { trainer.accumulate(batch); }).starts_with("diverged [train] step 3: expected a loss that does not explode, got "));
}

TEST_CASE("the planned workspace is what a micro-batch takes", "[train]") {
  const Case& one = GENERATE(from_range(kCases));
  const bool checkpointing = GENERATE(false, true);
  CAPTURE(one.name, checkpointing);
  const auto model = random_model(config_of(one.config), DType::kF32, true);
  Arena arena(size_t{1} << 12);
  Trainer trainer(
      *model, model->parameters(), arena, nullptr,
      options_of(join(R"({"tokens": 480, "longest": 60, "checkpointing": )", checkpointing ? "true" : "false", "}").c_str(), *model));
  LossBatch batch;
  for (uint64_t s = 0; s < 8; ++s) {
    batch.inputs.push_back(random_tokens(60, V, s));
    if (one.has_source) batch.decoder_inputs.push_back(random_tokens(60, V, s));
    batch.labels.push_back(random_tokens(60, V, s));
  }
  const double planned = static_cast<double>(trainer.workspace_bytes());
  trainer.accumulate(batch);
  CHECK(planned >= static_cast<double>(arena.peak_bytes()));
  CHECK(planned <= 1.6 * static_cast<double>(arena.peak_bytes()));
}

TEST_CASE("options of a training are checked by name", "[train]") {
  const auto model = random_model(config_of(kCases[0].config), DType::kF32, true);
  for (const char* wrong :
       {R"({"learningrate": 1})", R"({"optimizer": "sgd"})", R"({"schedule": "step"})", R"({"learningRate": -1})", R"({"beta1": 1})",
        R"({"beta2": -0.1})", R"({"dropout": 1})", R"({"labelSmoothing": 1.5})", R"({"schedule": "cosine"})",
        R"({"schedule": "linear", "steps": 5, "warmup": 5})", R"({"schedule": "paper", "warmup": 4, "learningRate": 1})",
        R"({"schedule": "paper"})", R"({"seed": -1})", R"({"maxGradNorm": -1})", R"({"weightDecay": -1})", R"({"epsilon": -1})"}) {
    CAPTURE(wrong);
    CHECK(message_of([&] { options_of(wrong, *model); }).starts_with("invalid-argument [train] "));
  }
}
