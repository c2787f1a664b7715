#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "kernels/panels.hpp"
#include "ops/adapter.hpp"
#include "ops/ops.hpp"
#include "ops/product.hpp"

namespace wf {

namespace {

// work(begin, count) for stretches of the F columns of (T, F): sums over rows, each column's on one thread.
template <class Work>
void in_columns(const Context& ctx, size_t T, size_t F, const Work& work) {
  constexpr size_t kUnit = 16;
  ctx.share((F + kUnit - 1) / kUnit, uint64_t{T} * F,
            [&](size_t begin, size_t end, size_t) { work(begin * kUnit, std::min(end * kUnit, F) - begin * kUnit); });
}

void record_linear(Context& ctx, const Tensor& x, const Weight& w, const Weight& b, const Tensor& y) {
  float* db = b.present() ? b.gradient() : nullptr;  // not b itself: an absent one may be a temporary
  ctx.tape->record([&ctx, x, &w, db, y] {
    if (!ctx.tape->reached(y)) return;
    const float* dy = ctx.tape->gradient(y);
    const size_t T = y.rows, F = y.cols, D = x.cols;
    float* dx = ctx.tape->gradient(x);
    if (!w.trainable()) {
      if (dx != nullptr) add_input_gradient(ctx, w, dy, y.stride, dx, x.stride, T);
      return;
    }
    if (dx != nullptr) product(ctx, false, false, T, D, F, dy, y.stride, w.values(), D, true, dx, x.stride);
    product(ctx, true, false, F, D, T, dy, y.stride, x.data, x.stride, true, w.gradient(), D);
    if (db == nullptr) return;
    in_columns(ctx, T, F, [&](size_t begin, size_t count) { kernels::add_rows_backward(dy + begin, y.stride, db + begin, T, count); });
  });
}

}  // namespace

Tensor linear(Context& ctx, const Tensor& x, const Weight& w, const Weight& b) {
  if (x.cols != w.cols()) fail(Code::kShapeMismatch, "linear", "expected ", w.cols(), " input features, got ", x.cols);
  if (b.present() && b.cols() != w.rows()) fail(Code::kShapeMismatch, "linear", "expected a bias of ", w.rows(), ", got ", b.cols());
  const size_t T = x.rows, D = w.cols(), F = w.rows();
  const float* bias = b.present() ? b.values() : nullptr;
  Tensor y = ctx.tensor(T, F);
  if (w.packed()) {
    const size_t input = kernels::matmul_shared(w.dtype(), T, D);
    const Scratch shared(ctx, input);
    const Scratch scratch(ctx, kernels::matmul_scratch(w.dtype(), T, D, F), ctx.threads());
    const kernels::Product product{x.data, x.stride, w.dtype(), w.panels(), bias, y.data, y.stride, T, D, F, shared};
    ctx.share(T, input == 0 ? 0 : uint64_t{T} * D, [&](size_t begin, size_t end, size_t) { kernels::matmul_prepare(product, begin, end); });
    ctx.share(kernels::panel_count(F), uint64_t{T} * D * F,
              [&](size_t begin, size_t end, size_t thread) { kernels::matmul(product, begin, end, scratch.of(thread)); });
  } else {
    product(ctx, false, true, T, F, D, x.data, x.stride, w.values(), D, false, y.data, y.stride);
    if (bias != nullptr) {
      ctx.share(T, uint64_t{T} * F,
                [&](size_t begin, size_t end, size_t) { kernels::add_bias(y.row(begin), bias, y.row(begin), end - begin, F); });
    }
  }
  if (ctx.tape != nullptr) record_linear(ctx, x, w, b, y);
  for (const Adapter* adapter : w.adapters()) add_adapter(ctx, x, *adapter, y);
  return y;
}

Tensor embedding(Context& ctx, std::span<const int32_t> tokens, const Weight& table, float scale) {
  Tensor y = ctx.tensor(tokens.size(), table.cols());
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (tokens[t] < 0 || static_cast<size_t>(tokens[t]) >= table.rows()) {
      fail(Code::kInvalidArgument, "embedding", "token id: expected 0 to ", table.rows() - 1, ", got ", tokens[t]);
    }
    table.read_row(static_cast<size_t>(tokens[t]), y.row(t));
  }
  if (scale != 1) kernels::scale(y.data, scale, y.data, y.size());
  if (ctx.tape != nullptr && table.trainable()) {
    ctx.tape->record([&ctx, kept = std::vector<int32_t>(tokens.begin(), tokens.end()), &table, scale, y] {
      if (!ctx.tape->reached(y)) return;
      const float* dy = ctx.tape->gradient(y);
      in_columns(ctx, y.rows, y.cols, [&](size_t begin, size_t count) {
        for (size_t t = 0; t < kept.size(); ++t) {
          const size_t row = static_cast<size_t>(kept[t]);
          if (!table.is_padding(row)) kernels::axpy(scale, dy + t * y.stride + begin, table.gradient() + row * y.cols + begin, count);
        }
      });
    });
  }
  return y;
}

}  // namespace wf
