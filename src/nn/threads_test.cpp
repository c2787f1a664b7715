// Every operation that shares its work among threads has the same bits for any number of them.
#include <catch_amalgamated.hpp>
#include <functional>

#include "core/rng.hpp"
#include "core/thread_pool.hpp"
#include "kernels/testing.hpp"
#include "nn/attention.hpp"
#include "nn/residual.hpp"
#include "ops/ops.hpp"

using namespace wf;
using kernels::testing::same_bits;

namespace {

// Large enough that the work is shared, of sizes that no number of parts divides.
constexpr size_t T = 71, D = 210, F = 333;

std::vector<float> random_values(size_t count, uint32_t site) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(normal({1, 0, site}, i));
  return values;
}

Weight weight_of(Weight weight, DType store, uint32_t site) {
  weight.allocate(store, false);
  const auto values = random_values(weight.rows() * weight.cols(), site);
  weight.write_rows(0, weight.use() == Weight::Use::kVector ? weight.cols() : weight.rows(), values.data(), DType::kF32);
  return weight;
}

// `compute` is given x (T, D), anew each time.
void same_on_all(const std::function<Tensor(Context&, const Tensor&)>& compute) {
  std::vector<float> expected;
  for (const size_t threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    Arena arena;
    Context ctx{.arena = arena, .pool = &pool};
    Tensor x = ctx.tensor(T, D);
    const auto values = random_values(x.size(), 0);
    std::copy(values.begin(), values.end(), x.data);
    const Tensor y = compute(ctx, x);
    std::vector<float> got;
    for (size_t t = 0; t < y.rows; ++t) got.insert(got.end(), y.row(t), y.row(t) + y.cols);
    if (threads == 1) expected = got;
    CHECK(same_bits(got, expected));
  }
}

}  // namespace

TEST_CASE("operations have the same bits on any number of threads", "[ops][thread_pool]") {
  const Weight scale = weight_of(Weight::vector(D), DType::kF32, 1), shift = weight_of(Weight::vector(D), DType::kF32, 2);
  SECTION("linear") {
    const Weight bias = weight_of(Weight::vector(F), DType::kF32, 3);
    for (const DType store : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8, DType::kQ4}) {
      CAPTURE(name_of(store));
      const Weight w = weight_of(Weight::matrix(F, D), store, 4);
      same_on_all([&](Context& ctx, const Tensor& x) { return linear(ctx, x, w, bias); });
      same_on_all([&](Context& ctx, const Tensor& x) { return linear(ctx, x.slice(3, 1), w, {}); });
    }
  }
  SECTION("norms") {
    same_on_all([&](Context& ctx, const Tensor& x) { return layer_norm(ctx, x, scale, shift, 1e-5f); });
    same_on_all([&](Context& ctx, const Tensor& x) { return rms_norm(ctx, x, scale, 0, 1e-5f); });
  }
  SECTION("sums and activations") {
    same_on_all([&](Context& ctx, const Tensor& x) { return add(ctx, x, layer_norm(ctx, x, scale, shift, 1e-5f)); });
    same_on_all([&](Context& ctx, const Tensor& x) { return activate(ctx, kernels::Activation::kGelu, x); });
    same_on_all([&](Context& ctx, const Tensor& x) {
      return gated(ctx, kernels::Activation::kSilu, x.columns(0, D / 2), x.columns(D / 2, D / 2));
    });
  }
  SECTION("rope") {
    const auto cos = random_values(T * 5, 5), sin = random_values(T * 5, 6);
    same_on_all([&](Context& ctx, const Tensor& x) {
      Tensor y = x;
      rotate(ctx, y, 14, 10, cos.data(), sin.data(), false);
      return y;
    });
  }
  SECTION("attention") {
    AttentionCore core;
    core.shape = {6, 3, 10, 10};
    core.scale = 0.3f;
    const std::vector<size_t> offsets{0, 40, T};
    same_on_all([&](Context& ctx, const Tensor& x) {
      return core.over_rows(ctx, x.columns(0, 60), x.columns(60, 30), x.columns(90, 30), offsets, offsets, {});
    });
  }
}

namespace {

// `compute` is given x (T, D) under a tape; its result, d x and the gradients of `weights` are compared.
void same_gradients_on_all(const std::vector<Weight*>& weights, const std::function<Tensor(Context&, const Tensor&)>& compute) {
  std::vector<float> expected;
  for (const size_t threads : {1, 2, 3}) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    Arena arena;
    Tape tape(arena);
    Dropout drops{0.2f, {5, 6, 7}};
    Context ctx{.arena = arena, .tape = &tape, .pool = &pool, .dropout = &drops};
    for (Weight* weight : weights) weight->clear_gradient();
    const Tensor x = ctx.tensor(T, D);
    const auto values = random_values(x.size(), 0);
    std::copy(values.begin(), values.end(), x.data);
    const Tensor y = compute(ctx, x);
    const auto slopes = random_values(y.rows * y.stride, 9);
    tape.backward(y, slopes.data(), y.stride);
    std::vector<float> got(y.data, y.data + y.rows * y.stride);
    got.insert(got.end(), tape.gradient(x), tape.gradient(x) + x.size());
    for (const Weight* weight : weights) got.insert(got.end(), weight->gradient(), weight->gradient() + weight->rows() * weight->cols());
    if (threads == 1) expected = got;
    CHECK(same_bits(got, expected));
  }
}

Weight trainable(Weight weight, uint32_t site) {
  weight.allocate(DType::kF32, true);
  const auto values = random_values(weight.rows() * weight.cols(), site);
  std::copy(values.begin(), values.end(), weight.values());
  return weight;
}

}  // namespace

TEST_CASE("gradients have the same bits on any number of threads", "[ops][thread_pool]") {
  Weight scale = trainable(Weight::vector(D), 1), shift = trainable(Weight::vector(D), 2);
  SECTION("linear") {
    Weight w = trainable(Weight::matrix(F, D), 3), bias = trainable(Weight::vector(F), 4);
    same_gradients_on_all({&w, &bias}, [&](Context& ctx, const Tensor& x) { return linear(ctx, x, w, bias); });
  }
  SECTION("norms") {
    same_gradients_on_all({&scale, &shift}, [&](Context& ctx, const Tensor& x) { return layer_norm(ctx, x, scale, shift, 1e-5f); });
    same_gradients_on_all({&scale}, [&](Context& ctx, const Tensor& x) { return rms_norm(ctx, x, scale, 0, 1e-5f); });
  }
  SECTION("residuals, dropout, activations") {
    Residual residual{Norm::layer(D, 1e-5f)};
    residual.norm.weight = trainable(Weight::vector(D), 1);
    residual.norm.bias = trainable(Weight::vector(D), 2);
    same_gradients_on_all({&residual.norm.weight, &residual.norm.bias}, [&](Context& ctx, const Tensor& x) {
      return residual(ctx, x, [&](const Tensor& h) { return activate(ctx, kernels::Activation::kGelu, h); });
    });
    same_gradients_on_all({}, [&](Context& ctx, const Tensor& x) {
      return gated(ctx, kernels::Activation::kSilu, x.columns(0, D / 2), x.columns(D / 2, D / 2));
    });
  }
  SECTION("rope and attention") {
    const auto cos = random_values(T * 5, 5), sin = random_values(T * 5, 6);
    Weight w = trainable(Weight::matrix(120, D), 3);
    AttentionCore core;
    core.shape = {6, 3, 10, 10};
    core.scale = 0.3f;
    const std::vector<size_t> offsets{0, 40, T};
    same_gradients_on_all({&w}, [&](Context& ctx, const Tensor& x) {
      const Tensor all = linear(ctx, x, w, {});
      Tensor q = all.columns(0, 60);
      rotate(ctx, q, 10, 10, cos.data(), sin.data(), false);
      return core.over_rows(ctx, q, all.columns(60, 30), all.columns(90, 30), offsets, offsets, {});
    });
  }
  SECTION("embedding and cross-entropy") {
    Weight table = trainable(Weight::vocabulary(F, D), 3);
    std::vector<int32_t> tokens(T), targets(T);
    for (size_t t = 0; t < T; ++t)
      tokens[t] = static_cast<int32_t>(t % 7), targets[t] = static_cast<int32_t>(t * 5 % F) - (t % 9 == 0 ? 400 : 0);
    same_gradients_on_all({&table}, [&](Context& ctx, const Tensor& x) {
      return cross_entropy(ctx, linear(ctx, add(ctx, x, embedding(ctx, tokens, table, 2)), table, {}), targets, 0.1f);
    });
  }
}
