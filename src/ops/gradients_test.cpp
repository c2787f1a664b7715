// Every operation against its scalar definition, and its gradients against central differences of that definition in double.
#include <catch_amalgamated.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "core/rng.hpp"
#include "kernels/reference.hpp"
#include "ops/ops.hpp"

using namespace wf;
using kernels::Activation;
namespace reference = wf::kernels::reference;

namespace {

using Reals = std::vector<double>;

std::vector<float> normals(size_t count, uint64_t seed, float spread = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = spread * static_cast<float>(normal({seed, 0, 0}, i));
  return values;
}

// One differentiable input: a tensor of the arena, or a weight.
struct Input {
  enum class Kind { kTensor, kSlice, kMatrix, kTable, kVector } kind;
  size_t rows, cols;
  std::vector<float> values{};

  bool is_weight() const { return kind != Kind::kTensor && kind != Kind::kSlice; }
};

constexpr auto kTensor = Input::Kind::kTensor, kSlice = Input::Kind::kSlice, kMatrix = Input::Kind::kMatrix, kTable = Input::Kind::kTable,
               kVector = Input::Kind::kVector;

// The inputs as an operation takes them.
struct Given {
  std::vector<Tensor> tensors;  // in the order of the inputs; empty where the input is a weight
  std::vector<Weight> weights;  // likewise
};

constexpr size_t kBefore = 3, kBehind = 2;  // columns around a slice

Given give(Context& ctx, const std::vector<Input>& inputs) {
  Given given{std::vector<Tensor>(inputs.size()), std::vector<Weight>(inputs.size())};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [kind, rows, cols, values] = inputs[i];
    if (inputs[i].is_weight()) {
      Weight& weight = given.weights[i];
      weight = kind == kMatrix ? Weight::matrix(rows, cols) : kind == kTable ? Weight::table(rows, cols) : Weight::vector(cols);
      weight.allocate(DType::kF32, true);
      weight.write_rows(0, kind == kVector ? cols : rows, values.data(), DType::kF32);
    } else {
      const Tensor whole = ctx.tensor(rows, cols + (kind == kSlice ? kBefore + kBehind : 0));
      std::fill_n(whole.data, whole.size(), NAN);
      given.tensors[i] = kind == kSlice ? whole.columns(kBefore, cols) : whole;
      for (size_t r = 0; r < rows; ++r) std::copy_n(&values[r * cols], cols, given.tensors[i].row(r));
    }
  }
  return given;
}

using Operation = std::function<Tensor(Context&, Given&)>;
using Definition = std::function<Reals(const std::vector<Reals>&)>;

double largest(const Reals& values) {
  double most = 0;
  for (const double v : values) most = std::max(most, std::abs(v));
  return most;
}

// Fills the inputs with normal numbers unless they have values, runs the operation under a tape with a random dy, and compares.
void check(std::vector<Input> inputs, const Operation& run, const Definition& define, double tolerance = 1e-5) {
  std::vector<Reals> exact;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].values.empty()) inputs[i].values = normals(inputs[i].rows * inputs[i].cols, 100 + i);
    exact.emplace_back(inputs[i].values.begin(), inputs[i].values.end());
  }
  Arena arena(4096);
  Tape tape(arena);
  Context ctx{arena, &tape};
  Given given = give(ctx, inputs);
  const Tensor y = run(ctx, given);
  const Reals expected = define(exact);
  REQUIRE(y.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::abs(static_cast<double>(y.row(i / y.cols)[i % y.cols]) - expected[i]) < tolerance * (1 + largest(expected)));
  }

  const std::vector<float> dy = normals(y.size(), 7);
  for (size_t r = 0; r < y.rows; ++r) std::copy_n(&dy[r * y.cols], y.cols, tape.gradient(y) + r * y.stride);
  Tensor end = ctx.tensor(1, 1);
  tape.backward(end);

  const auto weighed = [&] {
    const Reals values = define(exact);
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[i] * static_cast<double>(dy[i]);
    return sum;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    const auto& [kind, rows, cols, values] = inputs[i];
    Reals slope(values.size());
    for (size_t j = 0; j < slope.size(); ++j) {
      const double at = exact[i][j], step = 1e-5;
      exact[i][j] = at + step;
      const double above = weighed();
      exact[i][j] = at - step;
      slope[j] = (above - weighed()) / (2 * step);
      exact[i][j] = at;
    }
    const Tensor& tensor = given.tensors[i];
    const float* got = inputs[i].is_weight() ? given.weights[i].gradient() : tape.gradient(tensor);
    const size_t stride = inputs[i].is_weight() ? cols : tensor.stride;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < cols; ++c) {
        CAPTURE(r, c);
        CHECK(std::abs(static_cast<double>(got[r * stride + c]) - slope[r * cols + c]) < tolerance * (1 + largest(slope)));
      }
      if (kind != kSlice) continue;
      for (size_t c = 0; c < kBefore; ++c) CHECK(got[r * stride + c - kBefore] == 0);
      for (size_t c = 0; c < kBehind; ++c) CHECK(got[r * stride + cols + c] == 0);
    }
  }
}

Reals added(const Reals& a, const Reals& b) {
  Reals sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

Reals product(const Reals& x, const Reals& w, const double* b, size_t T, size_t D, size_t F) {
  Reals y(T * F);
  reference::matmul(x.data(), w.data(), b, y.data(), T, D, F);
  return y;
}

const Weight kAbsent;

}  // namespace

TEST_CASE("linear", "[ops]") {
  const size_t T = GENERATE(1, 2, 5), D = GENERATE(1, 7, 20), F = GENERATE(1, 6, 19);
  const auto kind = GENERATE(kTensor, kSlice);
  CAPTURE(T, D, F);
  check(
      {{kind, T, D}, {kMatrix, F, D}, {kVector, 1, F}},
      [](Context& ctx, Given& g) { return linear(ctx, g.tensors[0], g.weights[1], g.weights[2]); },
      [&](const auto& in) { return product(in[0], in[1], in[2].data(), T, D, F); });
  check(
      {{kind, T, D}, {kMatrix, F, D}}, [](Context& ctx, Given& g) { return linear(ctx, g.tensors[0], g.weights[1], Weight()); },
      [&](const auto& in) { return product(in[0], in[1], nullptr, T, D, F); });
}

TEST_CASE("embedding, a token twice, and the same table as the head", "[ops]") {
  const std::vector<int32_t> tokens{3, 0, 3, 4};
  const size_t V = 5, D = 6;
  const auto look_up = [&](const Reals& table, double factor) {
    Reals y;
    for (const int32_t token : tokens) {
      for (size_t d = 0; d < D; ++d) y.push_back(factor * table[static_cast<size_t>(token) * D + d]);
    }
    return y;
  };
  check(
      {{kTable, V, D}}, [&](Context& ctx, Given& g) { return embedding(ctx, tokens, g.weights[0]); },
      [&](const auto& in) { return look_up(in[0], 1); });
  check(
      {{kMatrix, V, D}}, [&](Context& ctx, Given& g) { return embedding(ctx, tokens, g.weights[0], 2.5f); },
      [&](const auto& in) { return look_up(in[0], 2.5); });
  check(
      {{kMatrix, V, D}},
      [&](Context& ctx, Given& g) { return linear(ctx, embedding(ctx, tokens, g.weights[0], 2.5f), g.weights[0], kAbsent); },
      [&](const auto& in) { return product(look_up(in[0], 2.5), in[0], nullptr, tokens.size(), D, V); });
}

TEST_CASE("rows, one of them twice", "[ops]") {
  const std::vector<size_t> indices{3, 0, 3};
  const size_t T = 5, D = 6;
  const auto kind = GENERATE(kTensor, kSlice);
  check(
      {{kind, T, D}}, [&](Context& ctx, Given& g) { return rows(ctx, g.tensors[0], indices); },
      [&](const auto& in) {
        Reals y;
        for (const size_t i : indices)
          y.insert(y.end(), in[0].begin() + static_cast<ptrdiff_t>(i * D), in[0].begin() + static_cast<ptrdiff_t>((i + 1) * D));
        return y;
      });
}

TEST_CASE("add and scale, a tensor used twice", "[ops]") {
  const size_t T = 3, D = 5;
  check(
      {{kTensor, T, D}, {kTensor, T, D}}, [](Context& ctx, Given& g) { return add(ctx, g.tensors[0], g.tensors[1]); },
      [](const auto& in) { return added(in[0], in[1]); });
  check(
      {{kTensor, T, D}}, [](Context& ctx, Given& g) { return add(ctx, g.tensors[0], g.tensors[0]); },
      [](const auto& in) { return added(in[0], in[0]); });
  const auto times = [](Reals x, double factor) {
    for (double& v : x) v *= factor;
    return x;
  };
  check(
      {{kTensor, T, D}}, [](Context& ctx, Given& g) { return scale(ctx, g.tensors[0], -0.75f); },
      [&](const auto& in) { return times(in[0], -0.75); });
  // x W1^T + (x W2^T) / 2 + x: three ways into one gradient.
  check(
      {{kTensor, T, D}, {kMatrix, D, D}, {kMatrix, D, D}},
      [](Context& ctx, Given& g) {
        const Tensor& x = g.tensors[0];
        return add(ctx, add(ctx, linear(ctx, x, g.weights[1], kAbsent), scale(ctx, linear(ctx, x, g.weights[2], kAbsent), 0.5f)), x);
      },
      [&](const auto& in) {
        return added(added(product(in[0], in[1], nullptr, T, D, D), times(product(in[0], in[2], nullptr, T, D, D), 0.5)), in[0]);
      });
}

TEST_CASE("norms", "[ops]") {
  const size_t T = 3, D = GENERATE(3, 5, 16, 19);
  const float eps = 1e-5f;
  CAPTURE(D);
  const auto layer = [&](const Reals& x, const double* w, const double* b) {
    Reals y(x.size());
    reference::layer_norm(x.data(), w, b, y.data(), x.size() / D, D, static_cast<double>(eps));
    return y;
  };
  check(
      {{kTensor, T, D}, {kVector, 1, D}, {kVector, 1, D}},
      [&](Context& ctx, Given& g) { return layer_norm(ctx, g.tensors[0], g.weights[1], g.weights[2], eps); },
      [&](const auto& in) { return layer(in[0], in[1].data(), in[2].data()); }, 2e-5);
  check(
      {{kTensor, T, D}}, [&](Context& ctx, Given& g) { return layer_norm(ctx, g.tensors[0], Weight(), Weight(), eps); },
      [&](const auto& in) { return layer(in[0], nullptr, nullptr); }, 2e-5);
  const auto kind = GENERATE(kTensor, kSlice);
  const float offset = GENERATE(0.0f, 1.0f);
  check(
      {{kind, T, 2 * D}, {kVector, 1, D}},  // two heads a row
      [&](Context& ctx, Given& g) { return rms_norm(ctx, g.tensors[0], g.weights[1], offset, eps); },
      [&](const auto& in) {
        Reals y(in[0].size());
        reference::rms_norm(in[0].data(), in[1].data(), static_cast<double>(offset), y.data(), 2 * T, D, static_cast<double>(eps));
        return y;
      },
      2e-5);
}

TEST_CASE("activations, plain and gated", "[ops]") {
  const auto a = GENERATE(Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu, Activation::kSilu, Activation::kRelu,
                          Activation::kTanh, Activation::kSigmoid, Activation::kIdentity);
  CAPTURE(static_cast<int>(a));
  const size_t T = 3, F = 7;
  check(
      {{kTensor, T, F}}, [&](Context& ctx, Given& g) { return activate(ctx, a, g.tensors[0]); },
      [&](const auto& in) {
        Reals y;
        for (const double x : in[0]) y.push_back(reference::activate(a, x));
        return y;
      });
  const auto define = [&](const std::vector<Reals>& in) {
    Reals y;
    for (size_t i = 0; i < in[0].size(); ++i) y.push_back(reference::activate(a, in[0][i]) * in[1][i]);
    return y;
  };
  check({{kSlice, T, F}, {kSlice, T, F}}, [&](Context& ctx, Given& g) { return gated(ctx, a, g.tensors[0], g.tensors[1]); }, define);
  check(
      {{kTensor, T, 2 * F}},  // gate and up side by side
      [&](Context& ctx, Given& g) { return gated(ctx, a, g.tensors[0].columns(0, F), g.tensors[0].columns(F, F)); },
      [&](const auto& in) {
        std::vector<Reals> parts(2);
        for (size_t i = 0; i < in[0].size(); ++i) parts[i / F % 2].push_back(in[0][i]);
        return define(parts);
      });
}

TEST_CASE("softmax", "[ops]") {
  const size_t T = 4, V = GENERATE(1, 6, 21);
  check(
      {{kTensor, T, V}}, [](Context& ctx, Given& g) { return softmax(ctx, g.tensors[0]); },
      [&](const auto& in) {
        Reals y(in[0].size());
        reference::softmax(in[0].data(), y.data(), T, V);
        return y;
      });
}

TEST_CASE("rotary positions", "[ops]") {
  const size_t T = 3, heads = 2, Dk = 8, rotary = GENERATE(2, 6, 8);
  const bool interleaved = GENERATE(false, true);
  const auto kind = GENERATE(kTensor, kSlice);
  std::vector<float> cos, sin;
  for (size_t i = 0; i < T * rotary / 2; ++i) {
    cos.push_back(1.25f * std::cos(0.4f * static_cast<float>(i)));
    sin.push_back(1.25f * std::sin(0.4f * static_cast<float>(i)));
  }
  const Reals exact_cos(cos.begin(), cos.end()), exact_sin(sin.begin(), sin.end());
  check(
      {{kind, T, heads * Dk}},
      [&](Context& ctx, Given& g) {
        rotate(ctx, g.tensors[0], Dk, rotary, cos.data(), sin.data(), interleaved);
        return g.tensors[0];
      },
      [&](const auto& in) {
        Reals y = in[0];
        reference::rope(y.data(), T, heads, Dk, rotary, exact_cos.data(), exact_sin.data(), interleaved);
        return y;
      });
}

namespace {

Reals attended(const kernels::AttentionShape& shape, const kernels::AttentionMask& mask, const Reals& q, const Reals& k, const Reals& v,
               size_t T, size_t S) {
  Reals scores(shape.H * T * S), weights(scores.size()), out(T * shape.H * shape.Dv);
  reference::attention(shape, mask, q.data(), k.data(), v.data(), T, 0, S, scores.data(), weights.data(), out.data());
  return out;
}

Tensor attended(Context& ctx, const kernels::AttentionShape& shape, const kernels::AttentionMask& mask, const Tensor& q, const Tensor& k,
                const Tensor& v) {
  const std::vector<size_t> queries{0, q.rows}, keys{0, k.rows};
  return attention(ctx, shape, mask, q, k, v, queries, keys, {}, ctx.arena.floats(shape.H * q.rows * k.rows));
}

}  // namespace

TEST_CASE("attention over fused queries, keys and values", "[ops]") {
  const kernels::AttentionShape shape =
      GENERATE(kernels::AttentionShape{2, 2, 3, 3}, kernels::AttentionShape{4, 2, 4, 4}, kernels::AttentionShape{3, 1, 5, 5});
  const size_t T = GENERATE(1, 4, 19), window = GENERATE(0, 3), features = (shape.H + 2 * shape.Hk) * shape.Dk;
  const bool alibi = GENERATE(false, true);
  const std::vector<float> slopes{0.5f, 0.25f, 0.125f, 0.0625f};
  kernels::AttentionMask mask;
  mask.causal = true;
  mask.window = window;
  mask.slopes = alibi ? slopes.data() : nullptr;
  mask.scale = 0.6f;
  CAPTURE(shape.H, shape.Hk, T, window, alibi);
  check(
      {{kSlice, T, features}},
      [&](Context& ctx, Given& g) {
        const Tensor& all = g.tensors[0];
        return attended(ctx, shape, mask, all.columns(0, shape.H * shape.Dk), all.columns(shape.H * shape.Dk, shape.Hk * shape.Dk),
                        all.columns((shape.H + shape.Hk) * shape.Dk, shape.Hk * shape.Dv));
      },
      [&](const auto& in) {
        std::vector<Reals> parts(3);
        for (size_t i = 0; i < in[0].size(); ++i) {
          const size_t head = i % features / shape.Dk;
          parts[head < shape.H ? 0 : head < shape.H + shape.Hk ? 1 : 2].push_back(in[0][i]);
        }
        return attended(shape, mask, parts[0], parts[1], parts[2], T, T);
      });
}

TEST_CASE("cross-attention, values wider than keys", "[ops]") {
  const kernels::AttentionShape shape{4, 2, 3, 5};
  const size_t T = GENERATE(1, 3), S = GENERATE(1, 2, 18);
  kernels::AttentionMask mask;
  mask.scale = 0.4f;
  check(
      {{kTensor, T, shape.H * shape.Dk}, {kSlice, S, shape.Hk * shape.Dk}, {kSlice, S, shape.Hk * shape.Dv}},
      [&](Context& ctx, Given& g) { return attended(ctx, shape, mask, g.tensors[0], g.tensors[1], g.tensors[2]); },
      [&](const auto& in) { return attended(shape, mask, in[0], in[1], in[2], T, S); });
}

TEST_CASE("dropout: its gradient is through the factors of the call", "[ops]") {
  const size_t T = 5, D = 9;
  std::vector<float> factors(T * D);
  kernels::dropout_factors({0.3f, {4, 2, 6}, 0}, factors.data(), factors.size());
  Dropout drops{0.3f, {4, 2, 6}};
  check(
      {{kTensor, T, D}},
      [&](Context& ctx, Given& g) {
        ctx.dropout = &drops;
        const Tensor y = dropout(ctx, g.tensors[0]);
        ctx.dropout = nullptr;
        return y;
      },
      [&](const auto& in) {
        Reals y = in[0];
        for (size_t i = 0; i < y.size(); ++i) y[i] *= static_cast<double>(factors[i]);
        return y;
      });
  CHECK(drops.key.site == 7);
  // Without, and at a rate of nothing, nothing happens, and no site is taken.
  Arena arena;
  Dropout none{0, {4, 2, 6}};
  for (Dropout* given : {static_cast<Dropout*>(nullptr), &none}) {
    Context ctx{.arena = arena, .dropout = given};
    const Tensor x = ctx.tensor(2, 2);
    CHECK(dropout(ctx, x).data == x.data);
  }
  CHECK(none.key.site == 6);
}

TEST_CASE("attention: a bias by distance and its gradient, over several sequences", "[ops][gradient]") {
  const kernels::AttentionShape shape{4, 2, 3, 5};
  const auto& [H, Hk, Dk, Dv] = shape;
  const bool causal = GENERATE(false, true);
  const std::vector<size_t> queries{0, 3, 3, 21}, keys = causal ? queries : std::vector<size_t>{0, 2, 3, 20};
  const size_t T = queries.back(), S = keys.back(), zero = 17, width = 35;
  kernels::AttentionMask mask;
  mask.causal = causal;
  mask.scale = 0.5f;
  mask.bias_head_stride = width;
  mask.bias_row_stride = -1;
  CAPTURE(causal);
  check(
      {{kTensor, T, H * Dk}, {kSlice, S, Hk * Dk}, {kSlice, S, Hk * Dv}, {kTensor, H, width}},
      [&](Context& ctx, Given& g) {
        mask.bias = g.tensors[3].data + zero;
        float* weights = ctx.arena.floats(shape.H * T * S);
        return attention(ctx, shape, mask, g.tensors[0], g.tensors[1], g.tensors[2], queries, keys, {}, weights, g.tensors[3]);
      },
      [&](const auto& in) {
        Reals out(T * shape.H * shape.Dv);
        for (size_t s = 0; s + 1 < queries.size(); ++s) {
          for (size_t h = 0; h < shape.H; ++h) {
            const size_t group = h / (shape.H / shape.Hk);
            for (size_t t = queries[s]; t < queries[s + 1]; ++t) {
              const size_t end = causal ? keys[s] + t - queries[s] + 1 : keys[s + 1];
              double sum = 0;
              Reals mixed(shape.Dv);
              for (size_t j = keys[s]; j < end; ++j) {
                double score = in[3][h * width + zero + (j - keys[s]) - (t - queries[s])];
                for (size_t d = 0; d < shape.Dk; ++d)
                  score += 0.5 * in[0][(t * shape.H + h) * shape.Dk + d] * in[1][(j * shape.Hk + group) * shape.Dk + d];
                sum += std::exp(score);
                for (size_t d = 0; d < shape.Dv; ++d) mixed[d] += std::exp(score) * in[2][(j * shape.Hk + group) * shape.Dv + d];
              }
              for (size_t d = 0; d < shape.Dv; ++d) out[(t * shape.H + h) * shape.Dv + d] = mixed[d] / sum;
            }
          }
        }
        return out;
      });
}

TEST_CASE("attention over several sequences, with dropout of weights", "[ops]") {
  const kernels::AttentionShape shape{4, 2, 3, 5};
  const float rate = GENERATE(0.0f, 0.4f);
  const bool causal = GENERATE(false, true);
  const std::vector<size_t> queries{0, 3, 3, 21}, keys = causal ? queries : std::vector<size_t>{0, 2, 3, 20};
  const size_t T = queries.back(), S = keys.back();
  const RngKey key{9, 1, 3};
  kernels::AttentionMask mask;
  mask.causal = causal;
  mask.scale = 0.5f;
  const std::vector<float> bias = normals(18, 5);
  const std::vector<const float*> biases{nullptr, bias.data(), bias.data()};
  Dropout drops{rate, key};
  CAPTURE(rate, causal);
  std::vector<float> shown;
  const auto part = [](const Reals& x, size_t begin, size_t end, size_t cols) {
    return Reals(x.begin() + static_cast<ptrdiff_t>(begin * cols), x.begin() + static_cast<ptrdiff_t>(end * cols));
  };
  check(
      {{kTensor, T, shape.H * shape.Dk}, {kSlice, S, shape.Hk * shape.Dk}, {kSlice, S, shape.Hk * shape.Dv}},
      [&](Context& ctx, Given& g) {
        ctx.dropout = &drops;
        float* weights = ctx.arena.floats(shape.H * T * S);
        const Tensor y = attention(ctx, shape, mask, g.tensors[0], g.tensors[1], g.tensors[2], queries, keys, biases, weights);
        ctx.dropout = nullptr;
        const size_t first = queries[1] * keys[1];
        shown.assign(weights, weights + shape.H * first);
        return y;
      },
      [&](const auto& in) {
        Reals out;
        uint64_t first = 0;
        for (size_t s = 0; s + 1 < queries.size(); ++s) {
          const size_t t = queries[s + 1] - queries[s], n = keys[s + 1] - keys[s];
          kernels::AttentionMask own = mask;
          own.key_bias = biases[s];
          const Reals q = part(in[0], queries[s], queries[s + 1], shape.H * shape.Dk),
                      k = part(in[1], keys[s], keys[s + 1], shape.Hk * shape.Dk),
                      v = part(in[2], keys[s], keys[s + 1], shape.Hk * shape.Dv);
          Reals scores(shape.H * t * n), weights(scores.size()), plain(t * shape.H * shape.Dv);
          reference::attention(shape, own, q.data(), k.data(), v.data(), t, 0, n, scores.data(), weights.data(), plain.data());
          std::vector<float> factors(weights.size());
          kernels::dropout_factors({rate, key, first}, factors.data(), factors.size());
          first += factors.size();
          for (size_t i = 0; i < t; ++i) {
            for (size_t c = 0; c < shape.H * shape.Dv; ++c) {
              const size_t h = c / shape.Dv, row = (h * t + i) * n, value = h / (shape.H / shape.Hk) * shape.Dv + c % shape.Dv;
              double sum = 0;
              for (size_t j = 0; j < n; ++j)
                sum += weights[row + j] * static_cast<double>(factors[row + j]) * v[j * shape.Hk * shape.Dv + value];
              out.push_back(sum);
            }
          }
        }
        return out;
      });
  CHECK(drops.key.site == (rate == 0 ? 3 : 4));
  // What is shown are the weights before: each row sums to 1.
  for (size_t row = 0; row < shape.H * queries[1]; ++row) {
    double sum = 0;
    for (size_t j = 0; j < keys[1]; ++j) sum += static_cast<double>(shown[row * keys[1] + j]);
    CHECK(std::abs(sum - 1) < 1e-5);
  }
}

TEST_CASE("what a query does not see has no gradient", "[ops]") {
  const kernels::AttentionShape shape{2, 1, 4, 4};
  const size_t T = 20, window = 6, at = 11;
  kernels::AttentionMask mask;
  mask.causal = true;
  mask.window = window;
  Arena arena;
  Tape tape(arena);
  Context ctx{arena, &tape};
  Given g = give(ctx, {{kTensor, T, 8, normals(T * 8, 1)}, {kTensor, T, 4, normals(T * 4, 2)}, {kTensor, T, 4, normals(T * 4, 3)}});
  const Tensor out = attended(ctx, shape, mask, g.tensors[0], g.tensors[1], g.tensors[2]);
  std::fill_n(tape.gradient(out) + at * out.stride, out.cols, 1.0f);
  tape.backward(ctx.tensor(1, 1));
  const auto touched = [&](size_t input, size_t t) {
    const float* row = tape.gradient(g.tensors[input]) + t * g.tensors[input].stride;
    return std::any_of(row, row + g.tensors[input].cols, [](float v) { return v != 0; });
  };
  for (size_t t = 0; t < T; ++t) {
    CAPTURE(t);
    CHECK(touched(0, t) == (t == at));
    CHECK(touched(1, t) == (t <= at && t + window > at));
    CHECK(touched(2, t) == (t <= at && t + window > at));
  }
}

TEST_CASE("cross-entropy with smoothing and targets that do not count", "[ops]") {
  const float smoothing = GENERATE(0.0f, 0.1f);
  const std::vector<int32_t> targets = GENERATE(std::vector<int32_t>{2, 0, 4, 1}, std::vector<int32_t>{-100, 3, -1, 3});
  const size_t T = 4, V = 5;
  double counted = 0;
  for (const int32_t target : targets) counted += target >= 0;
  check(
      {{kTensor, T, V}}, [&](Context& ctx, Given& g) { return cross_entropy(ctx, g.tensors[0], targets, smoothing); },
      [&](const auto& in) {
        Reals each(T);
        reference::cross_entropy(in[0].data(), targets.data(), static_cast<double>(smoothing), each.data(), T, V);
        return Reals{(each[0] + each[1] + each[2] + each[3]) / counted};
      });
}

TEST_CASE("a gradient does not flow into what is not tracked", "[ops]") {
  Arena arena;
  Tape tape(arena);
  Context ctx{arena, &tape};
  std::vector<float> constant(6, 1.0f);
  const Tensor fixed{constant.data(), 2, 3, 3};
  Given g = give(ctx, {{kTensor, 2, 3, normals(6, 1)}, {kVector, 1, 3, normals(3, 2)}});
  const Tensor y = add(ctx, g.tensors[0], gated(ctx, Activation::kSilu, layer_norm(ctx, fixed, g.weights[1], Weight(), 1e-5f), fixed));
  std::fill_n(tape.gradient(y), y.size(), 1.0f);
  tape.backward(ctx.tensor(1, 1));
  CHECK(tape.gradient(fixed) == nullptr);
  CHECK(tape.gradient(g.tensors[0])[5] == 1);
}

TEST_CASE("what nothing depends on costs no backward and gets no gradient", "[ops]") {
  Arena arena;
  Tape tape(arena);
  Context ctx{arena, &tape};
  Given g = give(ctx, {{kTensor, 2, 3, normals(6, 1)}, {kMatrix, 4, 3, normals(12, 2)}});
  const Tensor unused = linear(ctx, g.tensors[0], g.weights[1], Weight());
  const Tensor y = scale(ctx, g.tensors[0], 2);
  std::fill_n(tape.gradient(y), y.size(), 1.0f);
  tape.backward(ctx.tensor(1, 1));
  CHECK(!tape.reached(unused));
  CHECK(g.weights[1].gradient()[0] == 0);
  CHECK(tape.gradient(g.tensors[0])[0] == 2);
}

TEST_CASE("without a tape, results are the same and sums are written in place", "[ops]") {
  Arena arena;
  Tape tape(arena);
  Context with{arena, &tape}, without{arena};
  const auto both = [&](const std::vector<Input>& inputs, const Operation& run) {
    Given a = give(with, inputs), b = give(without, inputs);
    const Tensor y = run(with, a), z = run(without, b);
    for (size_t r = 0; r < y.rows; ++r) CHECK(std::equal(y.row(r), y.row(r) + y.cols, z.row(r)));
    return z.data == b.tensors[0].data;
  };
  const Input x{kTensor, 3, 6, normals(18, 1)}, other{kTensor, 3, 6, normals(18, 2)};
  CHECK(both({x, other}, [](Context& ctx, Given& g) { return add(ctx, g.tensors[0], g.tensors[1]); }));
  CHECK(both({x}, [](Context& ctx, Given& g) { return scale(ctx, g.tensors[0], 3); }));
  CHECK(both({x}, [](Context& ctx, Given& g) { return activate(ctx, Activation::kGelu, g.tensors[0]); }));
  CHECK(!both({x}, [](Context& ctx, Given& g) { return softmax(ctx, g.tensors[0]); }));
}

TEST_CASE("shapes that do not fit are errors", "[ops]") {
  Arena arena;
  Context ctx{arena};
  Given g = give(
      ctx,
      {{kTensor, 2, 6, normals(12, 1)}, {kTensor, 3, 6, normals(18, 2)}, {kMatrix, 4, 5, normals(20, 3)}, {kVector, 1, 4, normals(4, 4)}});
  const auto fails_with = [](Code code, auto run) {
    try {
      run();
      FAIL_CHECK("expected an error");
    } catch (const Error& error) {
      CHECK(error.code() == code);
    }
  };
  const Tensor &x = g.tensors[0], &longer = g.tensors[1];
  const std::vector<int32_t> none, one{1}, wrong{4}, negative{-1}, beyond{2, 6}, ignored{-1, -1};
  fails_with(Code::kShapeMismatch, [&] { linear(ctx, x, g.weights[2], kAbsent); });
  fails_with(Code::kShapeMismatch, [&] { linear(ctx, x.columns(0, 5), g.weights[2], g.weights[2]); });
  fails_with(Code::kShapeMismatch, [&] { add(ctx, x, longer); });
  fails_with(Code::kShapeMismatch, [&] { gated(ctx, Activation::kSilu, x, longer); });
  fails_with(Code::kShapeMismatch, [&] { layer_norm(ctx, x, g.weights[3], kAbsent, 1e-5f); });
  fails_with(Code::kShapeMismatch, [&] { rms_norm(ctx, x, g.weights[3], 0, 1e-5f); });
  fails_with(Code::kShapeMismatch, [&] { rms_norm(ctx, x, kAbsent, 0, 1e-5f); });
  fails_with(Code::kShapeMismatch, [&] { rotate(ctx, g.tensors[0], 4, 2, nullptr, nullptr, false); });
  fails_with(Code::kShapeMismatch, [&] { rotate(ctx, g.tensors[0], 3, 1, nullptr, nullptr, false); });
  const std::vector<size_t> all{0, 2}, more{0, 3};
  fails_with(Code::kShapeMismatch, [&] { attention(ctx, {2, 2, 3, 3}, {}, x, x, longer, all, all, {}, nullptr); });
  fails_with(Code::kShapeMismatch, [&] { attention(ctx, {2, 2, 4, 4}, {}, x, x, x, all, all, {}, nullptr); });
  fails_with(Code::kShapeMismatch, [&] { attention(ctx, {2, 2, 3, 3}, {}, x, x, x, all, more, {}, nullptr); });
  fails_with(Code::kShapeMismatch, [&] { cross_entropy(ctx, x, one); });
  fails_with(Code::kInvalidArgument, [&] { cross_entropy(ctx, x, beyond); });
  fails_with(Code::kInvalidArgument, [&] { cross_entropy(ctx, x, ignored); });
  fails_with(Code::kInvalidArgument, [&] { embedding(ctx, wrong, g.weights[2]); });
  fails_with(Code::kInvalidArgument, [&] { embedding(ctx, negative, g.weights[2]); });
  CHECK(embedding(ctx, none, g.weights[2]).rows == 0);
  const std::vector<size_t> too_far{2};
  fails_with(Code::kShapeMismatch, [&] { rows(ctx, x, too_far); });
}

TEST_CASE("padding learns as a token that is written, not as one that is read", "[ops]") {
  const std::vector<int32_t> tokens{2, 0, 2, 1};
  const size_t T = tokens.size(), V = 4, D = 3;
  const std::vector<float> values = normals(V * D, 1), dy = normals(T * V, 2), dx = normals(T * D, 3);
  Weight table = Weight::vocabulary(V, D);
  table.set_padding(2);
  table.allocate(DType::kF32, true);
  table.write_rows(0, V, values.data(), DType::kF32);
  const auto gradient = [&](const auto& run) {
    table.clear_gradient();
    Arena arena;
    Tape tape(arena);
    Context ctx{arena, &tape};
    run(ctx, tape);
    return std::vector<float>(table.gradient(), table.gradient() + V * D);
  };
  const std::vector<float> read = gradient([&](Context& ctx, Tape& tape) { tape.backward(embedding(ctx, tokens, table), dx.data(), D); });
  for (size_t d = 0; d < D; ++d) {
    CHECK(read[0 * D + d] == dx[1 * D + d]);
    CHECK(read[1 * D + d] == dx[3 * D + d]);
    CHECK(read[2 * D + d] == 0);
  }
  const std::vector<float> written = gradient([&](Context& ctx, Tape& tape) {
    const Tensor x = ctx.tensor(T, D);
    std::copy(dx.begin(), dx.end(), x.data);
    tape.backward(linear(ctx, x, table, kAbsent), dy.data(), V);
  });
  std::vector<float> expected(V * D);
  reference::gemm(true, false, V, D, T, dy.data(), dx.data(), false, expected.data());
  for (size_t i = 0; i < V * D; ++i) CHECK(std::abs(written[i] - expected[i]) < 1e-5f);
}

TEST_CASE("a gradient flows through frozen weights, not into them", "[ops]") {
  const size_t T = 3, D = 6, F = 150;
  const std::vector<float> values = normals(F * D, 1), dy = normals(T * F, 2), given = normals(T * D, 3);
  std::vector<float> expected(T * D);
  reference::gemm(false, false, T, D, F, dy.data(), values.data(), false, expected.data());
  Arena arena;
  Tape tape(arena);
  Context ctx{arena, &tape};
  Weight frozen = Weight::matrix(F, D);
  frozen.allocate(DType::kF32, false);
  frozen.write_rows(0, F, values.data(), DType::kF32);
  const Tensor x = ctx.tensor(T, D);
  std::copy(given.begin(), given.end(), x.data);
  tape.backward(linear(ctx, x, frozen, kAbsent), dy.data(), F);
  for (size_t i = 0; i < T * D; ++i) CHECK(std::abs(tape.gradient(x)[i] - expected[i]) < 1e-4f);
  CHECK(frozen.gradient() == nullptr);
}
