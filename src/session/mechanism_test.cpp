// The bare operations: a case worked by hand, the properties that make them what they are, and what they refuse. Values against
// PyTorch are in wasm-tests/ops.test.mjs.
#include "session/mechanism.hpp"

#include <algorithm>
#include <catch_amalgamated.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/rng.hpp"

namespace wf {

namespace {

using Catch::Matchers::WithinAbs;
using Options = std::vector<std::pair<std::string, Config::Value>>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Arrays run(const std::string& operation, const Arrays& tensors, const Options& options = {}) {
  Config config(operation);
  for (const auto& [key, value] : options) config.set(key, value);
  return run_mechanism(operation, tensors, config);
}

Array normals(std::vector<size_t> shape, uint64_t seed) {
  size_t count = 1;
  for (const size_t size : shape) count *= size;
  Array array{std::move(shape), std::vector<float>(count)};
  for (size_t i = 0; i < count; ++i) array.data[i] = static_cast<float>(normal({seed, 0, 0}, i));
  return array;
}

std::string refusal(Code code, const std::string& operation, const Arrays& tensors, const Options& options = {}) {
  try {
    run(operation, tensors, options);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.message();
  }
  return "nothing was refused";
}

// The weights of an encoder or decoder layer of width D and inner width F.
Arrays layer(size_t D, size_t F, bool cross) {
  Arrays weights;
  uint64_t seed = 100;
  const auto matrix = [&](const std::string& name, size_t rows, size_t cols) {
    weights["weights." + name + ".weight"] = normals({rows, cols}, ++seed);
    weights["weights." + name + ".bias"] = normals({rows}, ++seed);
  };
  const auto norm = [&](const std::string& name) {
    weights["weights." + name + ".weight"] = {{D}, std::vector<float>(D, 1)};
    weights["weights." + name + ".bias"] = {{D}, std::vector<float>(D, 0)};
  };
  for (const std::string at : {"self_attn", "encoder_attn"}) {
    if (at == "encoder_attn" && !cross) continue;
    for (const std::string part : {"q_proj", "k_proj", "v_proj", "out_proj"}) matrix(at + "." + part, D, D);
    norm(at + "_layer_norm");
  }
  matrix("fc1", F, D);
  matrix("fc2", D, F);
  norm("final_layer_norm");
  return weights;
}

Arrays with(Arrays arrays, const std::string& name, const Array& array) {
  arrays[name] = array;
  return arrays;
}

}  // namespace

TEST_CASE("Attention worked by hand", "[mechanism]") {
  // Scores are 1/sqrt 2, 0 and 2/sqrt 2; e^0.7071 = 2.028, e^1.4142 = 4.113.
  const Array x{{3, 2}, {1, 0, 0, 1, 1, 1}};
  const Arrays result = run("attention", {{"q", x}, {"k", x}, {"v", x}});
  const float weights[] = {0.40f, 0.20f, 0.40f, 0.20f, 0.40f, 0.40f, 0.25f, 0.25f, 0.50f};
  const float output[] = {0.80f, 0.60f, 0.60f, 0.80f, 0.75f, 0.75f};
  REQUIRE(result.at("weights").shape == std::vector<size_t>{3, 3});
  REQUIRE(result.at("output").shape == std::vector<size_t>{3, 2});
  for (size_t i = 0; i < 9; ++i) CHECK_THAT(result.at("weights").data[i], WithinAbs(weights[i], 0.005));
  for (size_t i = 0; i < 6; ++i) CHECK_THAT(result.at("output").data[i], WithinAbs(output[i], 0.005));
  CHECK(!result.contains("scores"));
}

TEST_CASE("Rows of weights sum to 1; the output is the weights times the values", "[mechanism]") {
  const size_t H = 4, Hk = 2, T = 5, S = 37, Dv = 6;
  const Array v = normals({Hk, S, Dv}, 3);
  const Arrays result = run("attention", {{"q", normals({H, T, 8}, 1)}, {"k", normals({Hk, S, 8}, 2)}, {"v", v}});
  for (size_t h = 0; h < H; ++h) {
    for (size_t t = 0; t < T; ++t) {
      const float* row = result.at("weights").data.data() + (h * T + t) * S;
      double sum = 0;
      std::vector<double> out(Dv);
      for (size_t j = 0; j < S; ++j) {
        sum += static_cast<double>(row[j]);
        for (size_t d = 0; d < Dv; ++d) out[d] += static_cast<double>(row[j]) * static_cast<double>(v.data[(h / 2 * S + j) * Dv + d]);
      }
      CHECK_THAT(sum, WithinAbs(1, 1e-5));
      for (size_t d = 0; d < Dv; ++d)
        CHECK_THAT(static_cast<double>(result.at("output").data[(h * T + t) * Dv + d]), WithinAbs(out[d], 1e-5));
    }
  }
}

TEST_CASE("A fully masked row gives zeros; a row before position 0 is one", "[mechanism]") {
  const Array q = normals({3, 4}, 1), k = normals({2, 4}, 2);
  const Arrays masked = run("attention", {{"q", q}, {"k", k}, {"v", k}, {"mask", {{3, 2}, {1, 0, 0, 0, 1, 1}}}}, {{"scores", true}});
  CHECK(masked.at("weights").data[0] == 1);
  CHECK(masked.at("weights").data[1] == 0);
  for (size_t d = 0; d < 4; ++d) CHECK(masked.at("output").data[4 + d] == 0);
  CHECK(masked.at("weights").data[2] == 0);
  CHECK(masked.at("scores").data[2] == -std::numeric_limits<float>::infinity());

  const Arrays causal = run("attention", {{"q", q}, {"k", k}, {"v", k}}, {{"causal", true}});
  const std::vector<float>& weights = causal.at("weights").data;
  CHECK((weights[0] == 0 && weights[1] == 0));
  CHECK((weights[2] == 1 && weights[3] == 0));
  CHECK((weights[4] > 0 && weights[5] > 0));
}

TEST_CASE("A causal row ignores later positions", "[mechanism]") {
  const size_t T = 9, D = 8;
  const Arrays weights = layer(D, 12, false);
  Array x = normals({T, D}, 5);
  const Options options = {{"heads", 2.0}, {"causal", true}};
  const Arrays before = run("encoderLayer", with(weights, "x", x), options);
  for (size_t i = 6 * D; i < x.data.size(); ++i) x.data[i] += 3;
  const Arrays after = run("encoderLayer", with(weights, "x", x), options);
  for (size_t i = 0; i < 6 * D; ++i) CHECK(before.at("output").data[i] == after.at("output").data[i]);
  CHECK(before.at("output").data[6 * D] != after.at("output").data[6 * D]);
}

TEST_CASE("Queries at the end see what they see in the whole", "[mechanism]") {
  const size_t S = 21, T = 4, D = 8;
  const Array x = normals({S, D}, 5);
  const Array last{{T, D}, {x.data.end() - T * D, x.data.end()}};
  const Arrays whole = run("attention", {{"q", x}, {"k", x}, {"v", x}}, {{"causal", true}});
  const Arrays part = run("attention", {{"q", last}, {"k", x}, {"v", x}}, {{"causal", true}});
  for (size_t i = 0; i < T * D; ++i) CHECK(part.at("output").data[i] == whole.at("output").data[(S - T) * D + i]);
}

TEST_CASE("Self-attention without positions does not know the order; with them it does", "[mechanism]") {
  const size_t D = 8;
  const Arrays weights = layer(D, 12, false);
  // Words: A, hits, B.
  const Array words = normals({3, D}, 9), codes = run("sinusoidalPositions", {}, {{"length", 3.0}, {"size", double{D}}}).at("output");
  const auto encoded = [&](std::vector<size_t> order, bool with_positions) {
    Array x{{3, D}, {}};
    for (size_t t = 0; t < 3; ++t) {
      for (size_t d = 0; d < D; ++d) x.data.push_back(words.data[order[t] * D + d] + (with_positions ? codes.data[t * D + d] : 0));
    }
    return run("encoderLayer", with(weights, "x", x), {{"heads", 2.0}}).at("output").data;
  };
  const std::vector<float> ahb = encoded({0, 1, 2}, false), bha = encoded({2, 1, 0}, false);
  const std::vector<float> ahb_at = encoded({0, 1, 2}, true), bha_at = encoded({2, 1, 0}, true);
  double difference = 0;
  for (size_t t = 0; t < 3; ++t) {
    for (size_t d = 0; d < D; ++d) {
      CHECK_THAT(ahb[t * D + d], WithinAbs(bha[(2 - t) * D + d], 1e-5));
      difference = std::max(difference, std::abs(static_cast<double>(ahb_at[t * D + d] - bha_at[(2 - t) * D + d])));
    }
  }
  CHECK(difference > 0.01);
}

TEST_CASE("Position codes are unique, and PE(pos + k) is PE(pos) rotated", "[mechanism]") {
  const size_t N = 2000, D = 16, k = 7;
  const std::vector<float> codes = run("sinusoidalPositions", {}, {{"length", double{N}}, {"size", double{D}}}).at("output").data;
  std::vector<std::vector<float>> rows;
  for (size_t t = 0; t < N; ++t)
    rows.emplace_back(codes.begin() + static_cast<long>(t * D), codes.begin() + static_cast<long>((t + 1) * D));
  std::sort(rows.begin(), rows.end());
  CHECK(std::adjacent_find(rows.begin(), rows.end()) == rows.end());
  // (sin, cos)(w (pos + k)) = [cos wk, sin wk; -sin wk, cos wk] (sin, cos)(w pos): one matrix for every pos.
  double worst = 0;
  for (size_t t = 0; t + k < N; ++t) {
    for (size_t i = 0; i < D / 2; ++i) {
      const double w = std::pow(10000.0, -2.0 * static_cast<double>(i) / D) * k, s = static_cast<double>(codes[t * D + 2 * i]),
                   c = static_cast<double>(codes[t * D + 2 * i + 1]);
      worst = std::max(worst, std::abs(std::cos(w) * s + std::sin(w) * c - static_cast<double>(codes[(t + k) * D + 2 * i])));
      worst = std::max(worst, std::abs(-std::sin(w) * s + std::cos(w) * c - static_cast<double>(codes[(t + k) * D + 2 * i + 1])));
    }
  }
  CHECK(worst < 3e-7);
}

TEST_CASE("Scores of unit-variance q and k have variance 1 with the scale, Dk without", "[mechanism]") {
  const size_t T = 300, Dk = 64;
  const Arrays tensors = {{"q", normals({T, Dk}, 1)}, {"k", normals({T, Dk}, 2)}, {"v", normals({T, 1}, 3)}};
  const auto variance = [&](const Options& options) {
    double sum = 0, squares = 0;
    const Arrays result = run("attention", tensors, options);
    for (const float score : result.at("scores").data) sum += static_cast<double>(score), squares += static_cast<double>(score * score);
    const double n = double{T} * T;
    return squares / n - sum * sum / n / n;
  };
  CHECK_THAT(variance({{"scores", true}}), WithinAbs(1, 0.05));
  CHECK_THAT(variance({{"scores", true}, {"scale", 1.0}}), WithinAbs(Dk, 0.05 * Dk));
}

TEST_CASE("Without residual connections a layer forgets its input", "[mechanism]") {
  const size_t D = 8;
  Arrays tensors = with(layer(D, 12, false), "x", normals({4, D}, 1));
  for (const char* name : {"weights.fc2.weight", "weights.fc2.bias"}) {
    for (float& value : tensors[name].data) value = 0;
  }
  const Options pre = {{"norm", std::string("pre")}, {"residual", false}};
  const Array output = run("encoderLayer", tensors, pre).at("output");
  for (const float value : output.data) CHECK(value == 0);
}

TEST_CASE("NaN stays where it is seen", "[mechanism]") {
  Array x{{3, 2}, {1, 0, 0, 1, kNaN, 1}};
  const Arrays causal = run("attention", {{"q", x}, {"k", x}, {"v", x}}, {{"causal", true}});
  for (size_t i = 0; i < 4; ++i) CHECK(std::isfinite(causal.at("output").data[i]));
  for (size_t i = 4; i < 6; ++i) CHECK(std::isnan(causal.at("output").data[i]));
  CHECK(std::isnan(causal.at("weights").data[6]));
  const std::vector<float> soft = run("softmax", {{"x", x}}).at("output").data;
  CHECK((std::isfinite(soft[0]) && std::isnan(soft[4])));
}

TEST_CASE("What does not fit is refused by name", "[mechanism]") {
  const Array a = normals({3, 4}, 1), heads = normals({2, 3, 4}, 1);
  const auto shape = [](const std::string& operation, const Arrays& tensors, const Options& options = {}) {
    return refusal(Code::kShapeMismatch, operation, tensors, options);
  };
  CHECK(shape("attention", {{"q", a}, {"k", normals({3, 5}, 1)}, {"v", a}}) == "[attention] k: expected (S, 4), got (3, 5)");
  CHECK(shape("attention", {{"q", a}, {"k", a}, {"v", normals({2, 4}, 1)}}) == "[attention] v: expected (3, Dv), got (2, 4)");
  CHECK(shape("attention", {{"q", heads}, {"k", a}, {"v", a}}) == "[attention] k: expected (Hk, S, 4), got (3, 4)");
  CHECK(shape("attention", {{"q", heads}, {"k", normals({3, 3, 4}, 1)}, {"v", heads}}) ==
        "[attention] k: expected a number of heads that divides 2, got (3, 3, 4)");
  CHECK(shape("attention", {{"q", a}, {"k", a}, {"v", a}, {"mask", normals({2, 3}, 1)}}) ==
        "[attention] mask: expected a shape that broadcasts to (1, 3, 3), got (2, 3)");
  CHECK(shape("attention", {{"q", {{0, 4}, {}}}, {"k", a}, {"v", a}}) == "[attention] q: expected dimensions of at least 1, got (0, 4)");
  CHECK(shape("softmax", {{"x", {{2, 2}, {1, 2, 3}}}}) == "[softmax] x: expected 4 numbers for its shape (2, 2), got 3");
  CHECK(shape("layerNorm", {{"x", a}, {"weight", normals({3}, 1)}}) == "[layerNorm] weight: expected (4), got (3)");
  CHECK(shape("feedForward", {{"x", a}, {"up.weight", normals({6, 4}, 1)}, {"down.weight", normals({4, 5}, 1)}}) ==
        "[feedForward] down.weight: expected (D, 6), got (4, 5)");
  CHECK(shape("rope", {{"x", normals({3, 5}, 1)}}) == "[rope] x: expected an even number of features, got (3, 5)");
  Arrays wrong = with(layer(8, 12, false), "x", normals({3, 8}, 1));
  wrong["weights.fc1.weight"] = normals({12, 7}, 1);
  CHECK(shape("encoderLayer", wrong, {{"heads", 2.0}}) == "[encoderLayer] weights.fc1.weight: expected (F, 8), got (12, 7)");
  CHECK(shape("encoderLayer", with(layer(8, 12, false), "x", normals({3, 8}, 1)), {{"heads", 3.0}}) ==
        "[encoderLayer] weights.self_attn.q_proj: expected a multiple of 3 rows, one part a head, got (8, 8)");

  const auto argument = [](const std::string& operation, const Arrays& tensors, const Options& options = {}) {
    return refusal(Code::kInvalidArgument, operation, tensors, options);
  };
  CHECK(argument("attention", {{"q", a}, {"k", a}}) == "[attention] v: expected a tensor, got none");
  CHECK(argument("attention", {{"q", a}, {"k", a}, {"v", a}, {"mask", {{3}, {1, 0.5f, 0}}}}) ==
        "[attention] mask: expected 1 where a key is visible and 0 where it is hidden, got 0.5");
  CHECK(argument("attention", {{"q", a}, {"k", a}, {"v", a}}, {{"casual", true}}) ==
        "[attention] unknown argument 'casual': expected one of bias, causal, k, mask, q, scale, scores, v");
  CHECK(
      argument("attention", {{"q", a}, {"k", a}, {"v", a}}, {{"scale", double{kNaN}}}).starts_with("[attention] scale: expected a finite"));
  CHECK(argument("attention", {{"q", a}, {"k", a}, {"v", a}, {"causal", a}}).starts_with("[attention] causal: expected a number"));
  CHECK(argument("sinusoidalPositions", {}, {{"length", 3.0}, {"size", 5.0}}).starts_with("[sinusoidalPositions] size: expected an even"));
  CHECK(argument("rope", {{"x", a}, {"positions", {{3}, {0, 1.5f, 2}}}}).starts_with("[rope] positions: expected whole numbers"));
  CHECK(argument("encoderLayer", {{"x", a}}) == "[encoderLayer] weights.self_attn.q_proj.weight: expected a tensor, got none");
  CHECK(argument("nothing", {}).starts_with("[ops] expected the name"));
  CHECK(refusal(Code::kUnsupported, "feedForward", {{"x", a}, {"up", a}, {"down", normals({4, 3}, 1)}},
                {{"activation", std::string("swoosh")}})
            .starts_with("[feedForward] activation: expected"));
}

TEST_CASE("What cannot fit in memory is refused with its bytes", "[mechanism]") {
  const Array tall{{200000, 1}, std::vector<float>(200000)};
  const std::string message = refusal(Code::kOutOfMemory, "attention", {{"q", tall}, {"k", tall}, {"v", tall}});
  CHECK(message.starts_with("[attention] memory: expected at most 4294901760 bytes, got 1600"));
  CHECK(refusal(Code::kOutOfMemory, "sinusoidalPositions", {}, {{"length", 1e7}, {"size", 1e6}}).find("bytes, got ") != std::string::npos);
}

}  // namespace wf
