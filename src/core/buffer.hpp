// Owned memory, aligned for SIMD.
#pragma once

#include <cstddef>

namespace wf {

constexpr size_t kAlignment = 64;  // a cache line

constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Bytes of zeros, kAlignment-aligned, freed with the object. Running out is Error kOutOfMemory naming `what` and the bytes.
class Buffer {
 public:
  Buffer() = default;
  Buffer(size_t bytes, const char* what);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() { return data_; }
  const void* data() const { return data_; }
  float* floats() { return static_cast<float*>(data_); }
  const float* floats() const { return static_cast<const float*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Calls to Buffer's allocation since the program began: tests assert that a warm decode step makes none.
size_t allocation_count();

}  // namespace wf
