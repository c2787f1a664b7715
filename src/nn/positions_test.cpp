// Sinusoidal positions, relative positions and linear biases.
#include <catch_amalgamated.hpp>
#include <cmath>

#include "nn/attention.hpp"
#include "nn/relative_bias.hpp"
#include "nn/sinusoids.hpp"

using namespace wf;

TEST_CASE("sinusoidal positions are sine and cosine side by side", "[positions]") {
  Arena arena;
  Context ctx{arena};
  const std::vector<int32_t> positions{0, 1, 5, 100000};
  const Tensor y = Sinusoids(6)(ctx, positions);
  REQUIRE(y.rows == 4);
  REQUIRE(y.cols == 6);
  // numpy: angle = p / 10000 ** (np.arange(0, 6, 2) / 6); np.stack([np.sin(angle), np.cos(angle)], -1).ravel()
  const float expected[4][6] = {{0, 1, 0, 1, 0, 1},
                                {0.84147098f, 0.54030231f, 0.04639922f, 0.99892298f, 0.00215443f, 0.99999768f},
                                {-0.95892427f, 0.28366219f, 0.23000171f, 0.97319022f, 0.01077197f, 0.99994198f},
                                {0.03574880f, -0.99936081f, -0.99347349f, -0.11406327f, 0.97028940f, -0.24194726f}};
  for (size_t t = 0; t < 4; ++t) {
    for (size_t i = 0; i < 6; ++i) CHECK(std::abs(y.row(t)[i] - expected[t][i]) < 1e-6f);
  }
}

TEST_CASE("sinusoidal positions in halves, and as fairseq spreads them", "[positions]") {
  Arena arena;
  Context ctx{arena};
  const std::vector<int32_t> positions{-1, 0, 3};
  const Tensor spread = Sinusoids::spread(6, 2)(ctx, positions);
  // M2M100SinusoidalPositionalEmbedding(10, 6, 1).weights[[1, 2, 5]]
  const float expected[3][6] = {{0, 0, 0, 0, 0, 0},
                                {0.90929741f, 0.019998666f, 0.0002f, -0.41614684f, 0.9998f, 1},
                                {-0.95892429f, 0.049979169f, 0.0005f, 0.28366217f, 0.99875027f, 0.99999988f}};
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < 6; ++i) CHECK(std::abs(spread.row(t)[i] - expected[t][i]) < 1e-6f);
  }
  const std::vector<int32_t> later{0, 5};
  const Tensor halves = Sinusoids::halves(6)(ctx, later), mixed = Sinusoids(6)(ctx, later);
  for (size_t t = 0; t < 2; ++t) {
    for (size_t i = 0; i < 3; ++i) {
      CHECK(halves.row(t)[i] == mixed.row(t)[2 * i]);
      CHECK(halves.row(t)[3 + i] == mixed.row(t)[2 * i + 1]);
    }
  }
}

TEST_CASE("relative positions fall into the buckets of transformers", "[positions]") {
  const std::vector<int> distances{-200, -128, -127, -100, -64, -40, -20, -16, -15, -12, -11, -9, -8,  -7,  -1, 0,
                                   1,    3,    7,    8,    9,   11,  12,  15,  16,  31,  90,  91, 127, 128, 500};
  // T5Attention._relative_position_bucket(distances, bidirectional, buckets, max_distance)
  struct {
    bool both_ways;
    size_t buckets, max_distance;
    std::vector<int> expected;
  } const cases[] = {
      {true, 32, 128, {15, 15, 15, 15, 14, 12, 10, 10, 9, 9, 8, 8, 8, 7, 1, 0, 17, 19, 23, 24, 24, 24, 25, 25, 26, 27, 30, 31, 31, 31, 31}},
      {false, 32, 128, {31, 31, 31, 30, 26, 23, 17, 16, 15, 12, 11, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {true, 8, 20, {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 0, 5, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}},
  };
  for (const auto& one : cases) {
    RelativeBias bias(2, one.buckets, one.max_distance, one.both_ways);
    bias.weight.allocate(DType::kF32, false);
    std::vector<float> values(one.buckets * 2);
    for (size_t b = 0; b < one.buckets; ++b) values[2 * b] = static_cast<float>(b), values[2 * b + 1] = -static_cast<float>(b);
    bias.weight.write_rows(0, one.buckets, values.data(), DType::kF32);
    Arena arena;
    Context ctx{arena};
    const auto table = bias.over(ctx, 201, 701);
    for (size_t i = 0; i < distances.size(); ++i) {
      CAPTURE(distances[i], one.both_ways, one.buckets);
      const float* entry = table.values.data + static_cast<ptrdiff_t>(table.zero) + distances[i];
      CHECK(entry[0] == static_cast<float>(one.expected[i]));
      CHECK(entry[table.values.stride] == -static_cast<float>(one.expected[i]));
    }
  }
}

TEST_CASE("a bucket's gradient is the sum over the distances that fall into it", "[positions][gradient]") {
  const size_t H = 3, buckets = 8;
  RelativeBias bias(H, buckets, 20, true);
  bias.weight.allocate(DType::kF32, true);
  std::vector<float> numbers(buckets * H);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i / H);
  bias.weight.write_rows(0, buckets, numbers.data(), DType::kF32);
  Arena arena;
  Tape tape(arena);
  Context ctx{arena, &tape};
  const auto table = bias.over(ctx, 30, 17);
  std::vector<float> expected(buckets * H);
  for (size_t h = 0; h < H; ++h) {
    for (size_t i = 0; i < table.values.cols; ++i) {
      const float given = static_cast<float>(h * 64 + i);
      tape.gradient(table.values)[h * table.values.stride + i] = given;
      expected[static_cast<size_t>(table.values.row(h)[i]) * H + h] += given;
    }
  }
  tape.play();
  for (size_t i = 0; i < expected.size(); ++i) CHECK(bias.weight.gradient()[i] == expected[i]);
}

TEST_CASE("slopes of ALiBi are those of transformers", "[positions]") {
  // build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
  const std::vector<std::vector<float>> expected{
      {0.00390625f},
      {0.0625f, 0.00390625f},
      {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f},
      {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f},
      {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f, 0.70710677f, 0.35355338f, 0.17677668f, 0.088388339f},
      {0.70710677f,   0.49999997f,   0.35355338f,  0.24999999f,  0.17677668f,  0.12499999f,  0.088388339f,
       0.062499993f,  0.044194166f,  0.031249994f, 0.022097083f, 0.015624997f, 0.011048541f, 0.0078124981f,
       0.0055242702f, 0.0039062488f, 0.84089643f,  0.5946036f,   0.42044824f,  0.2973018f}};
  for (const auto& slopes : expected) {
    const auto got = alibi_slopes(slopes.size());
    REQUIRE(got.size() == slopes.size());
    // Python raises a base that is rounded to float already to powers up to 16.
    for (size_t h = 0; h < slopes.size(); ++h) CHECK(std::abs(got[h] - slopes[h]) < 16 * 6e-8f * slopes[h]);
  }
}
