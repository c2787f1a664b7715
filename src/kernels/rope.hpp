// Rotary position embedding (Su et al. 2021).
#pragma once

#include <cstddef>

namespace wf::kernels {

// Rotates in place the first `rotary` (even) of each head's Dk features. x (rows, heads * Dk), `stride` floats between rows;
// cos, sin (rows, rotary / 2). Half-split pairs feature i with i + rotary / 2 (GPT-NeoX, LLaMA as Hugging Face stores it),
// interleaved pairs 2i with 2i + 1 (GPT-J, llama2.c). The backward is the same with -sin.
void rope(float* x, size_t stride, size_t rows, size_t heads, size_t Dk, size_t rotary, const float* cos, const float* sin,
          bool interleaved);

}  // namespace wf::kernels
