// The inner loops of every matrix product here: one or two rows of activations times a run of a panel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace wf::kernels {

// Inputs of a product are taken in runs of kRun: each run is summed in order of k in registers and then added to the result,
// whichever kernel does it. That is what makes a row's bits independent of its company.
constexpr size_t kRun = 256;

// c (16) += a (K) b (K, 16)
void tile_1(const float* a, const float* b, size_t K, float* c);
// c0, c1 (16) += a0, a1 (K) b (K, 16)
void tile_2(const float* a0, const float* a1, const float* b, size_t K, float* c0, float* c1);
// tile_1 with b as f16 or bf16.
void tile_1_half(DType store, const float* a, const uint16_t* b, size_t K, float* c);
// out (n) = b (n), widened; n is a multiple of 16.
void widen_run(DType store, const uint16_t* b, size_t n, float* out);

}  // namespace wf::kernels
