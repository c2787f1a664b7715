// Beam search and beam sampling over a Decoder, with the semantics of transformers' vectorised beam search (5.x,
// generation/utils.py, _beam_search), a prompt for itself: a batch finds what each prompt finds alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "generate/generator.hpp"

namespace wf::generate {

// Slots of the decoder: prompt * numBeams + beam. What a prompt found is emitted when its search is over, best first.
class BeamSearch final : public Generator {
 public:
  BeamSearch(Decoder& decoder, Lists prompts, Options options, Lists sources = {});

  bool done() const override { return live_ == 0; }

 private:
  // What is known of a generated token.
  struct Mark {
    float logprob;
    size_t top, top_count;  // its part of Search::top
  };
  struct Beam {
    std::vector<int32_t> ids;  // prompt, then what was generated
    std::vector<Mark> marks;   // one a generated token
    float score;               // of a running beam the sum of its log-probabilities; of a finished one, divided by the length penalty
    bool finished = false;
  };
  // A beam with one token more.
  struct Pick {
    double key;   // by which it is chosen
    float score;  // the beam's and the token's
    float logprob;
    uint32_t beam;
    int32_t token;
  };
  // One prompt's.
  struct Search {
    std::vector<Beam> running;
    std::vector<Beam> best;   // as many as beams, by descending score; at first placeholders
    std::vector<Choice> top;  // best tokens of every step and beam, where `logprobs` asks for them
    std::vector<bool> stopped;
    bool improvable = true;  // whether a running beam may still become better than a finished one
    bool live = true;
  };

  bool wanted(size_t prompt) const override { return searches_[prompt].live; }
  void begin(size_t prompt, const float* row) override;
  void decode() override;
  void stop_live(size_t sequence) override;
  void conclude_prompt(size_t prompt) override;

  void score(size_t prompt, const Beam& beam, const float* row);
  void pick(size_t prompt, uint32_t beam);
  void note_top(Search& search);
  void extend(size_t prompt);
  Beam extended(const Search& search, const Pick& pick, float score, bool finished) const;
  float penalised(float score, size_t length) const;
  void finish(size_t prompt);
  void end(size_t prompt);

  std::vector<Search> searches_;
  size_t live_ = 0;
  size_t most_picks_;
  std::vector<Pick> picks_;    // of the search at work
  std::vector<Mark> row_top_;  // where each running beam's best tokens are noted
};

}  // namespace wf::generate
