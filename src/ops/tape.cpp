#include "ops/tape.hpp"

#include <algorithm>

namespace wf {

void Tape::track(Tensor& tensor) {
  tensor.gradient = &gradients_.emplace_back();
  tensor.gradient->floats = tensor.rows * tensor.stride;
  tensor.gradient_offset = 0;
}

float* Tape::gradient(const Tensor& tensor) {
  Gradient* gradient = tensor.gradient;
  if (gradient == nullptr) return nullptr;
  if (gradient->data == nullptr) {
    gradient->data = arena_.floats(gradient->floats);
    std::fill_n(gradient->data, gradient->floats, 0.0f);
  }
  return gradient->data + tensor.gradient_offset;
}

bool Tape::adopt(const Tensor& tensor, float* data) {
  Gradient* gradient = tensor.gradient;
  if (gradient == nullptr || gradient->data != nullptr || gradient->floats != tensor.rows * tensor.stride) return false;
  gradient->data = data;
  return true;
}

float* Tape::sink(const Tensor& tensor) {
  float* data = gradient(tensor);
  return data != nullptr ? data : arena_.floats(tensor.rows * tensor.stride);
}

void Tape::backward(const Tensor& loss) {
  const float one = 1;
  backward(loss, &one, 1);
}

void Tape::backward(const Tensor& result, const float* given, size_t stride) {
  float* into = gradient(result);
  for (size_t r = 0; r < result.rows; ++r) std::copy_n(given + r * stride, result.cols, into + r * result.stride);
  play();
}

void Tape::play() {
  for (auto record = records_.rbegin(); record != records_.rend(); ++record) (*record)();
  records_.clear();
}

}  // namespace wf
