// Rotary position embedding (Su et al. 2021, "RoFormer") and the ways its frequencies are stretched for longer texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "ops/batch.hpp"
#include "ops/context.hpp"

namespace wf {

// What a configuration says about RoPE, whichever spelling it uses: `rope_parameters.*`, or `rope_theta` beside `rope_scaling.*`
// with `rope_type` or `type`.
class Rope {
 public:
  // Angles of one forward pass: (T, rotary / 2) each, in the arena.
  struct Angles {
    float* cos;
    float* sin;
  };

  Rope() = default;
  // `head_size`: Dk. `partial`: the share of each head that turns, where the configuration has no `partial_rotary_factor`; without
  // it whole heads turn, whatever that field says, as in Python's models that have no such part. An odd number of features turns
  // with frequencies of its own number and takes one more along.
  // An unknown scaling type or a missing or senseless factor is kInvalidArgument or kUnsupported naming it.
  Rope(const Config& config, size_t head_size, size_t max_positions, double default_theta, std::optional<double> partial = std::nullopt);

  size_t rotary() const { return rotary_; }          // features of a head that turn
  bool interleaved() const { return interleaved_; }  // pairs (2i, 2i + 1) rather than (i, i + rotary / 2)

  Angles angles(Context& ctx, const Batch& batch) const;

 private:
  enum class Kind : uint8_t { kFixed, kDynamic, kLong };

  // Frequencies for a sequence of that many positions, (rotary / 2).
  std::vector<float> frequencies(size_t extent) const;

  Kind kind_ = Kind::kFixed;
  bool interleaved_ = false;
  size_t rotary_ = 0;
  size_t features_ = 0;  // rotary_, or one less: what the frequencies are spread over
  double theta_ = 10000;
  double factor_ = 1;
  double attention_factor_ = 1;  // multiplies cosines and sines (yarn, longrope)
  size_t max_positions_ = 0;
  size_t original_positions_ = 0;
  std::vector<float> fixed_;  // (rotary / 2): the frequencies; kLong: those of short texts
  std::vector<float> long_;   // (rotary / 2): kLong, texts beyond original_positions_
};

}  // namespace wf
