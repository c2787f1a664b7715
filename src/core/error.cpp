#include "core/error.hpp"

#include <cmath>
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
    case Code::kDead:
      return "dead";
    case Code::kDiverged:
      return "diverged";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

void Word::append_to(std::string& text) const {
  char digits[32];
  switch (kind_) {
    case Kind::kText:
      text += text_;
      return;
    case Kind::kSigned:
      text += std::to_string(static_cast<int64_t>(integer_));
      return;
    case Kind::kUnsigned:
      text += std::to_string(integer_);
      return;
    case Kind::kReal:
      if (std::isfinite(real_)) {
        std::snprintf(digits, sizeof digits, "%.9g", real_);
        text += digits;
      } else {
        text += std::isnan(real_) ? "NaN" : real_ < 0 ? "-Infinity" : "Infinity";
      }
      return;
    case Kind::kOther:
      text += other_.text(other_.object);
  }
}

std::string join_words(const Word* words, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) words[i].append_to(text);
  return text;
}

void fail_with(Code code, std::string_view where, const Word* words, size_t count) {
  throw Error(code, join("[", where, "] ", join_words(words, count)));
}

}  // namespace wf
