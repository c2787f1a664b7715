// Shapes of up to four dimensions, multiplied without wrapping around (size_t has 32 bits in WebAssembly).
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "core/error.hpp"

namespace wf {

// a * b, or kOutOfMemory when the product does not fit.
inline size_t checked_product(size_t a, size_t b, const char* where = "size") {
  size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail(Code::kOutOfMemory, where, a, " * ", b, " does not fit in memory");
  return product;
}

// a + b, or kOutOfMemory when the sum does not fit.
inline size_t checked_sum(size_t a, size_t b, const char* where = "size") {
  size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) fail(Code::kOutOfMemory, where, a, " + ", b, " does not fit in memory");
  return sum;
}

class Shape {
 public:
  static constexpr size_t kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<size_t> dims) {
    if (dims.size() > kMaxRank) fail(Code::kInternal, "shape", "expected at most 4 dimensions, got ", dims.size());
    for (size_t d : dims) dims_[rank_++] = d;
  }

  size_t rank() const { return rank_; }
  size_t operator[](size_t axis) const { return dims_[axis]; }
  size_t last() const { return rank_ ? dims_[rank_ - 1] : 1; }

  // Number of elements; throws kOutOfMemory on overflow.
  size_t size() const {
    size_t product = 1;
    for (size_t i = 0; i < rank_; ++i) product = checked_product(product, dims_[i], "shape");
    return product;
  }
  // Product of all dimensions but the last: how many rows a kernel sees.
  size_t rows() const {
    size_t product = 1;
    for (size_t i = 0; i + 1 < rank_; ++i) product = checked_product(product, dims_[i], "shape");
    return product;
  }

  bool operator==(const Shape&) const = default;
  std::string text() const {
    std::string text = "(";
    for (size_t i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(dims_[i]);
    return text + ")";
  }

 private:
  std::array<size_t, kMaxRank> dims_{};
  size_t rank_ = 0;
};

}  // namespace wf
