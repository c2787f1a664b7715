// The pieces of the Transformer by themselves, on arrays of the caller's and without a model, for learning and research. They are
// the kernels and blocks that models are made of.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "core/config.hpp"
#include "session/forward.hpp"

namespace wf {

using Arrays = std::map<std::string, Array, std::less<>>;

// Runs one operation: attention, multiHeadAttention, layerNorm, rmsNorm, softmax, feedForward, sinusoidalPositions, rope,
// encoderLayer or decoderLayer. `tensors` and `options` are its arguments by name (web/types.ts, Ops, describes them); those of a
// set of weights are called "weights.self_attn.q_proj.weight". The results by name, "output" always among them.
// Errors, before anything is allocated: kShapeMismatch naming the argument, the shape expected and the one found; kInvalidArgument
// for a value that will not do, something missing or something unknown; kOutOfMemory with the bytes.
Arrays run_mechanism(std::string_view operation, const Arrays& tensors, const Config& options);

}  // namespace wf
