#include "core/buffer.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace wf {

namespace {
size_t allocations = 0;
}  // namespace

size_t allocation_count() { return allocations; }

Buffer::Buffer(size_t bytes, const char* what) : bytes_(bytes) {
  if (bytes == 0) return;
  ++allocations;
  const size_t whole = aligned(bytes);
  if (whole >= bytes) data_ = std::aligned_alloc(kAlignment, whole);
  if (data_ == nullptr) fail(Code::kOutOfMemory, "memory", what, " needs ", bytes, " bytes, more than is left");
  std::memset(data_, 0, whole);
}

Buffer::Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() { std::free(data_); }

}  // namespace wf
