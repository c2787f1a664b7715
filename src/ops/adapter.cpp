#include "ops/adapter.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "ops/ops.hpp"
#include "ops/product.hpp"

namespace wf {

void add_adapter(Context& ctx, const Tensor& x, const Adapter& adapter, const Tensor& y) {
  const Scope scope(ctx);
  const Tensor change = linear(ctx, linear(ctx, x, adapter.a, Weight()), adapter.b, Weight());  // (T, F)
  const Tensor changed = y.columns(adapter.row, adapter.b.rows());
  const float scale = adapter.scale;
  for (size_t t = 0; t < y.rows; ++t) kernels::axpy(scale, change.row(t), changed.row(t), change.cols);
  if (ctx.tape == nullptr) return;
  ctx.tape->record([&ctx, change, changed, scale] {
    if (!ctx.tape->reached(changed)) return;
    const float* dy = ctx.tape->gradient(changed);
    float* dchange = ctx.tape->gradient(change);
    for (size_t t = 0; t < change.rows; ++t) kernels::axpy(scale, dy + t * changed.stride, dchange + t * change.stride, change.cols);
  });
}

void add_input_gradient(Context& ctx, const Weight& w, const float* dy, size_t dy_stride, float* dx, size_t dx_stride, size_t T) {
  constexpr size_t kRows = 128;  // of W, widened at a time
  const size_t D = w.cols(), F = w.rows(), most = std::min(F, kRows);
  const Scratch rows(ctx, most * D);
  for (size_t f = 0; f < F; f += kRows) {
    const size_t count = std::min(kRows, F - f);
    for (size_t i = 0; i < count; ++i) w.read_row(f + i, rows + i * D);
    product(ctx, false, false, T, D, count, dy + f, dy_stride, rows, D, true, dx, dx_stride);
  }
}

}  // namespace wf
