// A row's result depends only on its own sequence: the same bits alone and in a batch, at once, in chunks and token by token, with
// a fresh, a truncated and a copied cache, without a cache, and whether or not somebody looks.
#include <catch_amalgamated.hpp>

#include "models/testing.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

struct Case {
  const char* name;
  const char* config;
};

const Case kCases[] = {
    {"gpt2", R"({"model_type": "gpt2", "n_embd": 36, "n_head": 3, "n_layer": 2, "n_positions": 96, "vocab_size": 50})"},
    {"llama, grouped heads", R"({"model_type": "llama", "hidden_size": 40, "intermediate_size": 52, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 50, "tie_word_embeddings": true})"},
    {"mistral, window of 9", R"({"model_type": "mistral", "hidden_size": 24, "intermediate_size": 33, "num_attention_heads": 4,
      "num_key_value_heads": 1, "num_hidden_layers": 3, "vocab_size": 50, "sliding_window": 9})"},
    {"qwen3, a windowed layer behind a full one", R"({"model_type": "qwen3", "hidden_size": 24, "intermediate_size": 33,
      "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 10, "num_hidden_layers": 2, "vocab_size": 50,
      "use_sliding_window": true, "sliding_window": 20, "max_window_layers": 1})"},
    {"gpt_neox", R"({"model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2,
      "num_hidden_layers": 2, "vocab_size": 50})"},
    {"opt, post-norm", R"({"model_type": "opt", "hidden_size": 32, "ffn_dim": 40, "num_attention_heads": 2, "num_hidden_layers": 2,
      "vocab_size": 50, "max_position_embeddings": 96, "do_layer_norm_before": false, "word_embed_proj_dim": 20})"},
    {"bloom", R"({"model_type": "bloom", "hidden_size": 30, "n_head": 5, "n_layer": 2, "vocab_size": 50})"},
};

constexpr size_t V = 50;

using Tokens = std::vector<int32_t>;

Tokens part(const Tokens& tokens, size_t begin, size_t end) {
  return {tokens.begin() + static_cast<ptrdiff_t>(begin), tokens.begin() + static_cast<ptrdiff_t>(std::min(end, tokens.size()))};
}

std::vector<float> rows(const std::vector<float>& logits, size_t begin, size_t end) {
  return {logits.begin() + static_cast<ptrdiff_t>(begin * V), logits.begin() + static_cast<ptrdiff_t>(end * V)};
}

// All logits of `tokens`, whose first ones the cache may hold already, in chunks.
std::vector<float> in_chunks(Runner& runner, const Tokens& tokens, KvCache& cache, size_t chunk) {
  std::vector<float> all;
  while (cache.length() < tokens.size()) {
    const auto logits = runner.logits({part(tokens, cache.length(), cache.length() + chunk)}, {&cache});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace

TEST_CASE("a sequence's logits have the same bits however they are computed", "[models][same-bits]") {
  const Case& one = GENERATE(from_range(kCases));
  const DType dtype = GENERATE(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8, DType::kQ4);
  CAPTURE(one.name, name_of(dtype));
  const auto model = random_model(config_of(one.config), dtype);
  Runner runner(*model);
  const size_t T = 53;
  const Tokens tokens = random_tokens(T, V, 1), other = random_tokens(21, V, 2), third = random_tokens(70, V, 3);
  KvCache fresh = runner.cache();
  const auto whole = runner.logits({tokens}, {&fresh});
  for (const float logit : whole) REQUIRE(std::isfinite(logit));

  SECTION("without a cache") { CHECK(same_bits(runner.logits({tokens}), whole)); }

  SECTION("on any number of threads") {
    for (const size_t threads : {2, 3, 8}) {
      CAPTURE(threads);
      ThreadPool pool(threads);
      Runner shared(*model, &pool);
      CHECK(same_bits(shared.logits({tokens}), whole));
      KvCache cache = shared.cache();
      CHECK(same_bits(in_chunks(shared, tokens, cache, 17), whole));
    }
  }

  SECTION("in chunks and token by token") {
    for (const size_t chunk : {1, 2, 3, 15, 16, 17, 40}) {
      CAPTURE(chunk);
      KvCache cache = runner.cache();
      CHECK(same_bits(in_chunks(runner, tokens, cache, chunk), whole));
    }
  }

  SECTION("in a batch, in any place") {
    const auto before = runner.logits({other, tokens, third});
    CHECK(same_bits(rows(before, other.size(), other.size() + T), whole));
    KvCache a = runner.cache(), b = runner.cache(), c = runner.cache();
    const auto behind = runner.logits({third, other, tokens}, {&a, &b, &c});
    CHECK(same_bits(rows(behind, third.size() + other.size(), behind.size() / V), whole));
  }

  SECTION("token by token beside sequences that are longer or only just begin") {
    KvCache mine = runner.cache(), theirs = runner.cache(), late = runner.cache();
    runner.logits({part(third, 0, 30)}, {&theirs});
    std::vector<float> got;
    for (size_t t = 0; t < T; ++t) {
      std::vector<Tokens> batch{part(third, 30 + t % 30, 31 + t % 30), {tokens[t]}};
      std::vector<KvCache*> caches{&theirs, &mine};
      if (t > 20) batch.push_back(part(other, t % 5, t % 5 + 1 + t % 3)), caches.push_back(&late);
      if (theirs.length() > 80) theirs.clear();
      if (late.length() > 80) late.clear();
      const auto logits = runner.logits(batch, caches);
      got.insert(got.end(), logits.begin() + V, logits.begin() + 2 * V);
    }
    CHECK(same_bits(got, whole));
  }

  SECTION("with a cache that held something else and was truncated") {
    KvCache cache = runner.cache();
    Tokens wrong = part(tokens, 0, 19);
    wrong.insert(wrong.end(), third.begin(), third.begin() + 30);
    in_chunks(runner, wrong, cache, 7);
    const size_t kept = cache.truncate(19);
    CHECK((kept == 19 || kept == 0));
    CHECK(same_bits(in_chunks(runner, tokens, cache, 11), rows(whole, kept, T)));
    cache.clear();
    CHECK(same_bits(in_chunks(runner, tokens, cache, 64), whole));
  }

  SECTION("with copies of a cache that part ways") {
    KvCache trunk = runner.cache();
    in_chunks(runner, part(tokens, 0, 37), trunk, 37);
    KvCache branch = trunk, twig = trunk;
    runner.logits({part(third, 0, 9)}, {&branch});  // writes into what the copies share
    runner.logits({part(third, 9, 12), part(third, 20, 25)}, {&twig, &branch});
    CHECK(same_bits(in_chunks(runner, tokens, trunk, 4), rows(whole, 37, T)));
  }

  SECTION("when somebody looks") {
    Recorder recorder;
    KvCache cache = runner.cache();
    CHECK(same_bits(runner.logits({tokens}, {&cache}, &recorder), whole));
    CHECK(same_bits(runner.logits({other, tokens}, {}, &recorder), runner.logits({other, tokens})));
    CHECK(recorder.states.size() == model->info().layers + 1);
    CHECK(recorder.attention(Site::kAttention, 0, 1).size() == model->info().heads * T * T);
  }
}

TEST_CASE("trainable weights give one row the same bits as many", "[models][same-bits]") {
  const Case& one = GENERATE(from_range(kCases));
  CAPTURE(one.name);
  const auto model = random_model(config_of(one.config), DType::kF32, true);
  Runner runner(*model);
  const Tokens tokens = random_tokens(40, V, 1);
  const auto whole = runner.logits({tokens});
  KvCache cache = runner.cache(), steps = runner.cache();
  CHECK(same_bits(in_chunks(runner, tokens, cache, 7), whole));
  CHECK(same_bits(in_chunks(runner, tokens, steps, 1), whole));
}

TEST_CASE("a token's logits do not depend on what comes after it, nor does its loss on later embeddings", "[models]") {
  const Case& one = GENERATE(from_range(kCases));
  CAPTURE(one.name);
  Config config = config_of(one.config);
  config.set("tie_word_embeddings", false);
  const auto model = random_model(config, DType::kF32, true);
  Runner runner(*model);
  const size_t T = 30, at = 17;
  Tokens tokens(T);
  for (size_t t = 0; t < T; ++t) tokens[t] = static_cast<int32_t>(t + 5);
  const auto whole = runner.logits({tokens});
  Tokens changed = tokens;
  for (size_t t = at + 1; t < T; ++t) changed[t] = 3;
  CHECK(same_bits(rows(runner.logits({changed}), 0, at + 1), rows(whole, 0, at + 1)));

  Tape tape(runner.arena());
  Context ctx{runner.arena(), &tape};
  const Ragged ragged({tokens});
  Tokens targets(T, -1);
  targets[at] = 1;
  tape.backward(cross_entropy(ctx, model->head(ctx, model->forward(ctx, ragged.batch(), {})), targets));
  const Parameter& embedding = model->parameters().list()[0];
  std::vector<float> gradient(embedding.shape.size());
  embedding.read(gradient.data(), true);
  const size_t D = embedding.row_size();
  for (size_t t = 0; t < T; ++t) {
    const auto row = gradient.begin() + static_cast<ptrdiff_t>((t + 5) * D);
    CAPTURE(t);
    if (t > at) CHECK(std::all_of(row, row + static_cast<ptrdiff_t>(D), [](float g) { return g == 0; }));
    if (t == at) CHECK(std::any_of(row, row + static_cast<ptrdiff_t>(D), [](float g) { return g != 0; }));
  }
}

TEST_CASE("a warm step allocates no memory", "[models]") {
  const Case& one = GENERATE(from_range(kCases));
  CAPTURE(one.name);
  const auto model = random_model(config_of(one.config));
  Runner runner(*model);
  KvCache cache = runner.cache();
  cache.reserve(60);
  const Tokens tokens = random_tokens(60, V, 1);
  runner.logits({part(tokens, 0, 10)}, {&cache});
  const size_t before = allocation_count();
  in_chunks(runner, tokens, cache, 1);
  CHECK(allocation_count() == before);
}
