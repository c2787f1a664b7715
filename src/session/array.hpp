// Numbers on their way out of a session.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/shape.hpp"

namespace wf {

struct Array {
  std::vector<size_t> shape;
  std::vector<float> data;
};

inline Array zeros(std::vector<size_t> shape) {
  size_t size = 1;
  for (const size_t extent : shape) size = checked_product(size, extent, "forward");
  return {std::move(shape), std::vector<float>(size, 0.0f)};
}

}  // namespace wf
