// The one error type of the library, and the words its messages are made of.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace wf {

// Stable: JavaScript sees them as `WasmformerError.code`.
enum class Code : uint8_t {
  kInvalidArgument,
  kUnsupported,
  kInvalidFile,
  kMissingTensor,
  kShapeMismatch,
  kOutOfMemory,
  kInternal,
};

// The code's public spelling, "invalid-argument" for example.
const char* name_of(Code code);

class Error : public std::exception {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Code code_;
  std::string message_;
};

std::string text_of(double value);

template <class Part>
std::string text_of(const Part& part) {
  if constexpr (std::is_convertible_v<Part, std::string_view>) {
    return std::string(std::string_view(part));
  } else if constexpr (std::is_same_v<Part, bool>) {
    return part ? "true" : "false";
  } else if constexpr (std::is_integral_v<Part>) {
    return std::to_string(part);
  } else if constexpr (std::is_floating_point_v<Part>) {
    return text_of(static_cast<double>(part));
  } else {
    return part.text();
  }
}

// "a", 3, "b" -> "a3b".
template <class... Parts>
std::string join(const Parts&... parts) {
  std::string text;
  (text.append(text_of(parts)), ...);
  return text;
}

// Throws Error: "[where] what: ..." with the parts joined. Never called from a kernel or a worker thread.
template <class... Parts>
[[noreturn]] void fail(Code code, std::string_view where, const Parts&... parts) {
  throw Error(code, join("[", where, "] ", parts...));
}

}  // namespace wf
