#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "kernels/dropout.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/softmax.hpp"
#include "ops/ops.hpp"

namespace wf {

namespace {

void check_same_shape(const char* where, const Tensor& a, const Tensor& b) {
  if (a.rows == b.rows && a.cols == b.cols) return;
  fail(Code::kShapeMismatch, where, "expected two tensors of one shape, got ", Shape{a.rows, a.cols}, " and ", Shape{b.rows, b.cols});
}

void check_contiguous(const char* where, const Tensor& x) {
  if (!x.contiguous()) fail(Code::kInternal, where, "expected rows without gaps");
}

void check_length(const char* where, const Weight& w, size_t length) {
  if (w.present() && w.cols() != length) fail(Code::kShapeMismatch, where, "expected a weight of ", length, ", got ", w.cols());
}

const float* values_or_null(const Weight& w) { return w.present() ? w.values() : nullptr; }
float* gradient_or_null(const Weight& w) { return w.present() ? w.gradient() : nullptr; }

// work(begin, count) for stretches of n elements that each cost `each`.
template <class Work>
void in_stretches(const Context& ctx, size_t n, uint64_t each, const Work& work) {
  ctx.share(n, each * n, [&](size_t begin, size_t end, size_t) { work(begin, end - begin); });
}

// Sums over rows: work(first row, rows, sums) for runs of rows, each with zeros (kSums, size) of its own to add to; these are then
// added to the totals (size) that are not null, in the order of the rows.
template <size_t kSums, class Work>
void sum_over_rows(Context& ctx, size_t rows, uint64_t cost, float* const (&totals)[kSums], size_t size, const Work& work) {
  constexpr size_t kRows = 64;
  const size_t runs = (rows + kRows - 1) / kRows;
  const Scratch scratch(ctx, checked_product(runs, kSums * size, "sums over rows"));
  float* all = scratch;
  std::fill_n(all, runs * kSums * size, 0.0f);
  ctx.share(runs, cost, [&](size_t begin, size_t end, size_t) {
    for (size_t run = begin; run < end; ++run) work(run * kRows, std::min(kRows, rows - run * kRows), all + run * kSums * size);
  });
  for (size_t i = 0; i < kSums; ++i) {
    if (totals[i] != nullptr) kernels::add_rows_backward(all + i * size, kSums * size, totals[i], runs, size);
  }
}

// What an element costs beside a multiply-add of a matrix product: reading and writing memory, or an exponential.
constexpr uint64_t kSimple = 4, kCurved = 16;

}  // namespace

Tensor rows(Context& ctx, const Tensor& x, std::span<const size_t> indices) {
  Tensor y = ctx.tensor(indices.size(), x.cols);
  for (size_t r = 0; r < y.rows; ++r) {
    if (indices[r] >= x.rows) fail(Code::kShapeMismatch, "rows", "expected an index below ", x.rows, ", got ", indices[r]);
    std::copy_n(x.row(indices[r]), x.cols, y.row(r));
  }
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, x, y, kept = std::vector<size_t>(indices.begin(), indices.end())] {
      if (!ctx.tape->reached(y)) return;
      const float* dy = ctx.tape->gradient(y);
      float* dx = ctx.tape->gradient(x);
      if (dx == nullptr) return;
      for (size_t r = 0; r < y.rows; ++r) kernels::axpy(1, dy + r * y.stride, dx + kept[r] * x.stride, y.cols);
    });
  }
  return y;
}

Tensor add(Context& ctx, const Tensor& a, const Tensor& b) {
  check_same_shape("add", a, b);
  check_contiguous("add", a);
  check_contiguous("add", b);
  if (ctx.tape == nullptr) {
    ctx.share(a.size(), kSimple * a.size(),
              [&](size_t begin, size_t end, size_t) { kernels::add(a.data + begin, b.data + begin, a.data + begin, end - begin); });
    return a;
  }
  Tensor y = ctx.tensor(a.rows, a.cols);
  in_stretches(ctx, y.size(), kSimple, [&](size_t at, size_t n) { kernels::add(a.data + at, b.data + at, y.data + at, n); });
  ctx.tape->record([&ctx, a, b, y] {
    if (!ctx.tape->reached(y)) return;
    const float* dy = ctx.tape->gradient(y);
    for (float* dx : {ctx.tape->gradient(a), ctx.tape->gradient(b)}) {
      if (dx != nullptr) in_stretches(ctx, y.size(), kSimple, [&](size_t at, size_t n) { kernels::axpy(1, dy + at, dx + at, n); });
    }
  });
  return y;
}

Tensor scale(Context& ctx, const Tensor& x, float factor) {
  check_contiguous("scale", x);
  if (ctx.tape == nullptr) {
    kernels::scale(x.data, factor, x.data, x.size());
    return x;
  }
  Tensor y = ctx.tensor(x.rows, x.cols);
  kernels::scale(x.data, factor, y.data, y.size());
  ctx.tape->record([&ctx, x, factor, y] {
    if (!ctx.tape->reached(y)) return;
    if (float* dx = ctx.tape->gradient(x)) kernels::axpy(factor, ctx.tape->gradient(y), dx, y.size());
  });
  return y;
}

Tensor layer_norm(Context& ctx, const Tensor& x, const Weight& w, const Weight& b, float eps) {
  check_contiguous("layer_norm", x);
  check_length("layer_norm", w, x.cols);
  check_length("layer_norm", b, x.cols);
  Tensor y = ctx.tensor(x.rows, x.cols);
  ctx.share(x.rows, kSimple * x.size(), [&](size_t begin, size_t end, size_t) {
    kernels::layer_norm(x.row(begin), values_or_null(w), values_or_null(b), y.row(begin), end - begin, x.cols, eps);
  });
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, x, w = values_or_null(w), dw = gradient_or_null(w), db = gradient_or_null(b), y, eps] {
      if (!ctx.tape->reached(y)) return;
      const float* dy = ctx.tape->gradient(y);
      float* dx = ctx.tape->sink(x);
      sum_over_rows(ctx, x.rows, kCurved * x.size(), {dw, db}, x.cols, [&](size_t row, size_t count, float* sums) {
        const size_t at = row * x.cols;
        kernels::layer_norm_backward(x.data + at, w, dy + at, dx + at, dw == nullptr ? nullptr : sums,
                                     db == nullptr ? nullptr : sums + x.cols, count, x.cols, eps);
      });
    });
  }
  return y;
}

Tensor rms_norm(Context& ctx, const Tensor& x, const Weight& w, float offset, float eps) {
  if (!w.present() || x.cols % w.cols() != 0)
    fail(Code::kShapeMismatch, "rms_norm", "expected a multiple of ", w.cols(), " features, got ", x.cols);
  const size_t D = w.cols(), per_row = x.cols / D;
  Tensor y = ctx.tensor(x.rows, x.cols);
  ctx.share(x.rows, kSimple * x.size(), [&](size_t begin, size_t end, size_t) {
    for (size_t t = begin; t < end; ++t) kernels::rms_norm(x.row(t), w.values(), offset, y.row(t), per_row, D, eps);
  });
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, x, &w, y, offset, eps, D, per_row] {
      if (!ctx.tape->reached(y)) return;
      const float* dy = ctx.tape->gradient(y);
      float* dx = ctx.tape->sink(x);
      sum_over_rows(ctx, x.rows, kCurved * x.size(), {w.gradient()}, D, [&](size_t row, size_t count, float* sums) {
        float* dw = w.gradient() == nullptr ? nullptr : sums;
        for (size_t t = row; t < row + count; ++t) {
          kernels::rms_norm_backward(x.row(t), w.values(), offset, dy + t * y.stride, dx + t * x.stride, dw, per_row, D, eps);
        }
      });
    });
  }
  return y;
}

Tensor activate(Context& ctx, kernels::Activation activation, const Tensor& x) {
  check_contiguous("activate", x);
  if (ctx.tape == nullptr) {
    ctx.share(x.size(), kCurved * x.size(),
              [&](size_t begin, size_t end, size_t) { kernels::activate(activation, x.data + begin, x.data + begin, end - begin); });
    return x;
  }
  Tensor y = ctx.tensor(x.rows, x.cols);
  in_stretches(ctx, y.size(), kCurved, [&](size_t at, size_t n) { kernels::activate(activation, x.data + at, y.data + at, n); });
  ctx.tape->record([&ctx, activation, x, y] {
    if (!ctx.tape->reached(y)) return;
    const float* dy = ctx.tape->gradient(y);
    float* dx = ctx.tape->gradient(x);
    if (dx == nullptr) return;
    in_stretches(ctx, y.size(), kCurved,
                 [&](size_t at, size_t n) { kernels::activate_backward(activation, x.data + at, dy + at, dx + at, n); });
  });
  return y;
}

Tensor gated(Context& ctx, kernels::Activation activation, const Tensor& gate, const Tensor& up) {
  check_same_shape("gated", gate, up);
  Tensor y = ctx.tensor(gate.rows, gate.cols);
  ctx.share(y.rows, kCurved * y.size(), [&](size_t begin, size_t end, size_t) {
    for (size_t t = begin; t < end; ++t) kernels::gated(activation, gate.row(t), up.row(t), y.row(t), y.cols);
  });
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, activation, gate, up, y] {
      if (!ctx.tape->reached(y)) return;
      const float* dy = ctx.tape->gradient(y);
      float* dgate = ctx.tape->sink(gate);
      float* dup = ctx.tape->sink(up);
      ctx.share(y.rows, 2 * kCurved * y.size(), [&](size_t begin, size_t end, size_t) {
        for (size_t t = begin; t < end; ++t) {
          kernels::gated_backward(activation, gate.row(t), up.row(t), dy + t * y.stride, dgate + t * gate.stride, dup + t * up.stride,
                                  y.cols);
        }
      });
    });
  }
  return y;
}

Tensor dropout(Context& ctx, const Tensor& x) {
  if (ctx.dropout == nullptr || ctx.dropout->rate == 0) return x;
  check_contiguous("dropout", x);
  const kernels::DropoutMask mask{ctx.dropout->rate, ctx.dropout->key, 0};
  ++ctx.dropout->key.site;
  const auto from = [mask](size_t begin) { return kernels::DropoutMask{mask.rate, mask.key, begin}; };
  const Tensor y = ctx.tape == nullptr ? x : ctx.tensor(x.rows, x.cols);
  in_stretches(ctx, x.size(), kCurved, [&](size_t at, size_t n) { kernels::dropout(from(at), x.data + at, y.data + at, n); });
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, x, y, from] {
      if (!ctx.tape->reached(y)) return;
      const float* dy = ctx.tape->gradient(y);
      float* dx = ctx.tape->gradient(x);
      if (dx == nullptr) return;
      in_stretches(ctx, y.size(), kCurved, [&](size_t at, size_t n) { kernels::dropout_backward(from(at), dy + at, dx + at, n); });
    });
  }
  return y;
}

Tensor softmax(Context& ctx, const Tensor& x) {
  check_contiguous("softmax", x);
  Tensor y = ctx.tensor(x.rows, x.cols);
  kernels::softmax(x.data, y.data, x.rows, x.cols);
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, x, y] {
      if (!ctx.tape->reached(y)) return;
      if (float* dx = ctx.tape->gradient(x)) kernels::softmax_backward(y.data, ctx.tape->gradient(y), dx, y.rows, y.cols);
    });
  }
  return y;
}

void rotate(Context& ctx, Tensor& x, size_t head_size, size_t rotary, const float* cos, const float* sin, bool interleaved) {
  if (x.cols % head_size != 0 || rotary > head_size || rotary % 2 != 0) {
    fail(Code::kShapeMismatch, "rotate", "expected heads of ", head_size, " with an even rotary part, got ", x.cols, " and ", rotary);
  }
  if (ctx.tape != nullptr && x.gradient == nullptr) fail(Code::kInternal, "rotate", "expected a tensor that gradients flow into");
  ctx.share(x.rows, kSimple * x.rows * x.cols, [&](size_t begin, size_t end, size_t) {
    const size_t angle = begin * (rotary / 2);
    kernels::rope(x.row(begin), x.stride, end - begin, x.cols / head_size, head_size, rotary, cos + angle, sin + angle, interleaved);
  });
  if (ctx.tape != nullptr) {
    ctx.tape->record([&ctx, x, head_size, rotary, cos, sin, interleaved] {
      if (!ctx.tape->reached(x)) return;
      Scratch back(ctx, x.rows * rotary / 2);
      kernels::scale(sin, -1, back, x.rows * rotary / 2);
      float *dx = ctx.tape->gradient(x), *turned = back;
      ctx.share(x.rows, kSimple * x.rows * x.cols, [&](size_t begin, size_t end, size_t) {
        const size_t angle = begin * (rotary / 2);
        kernels::rope(dx + begin * x.stride, x.stride, end - begin, x.cols / head_size, head_size, rotary, cos + angle, turned + angle,
                      interleaved);
      });
    });
  }
}

}  // namespace wf
