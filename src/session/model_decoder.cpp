#include "session/model_decoder.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "session/unpadded.hpp"

namespace wf {

ModelDecoder::ModelDecoder(Runtime& runtime, size_t slots, std::shared_ptr<HeldCache> held) : runtime_(runtime), held_(std::move(held)) {
  for (size_t i = 0; i < slots; ++i) caches_.push_back(runtime_.make_cache());
  if (runtime_.model->encoder_decoder() != nullptr) {
    for (size_t i = 0; i < slots; ++i) sources_.push_back(runtime_.make_source_cache());
    source_of_.resize(slots);
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
    add_positions(past.length(), part.tokens);
    tokens_.insert(tokens_.end(), part.tokens.begin(), part.tokens.end());
    offsets_.push_back(tokens_.size());
    extents_.push_back(part.extent);
    batch_caches_.push_back(&past);
    if (!sources_.empty()) batch_sources_.push_back(&sources_[part.slot]);
    if (part.logits) asking_.push_back(tokens_.size() - 1);
  }

  Context ctx = runtime_.context();
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

// A padding token that does not count stands nowhere, one that lies in the past does.
void ModelDecoder::add_positions(size_t past, std::span<const int32_t> tokens) {
  const ModelInfo& info = runtime_.model->info();
  size_t position = past;
  for (const int32_t token : tokens) {
    positions_.push_back(info.takes_position(token) ? static_cast<int32_t>(position++) : -1);
  }
}

void ModelDecoder::reorder(std::span<const size_t> sources) {
  std::vector<std::pair<size_t, KvCache>> moved;
  for (size_t slot = 0; slot < sources.size(); ++slot) {
    if (sources[slot] != slot) moved.emplace_back(slot, cache(sources[slot]));
  }
  for (auto& [slot, copy] : moved) {
    cache(slot) = std::move(copy);
    cache(slot).reserve(reserved_);
  }
  if (sources_.empty()) return;
  // Beams of one source look at the same keys and values already.
  moved.clear();
  const std::vector<size_t> before = source_of_;
  for (size_t slot = 0; slot < sources.size(); ++slot) {
    source_of_[slot] = before[sources[slot]];
    if (source_of_[slot] != before[slot]) moved.emplace_back(slot, sources_[sources[slot]]);
  }
  for (auto& [slot, copy] : moved) sources_[slot] = std::move(copy);
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
  if (sources_.empty()) return;
  sources_[slot].clear();
  source_of_[slot] = 0;
}

void ModelDecoder::read_source(size_t slot, std::span<const int32_t> tokens) {
  const Unpadded source = without_padding(runtime_.model->info(), {tokens, {}, {}, {}}, false);
  const std::vector<size_t> offsets{0, tokens.size()};
  Context ctx = runtime_.context();
  const Scope scope(ctx);
  const EncoderDecoder& translator = *runtime_.model->encoder_decoder();
  const Tensor memory = translator.encode(ctx, {source.ids, source.positions, offsets, {}});
  KvCache* cross = &sources_[slot];
  translator.remember(ctx, memory, offsets, {&cross, 1});
  source_of_[slot] = slot + 1;
}

}  // namespace wf
