#include "core/dtype.hpp"

#include "core/error.hpp"

namespace wf {

size_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
  }
  return "?";
}

DType dtype_named(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  fail(Code::kUnsupported, "dtype", "expected F32, F16 or BF16, got ", name);
}

}  // namespace wf
