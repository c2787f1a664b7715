// The one error type of the library, and the words its messages are made of.
#pragma once

#include <cstddef>
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
  kDead,
  kDiverged,
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

// One part of a message, not yet text: the many places that may fail stay small.
class Word {
 public:
  template <class Part>
  Word(const Part& part) {
    if constexpr (std::is_convertible_v<Part, std::string_view>) {
      kind_ = Kind::kText;
      text_ = std::string_view(part);
    } else if constexpr (std::is_same_v<Part, bool>) {
      kind_ = Kind::kText;
      text_ = part ? "true" : "false";
    } else if constexpr (std::is_integral_v<Part>) {
      kind_ = std::is_signed_v<Part> ? Kind::kSigned : Kind::kUnsigned;
      integer_ = static_cast<uint64_t>(part);
    } else if constexpr (std::is_floating_point_v<Part>) {
      kind_ = Kind::kReal;
      real_ = static_cast<double>(part);
    } else {
      kind_ = Kind::kOther;
      other_ = {&part, [](const void* object) { return static_cast<const Part*>(object)->text(); }};
    }
  }

  void append_to(std::string& text) const;

 private:
  enum class Kind : uint8_t { kText, kSigned, kUnsigned, kReal, kOther };
  struct Other {
    const void* object;
    std::string (*text)(const void*);
  };

  Kind kind_;
  union {
    std::string_view text_;
    uint64_t integer_;
    double real_;
    Other other_;
  };
};

// What `join` and `fail` below do once their parts are words.
std::string join_words(const Word* words, size_t count);
[[noreturn]] void fail_with(Code code, std::string_view where, const Word* words, size_t count);

// "a", 3, "b" -> "a3b".
template <class... Parts>
std::string join(const Parts&... parts) {
  const Word words[] = {parts...};
  return join_words(words, sizeof...(parts));
}

// Throws Error: "[where] what: ..." with the parts joined. Never called from a kernel or a worker thread.
template <class... Parts>
[[noreturn]] void fail(Code code, std::string_view where, const Parts&... parts) {
  const Word words[] = {parts...};
  fail_with(code, where, words, sizeof...(parts));
}

}  // namespace wf
