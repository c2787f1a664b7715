// Memory of one forward pass: grows in blocks, is released in the reverse order of its use, and keeps its blocks, so that a
// warm step allocates nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "core/buffer.hpp"

namespace wf {

class Arena {
 public:
  struct Mark {
    size_t block = 0;
    size_t used = 0;
  };

  explicit Arena(size_t block_bytes = size_t{1} << 20) : block_bytes_(block_bytes) {}

  // `count` floats, kAlignment-aligned, contents undefined; valid until a mark made earlier is released. What fits in no block
  // replaces the unused ones by one with a quarter to spare, so that requests that grow by a little hold no trail of old blocks.
  float* floats(size_t count);

  Mark mark() const { return {block_, used_}; }
  void release(Mark mark) {
    block_ = mark.block;
    used_ = mark.used;
  }
  // Gives every block back to the system. Nothing of the arena may be in use.
  void clear();

  size_t bytes() const;                        // held, used or not
  size_t peak_bytes() const { return peak_; }  // most that was in use at once since `clear`

 private:
  size_t block_bytes_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;  // index of the block being filled
  size_t used_ = 0;   // bytes used in it
  size_t peak_ = 0;
};

}  // namespace wf
