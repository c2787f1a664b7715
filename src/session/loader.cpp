#include "session/loader.hpp"

#include <algorithm>
#include <cstdlib>

#include "core/error.hpp"
#include "core/shape.hpp"

namespace wf {

Loader::Loader(const Parameters& parameters, std::optional<DType> store, bool trainable)
    : parameters_(parameters), store_(store), trainable_(trainable) {}

void Loader::expect(State state, const char* call, const char* before) const {
  if (state_ != state) fail(Code::kInvalidArgument, "load", call, ": expected to be called after ", before);
}

DType Loader::common_dtype(const Weight* weight) const {
  std::optional<DType> common;
  for (size_t i = 0; i < parameters_.list().size(); ++i) {
    if (parameters_.list()[i].weight != weight) continue;
    DType dtype = dtypes_[i];
    if (dtype == DType::kQ4_1 || dtype == DType::kQ4K) {
      dtype = DType::kQ4;  // which has a low and a scale a block, as they do
    } else if (is_block(dtype) && !is_quantised_store(dtype)) {
      dtype = DType::kQ8;
    }
    if (!common || *common == dtype) {
      common = dtype;
    } else {
      common = is_block(*common) && is_block(dtype) ? DType::kQ8 : DType::kF32;
    }
  }
  return common.value_or(DType::kF32);
}

DType Loader::store_of(const Weight* weight) const {
  if (!store_) return common_dtype(weight);
  const bool keeps_eight = *store_ == DType::kQ4 && weight->use() == Weight::Use::kVocabulary && common_dtype(weight) != DType::kQ4;
  return keeps_eight ? DType::kQ8 : *store_;
}

std::vector<DType> Loader::stores() const {
  std::vector<DType> all;
  for (const Parameter& parameter : parameters_.list()) all.push_back(parameter.weight->held_as(store_of(parameter.weight), trainable_));
  return all;
}

uint64_t Loader::plan(std::span<const DType> dtypes) {
  if (state_ > State::kPlanned) fail(Code::kInvalidArgument, "load", "plan: expected to be called before allocate");
  if (dtypes.size() != parameters_.list().size()) {
    fail(Code::kInvalidArgument, "load", "dtypes: expected one for each of ", parameters_.list().size(), " parameters, got ",
         dtypes.size());
  }
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const Parameter& parameter = parameters_.list()[i];
    if (parameter.row_size(dtypes[i]) % block_size(dtypes[i]) == 0) continue;
    fail(Code::kShapeMismatch, "load", parameter.name, ": expected rows of a multiple of ", block_size(dtypes[i]), " for ",
         name_of(dtypes[i]), ", got ", parameter.row_size(dtypes[i]));
  }
  dtypes_.assign(dtypes.begin(), dtypes.end());
  uint64_t total = 0;
  for (const Weight* weight : parameters_.weights()) {
    // A gradient beside a weight may be more than can be addressed, and still is told.
    const uint64_t floats = checked_product(weight->rows(), weight->cols(), "load");
    const uint64_t bytes = trainable_ ? 2 * sizeof(float) * floats : weight->bytes(store_of(weight), false);
    total += bytes + 2 * kAlignment;
  }
  state_ = State::kPlanned;
  return total;
}

void Loader::allocate() {
  expect(State::kPlanned, "allocate", "plan");
  const uint64_t total = plan(std::vector<DType>(dtypes_));
  // Memory grows once, to the size of it all, and not weight by weight. Volatile, or the compiler leaves the pair out.
  void* volatile whole = total <= SIZE_MAX ? std::malloc(static_cast<size_t>(total)) : nullptr;
  if (whole == nullptr) fail(Code::kOutOfMemory, "load", "weights: ", total, " bytes could not be had");
  std::free(whole);
  for (Weight* weight : parameters_.weights()) weight->allocate(store_of(weight), trainable_);
  for (size_t i = 0; i < dtypes_.size(); ++i) loaded_.emplace_back(parameters_.list()[i].stored_rows(dtypes_[i]), false);
  state_ = State::kLoading;
}

void* Loader::stage(size_t bytes) {
  if (bytes > staged_.bytes()) {
    staged_ = Buffer();
    staged_ = Buffer(bytes, "a slab of weights");
  }
  staged_bytes_ = bytes;
  return staged_.data();
}

void Loader::load_rows(size_t index, size_t begin, size_t count) {
  expect(State::kLoading, "loadRows", "allocate");
  if (index >= parameters_.list().size()) {
    fail(Code::kInvalidArgument, "load", "parameter: expected one of ", parameters_.list().size(), ", got ", index);
  }
  const Parameter& parameter = parameters_.list()[index];
  const DType dtype = dtypes_[index];
  const size_t rows = parameter.stored_rows(dtype);
  if (begin > rows || count > rows - begin) {
    fail(Code::kInvalidArgument, "load", parameter.name, ": expected rows within ", rows, ", got ", count, " from ", begin);
  }
  const size_t bytes = checked_product(count, stored_bytes(dtype, parameter.row_size(dtype)), "load");
  if (bytes != staged_bytes_) {
    fail(Code::kInvalidArgument, "load", parameter.name, ": expected ", bytes, " staged bytes for ", count, " rows, got ", staged_bytes_);
  }
  const size_t step = block_size(parameter.weight->dtype());
  const bool turns = parameter.layout == Parameter::Layout::kTransposed && !parameter.is_turned(dtype);
  if (turns && (begin % step != 0 || (count % step != 0 && begin + count != rows))) {
    fail(Code::kInvalidArgument, "load", parameter.name, ": expected whole blocks of ", step, " rows, got ", count, " from ", begin);
  }
  parameter.load(begin, count, staged_.data(), dtype);
  std::fill_n(loaded_[index].begin() + static_cast<ptrdiff_t>(begin), count, true);
}

void Loader::finish() {
  expect(State::kLoading, "finishLoading", "allocate");
  for (size_t i = 0; i < loaded_.size(); ++i) {
    const size_t missing = static_cast<size_t>(std::count(loaded_[i].begin(), loaded_[i].end(), false));
    if (missing != 0) {
      fail(Code::kMissingTensor, "load", parameters_.list()[i].name, ": expected ", loaded_[i].size(), " rows, got ",
           loaded_[i].size() - missing);
    }
  }
  state_ = State::kLoaded;
  staged_ = Buffer();
  staged_bytes_ = 0;
  loaded_.clear();
  loaded_.shrink_to_fit();
}

}  // namespace wf
