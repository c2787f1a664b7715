// Speeds of a training step beside the matrix product it consists of: GPT shapes of a few tokens of context, every figure the median
// of several interleaved rounds after a first. Arguments: rounds, threads (natively), and a part of the names of what is wanted.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.hpp"
#include "core/thread_pool.hpp"
#include "kernels/gemm.hpp"
#include "kernels/optimise.hpp"
#include "models/model.hpp"

using namespace wf;

namespace {

struct Entry {
  std::string name;
  double operations, tokens;
  std::function<void()> run;
  std::vector<double> times;

  double median() {
    std::sort(times.begin(), times.end());
    return (times[times.size() / 2] + times[(times.size() - 1) / 2]) / 2;
  }
};

// Everything that one shape needs, and the passes over it.
struct Training {
  size_t vocabulary, sequences, length;
  std::unique_ptr<Model> model;
  ThreadPool pool;
  Arena arena{size_t{64} << 20};
  std::vector<int32_t> tokens, positions, targets;
  std::vector<size_t> offsets{0};
  std::vector<std::vector<float>> first, second;  // moments
  int steps = 0;

  Training(size_t layers, size_t D, size_t H, size_t V, size_t batch, size_t context, size_t threads)
      : vocabulary(V), sequences(batch), length(context), pool(threads) {
    Config config;
    config.set("model_type", std::string("gpt2"));
    for (const auto& [key, value] :
         {std::pair{"n_layer", layers}, {"n_embd", D}, {"n_head", H}, {"vocab_size", V}, {"n_positions", context}})
      config.set(key, static_cast<double>(value));
    model = make_model(config);
    uint32_t site = 0;
    for (Weight* weight : model->parameters().weights()) {
      weight->allocate(DType::kF32, true);
      const size_t size = weight->rows() * weight->cols();
      for (size_t i = 0; i < size; ++i) weight->values()[i] = 0.02f * static_cast<float>(normal({1, 0, site}, i));
      first.emplace_back(size);
      second.emplace_back(size);
      ++site;
    }
    for (size_t s = 0; s < sequences; ++s) {
      for (size_t t = 0; t < length; ++t) {
        tokens.push_back(static_cast<int32_t>(philox({2, 0, 0}, tokens.size())[0] % vocabulary));
        positions.push_back(static_cast<int32_t>(t));
      }
      offsets.push_back(tokens.size());
    }
    targets.assign(tokens.begin() + 1, tokens.end());
    targets.push_back(0);
  }

  double multiply_adds() const {  // of a forward pass: matrices, and attention to the half that is seen
    double sum = 0;
    for (const Weight* weight : model->parameters().weights())
      sum += weight->is_matrix() ? static_cast<double>(weight->rows() * weight->cols()) : 0;
    const ModelInfo& info = model->info();
    return static_cast<double>(tokens.size()) * (sum + static_cast<double>(info.layers * info.hidden_size * length));
  }

  Tensor loss(Context& ctx) {
    const Tensor states = model->forward(ctx, {tokens, positions, offsets, {}}, {});
    return cross_entropy(ctx, model->head(ctx, states), targets);
  }

  void forward() {
    const Arena::Mark mark = arena.mark();
    Context ctx{.arena = arena, .pool = &pool};
    loss(ctx);
    arena.release(mark);
  }

  void step(float rate) {
    const Arena::Mark mark = arena.mark();
    Tape tape(arena);
    Dropout dropout{rate, {1, static_cast<uint32_t>(steps), 0}};
    Context ctx{.arena = arena, .tape = &tape, .pool = &pool, .dropout = rate == 0 ? nullptr : &dropout};
    tape.backward(loss(ctx));
    arena.release(mark);
    ++steps;
    const kernels::AdamStep adam{1e-5, 0.9, 0.999, 1e-8, 0.01, 1 - std::pow(0.9, steps), 1 - std::pow(0.999, steps)};
    size_t i = 0;
    for (Weight* weight : model->parameters().weights()) {
      const size_t size = first[i].size();
      ctx.share(size, 8 * size, [&](size_t begin, size_t end, size_t) {
        kernels::adamw(weight->values() + begin, weight->gradient() + begin, first[i].data() + begin, second[i].data() + begin, end - begin,
                       adam);
      });
      weight->clear_gradient();
      ++i;
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  const size_t threads = argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 1;
  const std::string only = argc > 3 ? argv[3] : "";
  std::vector<std::unique_ptr<Training>> trainings;
  std::vector<Entry> entries;
  const size_t n = 512;
  std::vector<float> a(n * n, 0.1f), b(n * n, 0.1f), c(n * n), scratch(kernels::gemm_scratch(n, n, n));
  entries.push_back({"gemm 512", 2.0 * n * n * n, 0,
                     [&] { kernels::gemm(false, false, n, n, n, a.data(), n, b.data(), n, false, c.data(), n, scratch.data()); }});
  for (const size_t V : {96, 5000}) {
    for (const auto& [layers, D, H, batch, context] :
         {std::tuple{size_t{4}, size_t{128}, size_t{4}, size_t{32}, size_t{64}}, {6, 384, 6, 8, 256}}) {
      const std::string name = std::to_string(layers) + " x " + std::to_string(D) + " x (" + std::to_string(batch) + " x " +
                               std::to_string(context) + ") V " + std::to_string(V);
      if (name.find(only) == std::string::npos) continue;
      trainings.push_back(std::make_unique<Training>(layers, D, H, V, batch, context, threads));
      Training& t = *trainings.back();
      const double forward = 2 * t.multiply_adds(), count = static_cast<double>(t.tokens.size());
      entries.push_back({name + " forward", forward, count, [&t] { t.forward(); }});
      entries.push_back({name + " step", 3 * forward, count, [&t] { t.step(0); }});
      entries.push_back({name + " step, dropout 0.1", 3 * forward, count, [&t] { t.step(0.1f); }});
    }
  }
  using Clock = std::chrono::steady_clock;
  for (int round = 0; round <= rounds; ++round) {
    for (Entry& entry : entries) {
      const auto begin = Clock::now();
      entry.run();
      if (round > 0) entry.times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  }
  double forward = 0;
  for (Entry& entry : entries) {
    const double time = entry.median();
    std::printf("%-50s %9.2f ms %7.2f GFLOP/s", entry.name.c_str(), time * 1e3, entry.operations / time / 1e9);
    if (entry.tokens != 0) std::printf(" %9.0f tokens/s", entry.tokens / time);
    if (entry.name.ends_with("forward")) forward = time;
    if (entry.name.find("step") != std::string::npos) std::printf("  %.2f x forward", time / forward);
    std::printf("\n");
  }
}
