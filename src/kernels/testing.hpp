// What the kernels' tests share: rows at a chosen misalignment with nothing readable behind them, numbers, distances.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/rng.hpp"

namespace wf::kernels::testing {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = std::numeric_limits<float>::epsilon();
constexpr size_t kLongest = 4 * 4 + 3;  // of the row lengths tried one by one: four vectors and a tail

// Exactly n floats, the first `skew` floats away from a 16-byte boundary; a sanitizer sees every access behind them. The floats
// before them are checked for writes by `intact`.
class Row {
 public:
  explicit Row(size_t n, size_t skew = 0) : n_(n), skew_(skew), memory_(new float[n + skew]) {
    std::fill_n(memory_.get(), skew_, kGuard);
    std::fill_n(data(), n_, 0.0f);
  }
  Row(const std::vector<float>& values, size_t skew = 0) : Row(values.size(), skew) { std::copy(values.begin(), values.end(), data()); }
  float* data() { return memory_.get() + skew_; }
  float& operator[](size_t i) { return data()[i]; }
  size_t size() const { return n_; }
  std::vector<float> values() { return {data(), data() + n_}; }
  bool intact() const {
    for (size_t i = 0; i < skew_; ++i) {
      if (memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr float kGuard = 12345.0f;
  size_t n_, skew_;
  std::unique_ptr<float[]> memory_;
};

// n normal numbers times `spread` plus `mean`, a function of the seed.
inline std::vector<float> normals(size_t n, uint64_t seed, float spread = 1.0f, float mean = 0.0f) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = mean + spread * static_cast<float>(normal({seed, 0, 0}, i));
  return values;
}

inline std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Bits, so that NaN equals itself and -0 does not equal 0.
inline bool same_bits(const float* a, const float* b, size_t n) { return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0; }
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

// Largest |a - b| / (absolute + relative |b|); infinity where one is NaN and the other is not.
template <class A, class B>
double distance(const A& a, const B& b, size_t n, double absolute, double relative) {
  double worst = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double d = std::abs(x - y) / (absolute + relative * std::abs(y));
    if (!(d <= worst)) worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  return worst;
}

// The error of `value` in units of the last place of the exact result.
inline double ulps(float value, double exact) {
  const float nearest = static_cast<float>(exact);
  if (value == nearest || (std::isnan(value) && std::isnan(exact))) return 0;
  if (!std::isfinite(value) || !std::isfinite(nearest)) return std::numeric_limits<double>::infinity();
  const float size = std::max(std::abs(nearest), std::numeric_limits<float>::min());
  const double place = static_cast<double>(std::nextafter(size, kInf)) - static_cast<double>(size);
  return std::abs(static_cast<double>(value) - exact) / place;
}

// d f / d x by central differences; f takes the whole vector.
template <class Function>
std::vector<double> slopes(Function f, std::vector<double> x, double step = 1e-5) {
  std::vector<double> slope(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double up = f(x);
    x[i] = at - step;
    slope[i] = (up - f(x)) / (2 * step);
    x[i] = at;
  }
  return slope;
}

// sum a b, in double.
template <class A, class B>
double weighed(const A& a, const B& b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace wf::kernels::testing
