// The tape of reverse-mode differentiation: operations record their backward as they run, `backward` plays it in reverse.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "core/arena.hpp"
#include "ops/tensor.hpp"

namespace wf {

class Tape {
 public:
  explicit Tape(Arena& arena) : arena_(arena) {}

  // Lets a gradient flow into `tensor`.
  void track(Tensor& tensor);
  void record(std::function<void()> backward) { records_.push_back(std::move(backward)); }

  // Where a backward adds its contribution to the gradient of `tensor`: zeros at first touch. Same stride as the tensor.
  // Null when no gradient flows there.
  float* gradient(const Tensor& tensor);
  // The same, but for a tensor that no gradient flows into memory that nobody reads: for kernels that always write.
  float* sink(const Tensor& tensor);
  // Makes `data`, memory of the arena in the tensor's shape, its gradient, if nothing has flowed there yet and the tensor is a whole one.
  bool adopt(const Tensor& tensor, float* data);
  // Whether anything has flowed into `tensor`: a backward with nothing to pass on returns at once.
  bool reached(const Tensor& tensor) const { return tensor.gradient != nullptr && tensor.gradient->data != nullptr; }

  // d loss / d everything tracked; `loss` is (1, 1) and tracked. What the operations were given (weights, token and target ids, the
  // context) must live until then, and the arena must not have been released.
  void backward(const Tensor& loss);
  // The same from any tracked tensor on, whose gradient is given: (rows, cols), rows `stride` apart.
  void backward(const Tensor& result, const float* gradient, size_t stride);
  // The same from wherever gradients have been written to. Plays the records once and drops them.
  void play();

 private:
  Arena& arena_;
  std::deque<Gradient> gradients_;
  std::vector<std::function<void()>> records_;
};

}  // namespace wf
