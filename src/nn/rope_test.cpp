// Rotary positions against those of transformers 5.24: cos and sin that
// LlamaRotaryEmbedding(LlamaConfig(**config))(torch.zeros(1), torch.tensor([[3, 57]])) returns, first half of the features.
#include "nn/rope.hpp"

#include <algorithm>
#include <array>
#include <catch_amalgamated.hpp>
#include <cmath>
#include <cstring>
#include <iterator>

#include "core/testing.hpp"

using namespace wf;
using namespace wf::testing;

namespace {

struct Expected {
  const char* name;
  const char* config;
  std::array<float, 12> cos, sin;  // (2 positions, 6 frequencies)
};

const Expected kExpected[] = {
    {"default",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_theta": 10000.0})",
     {-0.9899925f, 0.7982993f, 0.9903207f, 0.99955f, 0.9999791f, 0.999999f, 0.8998668f, 0.9593534f, -0.8795469f, 0.841901f, 0.9924692f,
      0.99965f},
     {0.14112f, 0.602261f, 0.1387981f, 0.0299955f, 0.006463258f, 0.001392476f, 0.4361648f, -0.2822075f, 0.4758122f, 0.539632f, 0.1224943f,
      0.02645397f}},
    {"theta 5e5",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_theta": 500000.0})",
     {-0.9899925f, 0.9438373f, 0.9992858f, 0.999991f, 0.9999999f, 1.0f, 0.8998668f, 0.9934123f, 0.7530211f, 0.9967527f, 0.9999591f,
      0.9999995f},
     {0.14112f, 0.3304106f, 0.03778863f, 0.004242628f, 0.0004762202f, 5.345394e-05f, 0.4361648f, 0.1145955f, 0.6579964f, 0.08052289f,
      0.00904806f, 0.001015625f}},
    {"linear",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}})",
     {0.3623577f, 0.9667663f, 0.9984492f, 0.999928f, 0.9999967f, 0.9999998f, -0.6903291f, 0.1983967f, 0.4903699f, 0.9741204f, 0.9987938f,
      0.999944f},
     {0.9320391f, 0.2556618f, 0.05567026f, 0.01199971f, 0.002585318f, 0.0005569907f, -0.7234955f, -0.9801218f, 0.8715144f, 0.2260297f,
      0.04910135f, 0.01058263f}},
    {"dynamic within",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}})",
     {-0.9899925f, 0.7982993f, 0.9903207f, 0.99955f, 0.9999791f, 0.999999f, 0.8998668f, 0.9593534f, -0.8795469f, 0.841901f, 0.9924692f,
      0.99965f},
     {0.14112f, 0.602261f, 0.1387981f, 0.0299955f, 0.006463258f, 0.001392476f, 0.4361648f, -0.2822075f, 0.4758122f, 0.539632f, 0.1224943f,
      0.02645397f}},
    {"dynamic beyond",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 16, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "dynamic", "factor": 3.0}})",
     {-0.9899925f, 0.9140414f, 0.99831f, 0.9999672f, 0.9999993f, 1.0f, 0.8998668f, -0.08143158f, 0.4493349f, 0.9881951f, 0.9997708f,
      0.9999956f},
     {0.14112f, 0.405621f, 0.05811333f, 0.008094975f, 0.001126989f, 0.0001568988f, 0.4361648f, 0.9966789f, 0.8933634f, 0.1532005f,
      0.02141116f, 0.002981073f}},
    {"llama3",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 128, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}})",
     {-0.9899925f, 0.9991142f, 0.9999889f, 0.9999999f, 1.0f, 1.0f, 0.8998668f, 0.6968831f, 0.9959734f, 0.9999492f, 0.9999993f, 1.0f},
     {0.14112f, 0.0420799f, 0.004724686f, 0.0005303301f, 5.952752e-05f, 6.681742e-06f, 0.4361648f, 0.7171848f, 0.08964884f, 0.0100761f,
      0.001131023f, 0.0001269531f}},
    {"yarn",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}})",
     {-1.127235f, 1.123798f, 1.13794f, 1.138597f, 1.138628f, 1.138629f, 1.024615f, -1.135718f, 0.8985118f, 1.127088f, 1.138093f, 1.138605f},
     {0.1606834f, 0.1831831f, 0.03962987f, 0.00853964f, 0.001839826f, 0.0003963788f, 0.49663f, 0.08136944f, 0.6993952f, 0.1617061f,
      0.03495122f, 0.007531142f}},
    {"yarn with all options",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 0.4, "truncate": false}})",
     {-1.029002f, 1.020852f, 1.038774f, 1.039375f, 1.039402f, 1.039404f, 0.935325f, -0.9343224f, 0.8202111f, 1.028868f, 1.038914f,
      1.039381f},
     {0.1466807f, 0.1955018f, 0.03617633f, 0.007795455f, 0.001679495f, 0.0003618364f, 0.4533513f, -0.455414f, 0.6384465f, 0.1476143f,
      0.0319054f, 0.006874842f}},
    {"yarn with attention_factor",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.25}})",
     {-1.237491f, 1.233717f, 1.249243f, 1.249965f, 1.249998f, 1.25f, 1.124834f, -1.246804f, 0.9863961f, 1.23733f, 1.249411f, 1.249973f},
     {0.1764f, 0.2011005f, 0.0435061f, 0.009374912f, 0.002019781f, 0.000435149f, 0.545206f, 0.08932827f, 0.7678038f, 0.1775228f,
      0.03836983f, 0.008267771f}},
    {"longrope short",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "rope_theta": 10000.0, "original_max_position_embeddings": 128, "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4], "long_factor": [1.3, 1.7, 2.1, 3.0, 3.7, 4.9]}})",
     {-1.058347f, 0.8728265f, 1.060491f, 1.068711f, 1.069032f, 1.069044f, 0.9619981f, 0.6886396f, -0.7920417f, 0.9506939f, 1.064279f,
      1.068854f},
     {0.1508636f, 0.6172771f, 0.1349679f, 0.02672334f, 0.005315026f, 0.0010633f, 0.4662797f, -0.8176996f, 0.7180021f, 0.4889153f,
      0.1008358f, 0.0202015f}},
    {"longrope long",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "rope_theta": 10000.0, "original_max_position_embeddings": 32, "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4], "long_factor": [1.3, 1.7, 2.1, 3.0, 3.7, 4.9]}})",
     {-0.8500106f, 1.174587f, 1.262131f, 1.264848f, 1.264909f, 1.264911f, 1.253206f, 0.7455118f, 0.3870002f, 1.242148f, 1.264214f,
      1.264893f},
     {0.93674f, 0.4694096f, 0.08381278f, 0.0126489f, 0.002209594f, 0.0003594611f, -0.1716784f, 1.021867f, 1.204255f, 0.2388897f, 0.0419746f,
      0.006829727f}},
    {"longrope with factor",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "rope_theta": 10000.0, "original_max_position_embeddings": 32, "rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4], "long_factor": [1.3, 1.7, 2.1, 3.0, 3.7, 4.9]}})",
     {-0.7361308f, 1.017222f, 1.093038f, 1.09539f, 1.095443f, 1.095445f, 1.085309f, 0.6456322f, 0.335152f, 1.075732f, 1.094842f, 1.095429f},
     {0.8112407f, 0.4065207f, 0.072584f, 0.01095427f, 0.001913565f, 0.0003113024f, -0.1486779f, 0.8849628f, 1.042916f, 0.2068846f,
      0.03635108f, 0.005914718f}},
    {"rope_parameters",
     R"({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0}})",
     {0.7316889f, 0.9896566f, 0.9996183f, 0.9999859f, 0.9999995f, 1.0f, -0.1125938f, -0.9185215f, 0.8653367f, 0.9949277f, 0.999813f,
      0.9999931f},
     {0.6816388f, 0.1434571f, 0.02762672f, 0.005303276f, 0.001017906f, 0.0001953753f, 0.9936411f, 0.3953711f, 0.5011909f, 0.1005923f,
      0.01933902f, 0.003712122f}},
};

// The same at position 100003, where the last bit of a frequency shows. (Not of dynamic scaling: torch's power function rounds in its own
// way.)
struct Far {
  const char* name;
  std::array<float, 6> cos, sin;
};
const Far kFar[] = {
    {"default",
     {0.9843149f, 0.9986387f, 0.02439096f, 0.5373501f, -0.2481726f, -0.7605712f},
     {-0.1764209f, -0.05216026f, -0.9997025f, 0.8433592f, 0.9687158f, 0.6492546f}},
    {"theta 5e5",
     {0.9843149f, -0.9989649f, -0.9838501f, -0.998547f, -0.9861677f, -0.2094917f},
     {-0.1764209f, -0.04548771f, -0.1789942f, -0.05388736f, -0.1657504f, 0.9778104f}},
    {"linear",
     {-0.7648168f, -0.8211091f, -0.9999521f, -0.5150796f, -0.2122099f, 0.9603224f},
     {0.6442478f, -0.5707713f, -0.009781611f, -0.8571424f, -0.9772241f, -0.2788922f}},
    {"llama3",
     {0.9843149f, -0.3879322f, 0.9150379f, 0.3889009f, -0.4018296f, 0.9752977f},
     {-0.1764209f, 0.9216879f, 0.403368f, -0.9212796f, 0.9157145f, 0.2208944f}},
    {"yarn",
     {1.12077f, 0.01485412f, -0.4293114f, 0.2826679f, -1.022588f, 0.651114f},
     {-0.200878f, 1.138533f, -1.054594f, -1.102985f, -0.5007912f, -0.9340918f}},
    {"yarn with all options",
     {1.023101f, 0.6614264f, -0.3918991f, 0.2580348f, -0.9334743f, 0.5943729f},
     {-0.1833725f, -0.801795f, -0.9626917f, -1.006866f, -0.4571498f, -0.8526906f}},
    {"yarn with attention_factor",
     {1.230394f, 0.01630702f, -0.4713027f, 0.3103159f, -1.122608f, 0.7148002f},
     {-0.2205261f, 1.249894f, -1.157745f, -1.210869f, -0.5497741f, -1.025456f}},
    {"longrope short",
     {1.006017f, 1.007972f, 0.249963f, 1.009781f, -0.1176067f, -1.067807f},
     {0.3616447f, 0.3561594f, -1.039411f, 0.3509965f, 1.062556f, -0.05144148f}},
    {"longrope long",
     {1.190335f, 1.192649f, 0.2957603f, 1.19479f, -0.1391541f, -1.263446f},
     {0.4279038f, 0.4214135f, -1.229848f, 0.4153046f, 1.257234f, -0.06086638f}},
    {"longrope with factor",
     {1.030861f, 1.032864f, 0.2561359f, 1.034718f, -0.120511f, -1.094176f},
     {0.3705756f, 0.3649548f, -1.06508f, 0.3596644f, 1.088796f, -0.05271183f}},
    {"rope_parameters",
     {0.9990172f, -0.1802257f, -0.8531439f, 0.6578701f, -0.8102074f, 0.9737756f},
     {-0.04432274f, -0.9836253f, -0.5216757f, 0.7531314f, 0.5861434f, 0.2275106f}},
};

Rope rope_of(const Config& config) { return Rope(config, config.size("head_dim"), config.size("max_position_embeddings"), 10000); }

std::vector<float> angles(const Rope& rope, std::vector<int32_t> positions, std::vector<size_t> offsets, std::vector<size_t> extents = {}) {
  Arena arena;
  Context ctx{arena};
  const std::vector<int32_t> tokens(positions.size());
  const Rope::Angles made = rope.angles(ctx, {tokens, positions, offsets, extents});
  std::vector<float> all(made.cos, made.cos + positions.size() * rope.rotary() / 2);
  all.insert(all.end(), made.sin, made.sin + positions.size() * rope.rotary() / 2);
  return all;
}

}  // namespace

TEST_CASE("every scaling gives the angles of transformers", "[rope]") {
  for (const Expected& expected : kExpected) {
    CAPTURE(expected.name);
    const Rope rope = rope_of(config_of(expected.config));
    REQUIRE(rope.rotary() == 12);
    const auto got = angles(rope, {3, 57}, {0, 2});
    for (size_t i = 0; i < 12; ++i) {
      CAPTURE(i);
      CHECK(std::abs(got[i] - expected.cos[i]) < 5e-6f);
      CHECK(std::abs(got[12 + i] - expected.sin[i]) < 5e-6f);
    }
  }
}

TEST_CASE("frequencies are those of transformers to the last bit", "[rope]") {
  for (const Far& far : kFar) {
    CAPTURE(far.name);
    const auto config =
        std::find_if(std::begin(kExpected), std::end(kExpected), [&](const Expected& e) { return !std::strcmp(e.name, far.name); });
    const auto got = angles(rope_of(config_of(config->config)), {100003}, {0, 1});
    for (size_t i = 0; i < 6; ++i) {
      CAPTURE(i);
      CHECK(std::abs(got[i] - far.cos[i]) < 5e-6f);
      CHECK(std::abs(got[6 + i] - far.sin[i]) < 5e-6f);
    }
  }
}

TEST_CASE("a sequence's frequencies depend on its own length only, or on the length announced", "[rope]") {
  const Rope rope =
      rope_of(config_of(R"({"head_dim": 12, "max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 3}})"));
  const auto alone = angles(rope, {3, 57}, {0, 2}), early = angles(rope, {3}, {0, 1});
  const auto both = angles(rope, {3, 3, 57}, {0, 1, 3}), announced = angles(rope, {3}, {0, 1}, {58});
  for (size_t i = 0; i < 6; ++i) {
    CHECK(both[i] == early[i]);
    CHECK(both[6 + i] == alone[i]);
    CHECK(announced[i] == alone[i]);
  }
  CHECK(early[1] != alone[1]);
}

TEST_CASE("a part of each head turns", "[rope]") {
  const auto rotary = [](const char* json, double partial) { return Rope(config_of(json), 10, 64, 10000, partial).rotary(); };
  CHECK(rotary("{}", 1) == 10);
  CHECK(rotary("{}", 0.4) == 4);
  CHECK(rotary(R"({"partial_rotary_factor": 0.6})", 1) == 6);
  CHECK(rotary(R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.2}})", 1) == 2);
  CHECK_FALSE(Rope(Config(), 10, 64, 10000).interleaved());
  // LLaMA of transformers has no such part and does not read the field.
  CHECK(Rope(config_of(R"({"partial_rotary_factor": 0.6})"), 10, 64, 10000).rotary() == 10);
}

TEST_CASE("an odd part takes one feature more along", "[rope]") {
  // GPTNeoXRotaryEmbedding(GPTNeoXConfig(hidden_size=20, num_attention_heads=2, rotary_pct=0.7)), positions 3 and 57.
  const float cos[] = {-0.9899925f, 0.9767828f, 0.9998793f, 0.9999994f, 0.8998668f, -0.573016f, 0.9567353f, 0.9997743f};
  const float sin[] = {0.14112f, 0.2142322f, 0.01553779f, 0.001118278f, 0.4361648f, -0.8195441f, 0.2909599f, 0.02124568f};
  const Rope rope(config_of(R"({"rotary_pct": 0.7})"), 10, 64, 10000, 0.7);
  REQUIRE(rope.rotary() == 8);
  const auto got = angles(rope, {3, 57}, {0, 2});
  for (size_t i = 0; i < 8; ++i) {
    CHECK(std::abs(got[i] - cos[i]) < 5e-6f);
    CHECK(std::abs(got[8 + i] - sin[i]) < 5e-6f);
  }
}

TEST_CASE("a scaling that makes no sense is an error that names its field", "[rope]") {
  const auto fails = [](const char* json) { return outcome([&] { Rope(config_of(json), 12, 64, 10000); }); };
  using Catch::Matchers::ContainsSubstring;
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "spiral"}})"), ContainsSubstring("unsupported") && ContainsSubstring("spiral"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "linear"}})"), ContainsSubstring("rope_scaling.factor"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "linear", "factor": 0}})"), ContainsSubstring("rope_scaling.factor"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "dynamic", "factor": -1}})"), ContainsSubstring("rope_scaling.factor"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "linear", "factor": "2"}})"), ContainsSubstring("a number") && ContainsSubstring("'2'"));
  CHECK_THAT(fails(R"({"rope_theta": 0})"), ContainsSubstring("rope_theta"));
  CHECK_THAT(fails(R"({"partial_rotary_factor": 1.5})"), ContainsSubstring("partial_rotary_factor"));
  CHECK_THAT(fails(R"({"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2}})"),
             ContainsSubstring("unsupported") && ContainsSubstring("partial_rotary_factor"));
  CHECK_THAT(outcome([] { Rope(Config(), 9, 64, 10000, 1); }), ContainsSubstring("1 to 8") && ContainsSubstring("9"));
  CHECK_THAT(outcome([] { Rope(Config(), 10, 64, 10000, 0.05); }), ContainsSubstring("got 0"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})"),
             ContainsSubstring("high_freq_factor"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": -1}})"), ContainsSubstring("beta_fast"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 0}})"),
             ContainsSubstring("original_max_position_embeddings"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [1, 2, 3, 4, 5, 6]}})"),
             ContainsSubstring("short_factor") && ContainsSubstring("6 numbers"));
  CHECK_THAT(fails(R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 2, 3, 4, 5, 6], "long_factor": [1, 2, 3, 0, 5, 6]}})"),
             ContainsSubstring("long_factor"));
}
