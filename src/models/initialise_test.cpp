#include "models/initialise.hpp"

#include <algorithm>
#include <catch_amalgamated.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace wf {

namespace {

using Values = std::vector<std::pair<std::string, Config::Value>>;

Config config_of(const Values& values) {
  Config config;
  for (const auto& [key, value] : values) config.set(key, value);
  return config;
}

double parameter_count(const Model& model) {
  double count = 0;
  for (const Parameter& parameter : model.parameters().list()) count += static_cast<double>(parameter.shape.size());
  return count;
}

struct Drawn {
  explicit Drawn(const Values& values, uint64_t with = 1) : config(config_of(values)), model(make_model(config)), seed(with) {}

  size_t index(const std::string& name) const {
    const auto& list = model->parameters().list();
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].name == name) return i;
    }
    FAIL("no " + name);
    return 0;
  }
  std::vector<float> of(const std::string& name) const {
    const size_t p = index(name);
    const Parameter& parameter = model->parameters().list()[p];
    std::vector<float> values(parameter.shape.size());
    Initialiser(config, *model, seed).draw(p, 0, parameter.stored_rows(), values.data());
    return values;
  }

  Config config;
  std::unique_ptr<Model> model;
  uint64_t seed;
};

struct Spread {
  explicit Spread(const std::vector<float>& values) {
    for (const float value : values) {
      mean += value;
      most = std::max(most, std::abs(static_cast<double>(value)));
    }
    mean /= static_cast<double>(values.size());
    for (const float value : values) deviation += (value - mean) * (value - mean);
    deviation = std::sqrt(deviation / static_cast<double>(values.size()));
  }
  double mean = 0, deviation = 0, most = 0;
};

// Within four standard errors of a normal's standard deviation.
void check_normal(const std::vector<float>& values, double deviation) {
  const Spread spread(values);
  const double n = static_cast<double>(values.size());
  CHECK(std::abs(spread.mean) < 4 * deviation / std::sqrt(n));
  CHECK(spread.deviation == Catch::Approx(deviation).epsilon(4 / std::sqrt(2 * n)));
  CHECK(spread.most > 3 * deviation);
}

}  // namespace

TEST_CASE("initialise: the base model of the paper, by its number of parameters") {
  for (const double V : {1000.0, 37000.0}) {
    const auto model = make_model(config_of({{"model_type", std::string("transformer")}, {"vocab_size", V}}));
    CHECK(parameter_count(*model) == 44138496 + 512 * V);
    CHECK(model->info().layers == 6);
    CHECK(model->encoder_decoder()->encoder_layers() == 6);
    CHECK(model->info().hidden_size == 512);
    CHECK(model->info().heads == 8);
    CHECK(model->info().head_size == 64);
  }
  try {
    make_model(config_of({{"model_type", std::string("transformer")}, {"vocab_size", 10.0}, {"d_model", 500.0}, {"heads", 8.0}}));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidArgument);
    CHECK(error.message() == "[config.json] d_model: expected a multiple of heads (8), got 500");
  }
}

TEST_CASE("initialise: the original Transformer") {
  const Drawn drawn({{"model_type", std::string("transformer")}, {"vocab_size", 300.0}, {"d_model", 64.0}, {"encoder_ffn_dim", 192.0}});
  check_normal(drawn.of("shared.weight"), 1 / 8.0);
  const Spread up(drawn.of("encoder.layers.0.fc1.weight")), query(drawn.of("decoder.layers.5.encoder_attn.q_proj.weight"));
  const double bound_up = std::sqrt(6.0 / (64 + 192)), bound_query = std::sqrt(6.0 / 128);
  CHECK(up.most <= bound_up);
  CHECK(up.most > 0.999 * bound_up);
  CHECK(up.deviation == Catch::Approx(bound_up / std::sqrt(3.0)).epsilon(0.02));
  CHECK(query.most <= bound_query);
  CHECK(query.most > 0.999 * bound_query);
  CHECK(drawn.of("encoder.layers.0.fc1.bias") == std::vector<float>(192, 0));
  CHECK(drawn.of("encoder.layers.0.final_layer_norm.weight") == std::vector<float>(64, 1));
  CHECK(drawn.of("encoder.layers.0.final_layer_norm.bias") == std::vector<float>(64, 0));
}

TEST_CASE("initialise: the families of Hugging Face") {
  const Drawn bart({{"model_type", std::string("bart")}, {"vocab_size", 300.0}, {"d_model", 64.0}, {"init_std", 0.05}});
  auto shared = bart.of("model.shared.weight");
  CHECK(std::all_of(shared.begin() + 64, shared.begin() + 128, [](float value) { return value == 0; }));
  shared.erase(shared.begin() + 64, shared.begin() + 128);
  check_normal(shared, 0.05);
  check_normal(bart.of("model.encoder.layers.3.self_attn.v_proj.weight"), 0.05);
  CHECK(bart.of("final_logits_bias") == std::vector<float>(300, 0));

  const Drawn gpt2({{"model_type", std::string("gpt2")}, {"vocab_size", 100.0}, {"n_embd", 96.0}, {"n_head", 4.0}, {"n_layer", 8.0}});
  check_normal(gpt2.of("transformer.h.1.attn.c_attn.weight"), 0.02);
  check_normal(gpt2.of("transformer.h.1.mlp.c_proj.weight"), 0.02 / 4);
  check_normal(gpt2.of("transformer.wte.weight"), 0.02);

  const Drawn gemma({{"model_type", std::string("gemma")},
                     {"vocab_size", 50.0},
                     {"hidden_size", 32.0},
                     {"num_attention_heads", 2.0},
                     {"num_key_value_heads", 1.0},
                     {"head_dim", 16.0},
                     {"num_hidden_layers", 1.0},
                     {"intermediate_size", 32.0}});
  CHECK(gemma.of("model.norm.weight") == std::vector<float>(32, 0));

  const Drawn t5({{"model_type", std::string("t5")},
                  {"vocab_size", 100.0},
                  {"d_model", 64.0},
                  {"d_kv", 16.0},
                  {"num_heads", 8.0},
                  {"d_ff", 256.0},
                  {"feed_forward_proj", std::string("gated-gelu")},
                  {"tie_word_embeddings", false},
                  {"relative_attention_num_buckets", 200.0},
                  {"initializer_factor", 0.5}});
  check_normal(t5.of("shared.weight"), 0.5);
  check_normal(t5.of("encoder.block.0.layer.0.SelfAttention.q.weight"), 0.5 / std::sqrt(64.0 * 16));
  check_normal(t5.of("encoder.block.0.layer.0.SelfAttention.k.weight"), 0.5 / 8);
  check_normal(t5.of("encoder.block.0.layer.0.SelfAttention.o.weight"), 0.5 / std::sqrt(8.0 * 16));
  check_normal(t5.of("decoder.block.0.layer.2.DenseReluDense.wi_0.weight"), 0.5 / 8);
  check_normal(t5.of("decoder.block.0.layer.2.DenseReluDense.wo.weight"), 0.5 / 16);
  check_normal(t5.of("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"), 0.5 / 8);
  check_normal(t5.of("lm_head.weight"), 0.5);
  CHECK(t5.of("encoder.final_layer_norm.weight") == std::vector<float>(64, 0.5f));
}

TEST_CASE("initialise: a weight depends on seed and place alone") {
  const Values values = {{"model_type", std::string("transformer")}, {"vocab_size", 40.0}, {"d_model", 16.0}};
  const std::string name = "encoder.layers.1.fc2.weight";
  const Drawn drawn(values, 7), again(values, 7), other(values, 8);
  CHECK(drawn.of(name) == again.of(name));
  CHECK(drawn.of(name) != other.of(name));
  CHECK(drawn.of(name) != drawn.of("encoder.layers.2.fc2.weight"));
  std::vector<float> pieces(16 * 2048);
  const Initialiser initialiser(drawn.config, *drawn.model, 7);
  for (size_t row = 16; row-- > 0;) initialiser.draw(drawn.index(name), row, 1, pieces.data() + row * 2048);
  CHECK(pieces == drawn.of(name));
  CHECK_THROWS_AS(Initialiser(config_of({{"model_type", std::string("bart")}, {"init_std", -1.0}}), *drawn.model, 1), Error);
}

}  // namespace wf
