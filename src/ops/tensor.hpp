// A view of a matrix of floats, and the gradient that flows back into it.
#pragma once

#include <cstddef>

namespace wf {

// The gradient of one tensor, made by the tape when the backward pass first reaches it.
struct Gradient {
  float* data = nullptr;  // (rows, stride) of the tensor it belongs to
  size_t floats = 0;
};

// (rows, cols) floats, rows `stride` apart. Owns nothing: the memory is the arena's, a weight's or the caller's.
// Batches are ragged: the rows of all sequences lie end to end (ops/batch.hpp has the offsets).
struct Tensor {
  float* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;
  Gradient* gradient = nullptr;  // null: no gradient flows here
  size_t gradient_offset = 0;    // of this view's first element, when it is a part of the tensor

  bool contiguous() const { return stride == cols; }
  size_t size() const { return rows * cols; }
  float* row(size_t r) const { return data + r * stride; }

  // Columns begin..begin + count as a view of the same memory and the same gradient.
  Tensor columns(size_t begin, size_t count) const {
    Tensor view = *this;
    view.data += begin;
    view.cols = count;
    view.gradient_offset += begin;
    return view;
  }
  // Rows begin..begin + count, likewise.
  Tensor slice(size_t begin, size_t count) const {
    Tensor view = *this;
    view.data += begin * stride;
    view.rows = count;
    view.gradient_offset += begin * stride;
    return view;
  }
};

}  // namespace wf
