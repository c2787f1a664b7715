#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "kernels/elementwise.hpp"
#include "ops/ops.hpp"

namespace wf {

namespace {

// One sequence: its number, its rows, where its weights begin, and its key bias.
struct Piece {
  size_t number, query, T, key, S, weights;
  const float* key_bias;
};

}  // namespace

Tensor attention(Context& ctx, const kernels::AttentionShape& shape, const kernels::AttentionMask& mask, const Tensor& q, const Tensor& k,
                 const Tensor& v, std::span<const size_t> query_offsets, std::span<const size_t> key_offsets,
                 std::span<const float* const> key_bias, float* weights, const Tensor& bias) {
  if (q.cols != shape.H * shape.Dk || k.cols != shape.Hk * shape.Dk || v.cols != shape.Hk * shape.Dv || k.rows != v.rows) {
    fail(Code::kShapeMismatch, "attention", "expected q, k, v of ", shape.H * shape.Dk, ", ", shape.Hk * shape.Dk, " and ",
         shape.Hk * shape.Dv, " features, k and v of as many rows, got ", q.cols, ", ", k.cols, " and ", v.cols, ", ", k.rows, " and ",
         v.rows, " rows");
  }
  if (query_offsets.size() != key_offsets.size() || query_offsets.back() != q.rows || key_offsets.back() != k.rows) {
    fail(Code::kShapeMismatch, "attention", "expected offsets to ", q.rows, " queries and ", k.rows, " keys, got ", query_offsets.back(),
         " and ", key_offsets.back());
  }
  std::vector<Piece> pieces;
  size_t total = 0, scratch_floats = 0;
  uint64_t cost = 0;
  for (size_t s = 0; s + 1 < query_offsets.size(); ++s) {
    const size_t T = query_offsets[s + 1] - query_offsets[s], S = key_offsets[s + 1] - key_offsets[s];
    pieces.push_back({s, query_offsets[s], T, key_offsets[s], S, total, key_bias.empty() ? nullptr : key_bias[s]});
    total += shape.H * T * S;
    cost += uint64_t{shape.H} * T * S * (shape.Dk + shape.Dv);
    scratch_floats = std::max(scratch_floats, kernels::attention_exact_scratch(shape, T, S));
  }
  kernels::DropoutMask drop{0, {}, 0};
  if (ctx.dropout != nullptr && ctx.dropout->rate != 0) {
    drop = {ctx.dropout->rate, ctx.dropout->key, 0};
    ++ctx.dropout->key.site;
  }
  const Tensor out = ctx.tensor(q.rows, shape.H * shape.Dv);
  // use(piece, the piece as a kernel takes it, key/value heads begin..end, scratch) for all sequences and key/value heads.
  const auto each = [=, pieces = std::move(pieces)](Context& now, uint64_t work, const auto& use) {
    const Scratch scratch(now, scratch_floats, now.threads());
    now.share(pieces.size() * shape.Hk, work, [&](size_t begin, size_t end, size_t thread) {
      while (begin < end) {
        const Piece& p = pieces[begin / shape.Hk];
        const size_t head = begin % shape.Hk, heads = std::min(shape.Hk - head, end - begin);
        kernels::AttentionMask masked = mask;
        masked.key_bias = p.key_bias;
        use(p,
            kernels::ExactAttention{shape,
                                    masked,
                                    p.T,
                                    p.S,
                                    q.row(p.query),
                                    k.row(p.key),
                                    v.row(p.key),
                                    q.stride,
                                    k.stride,
                                    v.stride,
                                    weights + p.weights,
                                    {drop.rate, drop.key, p.weights}},
            head, head + heads, scratch.of(thread));
        begin += heads;
      }
    });
  };
  each(ctx, cost, [&](const Piece& p, const kernels::ExactAttention& x, size_t begin, size_t end, float* scratch) {
    kernels::attention_forward_exact(x, begin, end, out.row(p.query), out.stride, scratch);
  });
  if (ctx.tape == nullptr) return out;
  ctx.tape->record([&ctx, each, cost, q, k, v, out, bias, offset = bias.data == nullptr ? 0 : mask.bias - bias.data,
                    sequences = query_offsets.size() - 1] {
    if (!ctx.tape->reached(out)) return;
    const float* dout = ctx.tape->gradient(out);
    float *dq = ctx.tape->sink(q), *dk = ctx.tape->sink(k), *dv = ctx.tape->sink(v);
    // Sequences share it: each has a gradient of its own at first, and those are added up in their order.
    float* dbias = ctx.tape->gradient(bias);
    const size_t size = dbias == nullptr ? 0 : bias.size();
    const Scratch parts(ctx, size * sequences);
    std::fill_n(static_cast<float*>(parts), size * sequences, 0.0f);
    each(ctx, 2 * cost, [&](const Piece& p, const kernels::ExactAttention& x, size_t begin, size_t end, float* scratch) {
      kernels::attention_backward(x, begin, end, dout + p.query * out.stride, out.stride, dq + p.query * q.stride, dk + p.key * k.stride,
                                  dv + p.key * v.stride, size == 0 ? nullptr : parts + p.number * size + offset, scratch);
    });
    for (size_t s = 0; s < sequences; ++s) kernels::axpy(1, parts + s * size, dbias, size);
  });
  return out;
}

}  // namespace wf
