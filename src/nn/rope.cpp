#include "nn/rope.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace wf {

namespace {

constexpr double kPi = 3.14159265358979323846;

// Python computes frequencies in float, and a position of 10^5 turns their last bit into an angle: the steps here are the same.

// 1 / (scales[i] * theta^(2i / rotary)), one for each pair; the last pair of an odd rotary part is whole.
std::vector<float> inverse_powers(float theta, size_t rotary, const std::vector<float>& scales = {}) {
  std::vector<float> frequencies((rotary + 1) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary);
    const float power = static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
    frequencies[i] = 1.0f / (scales.empty() ? power : scales[i] * power);
  }
  return frequencies;
}

// Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between interpolated.
void stretch_llama3(std::vector<float>& frequencies, double factor, double low, double high, double original) {
  const float divisor = static_cast<float>(factor);
  for (float& frequency : frequencies) {
    const float wavelength = 1.0f / frequency * static_cast<float>(2 * kPi);
    if (wavelength > static_cast<float>(original / low)) {
      frequency /= divisor;
    } else if (wavelength >= static_cast<float>(original / high)) {
      const float whole = 1.0f / wavelength * static_cast<float>(original);
      const float smooth = (whole - static_cast<float>(low)) / static_cast<float>(high - low);
      frequency = (1.0f - smooth) * frequency / divisor + smooth * frequency;
    }
  }
}

// Peng et al. 2023, "YaRN", section 3.2: a ramp over the features between interpolation and extrapolation.
void stretch_yarn(std::vector<float>& frequencies, double theta, size_t rotary, double factor, double fast, double slow, double original,
                  bool whole) {
  const auto feature_of = [&](double rotations) {
    return static_cast<double>(rotary) * std::log(original / (rotations * 2 * kPi)) / (2 * std::log(theta));
  };
  double low = feature_of(fast), high = feature_of(slow);
  if (whole) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary) - 1);
  if (low == high) high += 0.001;
  const std::vector<float> interpolated =
      inverse_powers(static_cast<float>(theta), rotary, std::vector<float>(frequencies.size(), static_cast<float>(factor)));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1.0f - ramp;
    frequencies[i] = interpolated[i] * (1.0f - kept) + frequencies[i] * kept;
  }
}

// A factor that neither overflows nor vanishes.
bool sensible(double factor) { return factor >= 1e-6 && factor <= 1e6; }

double yarn_magnitude(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

}  // namespace

Rope::Rope(const Config& config, size_t head_size, size_t max_positions, double default_theta, std::optional<double> partial)
    : interleaved_(config.boolean("rope_interleaved", false)), max_positions_(max_positions) {
  const std::string at =
      config.has("rope_parameters.rope_theta") || config.has("rope_parameters.rope_type") ? "rope_parameters." : "rope_scaling.";
  theta_ = config.number(at + "rope_theta", config.number("rope_theta", default_theta));
  const std::string type = config.string(at + "rope_type", config.string(at + "type", "default"));
  if (!(theta_ > 1) || !(theta_ < 1e30))
    config.reject(config.has(at + "rope_theta") ? at + "rope_theta" : "rope_theta", "a number above 1, below 1e30");
  double share = config.number(at + "partial_rotary_factor", config.number("partial_rotary_factor", partial.value_or(1)));
  if (!(share > 0) || share > 1) config.reject("partial_rotary_factor", "a number above 0, at most 1");
  if (!partial) {
    if (type != "default" && share != 1) fail(Code::kUnsupported, "config.json", "partial_rotary_factor: expected 1 with rope_type ", type);
    share = 1;
  }
  features_ = static_cast<size_t>(static_cast<double>(head_size) * share);  // rounded down, as Python does
  rotary_ = features_ + features_ % 2;
  if (rotary_ == 0 || rotary_ > head_size) {
    if (head_size < 2) fail(Code::kInvalidArgument, "config.json", "head size: expected at least 2 for rotary positions, got ", head_size);
    fail(Code::kInvalidArgument, "config.json", "rotary part of a head: expected 1 to ", head_size - head_size % 2, " features, got ",
         features_);
  }
  const auto positive = [&](const std::string& key) {
    const double value = config.number(at + key);
    if (!sensible(value)) config.reject(at + key, "a number from 1e-6 to 1e6");
    return value;
  };
  const auto positive_or = [&](const std::string& key, double fallback) {
    return config.has(at + key) && config.number(at + key) != 0 ? positive(key) : fallback;
  };
  const std::string kOriginal = "original_max_position_embeddings", original_key = config.has(kOriginal) ? kOriginal : at + kOriginal;
  original_positions_ = config.size(original_key, max_positions);
  if (original_positions_ < 2) config.reject(original_key, "a whole number above 1");
  const double original = static_cast<double>(original_positions_);
  fixed_ = inverse_powers(static_cast<float>(theta_), features_);

  if (type == "default") return;
  if (type == "linear") {
    const float factor = static_cast<float>(positive("factor"));
    for (float& frequency : fixed_) frequency /= factor;
  } else if (type == "dynamic") {
    kind_ = Kind::kDynamic;
    factor_ = positive("factor");
    if (features_ <= 2) config.reject(at + "rope_type", "a rotary part of more than 2 features for dynamic scaling");
  } else if (type == "llama3") {
    const double low = positive("low_freq_factor"), high = positive("high_freq_factor");
    if (!(high > low)) config.reject(at + "high_freq_factor", "a number above low_freq_factor");
    stretch_llama3(fixed_, positive("factor"), low, high, original);
  } else if (type == "yarn" || type == "longrope") {
    if (features_ % 2 != 0) config.reject(at + "rope_type", join("a scaling for the ", features_, " features of a head that turn"));
    const double ratio = static_cast<double>(max_positions) / original;
    factor_ = config.has(at + "factor") ? positive("factor") : ratio;
    if (type == "yarn") {
      const double scale = positive_or("mscale", 0), scale_all = positive_or("mscale_all_dim", 0);
      attention_factor_ =
          scale != 0 && scale_all != 0 ? yarn_magnitude(factor_, scale) / yarn_magnitude(factor_, scale_all) : yarn_magnitude(factor_, 1);
      stretch_yarn(fixed_, theta_, features_, factor_, positive_or("beta_fast", 32), positive_or("beta_slow", 1), original,
                   config.boolean(at + "truncate", true));
    } else {
      kind_ = Kind::kLong;
      attention_factor_ = factor_ <= 1 ? 1 : std::sqrt(1 + std::log(factor_) / std::log(original));
      for (const char* key : {"short_factor", "long_factor"}) {
        const std::vector<double> scales = config.numbers(at + key);
        const bool sound = std::all_of(scales.begin(), scales.end(), sensible);
        if (scales.size() != rotary_ / 2 || !sound) config.reject(at + key, join(rotary_ / 2, " numbers from 1e-6 to 1e6"));
        const std::vector<float> rounded(scales.begin(), scales.end());
        (key[0] == 's' ? fixed_ : long_) = inverse_powers(static_cast<float>(theta_), features_, rounded);
      }
    }
    if (config.has(at + "attention_factor")) attention_factor_ = positive("attention_factor");
    if (!(attention_factor_ < 1000))
      config.reject(at + "attention_factor", join("a number below 1000 (it comes to ", attention_factor_, ")"));
  } else {
    fail(Code::kUnsupported, "config.json", at, "rope_type: expected default, linear, dynamic, llama3, yarn or longrope, got '", type, "'");
  }
}

std::vector<float> Rope::frequencies(size_t extent) const {
  if (kind_ == Kind::kLong && extent > original_positions_) return long_;
  if (kind_ == Kind::kDynamic && extent > max_positions_) {
    const float ratio = static_cast<float>(factor_) * static_cast<float>(extent) / static_cast<float>(max_positions_);
    const double stretch = ratio - static_cast<float>(factor_ - 1);
    const double exponent = static_cast<double>(features_) / static_cast<double>(features_ - 2);
    const float power = static_cast<float>(std::pow(stretch, static_cast<double>(static_cast<float>(exponent))));
    return inverse_powers(static_cast<float>(theta_) * power, features_);
  }
  return fixed_;
}

Rope::Angles Rope::angles(Context& ctx, const Batch& batch) const {
  const size_t half = rotary_ / 2, T = batch.tokens.size();
  const Angles angles{ctx.arena.floats(T * half), ctx.arena.floats(T * half)};
  const float magnitude = static_cast<float>(attention_factor_);
  for (size_t s = 0; s < batch.sequences(); ++s) {
    size_t extent = batch.extents.empty() ? 0 : batch.extents[s];
    for (size_t t = batch.begin(s); t < batch.begin(s) + batch.length(s); ++t) {
      extent = std::max(extent, static_cast<size_t>(batch.positions[t]) + 1);
    }
    const std::vector<float> stretched = kind_ == Kind::kFixed ? std::vector<float>() : frequencies(extent);
    const std::vector<float>& frequency = kind_ == Kind::kFixed ? fixed_ : stretched;
    for (size_t t = batch.begin(s); t < batch.begin(s) + batch.length(s); ++t) {
      const float position = static_cast<float>(batch.positions[t]);
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position * frequency[i]);
        angles.cos[t * half + i] = static_cast<float>(std::cos(angle)) * magnitude;
        angles.sin[t * half + i] = static_cast<float>(std::sin(angle)) * magnitude;
      }
    }
  }
  return angles;
}

}  // namespace wf
