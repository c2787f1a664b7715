#include "core/error.hpp"

#include <cstdio>

namespace wf {

const char* name_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid-argument";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kInvalidFile:
      return "invalid-file";
    case Code::kMissingTensor:
      return "missing-tensor";
    case Code::kShapeMismatch:
      return "shape-mismatch";
    case Code::kOutOfMemory:
      return "out-of-memory";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

std::string text_of(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", value);
  return digits;
}

}  // namespace wf
