#include "core/rng.hpp"

#include <cmath>

namespace wf {

std::array<uint32_t, 4> philox(const RngKey& key, uint64_t element) {
  std::array<uint32_t, 4> c{static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), key.step, key.site};
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

double uniform(const RngKey& key, uint64_t element) {
  const auto words = philox(key, element);
  return static_cast<double>((uint64_t{words[0]} << 21) ^ (words[1] >> 11)) * 0x1p-53;
}

double normal(const RngKey& key, uint64_t element) {
  const auto words = philox(key, element);
  const double u = (static_cast<double>((uint64_t{words[0]} << 21) ^ (words[1] >> 11)) + 1) * 0x1p-53;
  const double v = static_cast<double>((uint64_t{words[2]} << 21) ^ (words[3] >> 11)) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * 3.14159265358979323846 * v);
}

}  // namespace wf
