// Shape-checked operations: each runs its kernel at once and, when the context has a tape, records its backward.
// Outputs are new tensors of the arena unless the comment says otherwise. A shape that does not fit is Error kShapeMismatch.
// Backward formulas write dX for the gradient of X; every gradient is added to, never overwritten.
#pragma once

#include <span>

#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "ops/context.hpp"
#include "ops/weight.hpp"

namespace wf {

// y (T, F) = x (T, D) W^T (F, D) + b (F). Backward: dx = dy W, dW += dy^T x, db += sum of dy over T.
Tensor linear(Context& ctx, const Tensor& x, const Weight& w, const Weight& b);

// y (T, D): row tokens[t] of the table (V, D), times `scale`. Backward: dW[tokens[t]] += scale dy[t], but of padding.
// A token outside 0..V - 1 is kInvalidArgument.
Tensor embedding(Context& ctx, std::span<const int32_t> tokens, const Weight& table, float scale = 1);

// y (R, D): row indices[r] of x (T, D). Backward: dx[indices[r]] += dy[r].
Tensor rows(Context& ctx, const Tensor& x, std::span<const size_t> indices);

// a + b, both (T, D). Without a tape the sum is written into a. Backward: da = dy, db = dy.
Tensor add(Context& ctx, const Tensor& a, const Tensor& b);

// x times `factor`. Without a tape it is written into x. Backward: dx = factor dy.
Tensor scale(Context& ctx, const Tensor& x, float factor);

// Ba, Kiros, Hinton 2016, "Layer normalization": each row less its mean, over sqrt(variance + eps), times w (D), plus b (D).
// An absent w counts as ones, an absent b as zeros.
Tensor layer_norm(Context& ctx, const Tensor& x, const Weight& w, const Weight& b, float eps);

// Zhang, Sennrich 2019, "Root mean square layer normalization": each row over sqrt(mean square + eps), times (w + offset).
// `x` is seen as rows of w's length: a (T, H * D) tensor with w (D) is normalised head by head.
Tensor rms_norm(Context& ctx, const Tensor& x, const Weight& w, float offset, float eps);

Tensor activate(Context& ctx, kernels::Activation activation, const Tensor& x);

// activation(gate) * up, all (T, F) (Shazeer 2020, "GLU variants improve Transformer").
Tensor gated(Context& ctx, kernels::Activation activation, const Tensor& gate, const Tensor& up);

// x where `ctx.dropout` is absent or its rate 0; otherwise x with that share of its numbers zero and the rest larger. Takes the next
// site. Without a tape it is written into x. Backward: dx = dy times the same factors, drawn again.
Tensor dropout(Context& ctx, const Tensor& x);

// Softmax of each row; a row of -inf gives zeros. Backward: dx = y (dy - sum of dy y).
Tensor softmax(Context& ctx, const Tensor& x);

// Su et al. 2021, "RoFormer": turns, in place, the first `rotary` features of each head of x (T, heads * head_size) by the
// angles whose cosines and sines are given, (T, rotary / 2) each. Backward: turns dx back. Under a tape, what made x must not
// need x itself for its own backward (linear and the norms do not).
void rotate(Context& ctx, Tensor& x, size_t head_size, size_t rotary, const float* cos, const float* sin, bool interleaved);

// softmax(scale q k^T + mask) v, keeping the weights for the backward (Vaswani et al. 2017, eq. 1): sequence i of the queries sees
// sequence i of the keys, and positions count from its first row. q (T, H * Dk), k (S, Hk * Dk), v (S, Hk * Dv) -> (T, H * Dv).
// `key_bias`: one a sequence, in the place of the mask's, or empty. `weights` gets (H, T, S) of each sequence, end to end, what mask and
// memory point at must live until the backward. The gradient of the mask's bias flows into `bias`, the tensor that it lies in, if given.
// With `ctx.dropout` weights are dropped on their way to the values, which takes one site; `weights` are those before.
Tensor attention(Context& ctx, const kernels::AttentionShape& shape, const kernels::AttentionMask& mask, const Tensor& q, const Tensor& k,
                 const Tensor& v, std::span<const size_t> query_offsets, std::span<const size_t> key_offsets,
                 std::span<const float* const> key_bias, float* weights, const Tensor& bias = {});

// Mean over the targets that count of -log softmax(logits)[target], (1, 1). Targets below 0 do not count; `smoothing` spreads that
// share of each target evenly over all classes (Szegedy et al. 2016, section 7). logits (T, V), targets (T).
Tensor cross_entropy(Context& ctx, const Tensor& logits, std::span<const int32_t> targets, float smoothing = 0);

}  // namespace wf
