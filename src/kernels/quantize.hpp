// Numbers in blocks of 32 along k: codes of few bits and a scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace wf::kernels {

constexpr size_t kCodes = 32;  // codes of a block
constexpr size_t code_blocks(size_t D) { return (D + kCodes - 1) / kCodes; }

// A block of a panel's sixteen rows in memory, in bytes. kQ8: codes [8][16][4]; for each row one word, the scale's bits with the
// sum of the codes in the lowest 13. kQ4: sixteen scales in f16, sixteen lows; codes [4][16][4], a byte code k below code k + 16. (Read
// from memory, a block of four bits is up to half as fast again with its numbers in front; one of eight bits is as fast as memory.)
constexpr size_t kQ8Block = 512 + 64, kQ4Block = 256 + 64;

// Weights. kQ8: weight = scale * code, codes -128..127; the scale is a float with 11 significant bits, as an f16's are, but of a
// float's range, and low is 0. kQ4: weight = low + scale * code, codes 0..15; scale and low are f16s. Q4_0's scale * (code - 8) is a
// case of that, and so is Q4_1; Q4_K's blocks are but for the rounding of scales that are products.
struct Codes {
  float scale, low;
  int8_t codes[kCodes];
};
// w (32) in codes of `store`, kQ8 or kQ4. kQ8: scale = max |w| / 127. kQ4: scale and low are searched. False where a weight is infinite
// or NaN, or in kQ4 beyond the largest f16: then the scale is NaN.
bool quantise(DType store, const float* w, Codes& out);

// Activations, one row, as a product with weights in `store` takes them: a block of 32 codes at a time, the last of D filled up.
// kQ8: x = low + step code, codes 0..127, low and low + 127 step the block's least and greatest number.
// kQ4: x = step code, codes -127..127, 127 step the block's greatest magnitude.
// What is less than 1e-36, in kQ8 the range, in kQ4 the magnitude, counts as 0. A block with an infinity or a NaN makes every product
// with the row NaN; beyond 1e34 products may overflow where those of f32 would not yet.
size_t quantised_row_bytes(size_t D);
void quantise_row(DType store, const float* x, size_t D, char* out);

}  // namespace wf::kernels
