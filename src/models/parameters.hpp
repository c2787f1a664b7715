// The tensors a model asks of a checkpoint, under their published names, and where in its weights each one goes.
#pragma once

#include <string>
#include <vector>

#include "core/shape.hpp"
#include "nn/linear.hpp"
#include "nn/norm.hpp"
#include "ops/weight.hpp"

namespace wf {

struct Parameter {
  enum class Layout : uint8_t {
    kRows,        // stored row r is row `row` + r of the weight
    kTransposed,  // stored (inputs, outputs): GPT-2's Conv1D
    kByHead,      // stored rows run [head][part][feature], the weight's run [part][head][feature]: GPT-NeoX, BLOOM
  };

  std::string name;
  Shape shape;  // as stored
  Weight* weight;
  size_t row = 0;  // of the weight (an element of a vector) where it begins
  Layout layout = Layout::kRows;
  size_t heads = 1, parts = 1;  // of kByHead
  std::string alias = {};       // another name that some files have it under, or empty
  std::string option = {};      // the configuration's key that, false, does without it: files may lack all that has it; empty: none

  size_t stored_rows() const { return shape[0]; }
  size_t row_size() const { return shape.rank() == 1 ? 1 : shape[1]; }  // elements a stored row
  // Blocks run along the inputs: a file that has them has rows of the weight, not the transposed rows of `shape`.
  bool is_turned(DType dtype) const { return layout == Layout::kTransposed && is_block(dtype); }
  size_t stored_rows(DType dtype) const { return is_turned(dtype) ? row_size() : stored_rows(); }
  size_t row_size(DType dtype) const { return is_turned(dtype) ? stored_rows() : row_size(); }
  // `count` stored rows from `begin` on, in `dtype`. Error kInvalidFile names a parameter and a number of it that the weight's format
  // cannot hold.
  void load(size_t begin, size_t count, const void* source, DType dtype) const;
  // The whole tensor as stored, or its gradient, of a constant zeros, as floats (shape.size()).
  void read(float* out, bool gradient) const;
  // The same of other numbers that lie as the weight's do, (weight rows, weight cols); and back.
  void gather(const float* rows, float* out) const;
  void scatter(const float* in, float* rows) const;

 private:
  size_t weight_row(size_t stored) const;
  template <class Visit>
  void for_rows(const Visit& visit) const;
};

class Parameters {
 public:
  // `prefix`: what the names of the base model begin with, which files may lack ("transformer.").
  explicit Parameters(std::string prefix) : prefix_(std::move(prefix)) {}

  const std::string& prefix() const { return prefix_; }
  const std::vector<Parameter>& list() const { return list_; }
  std::vector<Weight*> weights() const;  // each once, in order

  // A matrix, table or vector as it is; nothing when absent.
  void weight(const std::string& name, Weight& weight, const std::string& alias = {});
  void row(const std::string& name, Weight& vector);                                    // a vector stored as (1, size)
  void linear(const std::string& name, Linear& linear);                                 // name.weight (F, D) and name.bias (F)
  void linear_rows(const std::string& name, Linear& linear, size_t row, size_t count);  // the same, for some of the rows
  void linear_transposed(const std::string& name, Linear& linear);                      // name.weight stored (D, F)
  void linear_by_head(const std::string& name, Linear& linear, size_t heads, size_t parts);
  void norm(const std::string& name, Norm& norm);               // name.weight and, where there is one, name.bias
  void optional_from(size_t begin, const std::string& option);  // what was listed from number `begin` on

 private:
  std::string prefix_;
  std::vector<Parameter> list_;
};

}  // namespace wf
