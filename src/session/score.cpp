#include "session/score.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "session/probabilities.hpp"

namespace wf {

Score::Score(std::shared_ptr<Runtime> runtime, std::vector<std::vector<int32_t>> sequences)
    : runtime_(std::move(runtime)), sequences_(std::move(sequences)) {
  const ModelInfo& info = runtime_->model->info();
  expect_next_token(*runtime_->model, "score");
  if (runtime_->model->encoder_decoder() != nullptr) fail(Code::kUnsupported, "score", "a model with an encoder");
  size_t longest = 0;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const auto& ids = sequences_[s];
    if (ids.empty()) fail(Code::kInvalidArgument, "score", "sequence ", s, ": expected at least one token, got none");
    for (const int32_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= info.vocab_size) {
        fail(Code::kInvalidArgument, "score", "sequence ", s, ": expected token ids from 0 to ", info.vocab_size - 1, ", got ", id);
      }
    }
    if (info.positions_are_a_wall && ids.size() > info.context) {
      fail(Code::kInvalidArgument, "score", "sequence ", s, ": expected at most ", info.context,
           " tokens, the model's learned positions, got ", ids.size());
    }
    longest = std::max(longest, ids.size());
    results_.emplace_back(ids.size(), std::numeric_limits<float>::quiet_NaN());
  }
  const size_t workspace = runtime_->workspace_bytes(std::min(longest, kChunk), longest, runtime_->logit_rows());
  const size_t bytes = checked_sum(runtime_->cache_bytes(longest), workspace - std::min(workspace, runtime_->arena.bytes()), "score");
  runtime_->make_room(bytes, "score", "request");
}

bool Score::advance() {
  if (sequence_ == sequences_.size()) return true;
  Runtime& runtime = *runtime_;
  const auto& ids = sequences_[sequence_];
  auto& result = results_[sequence_];
  if (cache_ == nullptr) cache_ = std::make_unique<KvCache>(runtime.make_cache());
  // The last token predicts nothing that is asked for.
  const size_t begin = cache_->length(), count = std::min(kChunk, ids.size() - 1 - begin);
  if (count != 0) {
    Context ctx = runtime.context();
    const Scope scope(ctx);
    std::vector<int32_t> positions(count);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
    const std::vector<size_t> offsets{0, count}, extents{ids.size()};
    KvCache* cache = cache_.get();
    const Tensor states = runtime.model->forward(ctx, {std::span(ids).subspan(begin, count), positions, offsets, extents}, {&cache, 1});
    runtime.for_logits(ctx, states, [&](size_t first, const Tensor& logits) {
      for (size_t r = 0; r < logits.rows; ++r) {
        const size_t next = begin + first + r + 1;
        const float* row = logits.row(r);
        result[next] = LogSum(row, logits.cols).log_probability(row[ids[next]]);
      }
    });
    cache_->advance(count);
  }
  if (cache_->length() + 1 < ids.size()) return false;
  cache_.reset();
  return ++sequence_ == sequences_.size();
}

const std::vector<std::vector<float>>& Score::results() const {
  if (sequence_ != sequences_.size()) fail(Code::kInvalidArgument, "score", "result: expected to be asked for when advance has said done");
  return results_;
}

}  // namespace wf
