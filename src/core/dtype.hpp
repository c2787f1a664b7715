// Number formats: of a checkpoint's tensors, and of weights in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace wf {

// The first three are plain numbers, the others GGUF's blocks of quantised ones. Weights are held in one of the first five.
enum class DType : uint8_t { kF32, kF16, kBF16, kQ8, kQ4, kQ4_1, kQ5_0, kQ5_1, kQ2K, kQ3K, kQ4K, kQ5K, kQ6K };
constexpr size_t kDTypes = 13;

constexpr bool is_block(DType dtype) { return dtype > DType::kBF16; }
constexpr bool is_quantised_store(DType dtype) { return dtype == DType::kQ8 || dtype == DType::kQ4; }

size_t block_size(DType dtype);   // elements a block: 1, 32 or 256
size_t block_bytes(DType dtype);  // as a file has it
// Bytes of `count` elements in a file, `count` rounded up to whole blocks. Throws kOutOfMemory where it wraps around.
size_t stored_bytes(DType dtype, size_t count);

const char* name_of(DType dtype);          // "F32", "F16", "BF16" as in safetensors; "Q8_0" (kQ8), "Q4_0" (kQ4), "Q4_1" ... as in GGUF
DType dtype_named(std::string_view name);  // throws kUnsupported for any other name

}  // namespace wf
