// What a forward pass carries with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/arena.hpp"
#include "core/rng.hpp"
#include "core/shape.hpp"
#include "core/thread_pool.hpp"
#include "ops/observer.hpp"
#include "ops/tape.hpp"
#include "ops/tensor.hpp"

namespace wf {

// Multiply-adds for which it is worth it to ask another thread: some microseconds; and of which more and smaller parts, so that no
// thread waits long for the last, cost nothing that is felt. Below that parts are few, since each begins reading weights anew.
constexpr uint64_t kLeastCost = 1 << 15, kGoodCost = 1 << 18;

// Srivastava et al. 2014, "Dropout": while training, each number is zero with probability `rate`, and otherwise divided by 1 - rate.
// Draws are keyed by (seed, step, site, element), so that a block that is run again draws the same.
struct Dropout {
  float rate = 0;  // in [0, 1)
  RngKey key;      // its site is that of the next call; each call takes one
};

struct Context {
  Arena& arena;
  Tape* tape = nullptr;          // present: operations record their backward, and nothing of the arena is released
  Observer* observer = nullptr;  // present: sees hidden states and attention
  size_t layer_shift = 0;        // added to the number under which a block announces itself: of one that several layers share (ALBERT)
  ThreadPool* pool = nullptr;    // present: operations share their work among its threads
  Dropout* dropout = nullptr;    // present: the model is being trained, and what is to be dropped is
  bool checkpoint = false;       // with a tape: blocks keep only their inputs, and run again for their backward (nn/checkpoint.hpp)

  size_t threads() const { return pool == nullptr ? 1 : pool->threads(); }

  // work(begin, end, thread) for stretches that together are [0, count), on all threads where `cost`, about the number of
  // multiply-adds of the whole, is worth it. Where one stretch ends and the next begins must not matter to the result.
  template <class Work>
  void share(size_t count, uint64_t cost, const Work& work) const {
    size_t parts = 1;
    if (threads() > 1) {
      const uint64_t few = std::min<uint64_t>(cost / kLeastCost, 2 * threads()),
                     many = std::min<uint64_t>(cost / kGoodCost, 16 * threads());
      parts = std::min(count, static_cast<size_t>(std::max(few, many)));
    }
    if (parts <= 1) {
      work(size_t{0}, count, size_t{0});
    } else {
      const auto begin = [&](size_t part) { return static_cast<size_t>(uint64_t{count} * part / parts); };
      pool->run(parts, [&](size_t part, size_t thread) { work(begin(part), begin(part + 1), thread); });
    }
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

// Scratch memory of one operation, given back on leaving: `count` floats, or as many for each thread.
class Scratch {
 public:
  Scratch(Context& ctx, size_t count, size_t threads = 1)
      : arena_(ctx.arena),
        mark_(arena_.mark()),
        stride_(aligned(count * sizeof(float)) / sizeof(float)),
        data_(arena_.floats(checked_product(threads == 1 ? count : stride_, threads, "scratch"))) {}
  ~Scratch() { arena_.release(mark_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  operator float*() const { return data_; }
  float* of(size_t thread) const { return data_ + thread * stride_; }

 private:
  Arena& arena_;
  Arena::Mark mark_;
  size_t stride_;
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
