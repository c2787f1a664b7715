#include "models/parameters.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "kernels/panels.hpp"

namespace wf {

namespace {

// n numbers of `source` are not all of those that a weight in `store` can hold.
[[noreturn]] void refuse(const std::string& name, DType store, size_t n, const void* source, DType dtype) {
  constexpr size_t kChunk = 256;  // a multiple of every block
  float values[kChunk], greatest = 0;
  for (size_t i = 0; i < n; i += kChunk) {
    const size_t part = std::min(kChunk, n - i);
    kernels::convert(static_cast<const char*>(source) + stored_bytes(dtype, i), dtype, values, part);
    for (size_t j = 0; j < part; ++j) {
      if (!std::isfinite(values[j])) {
        if (is_block(store)) fail(Code::kInvalidFile, "load", name, ": expected finite numbers to quantise, got ", values[j]);
      } else if (std::abs(values[j]) > std::abs(greatest)) {
        greatest = values[j];
      }
    }
  }
  const bool is_bf16 = store == DType::kBF16;
  const float most = is_bf16 ? kernels::widen(store, 0x7f7f) : 65504;
  // A block of a file can have a scale that is too large and small numbers.
  const Word got = std::abs(greatest) > most ? Word(greatest) : Word("a block with a larger range");
  fail(Code::kInvalidFile, "load", name, ": expected numbers up to ", most, ", the most that dtype '",
       is_bf16           ? "bf16"
       : is_block(store) ? "q4"
                         : "f16",
       "' can hold, got ", got, "; dtype 'f32' holds it");
}

}  // namespace

size_t Parameter::weight_row(size_t stored) const {
  if (layout != Layout::kByHead) return row + stored;
  const size_t features = shape[0] / (heads * parts);
  const size_t feature = stored % features, part = stored / features % parts, head = stored / (features * parts);
  return row + (part * heads + head) * features + feature;
}

void Parameter::load(size_t begin, size_t count, const void* source, DType dtype) const {
  bool held = true;
  if (weight->use() == Weight::Use::kVector && shape.rank() == 2) {
    held = weight->write_rows(0, row_size(), source, dtype);
  } else if (layout == Layout::kTransposed && !is_turned(dtype)) {
    held = weight->write_columns(begin, count, row, row_size(), source, dtype);
  } else if (layout != Layout::kByHead) {
    held = weight->write_rows(row + begin, count, source, dtype);
  } else {
    const size_t stride = stored_bytes(dtype, row_size(dtype));
    for (size_t r = 0; r < count; ++r) {
      held &= weight->write_rows(weight_row(begin + r), 1, static_cast<const char*>(source) + r * stride, dtype);
    }
  }
  if (!held) refuse(name, weight->dtype(), count * row_size(dtype), source, dtype);
}

// visit(row of the weight, first element in it, first element as stored, how many, elements between two as stored)
template <class Visit>
void Parameter::for_rows(const Visit& visit) const {
  if (weight->use() == Weight::Use::kVector) {
    for (size_t r = 0; r < shape.size(); ++r) visit(0, weight_row(r), r, 1, 1);
  } else if (layout == Layout::kTransposed) {
    for (size_t j = 0; j < row_size(); ++j) visit(row + j, 0, j, stored_rows(), row_size());
  } else {
    for (size_t r = 0; r < stored_rows(); ++r) visit(weight_row(r), 0, r * row_size(), row_size(), 1);
  }
}

void Parameter::read(float* out, bool gradient) const {
  if (gradient && weight->constant()) {
    std::fill_n(out, shape.size(), 0.0f);
    return;
  }
  if (gradient) return gather(weight->gradient(), out);
  if (!weight->packed()) return gather(weight->values(), out);
  std::vector<float> line(weight->cols());
  for_rows([&](size_t r, size_t first, size_t at, size_t count, size_t step) {
    weight->read_row(r, line.data());
    for (size_t i = 0; i < count; ++i) out[at + i * step] = line[first + i];
  });
}

void Parameter::gather(const float* rows, float* out) const {
  for_rows([&](size_t r, size_t first, size_t at, size_t count, size_t step) {
    const float* values = rows + r * weight->cols() + first;
    for (size_t i = 0; i < count; ++i) out[at + i * step] = values[i];
  });
}

void Parameter::scatter(const float* in, float* rows) const {
  for_rows([&](size_t r, size_t first, size_t at, size_t count, size_t step) {
    float* values = rows + r * weight->cols() + first;
    for (size_t i = 0; i < count; ++i) values[i] = in[at + i * step];
  });
}

std::vector<Weight*> Parameters::weights() const {
  std::vector<Weight*> weights;
  for (const Parameter& parameter : list_) {
    if (std::find(weights.begin(), weights.end(), parameter.weight) == weights.end()) weights.push_back(parameter.weight);
  }
  return weights;
}

void Parameters::weight(const std::string& name, Weight& weight, const std::string& alias) {
  if (!weight.present()) return;
  const Shape shape = weight.use() == Weight::Use::kVector ? Shape{weight.cols()} : Shape{weight.rows(), weight.cols()};
  list_.push_back({.name = name, .shape = shape, .weight = &weight, .alias = alias});
}

void Parameters::row(const std::string& name, Weight& vector) {
  list_.push_back({.name = name, .shape = {1, vector.cols()}, .weight = &vector});
}

void Parameters::linear(const std::string& name, Linear& linear) {
  weight(name + ".weight", linear.weight);
  weight(name + ".bias", linear.bias);
}

void Parameters::linear_rows(const std::string& name, Linear& linear, size_t row, size_t count) {
  list_.push_back({name + ".weight", {count, linear.weight.cols()}, &linear.weight, row});
  if (linear.bias.present()) list_.push_back({name + ".bias", {count}, &linear.bias, row});
}

void Parameters::linear_transposed(const std::string& name, Linear& linear) {
  list_.push_back({name + ".weight", {linear.weight.cols(), linear.weight.rows()}, &linear.weight, 0, Parameter::Layout::kTransposed});
  weight(name + ".bias", linear.bias);
}

void Parameters::linear_by_head(const std::string& name, Linear& linear, size_t heads, size_t parts) {
  const auto by_head = Parameter::Layout::kByHead;
  list_.push_back({name + ".weight", {linear.weight.rows(), linear.weight.cols()}, &linear.weight, 0, by_head, heads, parts});
  if (linear.bias.present()) list_.push_back({name + ".bias", {linear.bias.cols()}, &linear.bias, 0, by_head, heads, parts});
}

void Parameters::norm(const std::string& name, Norm& norm) {
  weight(name + ".weight", norm.weight);
  weight(name + ".bias", norm.bias);
}

void Parameters::optional_from(size_t begin, const std::string& option) {
  for (size_t i = begin; i < list_.size(); ++i) list_[i].option = option;
}

}  // namespace wf
