#include <vector>

#include "core/error.hpp"
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
  {
    Scratch each(ctx, logits.rows);
    kernels::cross_entropy(logits.data, targets.data(), smoothing, each, logits.rows, logits.cols);
    double sum = 0;
    for (size_t t = 0; t < logits.rows; ++t) sum += each[t];
    loss.data[0] = static_cast<float>(sum / static_cast<double>(counted));
  }
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, logits, targets, smoothing, loss, counted] {
      if (!ctx.tape->reached(loss)) return;
      const std::vector<float> share(logits.rows, ctx.tape->gradient(loss)[0] / static_cast<float>(counted));
      kernels::cross_entropy_backward(logits.data, targets.data(), smoothing, share.data(), ctx.tape->sink(logits), logits.rows,
                                      logits.cols);
    });
  }
  return loss;
}

}  // namespace wf
