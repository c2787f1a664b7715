#include "session/model_decoder.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace wf {

ModelDecoder::ModelDecoder(Runtime& runtime, size_t slots, std::shared_ptr<HeldCache> held) : runtime_(runtime), held_(std::move(held)) {
  for (size_t i = 0; i < slots; ++i) caches_.push_back(runtime_.make_cache());
  if (runtime_.model->encoder_decoder() != nullptr) {
    for (size_t i = 0; i < slots; ++i) sources_.push_back(runtime_.make_source_cache());
  }
}

size_t ModelDecoder::max_positions() const {
  const ModelInfo& info = runtime_.model->info();
  return info.positions_are_a_wall ? info.context : 0;
}

void ModelDecoder::run(std::span<const generate::Append> parts, float* logits) {
  tokens_.clear();
  positions_.clear();
  extents_.clear();
  batch_caches_.clear();
  batch_sources_.clear();
  asking_.clear();
  offsets_.assign(1, 0);
  for (const generate::Append& part : parts) {
    KvCache& past = cache(part.slot);
    for (size_t i = 0; i < part.tokens.size(); ++i) positions_.push_back(static_cast<int32_t>(past.length() + i));
    tokens_.insert(tokens_.end(), part.tokens.begin(), part.tokens.end());
    offsets_.push_back(tokens_.size());
    extents_.push_back(part.extent);
    batch_caches_.push_back(&past);
    if (!sources_.empty()) batch_sources_.push_back(&sources_[part.slot]);
    if (part.logits) asking_.push_back(tokens_.size() - 1);
  }

  Context ctx{runtime_.arena};
  const Scope scope(ctx);
  const Batch batch{tokens_, positions_, offsets_, extents_};
  const EncoderDecoder* translator = runtime_.model->encoder_decoder();
  const Tensor states =
      translator ? translator->decode(ctx, batch, batch_caches_, batch_sources_) : runtime_.model->forward(ctx, batch, batch_caches_);
  if (!asking_.empty()) {
    const Tensor rows = ctx.tensor(asking_.size(), states.cols);
    for (size_t r = 0; r < asking_.size(); ++r) std::memcpy(rows.row(r), states.row(asking_[r]), states.cols * sizeof(float));
    runtime_.for_logits(ctx, rows, [&](size_t first, const Tensor& some) {
      for (size_t r = 0; r < some.rows; ++r) std::memcpy(logits + (first + r) * some.cols, some.row(r), some.cols * sizeof(float));
    });
  }
  for (const generate::Append& part : parts) {
    cache(part.slot).advance(part.tokens.size());
    if (held_ && part.slot == 0) held_->tokens.insert(held_->tokens.end(), part.tokens.begin(), part.tokens.end());
  }
}

void ModelDecoder::reorder(std::span<const size_t> sources) {
  std::vector<KvCache> next;
  for (const size_t source : sources) next.push_back(cache(source));
  for (size_t slot = 0; slot < next.size(); ++slot) {
    cache(slot) = std::move(next[slot]);
    cache(slot).reserve(reserved_);
  }
  if (sources_.empty()) return;
  next.clear();
  for (const size_t source : sources) next.push_back(sources_[source]);
  sources_ = std::move(next);
}

void ModelDecoder::reserve(size_t slot, size_t length) {
  reserved_ = std::max(reserved_, length);
  cache(slot).reserve(length);
}

void ModelDecoder::truncate(size_t slot, size_t length) {
  const size_t kept = cache(slot).truncate(length);
  if (held_ && slot == 0) held_->tokens.resize(kept);
}

void ModelDecoder::release(size_t slot) {
  if (held_ && slot == 0) return;
  caches_[slot].clear();
  if (!sources_.empty()) sources_[slot].clear();
}

void ModelDecoder::read_source(size_t slot, std::span<const int32_t> tokens) {
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<size_t> offsets{0, tokens.size()};
  Context ctx{runtime_.arena};
  const Scope scope(ctx);
  const EncoderDecoder& translator = *runtime_.model->encoder_decoder();
  const Tensor memory = translator.encode(ctx, {tokens, positions, offsets, {}});
  KvCache* source = &sources_[slot];
  translator.remember(ctx, memory, offsets, {&source, 1});
}

}  // namespace wf
