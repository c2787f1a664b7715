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
    // What outlives the block is made before the mark.
    const float* dy = ctx.tape->gradient(y);
    ctx.tape->gradient(x);
    ctx.tape->gradient(other);
    const Arena::Mark mark = ctx.arena.mark();
    Dropout again = drops;
    Tape tape(ctx.arena);
    Context twice = inner(ctx, tape, ctx.dropout == nullptr ? nullptr : &again);
    twice.observer = nullptr;
    tape.backward(block(twice, x), dy, y.stride);
    ctx.arena.release(mark);
  });
  return y;
}

}  // namespace wf
