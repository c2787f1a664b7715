#include "ops/weight.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "kernels/panels.hpp"

namespace wf {

namespace {

size_t plain_bytes(size_t rows, size_t cols, DType store) { return checked_product(rows, stored_bytes(store, cols), "weight"); }

}  // namespace

size_t Weight::bytes(DType store, bool trainable) const {
  if (trainable && !constant_) return checked_product(plain_bytes(rows_, cols_, DType::kF32), 2, "weight");
  if (!is_matrix()) return plain_bytes(rows_, cols_, DType::kF32);
  // So that rounding up, and what stands beside the numbers of quantised blocks, cannot wrap either.
  checked_product(plain_bytes(checked_sum(rows_, kernels::kPanel, "weight"), cols_, store), is_block(store) ? 2 : 1, "weight");
  return kernels::panel_bytes(store, rows_, cols_);
}

void Weight::allocate(DType store, bool trainable) {
  trainable = trainable && !constant_;
  const size_t total = bytes(store, trainable);
  packed_ = is_matrix() && !trainable;
  dtype_ = held_as(store, trainable);
  data_ = Buffer(trainable ? total / 2 : total, "a weight");
  gradient_ = trainable ? Buffer(total / 2, "a weight's gradient") : Buffer();
}

bool Weight::write_rows(size_t row, size_t count, const void* source, DType dtype) {
  if (packed_) return kernels::pack_rows(dtype_, data_.data(), rows_, cols_, row, count, source, dtype);
  const size_t width = use_ == Use::kVector ? 1 : cols_;
  kernels::convert(source, dtype, values() + row * width, count * width);
  return true;
}

bool Weight::write_columns(size_t col, size_t count, size_t row, size_t outputs, const void* source, DType dtype) {
  if (packed_) return kernels::pack_columns(dtype_, data_.data(), rows_, cols_, col, count, row, outputs, source, dtype);
  const char* bytes = static_cast<const char*>(source);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < outputs; ++j) {
      kernels::convert(bytes + (i * outputs + j) * block_bytes(dtype), dtype, values() + (row + j) * cols_ + col + i, 1);
    }
  }
  return true;
}

void Weight::read_row(size_t row, float* out) const {
  if (packed_) {
    kernels::unpack_row(dtype_, data_.data(), rows_, cols_, row, out);
  } else {
    std::copy_n(values() + row * cols_, cols_, out);
  }
}

void Weight::clear_gradient() {
  if (trainable()) std::memset(gradient_.data(), 0, gradient_.bytes());
}

}  // namespace wf
