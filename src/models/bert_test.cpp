// Encoders against what Hugging Face transformers computes from the same files.
#include <catch_amalgamated.hpp>

#include "models/testing.hpp"

using namespace wf;
using namespace wf::testing;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

// Fixtures whose weights are safetensors; the others differ only in how they are stored and in values.
const char* const kFixtures[] = {"bert",           "bert-no-pooler",   "bert-classify",     "bert-tokens",
                                 "bert-masked-lm", "distilbert",       "distilbert-answer", "distilbert-classify",
                                 "roberta-answer", "roberta-classify", "xlm-roberta",       "roberta-masked-lm",
                                 "albert",         "albert-classify"};

// One of each kind of head, of each family.
const std::string kSmall = R"("hidden_size": 24, "intermediate_size": 36, "num_attention_heads": 3, "num_hidden_layers": 2,
  "vocab_size": 50, "max_position_embeddings": 64, "num_labels": 3)";
const std::string kConfigs[] = {
    R"({"model_type": "bert", "architectures": ["BertForPreTraining"], )" + kSmall + "}",
    R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"], )" + kSmall + "}",
    R"({"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"], "type_vocab_size": 1, )" + kSmall + "}",
    R"({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "type_vocab_size": 1, "tie_word_embeddings": false, )" + kSmall +
        "}",
    R"({"model_type": "distilbert", "architectures": ["DistilBertForTokenClassification"], "dim": 24, "hidden_dim": 36, "n_heads": 3,
      "n_layers": 2, "vocab_size": 50, "max_position_embeddings": 64})",
    R"({"model_type": "albert", "architectures": ["AlbertForMaskedLM"], "embedding_size": 20, "num_hidden_groups": 2, )" + kSmall + "}",
    R"({"model_type": "albert", "architectures": ["AlbertModel"], "embedding_size": 20, "inner_group_num": 2, )" + kSmall + "}",
};

// Whole sequences with their token types, and RoBERTa's positions, -1 where padding stands.
struct Texts : Ragged {
  std::vector<int32_t> types;

  Texts(const Model& model, const std::vector<std::vector<int32_t>>& sequences, std::vector<int32_t> token_types = {})
      : Ragged(sequences), types(std::move(token_types)) {
    if (model.info().position_rule != PositionRule::kNotPad) return;
    for (size_t s = 0; s < sequences.size(); ++s) {
      int32_t next = 0;
      for (size_t t = offsets[s]; t < offsets[s + 1]; ++t) positions[t] = tokens[t] == model.info().padding ? -1 : next++;
    }
  }
  Batch batch() const {
    Batch batch = Ragged::batch();
    batch.types = types;
    return batch;
  }
};

// What the model's head says of them all.
Tensor answer(Context& ctx, const Model& model, const Texts& texts) {
  const Tensor states = model.forward(ctx, texts.batch(), {});
  switch (model.info().head) {
    case HeadKind::kSequence:
      return model.classify(ctx, states, texts.offsets);
    case HeadKind::kNone:
      return model.info().has_pooler ? model.pool(ctx, states, texts.offsets) : states;
    default:
      return model.head(ctx, states);
  }
}

std::vector<int32_t> types_of(const Model& model, size_t count) {
  std::vector<int32_t> types;
  if (model.info().token_types < 2) return types;
  for (size_t t = 0; t < count; ++t) types.push_back(t % 3 == 1);
  return types;
}

}  // namespace

TEST_CASE("states, attention and heads of encoders are those of transformers", "[models][bert]") {
  const char* const name = GENERATE(from_range(kFixtures));
  const bool trainable = GENERATE(false, true);
  CAPTURE(name, trainable);
  const Fixture fixture = read_fixture(name);
  const auto model = load_model(fixture, trainable);
  const ModelInfo& info = model->info();
  CHECK(info.encoder_only);
  CHECK(model->windows().empty());
  const auto& cases = fixture.answers["cases"].items;
  REQUIRE(cases.size() >= 3);
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    const bool has_types = cases[i].fields.contains("tokenTypeIds");
    const Texts texts(*model, {cases[i]["inputIds"].list<int32_t>()},
                      has_types ? cases[i]["tokenTypeIds"].list<int32_t>() : std::vector<int32_t>{});
    const std::string at = "case." + std::to_string(i) + ".";
    const auto expected = [&](const std::string& what) { return fixture.expected.at(at + what).floats(); };
    Arena arena;
    Recorder recorder;
    Context ctx{arena, nullptr, &recorder};
    const Tensor states = model->forward(ctx, texts.batch(), {});
    for (size_t l = 0; l <= info.layers; ++l) {
      CAPTURE(l);
      CHECK(off_by(recorder.states.at({Site::kHidden, l}), expected("hidden." + std::to_string(l))) < 1e-4);
      if (l == info.layers) break;
      const auto got = recorder.attention(Site::kAttention, l), want = expected("attention." + std::to_string(l));
      REQUIRE(got.size() == want.size());
      for (size_t j = 0; j < got.size(); ++j) CHECK(std::abs(got[j] - want[j]) < 2e-5f);
    }
    CHECK(recorder.states.size() == info.layers + 1);
    CHECK(info.has_pooler == (fixture.expected.contains(at + "pooled") || std::string_view(name) == "bert-classify" ||
                              std::string_view(name) == "albert-classify"));
    switch (info.head) {
      case HeadKind::kNone:
        CHECK(off_by(values_of(states), expected("last_hidden_state")) < 1e-4);
        if (info.has_pooler) CHECK(off_by(values_of(model->pool(ctx, states, texts.offsets)), expected("pooled")) < 1e-4);
        break;
      case HeadKind::kSequence:
        CHECK(off_by(values_of(model->classify(ctx, states, texts.offsets)), expected("logits")) < 1e-4);
        break;
      case HeadKind::kQuestion: {
        const Tensor logits = model->head(ctx, states);
        const auto starts = expected("start_logits"), ends = expected("end_logits");
        std::vector<float> both;
        for (size_t t = 0; t < starts.size(); ++t) both.insert(both.end(), {starts[t], ends[t]});
        CHECK(off_by(values_of(logits), both) < 1e-4);
        break;
      }
      default:
        CHECK(off_by(values_of(model->head(ctx, states)), expected("logits")) < 1e-4);
    }
  }
}

TEST_CASE("an encoder says the same of a text alone and beside others, and when somebody looks", "[models][bert]") {
  const std::string& json = GENERATE(from_range(kConfigs));
  const DType dtype = GENERATE(DType::kF32, DType::kF16);
  CAPTURE(json);
  const auto model = random_model(config_of(json), dtype);
  const std::vector<std::vector<int32_t>> sequences{random_tokens(21, 50, 1), random_tokens(53, 50, 2), {7}};
  Arena arena;
  Recorder recorder;
  Context ctx{arena}, watched{arena, nullptr, &recorder};
  const Texts all(*model, sequences, types_of(*model, 75));
  const auto together = values_of(answer(ctx, *model, all));
  for (const float value : together) REQUIRE(std::isfinite(value));
  CHECK(same_bits(values_of(answer(watched, *model, all)), together));
  std::vector<float> apart;
  for (size_t s = 0, t = 0; s < sequences.size(); t += sequences[s].size(), ++s) {
    const auto types = types_of(*model, 75);
    const auto begin = types.begin() + static_cast<ptrdiff_t>(t), end = begin + static_cast<ptrdiff_t>(sequences[s].size());
    const Texts alone(*model, {sequences[s]}, types.empty() ? types : std::vector<int32_t>(begin, end));
    const auto values = values_of(answer(ctx, *model, alone));
    apart.insert(apart.end(), values.begin(), values.end());
  }
  CHECK(same_bits(apart, together));
  CHECK(recorder.attention(Site::kAttention, model->info().layers - 1, 1).size() == model->info().heads * 53 * 53);
}

TEST_CASE("the loss of an encoder follows its gradient", "[models][bert]") {
  const std::string& json = GENERATE(from_range(kConfigs));
  CAPTURE(json);
  const auto model = random_model(config_of(json), DType::kF32, true);
  const Texts texts(*model, {random_tokens(9, 50, 1), random_tokens(6, 50, 2)}, types_of(*model, 15));
  Arena arena;
  const auto loss = [&](Tape* tape) {
    Context ctx{arena, tape};
    const Tensor logits = answer(ctx, *model, texts);
    std::vector<int32_t> targets;
    for (size_t r = 0; r < logits.rows; ++r) targets.push_back(static_cast<int32_t>(r * 5 % logits.cols));
    const Tensor value = cross_entropy(ctx, logits, targets);
    if (tape != nullptr) tape->backward(value);
    return static_cast<double>(value.data[0]);
  };
  Tape tape(arena);
  loss(&tape);
  // Each weight by itself along its own gradient: the loss falls by the gradient's square times the step.
  for (const Weight* listed : model->parameters().weights()) {
    auto* weight = const_cast<Weight*>(listed);
    const std::string* name = nullptr;
    for (const Parameter& parameter : model->parameters().list()) {
      if (parameter.weight == weight) name = &parameter.name;
    }
    CAPTURE(*name);
    const size_t count = weight->rows() * weight->cols();
    double square = 0;
    for (size_t i = 0; i < count; ++i) square += static_cast<double>(weight->gradient()[i]) * static_cast<double>(weight->gradient()[i]);
    REQUIRE(square > 0);
    // So far that rounding does not show, not so far that the loss bends.
    const auto step = static_cast<float>(std::min(5e-3, 0.01 / std::sqrt(square)) / std::sqrt(square));
    const std::vector<float> before(weight->values(), weight->values() + count);
    const auto at = [&](float factor) {
      for (size_t i = 0; i < count; ++i) weight->values()[i] = before[i] + factor * weight->gradient()[i];
      return loss(nullptr);
    };
    const double slope = (at(step) - at(-step)) / (2 * static_cast<double>(step));
    std::copy(before.begin(), before.end(), weight->values());
    CHECK(slope == Catch::Approx(square).epsilon(0.01));
  }
}

TEST_CASE("what an encoder has not is an error", "[models][bert]") {
  const auto model = random_model(config_of(kConfigs[0])), classifier = random_model(config_of(kConfigs[1]));
  const auto distilled = random_model(config_of(kConfigs[4]));
  Arena arena;
  Context ctx{arena};
  const Ragged rows({{1, 2, 3}});
  const std::vector<int32_t> types{0, 1, 0}, wrong{0, 2, 0};
  const Tensor states = model->forward(ctx, rows.batch(), {});
  KvPool pool(model->cache_shape(), 1);
  KvCache cache(pool, {});
  KvCache* const caches[] = {&cache};
  CHECK_THAT(outcome([&] { model->forward(ctx, rows.batch(), caches); }), StartsWith("unsupported [bert] cache: expected none"));
  CHECK_THAT(outcome([&] { model->classify(ctx, states, rows.offsets); }), StartsWith("unsupported [bert] a label of the whole text"));
  CHECK_THAT(outcome([&] { model->pool(ctx, states, rows.offsets); }), StartsWith("unsupported [bert] a pooled state"));
  CHECK_THAT(outcome([&] { classifier->head(ctx, states); }), StartsWith("unsupported [bert] logits"));
  Batch batch = rows.batch();
  batch.types = wrong;
  CHECK_THAT(outcome([&] { model->forward(ctx, batch, {}); }), ContainsSubstring("expected 0 to 1, got 2"));
  batch.types = types;
  CHECK_THAT(outcome([&] { distilled->forward(ctx, batch, {}); }), StartsWith("unsupported [distilbert] token types: expected none"));
}

TEST_CASE("an encoder's description", "[models][bert]") {
  const auto info = [](const std::string& json) { return make_model(config_of(json))->info(); };
  const ModelInfo bert = info(R"({"model_type": "bert"})");
  CHECK(bert.head == HeadKind::kNone);
  CHECK(bert.has_pooler);
  CHECK(bert.context == 512);
  CHECK(bert.positions_are_a_wall);
  CHECK(bert.token_types == 2);
  CHECK(bert.position_rule == PositionRule::kIndex);
  const ModelInfo roberta =
      info(R"({"model_type": "xlm-roberta", "max_position_embeddings": 514, "architectures": ["XLMRobertaForTokenClassification"],
    "type_vocab_size": 1, "id2label": {"0": "a", "1": "b", "2": "c"}})");
  CHECK(roberta.context == 512);
  CHECK(roberta.position_rule == PositionRule::kNotPad);
  CHECK(roberta.padding == 1);
  CHECK(roberta.labels == 3);
  CHECK_FALSE(roberta.has_pooler);
  CHECK(info(R"({"model_type": "distilbert", "architectures": ["DistilBertForSequenceClassification"]})").labels == 2);
  CHECK(info(R"({"model_type": "albert", "inner_group_num": 2, "hidden_size": 64, "num_hidden_layers": 3})").layers == 6);
  CHECK(info(R"({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "add_lm_head": false})").head == HeadKind::kNone);
  CHECK_FALSE(info(R"({"model_type": "bert", "add_pooling_layer": false})").has_pooler);
}
