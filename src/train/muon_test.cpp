#include "train/muon.hpp"

#include <catch_amalgamated.hpp>

#include "models/testing.hpp"
#include "train/trainer.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

struct Case {
  size_t rows, cols;
  std::vector<float> weight, momentum;  // after three steps
};

// torch.optim.Muon of torch 2.15 in double, its Newton-Schulz iterations too: lr 0.02, weight_decay 0.1, adjust_lr_fn
// "match_rms_adamw", the gradients half of what is below.
const Case kCases[] = {
    {3,
     5,
     {-7.495162162e-01f, -1.225078198e-02f, 7.555543561e-01f, -2.530875411e-01f, 5.021584843e-01f, 4.893446398e-01f, -5.043202106e-01f,
      2.373605767e-01f, -7.323360451e-01f, -4.534565519e-03f, -4.071337186e-03f, 7.354120391e-01f, -2.537682188e-01f, 4.886552446e-01f,
      -4.857041525e-01f},
     {9.828125000e-03f, 1.110937500e-02f, -1.691406250e-02f, 1.874218750e-02f, -1.263281250e-02f, 5.195312500e-03f, 9.828125000e-03f,
      1.110937500e-02f, -1.691406250e-02f, 1.874218750e-02f, 2.195312500e-03f, 5.195312500e-03f, 9.828125000e-03f, 1.110937500e-02f,
      -1.691406250e-02f}},
    {5,
     3,
     {-7.512163021e-01f, -8.180062689e-03f, 7.570186763e-01f, 4.864734794e-01f, -5.037854889e-01f, 2.361566374e-01f, -9.425840666e-03f,
      7.334637380e-01f, -2.580541770e-01f, -4.987778543e-01f, 2.431483380e-01f, -7.527229846e-01f, 7.475788354e-01f, -2.454361381e-01f,
      4.957588107e-01f},
     {9.828125000e-03f, 1.110937500e-02f, -1.691406250e-02f, 5.195312500e-03f, 9.828125000e-03f, 1.110937500e-02f, 2.195312500e-03f,
      5.195312500e-03f, 9.828125000e-03f, 9.140625000e-04f, 2.195312500e-03f, 5.195312500e-03f, -3.718750000e-03f, 9.140625000e-04f,
      2.195312500e-03f}},
};

double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

}  // namespace

TEST_CASE("Muon as PyTorch has it, on wide and on tall matrices", "[train]") {
  for (const Case& one : kCases) {
    std::vector<float> weight, gradient(one.rows * one.cols), momentum(one.rows * one.cols);
    for (size_t i = 0; i < one.rows; ++i) {
      for (size_t j = 0; j < one.cols; ++j) weight.push_back(static_cast<float>((i * 5 + j * 3) % 7) * 0.25f - 0.75f);
    }
    Arena arena;
    Context ctx{arena};
    for (size_t t = 1; t <= 3; ++t) {
      for (size_t i = 0; i < one.rows; ++i) {
        for (size_t j = 0; j < one.cols; ++j) gradient[i * one.cols + j] = (static_cast<float>((i * 7 + j * 4 + t * 3) % 11) - 5) * 0.125f;
      }
      muon(ctx, weight.data(), gradient.data(), momentum.data(), one.rows, one.cols, {0.02, 0.1, 0.5});
    }
    CHECK(farthest(weight, one.weight) < 1e-6);
    CHECK(farthest(momentum, one.momentum) < 1e-8);
  }
}

TEST_CASE("Muon of a gradient of zeros only decays, and its scratch is what it says", "[train]") {
  std::vector<float> weight(6, 2.0f), momentum(6);
  const std::vector<float> gradient(6);
  Arena arena;
  Context ctx{arena};
  muon(ctx, weight.data(), gradient.data(), momentum.data(), 2, 3, {0.5, 0.1});
  CHECK(weight == std::vector<float>(6, 2.0f * static_cast<float>(1 - 0.5 * 0.1)));
  CHECK(momentum == gradient);
  CHECK(muon_floats(2, 3) == 2 * 6 + 2 * 4);
}

TEST_CASE("the optimiser 'muon' takes matrices by Muon and all else by AdamW", "[train]") {
  const char* const kConfig = R"({"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 64, "vocab_size": 50})";
  LossBatch batch;
  batch.inputs = {random_tokens(9, 50, 1)};
  batch.labels = batch.inputs;
  const auto trained = [&](const char* options, size_t threads) {
    auto model = random_model(config_of(kConfig), DType::kF32, true);
    Config config("train");
    flatten(JsonReader(options).read(), "", config);
    Arena arena;
    ThreadPool pool(threads);
    Trainer trainer(*model, model->parameters(), arena, &pool, TrainOptions::parse(config, model->info()));
    trainer.accumulate(batch);
    trainer.update();
    return model;
  };
  const auto adamw = trained(R"({"optimizer": "adamw", "dropout": 0, "weightDecay": 0.1})", 1);
  const auto ours = trained(R"({"optimizer": "muon", "dropout": 0, "weightDecay": 0.1})", 1);
  const auto shared = trained(R"({"optimizer": "muon", "dropout": 0, "weightDecay": 0.1})", 3);
  const auto& list = ours->parameters().list();
  for (size_t i = 0; i < list.size(); ++i) {
    std::vector<float> a(list[i].shape.size()), b(a.size()), c(a.size());
    list[i].read(a.data(), false);
    adamw->parameters().list()[i].read(b.data(), false);
    shared->parameters().list()[i].read(c.data(), false);
    CAPTURE(list[i].name);
    CHECK(same_bits(a, c));
    CHECK(same_bits(a, b) == (list[i].weight->use() != Weight::Use::kMatrix));
  }
}
