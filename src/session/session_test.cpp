// One model of each kind of position, tiny, with random weights: a row's result depends only on its own sequence, bit for bit.
#include "session/session.hpp"

#include <algorithm>
#include <array>
#include <catch_amalgamated.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "core/error.hpp"
#include "core/heap_counter.hpp"
#include "core/rng.hpp"

namespace wf {

namespace {

using Ids = std::vector<int32_t>;
using Prompts = std::vector<Ids>;
using Values = std::vector<std::pair<std::string, Config::Value>>;

constexpr size_t kVocab = 70;

Config config_of(const std::string& where, const Values& values) {
  Config config(where);
  for (const auto& [key, value] : values) config.set(key, value);
  return config;
}

const std::array kModels = {"gpt2", "llama", "mistral", "bloom"};

Values model_config(const std::string& type) {
  const double V = kVocab;
  if (type == "gpt2")
    return {{"model_type", type}, {"vocab_size", V}, {"n_embd", 24.0}, {"n_head", 3.0}, {"n_layer", 2.0}, {"n_positions", 400.0}};
  if (type == "bloom") return {{"model_type", type}, {"vocab_size", V}, {"hidden_size", 24.0}, {"n_head", 3.0}, {"n_layer", 2.0}};
  if (type == "transformer") {
    return {{"model_type", type},
            {"vocab_size", V},
            {"d_model", 16.0},
            {"encoder_layers", 2.0},
            {"decoder_layers", 2.0},
            {"encoder_attention_heads", 2.0},
            {"decoder_attention_heads", 2.0},
            {"encoder_ffn_dim", 20.0},
            {"decoder_ffn_dim", 20.0}};
  }
  const bool is_dynamic = type == "llama-dynamic";
  Values values = {{"model_type", is_dynamic ? "llama" : type},
                   {"vocab_size", V},
                   {"hidden_size", 24.0},
                   {"num_attention_heads", 4.0},
                   {"num_key_value_heads", 2.0},
                   {"head_dim", 8.0},
                   {"num_hidden_layers", 2.0},
                   {"intermediate_size", 40.0},
                   {"max_position_embeddings", is_dynamic ? 16.0 : 512.0}};
  if (is_dynamic) values.insert(values.end(), {{"rope_scaling.type", "dynamic"}, {"rope_scaling.factor", 2.0}});
  if (type == "mistral") values.push_back({"sliding_window", 20.0});
  return values;
}

// Random weights, a few rows at a time, as a checkpoint's arrive.
void fill(Session& session) {
  for (size_t p = 0; p < session.parameters().size(); ++p) {
    const Parameter& parameter = session.parameters()[p];
    const bool is_scale = parameter.shape.rank() == 1 && parameter.name.find("norm") != std::string::npos;
    for (size_t row = 0; row < parameter.stored_rows(); row += 5) {
      const size_t rows = std::min<size_t>(5, parameter.stored_rows() - row), count = rows * parameter.row_size();
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] =
            static_cast<float>((is_scale ? 1.0 : 0.0) + 0.3 * normal({99, static_cast<uint32_t>(p)}, row * parameter.row_size() + i));
      }
      std::memcpy(session.stage(count * sizeof(float)), values.data(), count * sizeof(float));
      session.load_rows(p, row, rows);
    }
  }
}

std::unique_ptr<Session> loaded(const std::string& type, const Values& options = {}) {
  auto session = std::make_unique<Session>(config_of("config.json", model_config(type)), config_of("load", options));
  session->plan(std::vector(session->parameters().size(), DType::kF32));
  session->allocate();
  fill(*session);
  session->finish_loading();
  return session;
}

Ids random_ids(size_t count, uint64_t seed) {
  Ids ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(uniform({seed}, i) * kVocab);
  return ids;
}

struct Outcome {
  std::vector<Ids> tokens;
  std::vector<std::vector<float>> logprobs;
};

Outcome finish(GenerationRun& run, size_t sequences) {
  Outcome outcome{std::vector<Ids>(sequences), std::vector<std::vector<float>>(sequences)};
  for (bool done = false; !done;) {
    const generate::Step& step = run.advance();
    for (const generate::Emitted& e : step.tokens) {
      outcome.tokens[e.sequence].push_back(e.token);
      outcome.logprobs[e.sequence].push_back(e.logprob);
    }
    done = step.done;
  }
  return outcome;
}

Outcome generated(Session& session, const Prompts& prompts, const Values& options, uint32_t cache = 0, size_t returns = 1) {
  const auto run = session.start_generation(prompts, config_of("generate", options), cache);
  return finish(*run, prompts.size() * returns);
}

ForwardResult forwarded(Session& session, ForwardInput input, const Values& request = {}) {
  const auto forward = session.start_forward(std::move(input), config_of("forward", request));
  while (!forward->advance()) {}
  return forward->results()[0];
}

std::vector<float> row(const Array& array, size_t r) {
  const size_t cols = array.shape.back();
  return {array.data.begin() + r * cols, array.data.begin() + (r + 1) * cols};
}

// NaN-safe: the same bits.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Error error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error;
  }
  return {Code::kInternal, "no error"};
}

// Logits after the last of `ids`, the tokens handed over in parts of the given size.
std::vector<std::vector<float>> logits_in_parts(Session& session, const Ids& ids, size_t part) {
  // A generation of one token whose candidates are all reported: log-probabilities, so compare those.
  std::vector<std::vector<float>> rows;
  const auto run = session.start_generation(
      {ids},
      config_of("generate",
                {{"maxNewTokens", 1.0}, {"prefillChunk", static_cast<double>(part)}, {"logprobs", static_cast<double>(kVocab)}}),
      0);
  for (bool done = false; !done;) {
    const generate::Step& step = run->advance();
    for (const generate::Emitted& e : step.tokens) {
      std::vector<float> logprobs(kVocab);
      for (size_t i = 0; i < e.top_count; ++i) logprobs[step.top[e.top + i].token] = step.top[e.top + i].logprob;
      rows.push_back(logprobs);
    }
    done = step.done;
  }
  return rows;
}

}  // namespace

TEST_CASE("session: whole prompt, chunks and token by token give the same bits") {
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    const Ids ids = random_ids(150, 1);
    const auto whole = logits_in_parts(*session, ids, 1000);
    REQUIRE(whole.size() == 1);
    for (const size_t part : {1u, 2u, 7u, 16u, 61u, 128u}) CHECK(same_bits(logits_in_parts(*session, ids, part)[0], whole[0]));

    // A forward pass in chunks of its own, and its prefixes.
    const ForwardResult all = forwarded(*session, {{ids}, {}, {}, {}});
    for (const size_t length : {1u, 5u, 17u, 100u, 149u}) {
      const ForwardResult prefix = forwarded(*session, {{Ids(ids.begin(), ids.begin() + length)}, {}, {}, {}});
      CHECK(same_bits(row(prefix.logits, length - 1), row(all.logits, length - 1)));
    }
  }
}

TEST_CASE("session: alone and in a batch, sampled and greedy, give the same bits") {
  const Prompts prompts = {random_ids(3, 2), random_ids(40, 3), random_ids(1, 4), random_ids(17, 5)};
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    for (const bool sample : {false, true}) {
      const Values options = {{"maxNewTokens", 30.0}, {"doSample", sample}, {"seed", 3.0}};
      const Outcome batch = generated(*session, prompts, options);
      for (size_t p = 0; p < prompts.size(); ++p) {
        const Outcome alone = generated(*session, {prompts[p]}, options);
        CHECK(alone.tokens[0] == batch.tokens[p]);
        CHECK(same_bits(alone.logprobs[0], batch.logprobs[p]));
      }
    }
  }
}

TEST_CASE("session: what is generated is what a forward pass over all of it predicts") {
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    const Ids prompt = random_ids(9, 6);
    const Outcome outcome = generated(*session, {prompt}, {{"maxNewTokens", 40.0}});
    Ids all = prompt;
    all.insert(all.end(), outcome.tokens[0].begin(), outcome.tokens[0].end());
    const ForwardResult result = forwarded(*session, {{all}, {}, {}, {}});
    for (size_t i = 0; i < 40; ++i) {
      const auto logits = row(result.logits, prompt.size() + i - 1);
      CHECK(std::max_element(logits.begin(), logits.end()) - logits.begin() == outcome.tokens[0][i]);
    }
    const auto score = session->start_score({all});
    while (!score->advance()) {}
    CHECK(std::isnan(score->results()[0][0]));
    for (size_t i = 0; i < 40; ++i) CHECK(score->results()[0][prompt.size() + i] == outcome.logprobs[0][i]);
  }
}

TEST_CASE("session: return sequences continue one prefill as if each had its own") {
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    const Prompts prompts = {random_ids(21, 7), random_ids(5, 8)};
    const Values options = {{"maxNewTokens", 25.0}, {"doSample", true}, {"seed", 11.0}, {"numReturnSequences", 3.0}, {"prefillChunk", 8.0}};
    const Outcome batch = generated(*session, prompts, options, 0, 3);
    for (size_t p = 0; p < 2; ++p) {
      for (size_t r = 0; r < 3; ++r) {
        // Teacher forcing each sequence alone gives its log-probabilities, up to top-k's renormalisation; so compare with the same
        // prompt generated alone.
        const Outcome alone = generated(*session, {prompts[p]}, options, 0, 3);
        CHECK(alone.tokens[r] == batch.tokens[p * 3 + r]);
        CHECK(same_bits(alone.logprobs[r], batch.logprobs[p * 3 + r]));
      }
    }
    CHECK(batch.tokens[0] != batch.tokens[1]);
    const Outcome first = generated(*session, {prompts[0]}, {{"maxNewTokens", 25.0}, {"doSample", true}, {"seed", 11.0}});
    CHECK(first.tokens[0] == batch.tokens[0]);
  }
}

TEST_CASE("session: a cache that is held, continued, cloned and cut back gives the bits of a fresh one") {
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    const Values options = {{"maxNewTokens", 12.0}};
    const Ids prompt = random_ids(30, 9);
    const auto fresh = [&](const Ids& ids) { return generated(*session, {ids}, options); };
    const auto check = [&](uint32_t cache, const Ids& ids) {
      const Outcome held = generated(*session, {ids}, options, cache), expected = fresh(ids);
      CHECK(held.tokens == expected.tokens);
      CHECK(same_bits(held.logprobs[0], expected.logprobs[0]));
      CHECK(session->cache_length(cache) == ids.size() + 11);  // the last token was never fed
    };
    const uint32_t cache = session->create_cache();
    CHECK(session->cache_length(cache) == 0);
    check(cache, prompt);
    // A conversation goes on.
    Ids longer = prompt;
    const Ids answer = fresh(prompt).tokens[0], more = random_ids(8, 10);
    longer.insert(longer.end(), answer.begin(), answer.end());
    longer.insert(longer.end(), more.begin(), more.end());
    const uint32_t clone = session->clone_cache(cache);
    check(cache, longer);
    CHECK(session->cache_length(clone) == prompt.size() + 11);
    // The clone takes another way.
    Ids other = prompt;
    const Ids turn = random_ids(20, 12);
    other.insert(other.end(), turn.begin(), turn.end());
    check(clone, other);
    check(cache, longer);
    // The same prompt again, a shorter one, one with nothing in common.
    check(cache, longer);
    check(cache, Ids(longer.begin(), longer.begin() + 10));
    check(cache, random_ids(5, 13));
    check(clone, other);
    session->truncate_cache(clone, 7);
    check(clone, other);
    session->delete_cache(cache);
    session->delete_cache(cache);
    check(clone, prompt);
    CHECK(error_of([&] { session->cache_length(cache); }).code() == Code::kInvalidArgument);
    CHECK(error_of([&] { session->truncate_cache(clone, 1000); }).code() == Code::kInvalidArgument);
    CHECK(error_of([&] { generated(*session, {prompt, prompt}, options, clone); }).code() == Code::kInvalidArgument);
  }
}

TEST_CASE("session: padding is taken out at the door") {
  for (const char* type : {"gpt2", "llama", "bloom"}) {
    INFO(type);
    const auto session = loaded(type);
    const Ids ids = random_ids(6, 14);
    const ForwardResult plain = forwarded(*session, {{ids}, {}, {}, {}}, {{"hiddenStates", true}, {"attentions", true}});

    Ids padded = ids;
    padded.insert(padded.end(), 3, 0);
    const ForwardResult right =
        forwarded(*session, {{padded}, {}, {{1, 1, 1, 1, 1, 1, 0, 0, 0}}, {}}, {{"hiddenStates", true}, {"attentions", true}});
    for (size_t t = 0; t < 6; ++t) CHECK(same_bits(row(right.logits, t), row(plain.logits, t)));
    for (size_t t = 6; t < 9; ++t) CHECK(row(right.logits, t) == std::vector<float>(kVocab, 0));

    Ids left(3, 0);
    left.insert(left.end(), ids.begin(), ids.end());
    const ForwardResult shifted = forwarded(*session, {{left}, {{9, 9, 9, 0, 1, 2, 3, 4, 5}}, {{0, 0, 0, 1, 1, 1, 1, 1, 1}}, {}},
                                            {{"hiddenStates", true}, {"attentions", true}});
    REQUIRE(shifted.states.at(Site::kHidden).size() == 3);
    for (size_t t = 0; t < 6; ++t) {
      CHECK(same_bits(row(shifted.logits, 3 + t), row(plain.logits, t)));
      for (size_t l = 0; l < 3; ++l)
        CHECK(same_bits(row(shifted.states.at(Site::kHidden)[l], 3 + t), row(plain.states.at(Site::kHidden)[l], t)));
    }
    const Array& attention = shifted.attentions.at(Site::kAttention)[1];
    const Array& expected = plain.attentions.at(Site::kAttention)[1];
    REQUIRE(attention.shape == std::vector<size_t>{expected.shape[0], 9, 9});
    for (size_t h = 0; h < attention.shape[0]; ++h) {
      for (size_t t = 0; t < 9; ++t) {
        for (size_t k = 0; k < 9; ++k) {
          const float value = attention.data[(h * 9 + t) * 9 + k];
          CHECK(value == (t < 3 || k < 3 ? 0 : expected.data[(h * 6 + t - 3) * 6 + k - 3]));
        }
      }
    }
    const ForwardResult nothing = forwarded(*session, {{ids}, {}, {{0, 0, 0, 0, 0, 0}}, {}});
    CHECK(nothing.logits.data == std::vector<float>(6 * kVocab, 0));
  }
}

TEST_CASE("session: padding between tokens counts in a sliding window, but is not looked at") {
  const auto session = loaded("mistral");
  const Ids ids = random_ids(60, 16);
  std::vector<uint8_t> mask(60, 1);
  for (const size_t hidden : {0u, 1u, 9u, 10u, 30u, 58u, 59u}) mask[hidden] = 0;
  const Values request = {{"hiddenStates", true}, {"attentions", true}};
  const ForwardResult result = forwarded(*session, {{ids}, {}, {mask}, {}}, request);
  Ids other = ids;
  for (size_t t = 0; t < 60; ++t) {
    if (!mask[t]) other[t] = (other[t] + 1) % static_cast<int32_t>(kVocab);
  }
  const ForwardResult same = forwarded(*session, {{other}, {}, {mask}, {}}, request);
  CHECK(same_bits(result.logits.data, same.logits.data));
  const Array& attention = result.attentions.at(Site::kAttention)[1];
  for (size_t t = 0; t < 60; ++t) {
    CHECK((row(result.logits, t) == std::vector<float>(kVocab, 0)) == !mask[t]);
    CHECK((row(result.states.at(Site::kHidden)[2], t) == std::vector<float>(24, 0)) == !mask[t]);
    const auto weights = row(attention, t);
    CHECK(std::accumulate(weights.begin(), weights.end(), 0.0) == Catch::Approx(mask[t] ? 1.0 : 0.0).epsilon(1e-5));
    for (size_t k = 0; k < 60; ++k) {
      if (!mask[k] || k > t || t - k >= 20) CHECK(weights[k] == 0);
    }
  }
}

TEST_CASE("session: padding stretches rotary positions that depend on the length, as in Python") {
  auto session = loaded("llama-dynamic");
  const Ids ids = random_ids(30, 5);
  std::vector<uint8_t> mask(30, 0);
  std::fill_n(mask.begin(), 9, uint8_t{1});
  const ForwardResult padded = forwarded(*session, {{ids}, {}, {mask}, {}}), whole = forwarded(*session, {{ids}, {}, {}, {}});
  const ForwardResult alone = forwarded(*session, {{Ids(ids.begin(), ids.begin() + 9)}, {}, {}, {}});
  for (size_t r = 0; r < 9; ++r) {
    CHECK(same_bits(row(padded.logits, r), row(whole.logits, r)));
    if (r > 0) CHECK_FALSE(same_bits(row(padded.logits, r), row(alone.logits, r)));
  }
}

TEST_CASE("session: looking inside changes nothing, and shows what was asked for in the order asked for") {
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    const Ids ids = random_ids(140, 15);
    const ForwardResult plain = forwarded(*session, {{ids}, {}, {}, {}});
    const ForwardResult all = forwarded(*session, {{ids}, {}, {}, {}}, {{"hiddenStates", true}, {"attentions", true}});
    CHECK(plain.states.empty());
    CHECK(plain.attentions.empty());
    CHECK(same_bits(plain.logits.data, all.logits.data));
    const auto& attentions = all.attentions.at(Site::kAttention);
    REQUIRE(attentions.size() == 2);
    const size_t H = session->info().heads, T = ids.size(), window = std::string(type) == "mistral" ? 20 : T;
    REQUIRE(attentions[0].shape == std::vector<size_t>{H, T, T});
    for (size_t h = 0; h < H; ++h) {
      for (size_t t = 0; t < T; ++t) {
        const float* weights = attentions[1].data.data() + (h * T + t) * T;
        CHECK(std::accumulate(weights, weights + T, 0.0) == Catch::Approx(1).epsilon(1e-5));
        for (size_t k = 0; k < T; ++k) {
          if (k > t || t - k >= window) CHECK(weights[k] == 0);
        }
      }
    }
    const ForwardResult some =
        forwarded(*session, {{ids}, {}, {}, {}},
                  {{"logits", false}, {"attentions.layers", std::vector<double>{1, 0}}, {"attentions.heads", std::vector<double>{2, 0}}});
    const auto& chosen = some.attentions.at(Site::kAttention);
    REQUIRE(chosen.size() == 2);
    REQUIRE(chosen[0].shape == std::vector<size_t>{2, T, T});
    const auto head = [&](const Array& array, size_t h) {
      return std::vector<float>(array.data.begin() + h * T * T, array.data.begin() + (h + 1) * T * T);
    };
    CHECK(same_bits(head(chosen[0], 0), head(attentions[1], 2)));
    CHECK(same_bits(head(chosen[1], 1), head(attentions[0], 0)));
    CHECK(some.logits.data.empty());
  }
}

TEST_CASE("session: requests that make no sense are refused by name") {
  const auto session = loaded("gpt2");
  const auto message = [&](ForwardInput input, const Values& request = {}) {
    const Error error = error_of([&] { forwarded(*session, std::move(input), request); });
    CHECK(error.code() == Code::kInvalidArgument);
    return error.message();
  };
  CHECK(message({{}, {}, {}, {}}) == "[forward] inputIds: expected at least one sequence, got none");
  CHECK(message({{{1, 70}}, {}, {}, {}}) == "[forward] inputIds of sequence 0: expected token ids from 0 to 69, got 70");
  CHECK(message({{{1, 2}}, {{0}}, {}, {}}) == "[forward] positionIds of sequence 0: expected 2 entries, got 1");
  CHECK(message({{{1, 2}}, {}, {{1, 1, 1}}, {}}) == "[forward] attentionMask of sequence 0: expected 2 entries, got 3");
  CHECK(message({{{1, 2}}, {}, {{1, 1}, {1, 1}}, {}}) == "[forward] attentionMask: expected one for each of 1 sequences, got 2");
  CHECK(message({{{1, 2}}, {{0, 400}}, {}, {}}) ==
        "[forward] sequence 0: expected positions below 400, which is all the model has, got 400");
  CHECK(message({{{1, 2}}, {}, {}, {{1}}}) == "[forward] decoderInputIds: expected none, the model has no decoder of its own");
  CHECK(message({{{1}}, {}, {}, {}}, {{"attentions.layers", std::vector<double>{2}}}) ==
        "[forward] attentions.layers: expected indices below 2, got 2");
  CHECK(message({{{1}}, {}, {}, {}}, {{"traces", true}}) == "[forward] traces: unknown option");
  CHECK(error_of([&] { session->start_score({{}}); }).message() == "[score] sequence 0: expected at least one token, got none");
  CHECK(error_of([&] { session->start_score({random_ids(401, 1)}); }).code() == Code::kInvalidArgument);
  CHECK(error_of([&] { generated(*session, {random_ids(401, 1)}, {}); }).code() == Code::kInvalidArgument);
  CHECK(error_of([&] { generated(*session, {{1}}, {{"decoderStartTokenId", 1.0}}); }).code() == Code::kInvalidArgument);
  CHECK(error_of([&] { session->compute_gradients({}); }).message() == "[gradients] model: expected one loaded with trainable: true");
}

TEST_CASE("session: what does not fit into memory is refused before any work, with the bytes") {
  const double limit = 3e6;
  const auto session = loaded("llama", {{"memoryLimit", limit}});
  const Memory before = session->memory();
  const Error error = error_of([&] { forwarded(*session, {{random_ids(500, 1)}, {}, {}, {}}, {{"attentions", true}}); });
  CHECK(error.code() == Code::kOutOfMemory);
  CHECK(error.message().find("[forward] request: expected at most ") == 0);
  CHECK(error.message().find("bytes") != std::string::npos);
  CHECK(session->memory().arena == before.arena);
  CHECK(session->memory().cache == before.cache);
  CHECK_NOTHROW(forwarded(*session, {{random_ids(50, 1)}, {}, {}, {}}, {{"attentions", true}}));
  CHECK(error_of([&] { generated(*session, {random_ids(20000, 1)}, {{"maxNewTokens", 1.0}}); }).code() == Code::kOutOfMemory);

  // What an earlier call has left free in the pool is no reason to refuse.
  const auto used = loaded("llama", {{"memoryLimit", 2e6}});
  generated(*used, {random_ids(2000, 1)}, {{"maxNewTokens", 1.0}});
  const Memory after = used->memory();
  CHECK(2e6 - static_cast<double>(after.weights + after.arena + after.cache) < 12 * 100 * 100 * sizeof(float));
  CHECK_NOTHROW(forwarded(*used, {{random_ids(100, 1)}, {}, {}, {}}, {{"attentions", true}}));
  CHECK(used->memory().cache < after.cache / 2);

  Session small(config_of("config.json", model_config("llama")), config_of("load", {{"memoryLimit", 1000.0}}));
  small.plan(std::vector(small.parameters().size(), DType::kF32));
  CHECK(error_of([&] { small.allocate(); }).code() == Code::kOutOfMemory);
  CHECK(small.memory().weights == 0);
}

TEST_CASE("session: the planned workspace covers what a chunk takes") {
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    Session other(config_of("config.json", model_config(type)), Config("load"));
    const Plan plan = other.plan(std::vector(other.parameters().size(), DType::kF32));
    CHECK(session->memory().weights == plan.weights);
    generated(*session, {random_ids(200, 1)}, {{"maxNewTokens", 2.0}});
    CHECK(session->memory().arena <= std::max<size_t>(plan.workspace, size_t{1} << 20) + (size_t{1} << 20));  // grown by blocks of 1 MB
    // 202 positions, rounded up to slabs.
    CHECK(session->memory().cache <= plan.cache_per_token * 384);
  }
}

TEST_CASE("session: memory does not grow with the number of requests") {
  const auto session = loaded("llama");
  const Values options = {{"maxNewTokens", 20.0}, {"doSample", true}, {"numReturnSequences", 2.0}};
  Memory before{};
  for (int i = 0; i < 50; ++i) {
    generated(*session, {random_ids(40, 1), random_ids(3, 1)}, options, 0, 2);
    forwarded(*session, {{random_ids(60, 1)}, {}, {}, {}}, {{"attentions", true}});
    const uint32_t cache = session->create_cache();
    generated(*session, {random_ids(30, 2)}, {{"maxNewTokens", 3.0}}, cache);
    session->delete_cache(cache);
    session->start_generation({random_ids(30, 2)}, Config("generate"), 0)->advance();  // abandoned
    if (i == 0) before = session->memory();
  }
  CHECK(session->memory().arena == before.arena);
  CHECK(session->memory().cache == before.cache);
}

TEST_CASE("session: a cache that is gone on with takes the memory of its text, once") {
  const auto session = loaded("llama"), whole = loaded("llama");
  const Ids text = random_ids(1600, 3);
  const auto memory_after = [&](Session& of, uint32_t cache, size_t length) {
    generated(of, {Ids(text.begin(), text.begin() + static_cast<ptrdiff_t>(length))}, {{"maxNewTokens", 1.0}}, cache);
    return of.memory().cache;
  };
  const uint32_t cache = session->create_cache();
  for (const size_t length : {400, 800, 1200, 1600}) memory_after(*session, cache, length);
  CHECK(session->memory().cache <= memory_after(*whole, whole->create_cache(), 1600) * 5 / 4);  // slabs are not divided
  const size_t before = session->memory().cache;
  memory_after(*session, cache, 1600);  // the same again
  CHECK(session->memory().cache == before);
}

TEST_CASE("session: a warm step allocates nothing") {
  for (const char* type : kModels) {
    INFO(type);
    const auto session = loaded(type);
    const auto run = session->start_generation({random_ids(20, 1), random_ids(3, 2)},
                                               config_of("generate", {{"maxNewTokens", 100.0}, {"topP", 0.9}, {"logprobs", 2.0}}), 0);
    for (int i = 0; i < 4; ++i) run->advance();
    const size_t news = testing::new_count(), buffers = allocation_count();
    for (int i = 0; i < 80; ++i) run->advance();
    CHECK(testing::new_count() == news);
    CHECK(allocation_count() == buffers);
  }
}

TEST_CASE("session: a checkpoint must bring every row, in the planned order of calls") {
  Session session(config_of("config.json", model_config("gpt2")), Config("load"));
  CHECK(error_of([&] { session.allocate(); }).code() == Code::kInvalidArgument);
  CHECK(error_of([&] { session.plan(std::vector<DType>{DType::kF32}); }).code() == Code::kInvalidArgument);
  session.plan(std::vector(session.parameters().size(), DType::kF32));
  CHECK(error_of([&] { session.load_rows(0, 0, 1); }).code() == Code::kInvalidArgument);
  session.allocate();
  const Error missing = error_of([&] { session.finish_loading(); });
  CHECK(missing.code() == Code::kMissingTensor);
  CHECK(missing.message() == "[load] transformer.wte.weight: expected 70 rows, got 0");
  CHECK(error_of([&] { generated(session, {{1}}, {}); }).message() == "[generate] model: expected its weights to be loaded first");
  session.stage(24 * sizeof(float));
  CHECK(error_of([&] { session.load_rows(0, 70, 1); }).code() == Code::kInvalidArgument);
  CHECK(error_of([&] { session.load_rows(0, 0, 2); }).message() ==
        "[load] transformer.wte.weight: expected 192 staged bytes for 2 rows, got 96");
  CHECK(error_of([&] { session.load_rows(1000, 0, 1); }).code() == Code::kInvalidArgument);
  fill(session);
  session.finish_loading();
  CHECK(error_of([&] { session.load_rows(0, 0, 1); }).code() == Code::kInvalidArgument);
  CHECK_NOTHROW(generated(session, {{1}}, {{"maxNewTokens", 1.0}}));
  CHECK(error_of([&] { Session(config_of("config.json", model_config("gpt2")), config_of("load", {{"threads", 2.0}})); }).message() ==
        "[load] threads: unknown option");
  CHECK(error_of([&] {
          Session(config_of("config.json", model_config("gpt2")), config_of("load", {{"dtype", std::string("Q8")}}));
        }).code() == Code::kUnsupported);
}

TEST_CASE("session: matrices are kept in the file's format, or in the one asked for") {
  const auto bytes = [](const Values& options, DType file) {
    Session session(config_of("config.json", model_config("llama")), config_of("load", options));
    return session.plan(std::vector(session.parameters().size(), file)).weights;
  };
  const size_t f32 = bytes({}, DType::kF32), f16 = bytes({}, DType::kF16);
  CHECK(f16 < f32 * 6 / 10);
  CHECK(bytes({{"dtype", std::string("F16")}}, DType::kF32) == f16);
  CHECK(bytes({{"dtype", std::string("F32")}}, DType::kBF16) == f32);
}

TEST_CASE("session: keys and values in f16 take half the memory, and a row's bits still depend on its own sequence alone") {
  const Values half{{"cacheDtype", std::string("F16")}};
  for (const char* type : kModels) {
    INFO(type);
    const auto exact = loaded(type), session = loaded(type, half);
    const auto cache_bytes = [&](const Values& options) {
      Session planned(config_of("config.json", model_config(type)), config_of("load", options));
      return planned.plan(std::vector(planned.parameters().size(), DType::kF32)).cache_per_token;
    };
    CHECK(cache_bytes(half) * 2 <= cache_bytes({}) + 16);  // a block's count of references stays
    const Ids ids = random_ids(150, 1);
    const auto whole = logits_in_parts(*session, ids, 1000), wide = logits_in_parts(*exact, ids, 1000);
    for (const size_t part : {1u, 7u, 16u, 128u}) CHECK(same_bits(logits_in_parts(*session, ids, part)[0], whole[0]));
    // Keys and values are rounded by 2^-11 of their size at most, twice a layer; the numbers here are of size one.
    float worst = 0;
    for (size_t i = 0; i < kVocab; ++i) worst = std::max(worst, std::abs(whole[0][i] - wide[0][i]));
    CHECK(worst > 0);
    CHECK(worst < 8 * 0x1p-11f);

    const Prompts prompts = {random_ids(3, 2), random_ids(40, 3), random_ids(17, 5)};
    const Values options = {{"maxNewTokens", 20.0}, {"doSample", true}, {"seed", 3.0}};
    const Outcome batch = generated(*session, prompts, options);
    for (size_t p = 0; p < prompts.size(); ++p) {
      const Outcome alone = generated(*session, {prompts[p]}, options);
      CHECK(same_bits(alone.logprobs[0], batch.logprobs[p]));
    }
    const uint32_t cache = session->create_cache();
    const Outcome first = generated(*session, {prompts[1]}, options, cache);
    const uint32_t clone = session->clone_cache(cache);
    session->truncate_cache(clone, 7);
    CHECK(same_bits(generated(*session, {prompts[1]}, options, clone).logprobs[0], first.logprobs[0]));
  }
  CHECK(error_of([&] { loaded("gpt2", {{"cacheDtype", std::string("BF16")}}); }).message() ==
        "[load] cacheDtype: expected F32 or F16, got 'BF16'");
}

TEST_CASE("session: a model beyond the address space is planned all the same, and refused with its bytes") {
  const Values config = {{"model_type", std::string("llama")}, {"vocab_size", 32000.0},     {"hidden_size", 4096.0},
                         {"num_attention_heads", 32.0},        {"num_hidden_layers", 32.0}, {"intermediate_size", 11008.0},
                         {"max_position_embeddings", 2048.0}};
  Session session(config_of("config.json", config), config_of("load", {{"memoryLimit", 4e9}}));
  CHECK(session.parameter_count() == 6738415616);  // LLaMA 7B
  const Plan plan = session.plan(std::vector(session.parameters().size(), DType::kF32));
  CHECK(plan.weights > 4 * uint64_t{6738415616});
  CHECK(plan.weights < 4 * uint64_t{6738415616} + 1000000);
  CHECK(plan.cache_per_token >= 2 * 32 * 4096 * sizeof(float));
  const Error error = error_of([&] { session.allocate(); });
  CHECK(error.code() == Code::kOutOfMemory);
  CHECK(error.message().find(std::to_string(plan.weights)) != std::string::npos);
}

TEST_CASE("session: an encoder-decoder model continues its start token, looking at the source") {
  const auto session = loaded("transformer");
  const Prompts sources = {random_ids(7, 1), random_ids(3, 2)};
  const Values options = {{"maxNewTokens", 10.0}, {"decoderStartTokenId", 2.0}};
  const Outcome batch = generated(*session, sources, options);
  for (size_t s = 0; s < 2; ++s) {
    CHECK(generated(*session, {sources[s]}, options).tokens[0] == batch.tokens[s]);
    Ids target = {2};
    target.insert(target.end(), batch.tokens[s].begin(), batch.tokens[s].end());
    const ForwardResult result = forwarded(*session, {{sources[s]}, {}, {}, {target}}, {{"hiddenStates", true}, {"attentions", true}});
    for (size_t i = 0; i < 10; ++i) {
      const auto logits = row(result.logits, i);
      CHECK(std::max_element(logits.begin(), logits.end()) - logits.begin() == batch.tokens[s][i]);
    }
    CHECK(result.states.at(Site::kEncoderHidden).size() == 3);
    CHECK(result.states.at(Site::kDecoderHidden).size() == 3);
    const Array& cross = result.attentions.at(Site::kCrossAttention)[1];
    REQUIRE(cross.shape == std::vector<size_t>{2, 11, sources[s].size()});
    for (size_t q = 0; q < 2 * 11; ++q) {
      const auto weights = row(cross, q);
      CHECK(std::accumulate(weights.begin(), weights.end(), 0.0) == Catch::Approx(1).epsilon(1e-5));
    }
    CHECK(result.attentions.at(Site::kEncoderAttention)[0].shape == std::vector<size_t>{2, sources[s].size(), sources[s].size()});
  }
  CHECK(error_of([&] { generated(*session, sources, {}); }).message() ==
        "[generate] decoderStartTokenId: expected a token to begin with, got none");
  CHECK(error_of([&] { forwarded(*session, {{sources[0]}, {}, {}, {}}); }).code() == Code::kInvalidArgument);
  CHECK(error_of([&] { session->start_score({{1}}); }).code() == Code::kUnsupported);
  const Outcome sampled =
      generated(*session, sources, {{"maxNewTokens", 10.0}, {"bosTokenId", 2.0}, {"doSample", true}, {"numReturnSequences", 2.0}}, 0, 2);
  CHECK(sampled.tokens[0] != sampled.tokens[1]);
}

TEST_CASE("session: beams of several sources find what those of each find alone, with the log-probabilities of a forward pass") {
  const auto session = loaded("transformer");
  const Prompts sources = {random_ids(7, 1), random_ids(3, 2), random_ids(20, 3)};
  const std::vector<double> starts = {2, 3, 2};
  const auto options = [&](std::vector<double> start) -> Values {
    return {{"maxNewTokens", 12.0},
            {"numBeams", 4.0},
            {"numReturnSequences", 2.0},
            {"eosTokenId", 5.0},
            {"encoderRepetitionPenalty", 1.1},
            {"prefillChunk", 2.0},
            {"lengthPenalty", 0.5},
            {"decoderStartTokenId", std::move(start)}};
  };
  const Outcome batch = generated(*session, sources, options(starts), 0, 2);
  for (size_t s = 0; s < sources.size(); ++s) {
    const Outcome alone = generated(*session, {sources[s]}, options({starts[s]}), 0, 2);
    for (size_t r = 0; r < 2; ++r) {
      CHECK(alone.tokens[r] == batch.tokens[2 * s + r]);
      CHECK(same_bits(alone.logprobs[r], batch.logprobs[2 * s + r]));
    }
    CHECK(alone.tokens[0] != alone.tokens[1]);
  }
  const Values plain = {{"maxNewTokens", 12.0}, {"numBeams", 4.0}, {"eosTokenId", 5.0}, {"decoderStartTokenId", 2.0}};
  const Outcome found = generated(*session, {sources[0]}, plain);
  Ids target = {2};
  target.insert(target.end(), found.tokens[0].begin(), found.tokens[0].end());
  const ForwardResult result = forwarded(*session, {{sources[0]}, {}, {}, {target}});
  for (size_t i = 0; i < found.tokens[0].size(); ++i) {
    const auto logits = row(result.logits, i);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    CHECK(found.logprobs[0][i] == Catch::Approx(logits[found.tokens[0][i]] - std::log(sum)).margin(1e-5));
  }
}

TEST_CASE("session: what is given of the decoder's tokens begins them, with the start token or without, and ends nothing") {
  const auto session = loaded("transformer");
  const Prompts sources = {random_ids(7, 1), random_ids(3, 2)};
  const auto after = [&](std::vector<double> prefix, std::vector<double> lengths, double beams) {
    return generated(*session, sources,
                     {{"maxNewTokens", 6.0},
                      {"numBeams", beams},
                      {"eosTokenId", 5.0},
                      {"decoderStartTokenId", 2.0},
                      {"decoderInputIds", std::move(prefix)},
                      {"decoderInputIds.lengths", std::move(lengths)}})
        .logprobs;
  };
  for (const double beams : {1.0, 3.0}) {
    const auto with = after({2, 5, 7}, {3}, beams);
    CHECK(after({5, 7}, {2}, beams) == with);
    CHECK(after({5, 7, 2, 5, 7}, {2, 3}, beams) == with);
    CHECK(!with[0].empty());
    CHECK(after({5, 8}, {2}, beams) != with);
  }
  CHECK(error_of([&] { after({5, 6, 7}, {1, 1, 1}, 1); }).message() ==
        "[generate] decoderInputIds: expected one, or one for each of 2 prompts, got 3");
  CHECK(error_of([&] { generated(*session, sources, {{"decoderStartTokenId", std::vector<double>{1, 2, 3}}}); }).message() ==
        "[generate] decoderStartTokenId: expected one, or one for each of 2 prompts, got 3");
  CHECK(error_of([&] { generated(*session, {random_ids(3, 1), {}}, {{"decoderStartTokenId", 2.0}}); }).message() ==
        "[generate] prompt 1: expected at least one token, got none");
  const auto decoder_only = loaded("gpt2");
  CHECK(error_of([&] { generated(*decoder_only, {{1}}, {{"decoderInputIds", 1.0}, {"decoderInputIds.lengths", 1.0}}); }).message() ==
        "[generate] decoderInputIds: expected none, the model has no decoder of its own");
}

TEST_CASE("session: two hundred beam searches, some abandoned or concluded, give their memory back") {
  for (const char* type : {"transformer", "llama"}) {
    const auto session = loaded(type);
    const bool sources = session->has_encoder();
    const auto round = [&](uint32_t i) {
      Values values = {{"maxNewTokens", 10.0 + i % 9}, {"numBeams", 2.0 + i % 4}, {"eosTokenId", 5.0}, {"prefillChunk", 8.0}};
      if (sources) values.emplace_back("decoderStartTokenId", 2.0);
      const auto run =
          session->start_generation({random_ids(1 + i * 7 % 40, i), random_ids(1 + i % 5, i + 1)}, config_of("generate", values), 0);
      for (uint32_t step = 0; step < i % 17; ++step) run->advance();
      if (i % 3 == 0) finish(*run, 2);
      if (i % 3 == 1) CHECK(run->conclude().done);
    };
    for (uint32_t i = 0; i < 60; ++i) round(i);
    const size_t held = session->memory().cache;
    for (uint32_t i = 0; i < 200; ++i) round(i % 60);
    CHECK(session->memory().cache == held);
  }
  const auto session = loaded("gpt2", {{"memoryLimit", 3e7}});
  CHECK(error_of([&] { generated(*session, {{1}}, {{"numBeams", 65536.0}}); }).code() == Code::kOutOfMemory);
  CHECK(error_of([&] { generated(*session, {{1}, {2}}, {{"numBeams", 2.0}}, session->create_cache()); }).code() == Code::kInvalidArgument);
  CHECK(error_of([&] { generated(*session, {{1}}, {{"numBeams", 2.0}}, session->create_cache()); }).code() == Code::kUnsupported);
}

}  // namespace wf
