// Forward passes of every kind of model, and what can be looked at in them. Weights are drawn, so the tests need no files.
#include "session/forward.hpp"

#include <algorithm>
#include <catch_amalgamated.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "core/error.hpp"
#include "core/rng.hpp"
#include "session/session.hpp"

namespace wf {

namespace {

using Ids = std::vector<int32_t>;
using Mask = std::vector<uint8_t>;
using Values = std::vector<std::pair<std::string, Config::Value>>;

constexpr size_t kVocab = 60;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

Config config_of(const std::string& where, const Values& values) {
  Config config(where);
  for (const auto& [key, value] : values) config.set(key, value);
  return config;
}

// Tiny models whose weights are large enough that attention is not dull.
Values model_config(const std::string& type) {
  const double V = kVocab;
  Values values = {{"vocab_size", V}, {"initializer_range", 0.4}, {"init_std", 0.4}};
  const auto add = [&](const Values& more) { values.insert(values.end(), more.begin(), more.end()); };
  const auto both = [&](double heads) {
    add({{"d_model", 16.0},
         {"encoder_layers", 2.0},
         {"decoder_layers", 3.0},
         {"encoder_attention_heads", heads},
         {"decoder_attention_heads", 2.0},
         {"encoder_ffn_dim", 24.0},
         {"decoder_ffn_dim", 20.0}});
  };
  if (type == "encoder" || type == "masked") {
    both(4);
    std::erase_if(values, [](const auto& value) { return value.first == "decoder_layers"; });
    add({{"model_type", std::string("transformer")}, {"decoder_layers", 0.0}});
    if (type == "masked") add({{"architectures", std::vector<std::string>{"TransformerForMaskedLM"}}});
  } else if (type == "t5") {
    add({{"model_type", type},
         {"d_model", 16.0},
         {"num_layers", 2.0},
         {"num_heads", 2.0},
         {"d_kv", 8.0},
         {"d_ff", 24.0},
         {"relative_attention_num_buckets", 8.0},
         {"relative_attention_max_distance", 16.0},
         {"initializer_factor", 2.0}});
  } else if (type == "llama") {
    add({{"model_type", type},
         {"hidden_size", 24.0},
         {"num_attention_heads", 4.0},
         {"num_key_value_heads", 2.0},
         {"num_hidden_layers", 2.0},
         {"intermediate_size", 40.0}});
  } else if (type == "gpt2") {
    add({{"model_type", type}, {"n_embd", 24.0}, {"n_head", 3.0}, {"n_layer", 2.0}, {"n_positions", 400.0}});
  } else {
    both(type == "transformer" ? 4 : 2);
    add({{"model_type", type}, {"pad_token_id", 1.0}, {"max_position_embeddings", 64.0}});
  }
  return values;
}

std::unique_ptr<Session> made(const Values& config, const Values& options = {}) {
  auto session = std::make_unique<Session>(config_of("config.json", config), config_of("load", options));
  session->plan(std::vector(session->parameters().size(), DType::kF32));
  session->allocate();
  for (size_t p = 0; p < session->parameters().size(); ++p) session->draw_rows(3, p, 0, session->parameters()[p].stored_rows());
  session->finish_loading();
  return session;
}

std::unique_ptr<Session> made(const std::string& type, const Values& options = {}) { return made(model_config(type), options); }

// No padding token (1) among them.
Ids random_ids(size_t count, uint64_t seed) {
  Ids ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = 2 + static_cast<int32_t>(uniform({seed}, i) * (kVocab - 2));
  return ids;
}

ForwardResult forwarded(Session& session, ForwardInput input, const Values& request = {}) {
  const auto forward = session.start_forward(std::move(input), config_of("forward", request));
  while (!forward->advance()) {}
  return forward->results()[0];
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<float> row(const Array& array, size_t r) {
  const size_t cols = array.shape.back();
  return {array.data.begin() + static_cast<ptrdiff_t>(r * cols), array.data.begin() + static_cast<ptrdiff_t>((r + 1) * cols)};
}

const Array& traced(const ForwardResult& result, const std::string& name) {
  for (const auto& [known, array] : result.trace) {
    if (known == name) return array;
  }
  FAIL("no " + name);
  return result.logits;
}

Error error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error;
  }
  return {Code::kInternal, "no error"};
}

struct Padded {
  Ids ids, positions;
  Mask mask;
  std::vector<size_t> places;
};

// `ids` with that many paddings before, between the second and the third, and behind.
Padded padded(const Ids& ids, size_t left, size_t between, size_t right, int32_t padding) {
  Padded result;
  const auto pad = [&](size_t count) {
    result.ids.insert(result.ids.end(), count, padding);
    result.mask.insert(result.mask.end(), count, 0);
  };
  pad(left);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == 2) pad(between);
    result.places.push_back(result.ids.size());
    result.ids.push_back(ids[i]);
    result.mask.push_back(1);
  }
  pad(right);
  return result;
}

const Values kAll = {{"hiddenStates", true}, {"attentions", true}, {"trace", true}};

}  // namespace

TEST_CASE("forward: an encoder alone gives states, every token seeing all of them") {
  const auto session = made("encoder");
  const Ids ids = random_ids(7, 1);
  const ForwardResult result = forwarded(*session, {{ids}, {}, {}, {}}, kAll);
  CHECK(result.logits.shape.empty());
  CHECK(result.pooled.shape.empty());
  REQUIRE(result.last_hidden_state.shape == std::vector<size_t>{7, 16});
  REQUIRE(result.states.at(Site::kHidden).size() == 3);
  CHECK(same_bits(result.last_hidden_state.data, result.states.at(Site::kHidden)[2].data));
  const Array& attention = result.attentions.at(Site::kAttention)[1];
  REQUIRE(attention.shape == std::vector<size_t>{4, 7, 7});
  CHECK(*std::min_element(attention.data.begin(), attention.data.end()) > 0);
  CHECK(session->info().head == HeadKind::kNone);

  const auto masked = made("masked");
  const ForwardResult predicted = forwarded(*masked, {{ids}, {}, {}, {}}, {{"logitLens", true}});
  CHECK(predicted.logits.shape == std::vector<size_t>{7, kVocab});
  CHECK(predicted.last_hidden_state.shape.empty());
  REQUIRE(predicted.lens.size() == 3);
  CHECK(same_bits(predicted.lens[2].data, predicted.logits.data));
}

TEST_CASE("forward: an encoder's padding is taken out at the door, wherever it is") {
  const auto session = made("encoder");
  const Ids ids = random_ids(6, 2);
  for (const auto& [left, between, right] : {std::array{0, 0, 3}, std::array{2, 0, 0}, std::array{1, 2, 1}}) {
    const Padded some = padded(ids, left, between, right, 0);
    Ids positions(some.places.begin(), some.places.end());
    const ForwardResult result = forwarded(*session, {{some.ids}, {}, {some.mask}, {}}, {{"attentions", true}});
    const ForwardResult alone = forwarded(*session, {{ids}, {positions}, {}, {}}, {{"attentions", true}});
    const size_t T = some.ids.size();
    for (size_t t = 0; t < ids.size(); ++t) {
      CHECK(same_bits(row(result.last_hidden_state, some.places[t]), row(alone.last_hidden_state, t)));
      for (size_t k = 0; k < ids.size(); ++k) {
        CHECK(result.attentions.at(Site::kAttention)[0].data[some.places[t] * T + some.places[k]] ==
              alone.attentions.at(Site::kAttention)[0].data[t * ids.size() + k]);
      }
    }
    for (size_t t = 0; t < T; ++t) CHECK((row(result.last_hidden_state, t) == std::vector<float>(16, 0)) == !some.mask[t]);
  }
  const ForwardResult nothing = forwarded(*session, {{ids}, {}, {Mask(6, 0)}, {}});
  CHECK(nothing.last_hidden_state.data == std::vector<float>(6 * 16, 0));
}

TEST_CASE("forward: an encoder alone does not generate, and says what it is for") {
  for (const auto& [type, use] : {std::pair("encoder", "embed"), std::pair("masked", "fillMask")}) {
    const auto session = made(type);
    const Error generation = error_of([&] { session->start_generation({{3}}, config_of("generate", {}), 0); });
    CHECK(generation.code() == Code::kUnsupported);
    CHECK(generation.message() ==
          "[generate] model: expected one that predicts the next token, got transformer, an encoder alone, which is for " +
              std::string(use) + " and forward");
    CHECK(error_of([&] { session->start_score({{3, 4}}); }).code() == Code::kUnsupported);
  }
}

TEST_CASE("forward: positions that do not count the padding token") {
  const auto session = made("m2m_100");
  const Ids source = random_ids(6, 3), target = random_ids(5, 4);
  const ForwardResult alone = forwarded(*session, {{source}, {}, {}, {target}});
  // Wherever the padding is, the others stand where they would stand without it, in the encoder and in the decoder.
  for (const auto& [left, between, right] : {std::array{0, 0, 3}, std::array{2, 0, 0}, std::array{1, 2, 1}}) {
    const Padded from = padded(source, left, between, right, 1), to = padded(target, right, between, left, 1);
    const ForwardResult result = forwarded(*session, {{from.ids}, {}, {from.mask}, {to.ids}, {}, {to.mask}});
    for (size_t t = 0; t < target.size(); ++t) CHECK(same_bits(row(result.logits, to.places[t]), row(alone.logits, t)));
  }
  // A padding token that is not hidden is one like the others, before the first position.
  Ids shown = source;
  shown[2] = 1;
  const Mask mask(6, 1);
  CHECK(same_bits(forwarded(*session, {{shown}, {}, {mask}, {target}}).logits.data,
                  forwarded(*session, {{shown}, {}, {}, {target}}).logits.data));
}

TEST_CASE("forward: where only distances count, padding between tokens keeps its own, unseen") {
  const auto session = made("t5");
  const Ids source = random_ids(8, 5), target = random_ids(6, 6);
  const auto logits = [&](const Padded& from, const Padded& to) {
    const ForwardResult result = forwarded(*session, {{from.ids}, {}, {from.mask}, {to.ids}, {}, {to.mask}}, kAll);
    std::vector<float> shown;
    for (const size_t place : to.places) {
      const auto values = row(result.logits, place);
      shown.insert(shown.end(), values.begin(), values.end());
    }
    const Array& cross = result.attentions.at(Site::kCrossAttention)[1];
    const Array& scores = traced(result, "decoder.1.crossAttention.scores");
    REQUIRE(cross.shape == std::vector<size_t>{2, to.ids.size(), from.ids.size()});
    for (size_t h = 0; h < 2; ++h) {
      for (size_t t = 0; t < to.ids.size(); ++t) {
        for (size_t s = 0; s < from.ids.size(); ++s) {
          const size_t at = (h * to.ids.size() + t) * from.ids.size() + s;
          const bool visible = to.mask[t] && from.mask[s];
          CHECK((cross.data[at] > 0) == visible);
          CHECK((scores.data[at] > kHidden) == visible);
        }
      }
    }
    return shown;
  };
  const std::vector<float> alone = logits(padded(source, 0, 0, 0, 0), padded(target, 0, 0, 0, 0));
  CHECK(same_bits(logits(padded(source, 3, 0, 2, 0), padded(target, 1, 0, 4, 0)), alone));
  const auto apart = logits(padded(source, 0, 3, 0, 0), padded(target, 0, 0, 0, 0));
  CHECK_FALSE(same_bits(apart, alone));
  CHECK(same_bits(logits(padded(source, 1, 3, 2, 7), padded(target, 0, 0, 0, 0)), apart));
  const auto apart_in_target = logits(padded(source, 0, 0, 0, 0), padded(target, 0, 2, 0, 0));
  CHECK_FALSE(same_bits(apart_in_target, alone));
  CHECK(same_bits(logits(padded(source, 0, 0, 0, 0), padded(target, 2, 2, 1, 9)), apart_in_target));
  CHECK(error_of([&] { forwarded(*session, {{{2, 3}}, {{0, 1}}, {}, {{2}}}); }).message() ==
        "[forward] positionIds: expected none, the model knows of distances only");
}

TEST_CASE("forward: a source has a vocabulary of its own") {
  Values config = model_config("transformer");
  config.insert(config.end(), {{"share_encoder_decoder_embeddings", false}, {"encoder_vocab_size", 9.0}});
  const auto session = made(config);
  CHECK(forwarded(*session, {{{8, 1}}, {}, {}, {{59}}}).logits.shape == std::vector<size_t>{1, kVocab});
  CHECK(error_of([&] { forwarded(*session, {{{9}}, {}, {}, {{59}}}); }).message() ==
        "[forward] inputIds of sequence 0: expected token ids from 0 to 8, got 9");
  CHECK(error_of([&] { forwarded(*session, {{{8}}, {}, {}, {{60}}}); }).message() ==
        "[forward] decoderInputIds of sequence 0: expected token ids from 0 to 59, got 60");
}

TEST_CASE("forward: a trace shows how attention comes about, and asking changes nothing") {
  for (const char* type : {"gpt2", "llama", "transformer", "t5", "encoder", "m2m_100"}) {
    INFO(type);
    const auto session = made(type);
    const bool both = session->has_encoder(), alone = session->info().encoder_only;
    const Ids ids = random_ids(both ? 6 : 140, 8), target = both ? random_ids(5, 9) : Ids();
    const ForwardInput input{{ids}, {}, {}, both ? std::vector<Ids>{target} : std::vector<Ids>()};
    const ForwardResult plain = forwarded(*session, input), result = forwarded(*session, input, kAll);
    CHECK(same_bits(plain.logits.data, result.logits.data));
    CHECK(same_bits(plain.last_hidden_state.data, result.last_hidden_state.data));
    struct Stack {
      std::string name, block;
      Site site;
      size_t layers;
    };
    std::vector<Stack> stacks = {{"layers.", "attention.", Site::kAttention, session->info().layers}};
    if (both) {
      const size_t encoder_layers = 2;
      stacks = {{"encoder.", "attention.", Site::kEncoderAttention, encoder_layers},
                {"decoder.", "attention.", Site::kDecoderAttention, session->info().layers},
                {"decoder.", "crossAttention.", Site::kCrossAttention, session->info().layers}};
    }
    for (const auto& [name, block, site, layers] : stacks) {
      for (size_t l = 0; l < layers; ++l) {
        const std::string at = name + std::to_string(l) + "." + block;
        INFO(at);
        const Array &q = traced(result, at + "query"), &k = traced(result, at + "key"), &v = traced(result, at + "value");
        const Array &scores = traced(result, at + "scores"), &heads = traced(result, at + "heads");
        const Array& weights = result.attentions.at(site)[l];
        const size_t H = q.shape[0], T = q.shape[1], S = k.shape[1], Dk = q.shape[2], Dv = v.shape[2], group = H / k.shape[0];
        REQUIRE(scores.shape == std::vector<size_t>{H, T, S});
        REQUIRE(weights.shape == scores.shape);
        REQUIRE(heads.shape == std::vector<size_t>{H, T, Dv});
        const double scale = std::string(type) == "t5" ? 1 : 1 / std::sqrt(static_cast<double>(Dk));
        const bool causal = !alone && site != Site::kEncoderAttention && site != Site::kCrossAttention;
        const bool biased = std::string(type) == "t5" && site != Site::kCrossAttention;
        double off = 0;
        for (size_t h = 0; h < H; ++h) {
          for (size_t t = 0; t < T; ++t) {
            const size_t at_row = (h * T + t) * S, seen = causal ? t + 1 : S;
            double highest = kHidden, sum = 0;
            for (size_t s = 0; s < S; ++s) {
              if (s >= seen) {
                CHECK(scores.data[at_row + s] == kHidden);
                continue;
              }
              double dot = 0;
              for (size_t i = 0; i < Dk; ++i)
                dot += static_cast<double>(q.data[(h * T + t) * Dk + i]) * k.data[(h / group * S + s) * Dk + i];
              if (!biased) off = std::max(off, std::abs(dot * scale - scores.data[at_row + s]) / (1 + std::abs(dot * scale)));
              highest = std::max<double>(highest, scores.data[at_row + s]);
            }
            for (size_t s = 0; s < seen; ++s) sum += std::exp(scores.data[at_row + s] - highest);
            for (size_t i = 0; i < Dv; ++i) {
              double mixed = 0;
              for (size_t s = 0; s < seen; ++s) {
                const double weight = std::exp(scores.data[at_row + s] - highest) / sum;
                if (i == 0) off = std::max(off, std::abs(weight - weights.data[at_row + s]));
                mixed += weight * v.data[(h / group * S + s) * Dv + i];
              }
              off = std::max(off, std::abs(mixed - heads.data[(h * T + t) * Dv + i]) / (1 + std::abs(mixed)));
            }
          }
        }
        CHECK(off < 1e-5);
        if (site != Site::kCrossAttention) CHECK(traced(result, name + std::to_string(l) + ".feedForward.inner").shape[0] == T);
      }
    }
  }
}

TEST_CASE("forward: some layers and heads of a trace") {
  const auto session = made("llama");
  const Ids ids = random_ids(5, 10);
  const ForwardResult all = forwarded(*session, {{ids}, {}, {}, {}}, kAll);
  const ForwardResult some = forwarded(*session, {{ids}, {}, {}, {}},
                                       {{"logits", false},
                                        {"trace.layers", std::vector<double>{1}},
                                        {"trace.heads", std::vector<double>{3, 2}},
                                        {"attentions.heads", std::vector<double>{1}}});
  CHECK(some.trace.size() == 6);
  const auto head = [](const Array& array, size_t h) {
    const ptrdiff_t size = static_cast<ptrdiff_t>(array.shape[1] * array.shape[2]), begin = static_cast<ptrdiff_t>(h) * size;
    return std::vector(array.data.begin() + begin, array.data.begin() + begin + size);
  };
  for (const char* what : {"query", "scores", "heads"}) {
    const Array &part = traced(some, "layers.1.attention." + std::string(what)),
                &whole = traced(all, "layers.1.attention." + std::string(what));
    REQUIRE(part.shape[0] == 2);
    CHECK(same_bits(head(part, 0), head(whole, 3)));
    CHECK(same_bits(head(part, 1), head(whole, 2)));
  }
  // Query heads 3 and 2 share the second head of keys.
  const Array& key = traced(some, "layers.1.attention.key");
  REQUIRE(key.shape == std::vector<size_t>{1, 5, 6});
  CHECK(same_bits(head(key, 0), head(traced(all, "layers.1.attention.key"), 1)));
  REQUIRE(some.attentions.at(Site::kAttention).size() == 2);
  CHECK(same_bits(some.attentions.at(Site::kAttention)[0].data, head(all.attentions.at(Site::kAttention)[0], 1)));
}

TEST_CASE("forward: the logit lens ends in the logits") {
  for (const char* type : {"gpt2", "llama", "transformer", "t5", "masked"}) {
    INFO(type);
    const auto session = made(type);
    const bool both = session->has_encoder();
    const Ids ids = random_ids(both ? 6 : 140, 11);
    const ForwardInput input{{ids}, {}, {}, both ? std::vector<Ids>{random_ids(5, 12)} : std::vector<Ids>()};
    const ForwardResult plain = forwarded(*session, input), result = forwarded(*session, input, {{"logitLens", true}});
    CHECK(same_bits(plain.logits.data, result.logits.data));
    CHECK(result.states.empty());
    REQUIRE(result.lens.size() == session->info().layers + 1);
    CHECK(same_bits(result.lens.back().data, result.logits.data));
    const ForwardResult top = forwarded(*session, input, {{"logits", false}, {"logitLens.topK", 3.0}});
    REQUIRE(top.lens.size() == result.lens.size());
    for (size_t l = 0; l < top.lens.size(); ++l) {
      REQUIRE(top.lens[l].shape == std::vector<size_t>{result.lens[l].shape[0], 3});
      for (size_t t = 0; t < top.lens[l].shape[0]; ++t) {
        const auto logits = row(result.lens[l], t), logprobs = row(top.lens[l], t);
        double sum = 0;
        for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
        for (size_t i = 0; i < 3; ++i) {
          const float logit = logits[static_cast<size_t>(top.lens_ids[l][t * 3 + i])];
          CHECK(std::count_if(logits.begin(), logits.end(), [&](float other) { return other > logit; }) == static_cast<ptrdiff_t>(i));
          CHECK(logprobs[i] == Catch::Approx(logit - std::log(sum)).margin(1e-5));
        }
      }
    }
  }
  const auto bare = made("encoder");
  CHECK(error_of([&] { forwarded(*bare, {{{2}}, {}, {}, {}}, {{"logitLens", true}}); }).code() == Code::kUnsupported);
  const auto session = made("gpt2");
  CHECK(error_of([&] { forwarded(*session, {{{2}}, {}, {}, {}}, {{"logitLens.topK", 61.0}}); }).message() ==
        "[forward] logitLens.topK: expected at most 60, all tokens there are, got 61");
}

TEST_CASE("forward: what is asked for is counted before any work") {
  const auto session = made("gpt2", {{"memoryLimit", 3e6}});
  const ForwardInput input{{random_ids(300, 13)}, {}, {}, {}};
  CHECK(forwarded(*session, input, {{"logits", false}}).logits.shape.empty());
  const size_t before = session->memory().arena;
  for (const char* wanted : {"trace", "attentions"}) {
    const Error error = error_of([&] { forwarded(*session, input, {{wanted, true}}); });
    CHECK(error.code() == Code::kOutOfMemory);
    CHECK(error.message().find("bytes") != std::string::npos);
  }
  CHECK(session->memory().arena == before);
}

TEST_CASE("forward: arguments that do not fit the model are refused by name") {
  const auto session = made("transformer");
  const auto message = [&](ForwardInput input, const Values& request = {}) {
    return error_of([&] { forwarded(*session, std::move(input), request); }).message();
  };
  CHECK(message({{{2}}, {}, {}, {{2}}, {{0}}}) == "[forward] tokenTypeIds: expected none, the model has no token types");
  CHECK(message({{{2}}, {}, {}, {{2, 3}}, {}, {{1}}}) == "[forward] decoderAttentionMask of sequence 0: expected 2 entries, got 1");
  CHECK(message({{{2}}, {}, {}, {{2}}}, {{"trace.layers", std::vector<double>{3}}}) ==
        "[forward] trace.layers: expected indices below 3, got 3");
  CHECK(message({{{2}}, {}, {}, {{2}}}, {{"trace.what", true}}) == "[forward] trace.what: unknown option");
  const auto alone = made("encoder");
  CHECK(error_of([&] { forwarded(*alone, {{{2}}, {}, {}, {{2}}}); }).message() ==
        "[forward] decoderInputIds: expected none, the model has no decoder of its own");
}

}  // namespace wf
