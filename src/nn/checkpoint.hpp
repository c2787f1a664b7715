// Gradient checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost"): of a block only its input is kept, and
// the block runs again when its backward comes.
#pragma once

#include <cstring>

#include "ops/context.hpp"

namespace wf {

// block(ctx, x (T, D)) -> (T, D). With `ctx.checkpoint` and a tape, the gradients are those of keeping everything, bit for bit, and
// the block is copied: what it refers to must live until the backward. `beside`: what else it reads that gradients flow into.
template <class Block>
Tensor checkpointed(Context& ctx, Tensor x, const Block& block, const Tensor* beside = nullptr) {
  if (ctx.tape == nullptr || !ctx.checkpoint) return block(ctx, x);
  const auto inner = [](const Context& outer, Tape& tape, Dropout* dropout) {
    Context made = outer;
    made.tape = &tape;
    made.dropout = dropout;
    made.checkpoint = false;
    return made;
  };
  const Dropout drops = ctx.dropout == nullptr ? Dropout() : *ctx.dropout;
  Tensor y = ctx.tensor(x.rows, x.cols);
  {
    const Arena::Mark mark = ctx.arena.mark();
    Tape unused(ctx.arena);
    Context once = inner(ctx, unused, ctx.dropout);
    const Tensor result = block(once, x);
    for (size_t t = 0; t < y.rows; ++t) std::memcpy(y.row(t), result.row(t), y.cols * sizeof(float));
    ctx.arena.release(mark);
  }
  const Tensor other = beside == nullptr ? Tensor() : *beside;
  ctx.tape->record([&ctx, x, y, other, block, drops, inner] {
    if (!ctx.tape->reached(y)) return;
    float* const dy = ctx.tape->gradient(y);
    // What outlives the block is made before the mark. Nobody asks for dy any more, so that dx takes its place: the gradients of all
    // blocks need room for one.
    ctx.tape->gradient(other);
    const bool takes_over = x.gradient != nullptr && x.gradient->data == nullptr && x.gradient->floats == y.gradient->floats;
    float* const dx = takes_over ? dy : ctx.tape->gradient(x);
    const Arena::Mark mark = ctx.arena.mark();
    Dropout again = drops;
    Tape tape(ctx.arena);
    Context twice = inner(ctx, tape, ctx.dropout == nullptr ? nullptr : &again);
    twice.observer = nullptr;
    Tensor input = x;
    tape.track(input);
    tape.backward(block(twice, input), dy, y.stride);
    const float* const made = tape.gradient(input);
    if (takes_over) {
      std::memcpy(dx, made, x.rows * x.stride * sizeof(float));
      x.gradient->data = dx;
    } else if (dx != nullptr) {
      for (size_t r = 0; r < x.rows; ++r) {
        for (size_t i = 0; i < x.cols; ++i) dx[r * x.stride + i] += made[r * x.stride + i];
      }
    }
    ctx.arena.release(mark);
  });
  return y;
}

}  // namespace wf
