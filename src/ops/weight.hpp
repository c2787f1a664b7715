// A weight of the model: a matrix packed for the kernels, or a table, a vector or a trainable matrix in plain rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/buffer.hpp"
#include "core/dtype.hpp"
#include "ops/tensor.hpp"

namespace wf {

struct Adapter;

class Weight {
 public:
  // kMatrix multiplies; kVocabulary does too or is looked up by rows, or both: token embeddings and heads, which lose most by few
  // bits; kTable is only looked up; kVector is added or scaled by.
  enum class Use : uint8_t { kMatrix, kVocabulary, kTable, kVector };

  Weight() = default;                                                                            // absent: a linear layer without bias
  static Weight matrix(size_t rows, size_t cols) { return {Use::kMatrix, rows, cols}; }          // (F, D)
  static Weight vocabulary(size_t rows, size_t cols) { return {Use::kVocabulary, rows, cols}; }  // (V, D)
  static Weight table(size_t rows, size_t cols) { return {Use::kTable, rows, cols}; }            // (N, D)
  static Weight vector(size_t size) { return {Use::kVector, 1, size}; }                          // (D)
  // (D), which no training changes: a buffer in PyTorch.
  static Weight constant(size_t size) {
    Weight weight = vector(size);
    weight.constant_ = true;
    return weight;
  }

  bool present() const { return rows_ != 0; }
  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  Use use() const { return use_; }
  bool is_matrix() const { return use_ == Use::kMatrix || use_ == Use::kVocabulary; }
  DType dtype() const { return dtype_; }
  bool packed() const { return packed_; }
  bool constant() const { return constant_; }
  // A table's row for padding, which begins as zeros and learns nothing by being looked up (`padding_idx` of PyTorch's Embedding).
  bool is_padding(size_t row) const { return row == padding_; }
  void set_padding(size_t row) { padding_ = row; }
  bool trainable() const { return gradient_.data() != nullptr; }

  // The format it would be held in: `store` if it is a frozen matrix; everything else is f32.
  DType held_as(DType store, bool trainable) const { return is_matrix() && !trainable ? store : DType::kF32; }
  // Bytes `allocate` would take, checked for overflow.
  size_t bytes(DType store, bool trainable) const;
  void allocate(DType store, bool trainable);

  // `count` stored rows (count, cols) of `dtype` become rows row..row + count; a vector takes elements. False: a number that the
  // weight's format cannot hold (kernels::pack_rows).
  bool write_rows(size_t row, size_t count, const void* source, DType dtype);
  // Stored (in, out), as GPT-2's Conv1D: `count` rows of `outputs` elements become columns col.. of rows row..row + outputs.
  bool write_columns(size_t col, size_t count, size_t row, size_t outputs, const void* source, DType dtype);
  // One row as floats, (cols).
  void read_row(size_t row, float* out) const;

  const void* panels() const { return data_.data(); }
  float* values() { return data_.floats(); }  // (rows, cols); only when not packed
  const float* values() const { return data_.floats(); }
  float* gradient() const { return const_cast<float*>(gradient_.floats()); }  // (rows, cols), null when frozen
  void clear_gradient();

  // Low-rank changes of some of its rows (src/train/lora.hpp), which `linear` adds to what the matrix gives.
  const std::vector<Adapter*>& adapters() const { return adapters_; }
  void attach(Adapter& adapter) { adapters_.push_back(&adapter); }
  void detach() { adapters_.clear(); }

 private:
  Weight(Use use, size_t rows, size_t cols) : use_(use), rows_(rows), cols_(cols) {}

  Use use_ = Use::kMatrix;
  size_t rows_ = 0;
  size_t cols_ = 0;
  DType dtype_ = DType::kF32;
  bool packed_ = false;
  bool constant_ = false;
  size_t padding_ = SIZE_MAX;  // none
  Buffer data_;
  Buffer gradient_;
  std::vector<Adapter*> adapters_;
};

// y[:, row .. row + F) += scale x A^T B^T (Hu et al. 2021, "LoRA", section 4.1).
struct Adapter {
  Weight a;  // (R, D)
  Weight b;  // (F, R)
  size_t row = 0;
  float scale = 1;
};

}  // namespace wf
