// Numbers on their way out of a session.
#pragma once

#include <cstddef>
#include <vector>

namespace wf {

struct Array {
  std::vector<size_t> shape;
  std::vector<float> data;
};

}  // namespace wf
