// What a config.json may and may not say.
#include <catch_amalgamated.hpp>

#include "models/testing.hpp"

using namespace wf;
using namespace wf::testing;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

const std::map<std::string, std::string> kConfigs{
    {"gpt2",
     R"({"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "n_ctx": 64, "n_inner": 48, "vocab_size": 50,
      "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
      "tie_word_embeddings": true, "add_cross_attention": false})"},
    {"llama", R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
      "num_hidden_layers": 2, "vocab_size": 50, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
      "rope_theta": 10000, "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "partial_rotary_factor": 1,
      "original_max_position_embeddings": 32, "rope_interleaved": false,
      "rope_scaling": {"rope_type": "yarn", "factor": 2, "attention_factor": 1, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1,
      "truncate": true}})"},
    {"llama-longrope", R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 50,
      "max_position_embeddings": 64, "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [2, 2, 2, 2],
      "factor": 2, "original_max_position_embeddings": 32}})"},
    {"llama-llama3", R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 50,
      "rope_parameters": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4, "rope_theta": 10000,
      "original_max_position_embeddings": 32}})"},
    {"mistral", R"({"model_type": "mistral", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
      "num_hidden_layers": 2, "vocab_size": 50, "sliding_window": 8})"},
    {"qwen3", R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2,
      "vocab_size": 50, "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1,
      "layer_types": ["full_attention", "sliding_attention"]})"},
    {"gemma", R"({"model_type": "gemma", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2,
      "vocab_size": 50, "hidden_activation": "gelu_pytorch_tanh"})"},
    {"gpt_neox", R"({"model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2,
      "vocab_size": 50, "rotary_emb_base": 10000, "rotary_pct": 0.25, "layer_norm_eps": 1e-5, "hidden_act": "gelu",
      "use_parallel_residual": true, "attention_bias": true, "tie_word_embeddings": false, "max_position_embeddings": 64})"},
    {"opt", R"({"model_type": "opt", "hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50,
      "max_position_embeddings": 64, "word_embed_proj_dim": 20, "do_layer_norm_before": true, "enable_bias": true,
      "layer_norm_elementwise_affine": true, "activation_function": "relu", "_remove_final_layer_norm": false})"},
    {"bloom", R"({"model_type": "bloom", "hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50, "layer_norm_epsilon": 1e-5,
      "apply_residual_connection_post_layernorm": false, "seq_length": 64})"},
    {"transformer", R"({"model_type": "transformer", "vocab_size": 40, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2,
      "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "layer_norm_eps": 1e-5,
      "activation_function": "relu", "scale_embedding": true, "tie_word_embeddings": true, "max_position_embeddings": 512})"},
    {"bert", R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32, "intermediate_size": 48,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50, "max_position_embeddings": 64, "type_vocab_size": 2,
      "layer_norm_eps": 1e-12, "hidden_act": "gelu", "position_embedding_type": "absolute", "tie_word_embeddings": false,
      "is_decoder": false, "add_cross_attention": false, "add_lm_head": true})"},
    {"roberta", R"({"model_type": "roberta", "architectures": ["RobertaForTokenClassification"], "hidden_size": 32, "intermediate_size": 48,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50, "max_position_embeddings": 64, "type_vocab_size": 1,
      "pad_token_id": 1, "num_labels": 3})"},
    {"distilbert", R"({"model_type": "distilbert", "dim": 32, "hidden_dim": 48, "n_heads": 4, "n_layers": 2, "vocab_size": 50,
      "max_position_embeddings": 64, "activation": "gelu", "sinusoidal_pos_embds": false})"},
    {"albert", R"({"model_type": "albert", "architectures": ["AlbertForQuestionAnswering"], "hidden_size": 32, "embedding_size": 20,
      "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2,
      "vocab_size": 50, "max_position_embeddings": 64, "type_vocab_size": 2, "num_labels": 2, "add_pooling_layer": true})"},
};

const std::vector<Config::Value> kOddValues{
    std::monostate{},
    0.0,
    1.0,
    3.0,
    -1.0,
    0.5,
    1e-300,
    1e300,
    1048576.0,
    1048577.0,
    2147483647.0,
    2147483648.0,
    4294967296.0,
    1.8446744073709552e19,
    std::nan(""),
    static_cast<double>(INFINITY),
    -static_cast<double>(INFINITY),
    true,
    false,
    std::string(),
    std::string("gelu"),
    std::string("__proto__"),
    std::string(100000, 'x'),
    std::vector<double>{},
    std::vector<double>{1, 2, 3, 4},
    std::vector<double>{0, -1, std::nan(""), static_cast<double>(INFINITY)},
    std::vector<std::string>{"full_attention"},
    std::vector<std::string>{"sliding_attention", "sliding_attention"},
};

// Builds the model, adds up its memory, and, where that is small, runs it.
void use(const Config& config) {
  const auto model = make_model(config);
  size_t bytes = 0;
  for (const Weight* weight : model->parameters().weights()) bytes = checked_sum(bytes, weight->bytes(DType::kF32, false));
  for (const Parameter& parameter : model->parameters().list()) bytes = checked_sum(bytes, parameter.shape.size());
  KvPool pool(model->cache_shape(), 1);
  CHECK(model->windows().size() == (model->info().encoder_only ? 0 : model->info().layers));
  if (bytes > 400000 || model->encoder_decoder() != nullptr) return;
  const auto small = random_model(config);
  const size_t T = model->info().positions_are_a_wall ? std::min<size_t>(model->info().context, 12) : 12;
  Arena arena;
  Context ctx{arena};
  const Ragged rows({std::vector<int32_t>(T), {0}});
  for (const float value : values_of(small->forward(ctx, rows.batch(), {}))) REQUIRE_FALSE(std::isnan(value));
  if (model->info().head == HeadKind::kNone) return;
  for (const float logit : Runner(*small).logits({std::vector<int32_t>(T), {0}})) REQUIRE_FALSE(std::isnan(logit));
}

}  // namespace

TEST_CASE("every configuration of the test is sound", "[models][configuration]") {
  for (const auto& [name, json] : kConfigs) {
    CAPTURE(name);
    CHECK(outcome([&] { use(config_of(json)); }) == "none");
  }
}

TEST_CASE("an odd value under any key is an error that names it, or harmless", "[models][configuration]") {
  for (const auto& [name, json] : kConfigs) {
    const Config sound = config_of(json);
    for (const auto& [key, value] : sound.values()) {
      for (size_t i = 0; i < kOddValues.size(); ++i) {
        CAPTURE(name, key, i);
        Config config = sound;
        config.set(key, kOddValues[i]);
        const std::string result = outcome([&] { use(config); });
        if (result == "none") continue;
        CHECK_THAT(result, StartsWith("invalid-argument [config.json] ") || StartsWith("unsupported [config.json] ") ||
                               (StartsWith("out-of-memory [") && ContainsSubstring(" does not fit in memory")));
      }
    }
  }
}

TEST_CASE("what is not built is named", "[models][configuration]") {
  const auto error = [](const std::string& name, const std::string& key, Config::Value value) {
    Config config = config_of(kConfigs.at(name));
    config.set(key, std::move(value));
    return outcome([&] { make_model(config); });
  };
  CHECK_THAT(error("gpt2", "model_type", std::string("mamba")),
             StartsWith("unsupported [config.json] model_type: expected one of gpt2, ") && ContainsSubstring("'mamba'"));
  CHECK_THAT(error("gpt2", "model_type", std::monostate{}), StartsWith("invalid-argument [config.json] model_type: expected a string"));
  CHECK_THAT(error("gpt2", "architectures", std::vector<std::string>{"GPT2ForSequenceClassification"}),
             StartsWith("unsupported [config.json] architectures") && ContainsSubstring("GPT2ForSequenceClassification"));
  CHECK(error("gpt2", "architectures", std::vector<std::string>{"GPT2Model"}) == "none");
  CHECK_THAT(error("gpt2", "activation_function", std::string("mish")),
             StartsWith("unsupported [config.json] activation_function: expected gelu") && ContainsSubstring("'mish'"));
  CHECK_THAT(error("gpt2", "add_cross_attention", true), StartsWith("unsupported [config.json] add_cross_attention"));
  CHECK_THAT(error("gpt2", "n_head", 5.0), StartsWith("invalid-argument [config.json] n_embd: expected a multiple of n_head (5), got 32"));
  CHECK_THAT(error("llama", "num_key_value_heads", 3.0), ContainsSubstring("num_key_value_heads"));
  CHECK_THAT(error("llama", "rope_scaling.rope_type", std::string("su")),
             StartsWith("unsupported [config.json] rope_scaling.rope_type") && ContainsSubstring("'su'"));
  CHECK(error("llama", "head_dim", 1.0) == "invalid-argument [config.json] head size: expected at least 2 for rotary positions, got 1");
  CHECK_THAT(error("llama", "head_dim", 5.0), ContainsSubstring("rotary part of a head: expected 1 to 4 features, got 5"));
  CHECK_THAT(error("llama", "hidden_size", std::monostate{}),
             StartsWith("invalid-argument [config.json] hidden_size") && ContainsSubstring("nothing"));
  CHECK_THAT(error("qwen3", "layer_types", std::vector<std::string>{"full_attention", "linear_attention"}),
             ContainsSubstring("'linear_attention'"));
  CHECK_THAT(error("transformer", "d_model", 23.0),
             ContainsSubstring("d_model: expected a multiple of encoder_attention_heads (4), got 23"));
  CHECK_THAT(error("llama", "head_dim", 1048576.0), ContainsSubstring("head_dim"));
  CHECK_THAT(error("gpt2", "vocab_size", 0.0), StartsWith("invalid-argument [config.json] vocab_size"));
  for (const char* name : {"BertForMultipleChoice", "BertForNextSentencePrediction", "BertLMHeadModel", "BertForCausalLM"}) {
    CHECK_THAT(error("bert", "architectures", std::vector<std::string>{name}),
               StartsWith("unsupported [config.json] architectures: expected ...Model, ") && ContainsSubstring(join("'", name, "'")));
  }
  CHECK_THAT(error("bert", "position_embedding_type", std::string("relative_key")),
             StartsWith("unsupported [config.json] position_embedding_type: expected absolute, got 'relative_key'"));
  CHECK_THAT(error("bert", "is_decoder", true), StartsWith("unsupported [config.json] is_decoder"));
  CHECK_THAT(error("bert", "add_cross_attention", true), StartsWith("unsupported [config.json] add_cross_attention"));
  CHECK_THAT(error("albert", "num_labels", 3.0), StartsWith("invalid-argument [config.json] num_labels: expected 2"));
  CHECK_THAT(error("albert", "num_hidden_groups", 5.0), StartsWith("invalid-argument [config.json] num_hidden_groups: expected at most"));
  CHECK_THAT(error("roberta", "pad_token_id", 63.0), StartsWith("invalid-argument [config.json] pad_token_id"));
  CHECK_THAT(error("roberta", "max_position_embeddings", 2.0), StartsWith("invalid-argument [config.json] max_position_embeddings"));
}

TEST_CASE("a model is described before any of its memory is taken", "[models][configuration]") {
  const size_t before = allocation_count();
  Config config = config_of(kConfigs.at("llama"));
  config.set("vocab_size", 128256.0);
  config.set("hidden_size", 4096.0);
  config.set("num_hidden_layers", 32.0);
  const auto model = make_model(config);
  CHECK(model->info().vocab_size == 128256);
  CHECK(model->parameters().list().front().name == "model.embed_tokens.weight");
  CHECK(model->parameters().list().front().shape == Shape{128256, 4096});
  CHECK(allocation_count() == before);
}
