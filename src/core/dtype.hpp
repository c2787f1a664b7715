// Number formats a checkpoint stores its tensors in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace wf {

enum class DType : uint8_t { kF32, kF16, kBF16 };

size_t size_of(DType dtype);               // bytes an element
const char* name_of(DType dtype);          // "F32", "F16", "BF16", as in safetensors
DType dtype_named(std::string_view name);  // throws kUnsupported for any other name

}  // namespace wf
