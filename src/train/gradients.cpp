#include "train/gradients.hpp"

#include <numeric>
#include <span>

#include "core/error.hpp"

namespace wf {

namespace {

constexpr const char* kWhere = "gradients";

// Sequences end to end, each at positions from 0 on.
struct Rows {
  explicit Rows(const std::vector<std::vector<int32_t>>& sequences) {
    for (const auto& sequence : sequences) {
      tokens.insert(tokens.end(), sequence.begin(), sequence.end());
      positions.resize(tokens.size());
      std::iota(positions.begin() + static_cast<ptrdiff_t>(offsets.back()), positions.end(), 0);
      offsets.push_back(tokens.size());
    }
  }
  Batch batch() const { return {tokens, positions, offsets, {}}; }

  std::vector<int32_t> tokens, positions;
  std::vector<size_t> offsets{0};
};

void expect_lengths(const char* name, const std::vector<std::vector<int32_t>>& lists, const char* like_name,
                    const std::vector<std::vector<int32_t>>& like) {
  if (lists.size() != like.size()) fail(Code::kInvalidArgument, kWhere, name, ": expected ", like.size(), " sequences, got ", lists.size());
  for (size_t s = 0; s < lists.size(); ++s) {
    if (lists[s].size() == like[s].size()) continue;
    fail(Code::kInvalidArgument, kWhere, name, "[", s, "]: expected ", like[s].size(), " ids, as many as ", like_name, ", got ",
         lists[s].size());
  }
}

void check(const Model& model, const LossBatch& batch) {
  for (const Weight* weight : model.parameters().weights()) {
    if (!weight->trainable()) fail(Code::kUnsupported, kWhere, "expected a trainable model, got frozen weights");
  }
  const bool has_source = model.encoder_decoder() != nullptr;
  const auto& predicted = has_source ? batch.decoder_inputs : batch.inputs;
  expect_lengths("labels", batch.labels, has_source ? "decoderInputIds" : "inputIds", predicted);
  if (has_source && batch.decoder_inputs.size() != batch.inputs.size()) {
    fail(Code::kInvalidArgument, kWhere, "decoderInputIds: expected ", batch.inputs.size(), " sequences, got ",
         batch.decoder_inputs.size());
  }
  if (!has_source && !batch.decoder_inputs.empty()) {
    fail(Code::kInvalidArgument, kWhere, "decoderInputIds: expected none, ", model.info().architecture, " has no encoder");
  }
  if (!(batch.smoothing >= 0) || !(batch.smoothing < 1)) {
    fail(Code::kInvalidArgument, kWhere, "labelSmoothing: expected a number from 0, below 1, got ", batch.smoothing);
  }
}

// One target a row.
std::vector<int32_t> targets(const Model& model, const LossBatch& batch) {
  std::vector<int32_t> targets;
  const size_t shift = model.encoder_decoder() != nullptr ? 0 : 1;
  for (const auto& labels : batch.labels) {
    for (size_t t = 0; t < labels.size(); ++t) targets.push_back(t + shift < labels.size() ? labels[t + shift] : -1);
  }
  return targets;
}

Tensor states(Context& ctx, const Model& model, const Rows& inputs, const Rows& decoder_inputs) {
  const EncoderDecoder* pair = model.encoder_decoder();
  if (pair == nullptr) return model.forward(ctx, inputs.batch(), {});
  return pair->decode(ctx, decoder_inputs.batch(), pair->encode(ctx, inputs.batch()), inputs.offsets);
}

}  // namespace

double gradients(const Model& model, Arena& arena, const LossBatch& batch) {
  check(model, batch);
  for (Weight* weight : model.parameters().weights()) weight->clear_gradient();
  const Rows inputs(batch.inputs), decoder_inputs(batch.decoder_inputs);
  const std::vector<int32_t> wanted = targets(model, batch);
  struct Release {
    Arena& arena;
    Arena::Mark mark = arena.mark();
    ~Release() { arena.release(mark); }
  } release{arena};
  Tape tape(arena);
  Context ctx{arena, &tape};
  const Tensor loss = cross_entropy(ctx, model.head(ctx, states(ctx, model, inputs, decoder_inputs)), wanted, batch.smoothing);
  tape.backward(loss);
  return static_cast<double>(loss.data[0]);
}

}  // namespace wf
