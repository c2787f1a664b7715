// Sinusoidal positions and linear biases.
#include <catch_amalgamated.hpp>
#include <cmath>

#include "nn/attention.hpp"
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
