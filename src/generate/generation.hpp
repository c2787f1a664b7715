// Greedy decoding and sampling over a Decoder, a step at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generate/generator.hpp"

namespace wf::generate {

// Slot s of the decoder becomes sequence s.
class Generation final : public Generator {
 public:
  Generation(Decoder& decoder, Lists prompts, Options options, Lists sources = {});

  bool done() const override { return live_ == 0; }
  std::span<const int32_t> generated(size_t sequence) const;

 private:
  struct Sequence {
    std::vector<int32_t> ids;  // prompt, then what was generated
    uint32_t site = 0;         // index within its prompt: a sequence draws the same numbers alone and in a batch
    bool live = true;
  };

  bool wanted(size_t prompt) const override;
  void begin(size_t prompt, const float* row) override;
  void decode() override;
  void stop_live(size_t sequence) override;
  void conclude_prompt(size_t prompt) override;
  void choose(size_t sequence, const float* row);
  void finish(size_t sequence);

  std::vector<Sequence> sequences_;
  size_t live_ = 0;
};

// The scores (V) after the processors and, when the options sample, the warpers: what is ruled out is -infinity. Unlike
// Generation it filters only by what the options name, without the default topK. `ids`: prompt and generated tokens; the prompt
// also stands for what an encoder would read.
std::vector<float> process_logits(std::span<const float> scores, std::span<const int32_t> ids, size_t prompt_length,
                                  const Options& options);

}  // namespace wf::generate
