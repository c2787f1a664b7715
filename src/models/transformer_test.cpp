// Encoder-decoders against Python: the original against plain PyTorch (wasm-tests/python/transformer_reference.py), its descendants
// against transformers.
#include <catch_amalgamated.hpp>

#include "models/testing.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

struct Case {
  std::vector<int32_t> source, target, greedy;
  std::string at;  // where its expected values begin
};

std::vector<Case> cases(const Fixture& fixture) {
  std::vector<Case> all;
  for (const Json& one : fixture.answers["cases"].items) {
    const bool has_greedy = one.fields.contains("greedy");
    all.push_back({one["inputIds"].list<int32_t>(), one["decoderInputIds"].list<int32_t>(),
                   has_greedy ? one["greedy"].list<int32_t>() : std::vector<int32_t>(), "case." + std::to_string(all.size()) + "."});
  }
  return all;
}

// Caches of one sequence: of the decoder itself, and of its source.
struct Pair {
  Pair(Runner& runner, const Model& model) : self(runner.cache()), cross(runner.pool(), std::vector<size_t>(model.info().layers, 0)) {}
  KvCache self, cross;
};

void read_source(Runner& runner, const EncoderDecoder& model, const std::vector<int32_t>& source, KvCache& cross) {
  Context ctx{runner.arena()};
  const auto mark = runner.arena().mark();
  const Ragged rows({source});
  KvCache* const caches[] = {&cross};
  model.remember(ctx, model.encode(ctx, rows.batch()), rows.offsets, caches);
  runner.arena().release(mark);
}

std::vector<float> next_logits(Runner& runner, const EncoderDecoder& model, Pair& caches, const std::vector<int32_t>& tokens) {
  Context ctx{runner.arena()};
  const auto mark = runner.arena().mark();
  const Ragged rows({tokens}, {caches.self.length()});
  KvCache* const self[] = {&caches.self};
  KvCache* const cross[] = {&caches.cross};
  const auto logits = values_of(model.head(ctx, model.decode(ctx, rows.batch(), self, cross)));
  caches.self.advance(tokens.size());
  runner.arena().release(mark);
  return logits;
}

}  // namespace

TEST_CASE("logits, states and attention of encoder and decoder are those of Python", "[models][transformer]") {
  const std::string name =
      GENERATE("transformer", "transformer-gelu", "transformer-learned", "transformer-no-positions", "transformer-no-residual",
               "transformer-no-residual-pre-norm", "transformer-one-head", "transformer-pre-norm", "transformer-scale",
               "transformer-separate", "transformer-untied", "transformer-value-size", "bart", "t5", "flan-t5");
  CAPTURE(name);
  const Fixture fixture = read_fixture(name);
  const bool trainable = GENERATE(false, true);
  const auto model = load_model(fixture, trainable);
  const EncoderDecoder& pair = *model->encoder_decoder();
  for (const Case& one : cases(fixture)) {
    Arena arena;
    Recorder recorder;
    Context ctx{arena, nullptr, &recorder};
    const Ragged source({one.source}), target({one.target});
    const Tensor memory = pair.encode(ctx, source.batch());
    const auto logits = values_of(pair.head(ctx, pair.decode(ctx, target.batch(), memory, source.offsets)));
    const auto expected = [&](const std::string& name) { return fixture.expected.at(one.at + name).floats(); };
    CHECK(off_by(logits, expected("logits")) < 1e-4);
    const auto compare_states = [&](Site site, size_t layers, const std::string& name) {
      for (size_t l = 0; l <= layers; ++l) CHECK(off_by(recorder.states.at({site, l}), expected(name + "." + std::to_string(l))) < 1e-4);
    };
    const auto compare_weights = [&](Site site, size_t layers, const std::string& name) {
      for (size_t l = 0; l < layers; ++l) {
        const auto got = recorder.attention(site, l), want = expected(name + "." + std::to_string(l));
        REQUIRE(got.size() == want.size());
        for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) < 2e-5f);
      }
    };
    compare_states(Site::kEncoderHidden, pair.encoder_layers(), "encoder_hidden");
    compare_states(Site::kDecoderHidden, pair.info().layers, "decoder_hidden");
    // The weights of long texts are left out of the fixtures.
    if (!fixture.expected.contains(one.at + "encoder_attention.0")) continue;
    compare_weights(Site::kEncoderAttention, pair.encoder_layers(), "encoder_attention");
    compare_weights(Site::kDecoderAttention, pair.info().layers, "decoder_attention");
    compare_weights(Site::kCrossAttention, pair.info().layers, "cross_attention");
  }
}

TEST_CASE("greedy decoding over remembered sources is that of PyTorch", "[models][transformer]") {
  const Fixture fixture = read_fixture("transformer");
  const auto model = load_model(fixture);
  const EncoderDecoder& pair = *model->encoder_decoder();
  const auto start = static_cast<int32_t>(fixture.config.size("decoder_start_token_id"));
  Runner runner(*model);
  for (const Case& one : cases(fixture)) {
    Pair caches(runner, *model);
    read_source(runner, pair, one.source, caches.cross);
    std::vector<int32_t> got;
    while (got.size() < one.greedy.size()) {
      const auto logits = next_logits(runner, pair, caches, {got.empty() ? start : got.back()});
      got.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    CHECK(got == one.greedy);
  }
}

TEST_CASE("a target's logits have the same bits by steps, in chunks, at once, without caches, and beside other targets",
          "[models][transformer]") {
  const std::string name = GENERATE("transformer", "transformer-pre-norm", "transformer-value-size", "bart", "flan-t5");
  CAPTURE(name);
  const Fixture fixture = read_fixture(name);
  const auto model = load_model(fixture);
  const EncoderDecoder& pair = *model->encoder_decoder();
  const auto V = static_cast<ptrdiff_t>(model->info().vocab_size);
  Runner runner(*model);
  const auto source = random_tokens(37, 40, 1), other_source = random_tokens(3, 40, 2), target = random_tokens(35, 40, 3);
  Context ctx{runner.arena()};
  const Ragged sources({other_source, source}), targets({random_tokens(5, 40, 4), target});
  const auto all = values_of(pair.head(ctx, pair.decode(ctx, targets.batch(), pair.encode(ctx, sources.batch()), sources.offsets)));
  const std::vector<float> expected(all.begin() + 5 * V, all.end());
  for (const size_t chunk : {1, 2, 7, 16, 35}) {
    CAPTURE(chunk);
    Pair caches(runner, *model);
    read_source(runner, pair, source, caches.cross);
    std::vector<float> got;
    for (size_t t = 0; t < target.size(); t += chunk) {
      const size_t end = std::min(t + chunk, target.size());
      const auto part =
          next_logits(runner, pair, caches, {target.begin() + static_cast<ptrdiff_t>(t), target.begin() + static_cast<ptrdiff_t>(end)});
      got.insert(got.end(), part.begin(), part.end());
    }
    CHECK(same_bits(got, expected));
  }
}

TEST_CASE("positions beyond the configured length are computed", "[models][transformer]") {
  Config config = read_fixture("transformer").config;
  config.set("max_position_embeddings", 8.0);
  const auto model = random_model(config);
  const EncoderDecoder& pair = *model->encoder_decoder();
  Arena arena;
  Context ctx{arena};
  const Ragged source({random_tokens(40, 40, 1)}), target({random_tokens(50, 40, 2)});
  for (const float logit : values_of(pair.head(ctx, pair.decode(ctx, target.batch(), pair.encode(ctx, source.batch()), source.offsets)))) {
    CHECK(std::isfinite(logit));
  }
}

TEST_CASE("an encoder-decoder has no forward pass of one text", "[models][transformer]") {
  const auto model = make_model(read_fixture("transformer").config);
  Arena arena;
  Context ctx{arena};
  const Ragged rows({{1, 2}});
  CHECK_THROWS_AS(model->forward(ctx, rows.batch(), {}), Error);
}
