// A decoder without a model, for tests: the scores of the next token are a function of the sequence's tokens, so any slip in which
// tokens a slot holds shows in what is generated.
#pragma once

#include <span>
#include <stdexcept>
#include <vector>

#include "core/rng.hpp"
#include "generate/decoder.hpp"

namespace wf::generate::testing {

class FakeDecoder : public Decoder {
 public:
  FakeDecoder(size_t vocab_size, size_t slots, size_t max_positions = 0)
      : vocab_size_(vocab_size), max_positions_(max_positions), slots_(slots) {
    for (auto& slot : slots_) slot.reserve(1024);
  }

  size_t vocab_size() const override { return vocab_size_; }
  size_t max_positions() const override { return max_positions_; }
  size_t length(size_t slot) const override { return slots_.at(slot).size(); }

  void run(std::span<const Append> parts, float* logits) override {
    ++runs;
    largest_run = 0;
    for (const Append& part : parts) {
      auto& slot = slots_.at(part.slot);
      slot.insert(slot.end(), part.tokens.begin(), part.tokens.end());
      largest_run += part.tokens.size();
      if (slot.size() > part.extent) throw std::logic_error("more tokens than announced");
      if (max_positions_ && slot.size() > max_positions_) throw std::logic_error("beyond the last position");
      if (part.logits) {
        scores_after(slot, {logits, vocab_size_});
        logits += vocab_size_;
      }
    }
  }
  void reorder(std::span<const size_t> sources) override {
    const auto before = slots_;
    for (size_t i = 0; i < sources.size(); ++i) slots_[i].assign(before.at(sources[i]).begin(), before.at(sources[i]).end());
  }
  void truncate(size_t slot, size_t length) override { slots_.at(slot).resize(length); }
  void release(size_t slot) override {
    slots_.at(slot).clear();
    ++releases;
  }

  static void scores_after(std::span<const int32_t> ids, std::span<float> scores) {
    uint64_t seed = 14695981039346656037u;
    for (const int32_t id : ids) seed = (seed ^ static_cast<uint64_t>(id + 1)) * 1099511628211u;
    for (size_t v = 0; v < scores.size(); ++v) scores[v] = static_cast<float>(4 * uniform({seed}, v));
  }

  size_t runs = 0, largest_run = 0, releases = 0;

 private:
  size_t vocab_size_, max_positions_;
  std::vector<std::vector<int32_t>> slots_;
};

}  // namespace wf::generate::testing
