// A training under way on a session's model.
#pragma once

#include <memory>
#include <span>

#include "session/forward.hpp"
#include "session/runtime.hpp"
#include "train/trainer.hpp"

namespace wf {

class Training {
 public:
  // Options as in train/trainer.hpp. kOutOfMemory, with the bytes, before the moments are taken.
  Training(std::shared_ptr<Runtime> runtime, const Config& options);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  LossSum accumulate(LossBatch batch) { return trainer().accumulate(std::move(batch)); }
  TrainStep update();
  LossSum evaluate(const LossBatch& batch) { return trainer().evaluate(batch); }
  void set_step(uint32_t step) { trainer().set_step(step); }

  // The optimiser's state of a parameter, as it is stored.
  struct Moments {
    Array first, second;
  };
  Moments moments(size_t parameter) const;
  void set_moments(size_t parameter, std::span<const float> first, std::span<const float> second);

 private:
  Trainer& trainer() { return *trainer_; }
  const Parameter& parameter(size_t index) const;

  std::shared_ptr<Runtime> runtime_;
  std::unique_ptr<Trainer> trainer_;
  size_t bytes_ = 0;  // of the optimiser's state
};

}  // namespace wf
