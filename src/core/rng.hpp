// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
// A number is a pure function of (seed, step, site, element), so a draw can be replayed on any thread and in any order.
#pragma once

#include <array>
#include <cstdint>

namespace wf {

struct RngKey {
  uint64_t seed = 0;
  uint32_t step = 0;  // the position generated, or the training step
  uint32_t site = 0;  // who draws: a dropout layer, a sequence's sampler
};

// Four 32-bit words: counter (element low, element high, step, site) under the key `seed`.
std::array<uint32_t, 4> philox(const RngKey& key, uint64_t element);

// Uniform in [0, 1), 53 bits.
double uniform(const RngKey& key, uint64_t element);

// Standard normal (Box and Muller 1958).
double normal(const RngKey& key, uint64_t element);

}  // namespace wf
