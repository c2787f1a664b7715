// Attention (Vaswani et al. 2017) with grouped heads (Ainslie et al. 2023). For inference over a table of cache blocks, with a
// streaming softmax (Milakov and Gimelshein 2018): the T x S matrix is never built. For training exactly, keeping the weights.
#pragma once

#include <cstddef>

#include "core/dtype.hpp"
#include "kernels/dropout.hpp"

namespace wf::kernels {

constexpr size_t kBlock = 16;  // positions of a cache block

struct AttentionShape {
  size_t H, Hk, Dk, Dv;  // query head h reads key/value head h / (H / Hk)
};

// What is added to, or hidden from, the score of query position i and key position j.
struct AttentionMask {
  bool causal = false;              // keys j > i are hidden
  size_t window = 0;                // keys j with i - j >= window are hidden; 0: no window
  const float* slopes = nullptr;    // (H), ALiBi (Press et al. 2022): slope * j is added; or null
  const float* bias = nullptr;      // (H, T, S), added; or null. T and S count from the first query and from position 0
  ptrdiff_t bias_head_stride = 0;   // floats between heads of bias; 0: all heads share
  ptrdiff_t bias_row_stride = 0;    // floats between queries of bias; 0: all queries share; -1: it depends on j - i alone
  const float* key_bias = nullptr;  // (S), added for all heads and queries; or null
  float scale = 1.0f;               // of q k, before anything is added
};

// Bytes of one cache block whose numbers are kF32 or kF16: keys (Hk, Dk, kBlock), a packed panel a head whose lanes are positions; then
// values, for each head sixteen features at a time (kBlock, 16), the rest of them (kBlock, Dv % 16).
size_t cache_block_bytes(const AttentionShape& shape, DType store);

// Whether a cache of that format can keep all of x (n). kF16 takes what is rounded to at most 65504, its largest number, and no NaN.
bool is_cacheable(DType store, const float* x, size_t n);

// Positions offset..offset+count of a block, all numbers cacheable. k (count, Hk * Dk) and v (count, Hk * Dv), with strides in floats.
void write_block(const AttentionShape& shape, DType store, void* block, size_t offset, size_t count, const float* k, size_t k_stride,
                 const float* v, size_t v_stride);

// Keys and values of positions 0..S-1: position j lies in blocks[j / kBlock - first_block]; earlier blocks, wholly behind a window,
// may be gone. Memory beyond S is never read into a result, it may hold NaN.
struct KeyValues {
  DType store;
  const void* const* blocks;
  size_t first_block;
  size_t S;
};

// q (T, H * Dk): query t stands at position q_begin + t. out (T, H * Dv). A query that sees nothing gives zeros.
// The work falls into attention_parts(shape, T) parts, some heads of some queries each; a call does those of [part_begin, part_end).
// A query's result has the same bits whichever other queries go with it, however the parts are divided, and whether or not later
// keys exist already.
void attention(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
               const KeyValues& keys, float* out, size_t out_stride, size_t part_begin, size_t part_end, float* scratch);
size_t attention_parts(const AttentionShape& shape, size_t T);
// Floats of scratch, also for attention_weights; each thread has its own.
size_t attention_scratch(const AttentionShape& shape, size_t T, size_t S);

// The same attention's weights (softmax) and masked scores, exactly, for looking inside: heads [head_begin, head_end) as
// (head_end - head_begin, T, S), either may be null. Hidden keys have weight 0 and score -inf.
void attention_weights(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
                       const KeyValues& keys, size_t head_begin, size_t head_end, float* weights, float* scores, float* scratch);

// Training, one sequence: q (T, H * Dk), k (S, Hk * Dk), v (S, Hk * Dv), strides in floats; query t stands at position t.
struct ExactAttention {
  const AttentionShape& shape;
  const AttentionMask& mask;
  size_t T, S;
  const float *q, *k, *v;
  size_t q_stride, k_stride, v_stride;
  float* weights;  // (H, T, S) the softmax: forward writes it, backward reads it
  // rate 0: none. What is dropped is a factor of the weights, after the softmax; element (h, t, j) is number first + (h T + t) S + j.
  DropoutMask drop;
};

// The query heads of key/value heads [begin, end): out (T, H * Dv). Each key/value head is on its own: any partition gives the same bits,
// and a query's result has the same bits whether or not later keys exist.
void attention_forward_exact(const ExactAttention& x, size_t begin, size_t end, float* out, size_t out_stride, float* scratch);
// dq, dk, dv are added to; each has the shape and stride of its tensor. So is dbias, which lies as the mask's bias does; or null.
// Of the mask the scale matters, what is hidden, and the strides of the bias.
void attention_backward(const ExactAttention& x, size_t begin, size_t end, const float* dout, size_t dout_stride, float* dq, float* dk,
                        float* dv, float* dbias, float* scratch);
size_t attention_exact_scratch(const AttentionShape& shape, size_t T, size_t S);  // floats; for forward and backward

}  // namespace wf::kernels
