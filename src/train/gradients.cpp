#include "train/gradients.hpp"

#include <algorithm>
#include <span>

#include "core/error.hpp"

namespace wf {

namespace {

constexpr size_t kLogits = size_t{1} << 22;  // floats of logits at once, and as many of their gradient
constexpr size_t kFewestRows = 64;           // at once, however large the vocabulary

// Sequences end to end, each at positions from 0 on, or as the model's rule for padding says.
struct Rows {
  Rows(const ModelInfo& info, const std::vector<std::vector<int32_t>>& sequences) {
    for (const auto& sequence : sequences) {
      int32_t next = 0;
      for (const int32_t token : sequence) {
        tokens.push_back(token);
        positions.push_back(info.takes_position(token) ? next++ : -1);
      }
      offsets.push_back(tokens.size());
    }
    batch = {tokens, positions, offsets, {}};
  }
  Rows(const Rows&) = delete;

  std::vector<int32_t> tokens, positions;
  std::vector<size_t> offsets{0};
  Batch batch;
};

// Gives the arena back.
struct Release {
  explicit Release(Arena& used) : arena(used), mark(used.mark()) {}
  ~Release() { arena.release(mark); }
  Arena& arena;
  Arena::Mark mark;
};

void expect_lengths(const char* where, const char* name, const std::vector<std::vector<int32_t>>& lists, const char* like_name,
                    const std::vector<std::vector<int32_t>>& like) {
  if (lists.size() != like.size()) fail(Code::kInvalidArgument, where, name, ": expected ", like.size(), " sequences, got ", lists.size());
  for (size_t s = 0; s < lists.size(); ++s) {
    if (lists[s].size() == like[s].size()) continue;
    fail(Code::kInvalidArgument, where, name, "[", s, "]: expected ", like[s].size(), " ids, as many as ", like_name, ", got ",
         lists[s].size());
  }
}

void expect_ids(const ModelInfo& info, const char* where, const char* name, const std::vector<std::vector<int32_t>>& lists, size_t ids) {
  for (size_t s = 0; s < lists.size(); ++s) {
    if (lists[s].empty()) fail(Code::kInvalidArgument, where, name, "[", s, "]: expected at least one token id, got none");
    if (info.positions_are_a_wall && lists[s].size() > info.context) {
      fail(Code::kInvalidArgument, where, name, "[", s, "]: expected at most ", info.context,
           " tokens, the model's learned positions, got ", lists[s].size());
    }
    for (const int32_t id : lists[s]) {
      if (id >= 0 && static_cast<size_t>(id) < ids) continue;
      fail(Code::kInvalidArgument, where, name, "[", s, "]: expected token ids from 0 to ", ids - 1, ", got ", id);
    }
  }
}

// One target a row.
std::vector<int32_t> targets(const Model& model, const LossBatch& batch) {
  std::vector<int32_t> targets;
  const size_t shift = model.encoder_decoder() != nullptr || model.info().encoder_only ? 0 : 1;
  for (const auto& labels : batch.labels) {
    for (size_t t = 0; t < labels.size(); ++t) targets.push_back(t + shift < labels.size() ? labels[t + shift] : -1);
  }
  return targets;
}

Tensor states(Context& ctx, const Model& model, const Rows& inputs, const Rows& decoder_inputs) {
  const EncoderDecoder* pair = model.encoder_decoder();
  if (pair == nullptr) return model.forward(ctx, inputs.batch, {});
  return pair->decode(ctx, decoder_inputs.batch, pair->encode(ctx, inputs.batch), inputs.offsets);
}

size_t rows_at_once(const Model& model) { return std::max(kLogits / std::max<size_t>(model.info().vocab_size, 1), kFewestRows); }

// Only rows with a target go through the head, some at a time, each with its backward at once: their logits are never all there.
LossSum head_loss(const Model& model, const Context& ctx, const Tensor& states, std::span<const int32_t> targets, float smoothing,
                  double share) {
  std::vector<size_t> rows;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] >= 0) rows.push_back(t);
  }
  LossSum all;
  all.labels = rows.size();
  const size_t at_once = rows_at_once(model);
  for (size_t begin = 0; begin < rows.size(); begin += at_once) {
    const std::span<const size_t> some = std::span(rows).subspan(begin, std::min(at_once, rows.size() - begin));
    std::vector<int32_t> wanted;
    for (const size_t row : some) wanted.push_back(targets[row]);
    const Release release(ctx.arena);
    Tape tape(ctx.arena);
    Context inner = ctx;
    inner.tape = ctx.tape == nullptr ? nullptr : &tape;
    inner.dropout = nullptr;
    const Tensor mean = cross_entropy(inner, model.head(inner, wf::rows(inner, states, some)), wanted, smoothing);
    all.sum += static_cast<double>(mean.data[0]) * static_cast<double>(some.size());
    if (ctx.tape == nullptr) continue;
    const float gradient = static_cast<float>(share * static_cast<double>(some.size()));
    tape.backward(mean, &gradient, 1);
  }
  return all;
}

}  // namespace

size_t logit_floats(const Model& model, size_t rows) { return std::min(rows, rows_at_once(model)) * model.info().vocab_size; }

void expect_trainable(const Model& model, const Parameters& trained, const char* where) {
  const HeadKind head = model.info().head;
  if (head != HeadKind::kLanguage && head != HeadKind::kMaskedLanguage) {
    fail(Code::kUnsupported, where, "a model whose head does not predict tokens");
  }
  for (const Weight* weight : trained.weights()) {
    if (!weight->trainable() && !weight->constant()) fail(Code::kUnsupported, where, "model: expected trainable weights, got frozen ones");
  }
}

void expect_batch(const Model& model, const LossBatch& batch, const char* where) {
  const ModelInfo& info = model.info();
  const bool has_source = model.encoder_decoder() != nullptr;
  expect_lengths(where, "labels", batch.labels, has_source ? "decoderInputIds" : "inputIds",
                 has_source ? batch.decoder_inputs : batch.inputs);
  if (has_source && batch.decoder_inputs.size() != batch.inputs.size()) {
    fail(Code::kInvalidArgument, where, "decoderInputIds: expected ", batch.inputs.size(), " sequences, got ", batch.decoder_inputs.size());
  }
  if (!has_source && !batch.decoder_inputs.empty()) {
    fail(Code::kInvalidArgument, where, "decoderInputIds: expected none, ", info.architecture, " has no encoder");
  }
  if (!(batch.smoothing >= 0) || !(batch.smoothing < 1)) {
    fail(Code::kInvalidArgument, where, "labelSmoothing: expected a number from 0, below 1, got ", batch.smoothing);
  }
  expect_ids(info, where, "inputIds", batch.inputs, has_source && info.source_vocab_size != 0 ? info.source_vocab_size : info.vocab_size);
  expect_ids(info, where, "decoderInputIds", batch.decoder_inputs, info.vocab_size);
  size_t counted = 0;
  for (const int32_t target : targets(model, batch)) {
    counted += target >= 0;
    if (target < 0 || static_cast<size_t>(target) < info.vocab_size) continue;
    fail(Code::kInvalidArgument, where, "labels: expected token ids from 0 to ", info.vocab_size - 1, ", or below 0, got ", target);
  }
  if (counted == 0) fail(Code::kInvalidArgument, where, "labels: expected at least one that counts, got none");
}

LossSum loss(const Model& model, const Context& ctx, const LossBatch& batch) {
  const Rows inputs(model.info(), batch.inputs), decoder_inputs(model.info(), batch.decoder_inputs);
  const Release release(ctx.arena);
  Context plain = ctx;
  plain.tape = nullptr;
  plain.dropout = nullptr;
  return head_loss(model, plain, states(plain, model, inputs, decoder_inputs), targets(model, batch), batch.smoothing, 0);
}

LossSum add_gradients(const Model& model, const Context& ctx, const LossBatch& batch, double share) {
  const Rows inputs(model.info(), batch.inputs), decoder_inputs(model.info(), batch.decoder_inputs);
  const Release release(ctx.arena);
  Tape tape(ctx.arena);
  Context taped = ctx;
  taped.tape = &tape;
  const Tensor last = states(taped, model, inputs, decoder_inputs);
  tape.gradient(last);  // outlives the head's
  const LossSum all = head_loss(model, taped, last, targets(model, batch), batch.smoothing, share);
  tape.play();
  return all;
}

double gradients(const Model& model, const Context& ctx, const LossBatch& batch) {
  expect_trainable(model, model.parameters(), "gradients");
  expect_batch(model, batch, "gradients");
  for (Weight* weight : model.parameters().weights()) weight->clear_gradient();
  const std::vector<int32_t> wanted = targets(model, batch);
  const auto counted = std::count_if(wanted.begin(), wanted.end(), [](int32_t target) { return target >= 0; });
  return add_gradients(model, ctx, batch, 1 / static_cast<double>(counted)).mean();
}

void rehearse(const Model& model, const Context& ctx, size_t sequences, size_t length) {
  const Rows inputs(model.info(), std::vector<std::vector<int32_t>>(sequences, std::vector<int32_t>(length, 0)));
  const Release release(ctx.arena);
  Tape tape(ctx.arena);
  Context taped = ctx;
  taped.tape = &tape;
  const Tensor last = states(taped, model, inputs, inputs);
  std::fill_n(tape.gradient(last), last.rows * last.stride, 1.0f);
  tape.play();
}

}  // namespace wf
