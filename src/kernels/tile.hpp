// The inner loops of every matrix product: one or two rows of activations times sixteen columns. Out of line, so that engines
// compile them on their own, and without unrolling, which costs V8 its registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wf::kernels {

// Inputs of a product are taken in runs of kRun: each run is summed in order of k in registers and then added to the result,
// whichever kernel does it. That is what makes a row's bits independent of its company.
constexpr size_t kRun = 256;

// c (16) = factor c + a (K) b (K, 16), rows of b `stride` floats apart.
void tile_1(const float* a, const float* b, size_t stride, size_t K, float factor, float* c);
// The same for two rows of a, to the same bits.
void tile_2(const float* a0, const float* a1, const float* b, size_t stride, size_t K, float factor0, float factor1, float* c0, float* c1);
// c (16) += a (K) b (K, 16), to the bits of tile_1, for weights that come from memory: on their way pages ahead are touched, up to `end`.
void tile_1_stream(const float* a, const float* b, size_t K, const void* end, float* c);
// c (16) = factor c + the sum of a[k] b[k] for k in [begin, end), where row k of b (16) is row k % 16 of blocks[k / 16] (16, 16).
void tile_1_blocks(const float* a, const float* const* blocks, size_t begin, size_t end, float factor, float* c);
// The same where the numbers of b are finite f16, to the bits of tile_1_blocks with b widened.
void tile_1_blocks_half(const float* a, const uint16_t* const* blocks, size_t begin, size_t end, float factor, float* c);
// c (M, width) += a (M, K) b (K, 16), for the first width <= 16 columns; a_stride and c_stride floats between rows.
void add_product(const float* a, size_t a_stride, size_t M, const float* b, size_t K, float* c, size_t c_stride, size_t width);
// y (cols, rows) = x (rows, cols) transposed, with strides in floats; no overlap.
void transpose(const float* x, size_t x_stride, size_t rows, size_t cols, float* y, size_t y_stride);
// out (run, 16) = rows k.. and columns n..n + width of B (row-major, ldb floats between rows), or of its transpose; zeros beyond.
void pack_panel(bool trans, const float* B, size_t ldb, size_t k, size_t run, size_t n, size_t width, float* out);
// How the numbers of a panel are widened: f16 where none is infinite or NaN, any f16, bf16.
enum class Half : uint8_t { kFiniteF16, kF16, kBF16 };
// c (16) += a (K) b (K, 16), to the bits of tile_1 with b widened; `end` as above, or null to touch nothing.
void tile_1_half(Half half, const float* a, const uint16_t* b, size_t K, const void* end, float* c);
// out (n) = b (n), widened; n is a multiple of 16.
void widen_run(Half half, const uint16_t* b, size_t n, float* out);

}  // namespace wf::kernels
