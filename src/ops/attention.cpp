#include "core/error.hpp"
#include "ops/ops.hpp"

namespace wf {

void attention(Context& ctx, const kernels::AttentionShape& shape, const kernels::AttentionMask& mask, const Tensor& q, const Tensor& k,
               const Tensor& v, const Tensor& out, float* weights_out) {
  if (q.cols != shape.H * shape.Dk || k.cols != shape.Hk * shape.Dk || v.cols != shape.Hk * shape.Dv || out.cols != shape.H * shape.Dv ||
      k.rows != v.rows || q.rows != out.rows) {
    fail(Code::kShapeMismatch, "attention", "expected q, k, v of ", shape.H * shape.Dk, ", ", shape.Hk * shape.Dk, " and ",
         shape.Hk * shape.Dv, " features, got ", q.cols, ", ", k.cols, " and ", v.cols);
  }
  const size_t T = q.rows, S = k.rows;
  const size_t scratch_floats = kernels::attention_exact_scratch(shape, T, S);
  {
    Scratch scratch(ctx, scratch_floats);
    kernels::attention_forward_exact(shape, mask, q.data, q.stride, k.data, k.stride, v.data, v.stride, T, S, weights_out, out.data,
                                     out.stride, scratch);
  }
  if (ctx.tape == nullptr) return;
  ctx.tape->record([&ctx, shape, mask, q, k, v, out, weights_out, T, S, scratch_floats] {
    if (!ctx.tape->reached(out)) return;
    const float* dout = ctx.tape->gradient(out);
    float* dq = ctx.tape->sink(q);
    float* dk = ctx.tape->sink(k);
    float* dv = ctx.tape->sink(v);
    Scratch scratch(ctx, scratch_floats);
    kernels::attention_backward(shape, mask, q.data, q.stride, k.data, k.stride, v.data, v.stride, weights_out, dout, out.stride, dq,
                                q.stride, dk, k.stride, dv, v.stride, T, S, scratch);
  });
}

}  // namespace wf
