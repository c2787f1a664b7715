// GGUF's blocks of quantised numbers, read.
#pragma once

#include <cstddef>

#include "core/dtype.hpp"

namespace wf::kernels {

// dst (n) = the elements of `src`, in one of the block formats; n is a multiple of its block. No alignment is required of src.
void read_blocks(DType dtype, const void* src, float* dst, size_t n);

}  // namespace wf::kernels
