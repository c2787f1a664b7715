#include "core/dtype.hpp"

#include "core/error.hpp"
#include "core/shape.hpp"

namespace wf {

namespace {

struct Format {
  const char* name;
  uint16_t elements, bytes;  // of a block (ggml-common.h)
};

constexpr Format kFormats[kDTypes] = {{"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},    {"Q8_0", 32, 34},  {"Q4_0", 32, 18},
                                      {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},  {"Q2_K", 256, 84}, {"Q3_K", 256, 110},
                                      {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};

const Format& format_of(DType dtype) { return kFormats[static_cast<size_t>(dtype)]; }

}  // namespace

size_t block_size(DType dtype) { return format_of(dtype).elements; }
size_t block_bytes(DType dtype) { return format_of(dtype).bytes; }

size_t stored_bytes(DType dtype, size_t count) {
  const auto& [name, elements, bytes] = format_of(dtype);
  return checked_product(count / elements + (count % elements != 0), bytes, name);
}

const char* name_of(DType dtype) { return format_of(dtype).name; }

DType dtype_named(std::string_view name) {
  for (size_t i = 0; i < kDTypes; ++i) {
    if (name == kFormats[i].name) return static_cast<DType>(i);
  }
  fail(Code::kUnsupported, "dtype", "expected F32, F16, BF16, Q8_0 or another of GGUF's formats, got ", name);
}

}  // namespace wf
