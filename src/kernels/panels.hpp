// Weights packed for the matrix kernels. W is logically (F, D): F output rows of D inputs each. Memory holds
// [panel][k = 0..D)[kPanel]: a panel is kPanel rows of W, the lanes of a vector are rows, and the last panel is filled with zeros.
// In kQ8 and kQ4 a panel is one stream of blocks of 32 k, each with its codes and scales (quantize.hpp), D rounded up with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace wf::kernels {

constexpr size_t kPanel = 16;  // rows of W in a panel

constexpr size_t panel_count(size_t F) { return (F + kPanel - 1) / kPanel; }
// Runs of kPanel numbers in a panel. In f16 the last holds marks instead of weights, not zero for rows with an infinity or NaN:
// where there is none, which is nearly always, widening is cheaper.
constexpr size_t panel_length(DType store, size_t D) { return D + (store == DType::kF16 ? 1 : 0); }

// Bytes of W (F, D) packed in the format `store`. The caller has checked that the product does not wrap around.
size_t panel_bytes(DType store, size_t F, size_t D);

// src (count, D), row-major, becomes rows row..row+count of W. `panels` was zeroed once, before the first row. src may be in any
// format, D being a multiple of its block: widening is exact, narrowing rounds to nearest, ties to even, kQ8 takes blocks of Q8_0
// and kQ4 those of Q4_0 and Q4_1 as they are and quantise all else. False where the format cannot hold a weight, and what was packed is
// of no use: in kF16 and kBF16 a finite one that rounds to infinity, in kQ8 and kQ4 one that is infinite, NaN or too large (quantise).
bool pack_rows(DType store, void* panels, size_t F, size_t D, size_t row, size_t count, const void* src, DType src_dtype);

// src (count, rows), row-major: element [i][j] becomes W[row + j][k + i]. For weights stored as (D, F), GPT-2's for example. In kQ8
// and kQ4 k is a multiple of 32, and so is count except where it ends at D. `rows` is a multiple of the source's block.
bool pack_columns(DType store, void* panels, size_t F, size_t D, size_t k, size_t count, size_t row, size_t rows, const void* src,
                  DType src_dtype);

// Row `row` of W, widened: out (D).
void unpack_row(DType store, const void* panels, size_t F, size_t D, size_t row, float* out);

// dst (n) = src (n), widened exactly: subnormals, infinities and NaN included. No alignment is required of src.
void convert(const void* src, DType src_dtype, float* dst, size_t n);

// One number: f32 to the 16 bits of f16 or bf16, to nearest, ties to even, NaN stays NaN; and back.
uint16_t narrow(DType dtype, float value);
float widen(DType dtype, uint16_t bits);

}  // namespace wf::kernels
