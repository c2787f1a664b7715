// Fills a model with the tensors of a checkpoint as they arrive, in slabs of rows, packing each slab at once: what is held is the
// packed model and one slab.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "core/dtype.hpp"
#include "models/parameters.hpp"

namespace wf {

class Loader {
 public:
  // `store`: the format in which matrices are kept; with kQ4, token embeddings and heads are kQ8 unless the file has them in four bits.
  // Absent: the file's; kQ4 in place of Q4_1 and Q4_K, kQ8 in place of the others in which nothing is kept; the wider one where the
  // parts of one matrix differ.
  // `trainable`: everything in f32, with room for gradients.
  Loader(const Parameters& parameters, std::optional<DType> store, bool trainable);

  // Bytes of all weights when the file holds the parameters, in their order, in these formats; they may be more than can be
  // addressed. Allocates nothing.
  uint64_t plan(std::span<const DType> dtypes);
  // The formats in which the planned parameters will be kept.
  std::vector<DType> stores() const;
  // Takes that memory, or throws kOutOfMemory with the bytes.
  void allocate();
  // Memory for `bytes` of stored rows; valid until the next call.
  void* stage(size_t bytes);
  // The staged bytes are `count` stored rows (elements of a vector) of a parameter, from row `begin` on, in the planned format.
  void load_rows(size_t parameter, size_t begin, size_t count);
  // Throws kMissingTensor naming the first parameter of which a row never came.
  void finish();

 private:
  enum class State : uint8_t { kNew, kPlanned, kLoading, kLoaded };

  void expect(State state, const char* call, const char* before) const;
  DType common_dtype(const Weight* weight) const;
  DType store_of(const Weight* weight) const;

  const Parameters& parameters_;
  std::optional<DType> store_;
  bool trainable_;
  State state_ = State::kNew;
  std::vector<DType> dtypes_;              // of the file, one a parameter
  std::vector<std::vector<bool>> loaded_;  // which rows of each parameter have come
  Buffer staged_;
  size_t staged_bytes_ = 0;
};

}  // namespace wf
