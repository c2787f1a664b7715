// What a forward pass carries with it.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/arena.hpp"
#include "core/shape.hpp"
#include "core/thread_pool.hpp"
#include "ops/observer.hpp"
#include "ops/tape.hpp"
#include "ops/tensor.hpp"

namespace wf {

struct Context {
  Arena& arena;
  Tape* tape = nullptr;          // present: operations record their backward, and nothing of the arena is released
  Observer* observer = nullptr;  // present: sees hidden states and attention
  size_t layer_shift = 0;        // added to the number under which a block announces itself: of one that several layers share (ALBERT)
  ThreadPool* pool = nullptr;    // present: operations share their work among its threads

  size_t threads() const { return pool == nullptr ? 1 : pool->threads(); }

  // work(part, thread) for every part in [0, parts), as ThreadPool::run has it.
  template <class Work>
  void run(size_t parts, const Work& work) const {
    if (pool != nullptr) return pool->run(parts, work);
    for (size_t part = 0; part < parts; ++part) work(part, size_t{0});
  }

  // A (rows, cols) tensor of the arena, contents undefined; tracked when there is a tape.
  Tensor tensor(size_t rows, size_t cols) {
    Tensor made{arena.floats(checked_product(rows, cols, "activations")), rows, cols, cols};
    if (tape != nullptr) tape->track(made);
    return made;
  }

  void observe(Site site, size_t layer, const Tensor& states) {
    if (observer != nullptr && observer->wants(site, layer)) observer->observe(site, layer, states);
  }
  void observe(Site site, Part part, size_t layer, const Tensor& rows, size_t heads = 1) {
    layer += layer_shift;
    if (observer != nullptr && observer->wants_part(site, part, layer)) observer->observe_part(site, part, layer, rows, heads);
  }
};

// Scratch memory of one operation, given back on leaving.
class Scratch {
 public:
  Scratch(Context& ctx, size_t count) : arena_(ctx.arena), mark_(arena_.mark()), data_(arena_.floats(count)) {}
  ~Scratch() { arena_.release(mark_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  operator float*() const { return data_; }

 private:
  Arena& arena_;
  Arena::Mark mark_;
  float* data_;
};

// The temporaries of a block: released on leaving. Under a tape nothing is released.
class Scope {
 public:
  explicit Scope(Context& ctx) : ctx_(ctx), mark_(ctx.arena.mark()) {}
  ~Scope() {
    if (ctx_.tape == nullptr) ctx_.arena.release(mark_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // `result`, made inside the scope, as it is to live on outside: in the memory of `into`, which is older than the scope and of
  // the same shape. Under a tape the result itself.
  Tensor keep(const Tensor& result, const Tensor& into) const {
    if (ctx_.tape != nullptr || result.data == into.data) return result;
    for (size_t r = 0; r < result.rows; ++r) std::memcpy(into.row(r), result.row(r), result.cols * sizeof(float));
    return into;
  }

 private:
  Context& ctx_;
  Arena::Mark mark_;
};

}  // namespace wf
