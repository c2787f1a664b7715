#include <vector>

#include "core/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/softmax.hpp"
#include "ops/ops.hpp"

namespace wf {

Tensor cross_entropy(Context& ctx, const Tensor& logits, std::span<const int32_t> targets, float smoothing) {
  if (targets.size() != logits.rows)
    fail(Code::kShapeMismatch, "cross_entropy", "expected ", logits.rows, " targets, got ", targets.size());
  if (!logits.contiguous()) fail(Code::kInternal, "cross_entropy", "expected rows without gaps");
  size_t counted = 0;
  for (const int32_t target : targets) {
    if (target >= 0 && static_cast<size_t>(target) >= logits.cols) {
      fail(Code::kInvalidArgument, "cross_entropy", "target: expected below ", logits.cols, ", got ", target);
    }
    counted += target >= 0;
  }
  if (counted == 0) fail(Code::kInvalidArgument, "cross_entropy", "expected at least one target, got none");
  Tensor loss = ctx.tensor(1, 1);
  const size_t T = logits.rows, V = logits.cols;
  const uint64_t cost = 16 * uint64_t{T} * V;
  // Under a tape the exponentials are kept: in the backward they become the gradient where they lie.
  float* numerators = ctx.tape == nullptr ? nullptr : ctx.arena.floats(logits.size());
  float* factors = ctx.tape == nullptr ? nullptr : ctx.arena.floats(T);
  {
    const Scratch scratch(ctx, T);
    float* each = scratch;
    ctx.share(T, cost, [&](size_t begin, size_t end, size_t) {
      const float* x = logits.row(begin);
      const int32_t* wanted = targets.data() + begin;
      if (numerators == nullptr) return kernels::cross_entropy(x, wanted, smoothing, each + begin, end - begin, V);
      kernels::cross_entropy_forward(x, wanted, smoothing, each + begin, numerators + begin * V, factors + begin, end - begin, V);
    });
    double sum = 0;
    for (size_t t = 0; t < T; ++t) sum += each[t];
    loss.data[0] = static_cast<float>(sum / static_cast<double>(counted));
  }
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, logits, targets, smoothing, loss, counted, numerators, factors, T, V, cost] {
      if (!ctx.tape->reached(loss)) return;
      const std::vector<float> shares(T, ctx.tape->gradient(loss)[0] / static_cast<float>(counted));
      float* into = ctx.tape->adopt(logits, numerators) ? nullptr : ctx.tape->gradient(logits);
      ctx.share(T, cost, [&](size_t begin, size_t end, size_t) {
        const size_t at = begin * V, rows = end - begin;
        kernels::cross_entropy_backward(targets.data() + begin, smoothing, shares.data() + begin, factors + begin, numerators + at, rows,
                                        V);
        if (into != nullptr) kernels::axpy(1, numerators + at, into + at, rows * V);
      });
    });
  }
  return loss;
}

}  // namespace wf
