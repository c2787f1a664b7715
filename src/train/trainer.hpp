// Training: gradients of micro-batches add up, then one step of an optimiser changes the weights.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/buffer.hpp"
#include "core/config.hpp"
#include "train/gradients.hpp"
#include "train/schedule.hpp"

namespace wf {

struct TrainOptions {
  Schedule schedule;
  bool decoupled = true;  // AdamW (Loshchilov, Hutter 2019); false: Adam (Kingma, Ba 2015), whose decay is part of the gradient
  bool muon = false;      // matrices but those of the vocabulary take steps of Muon (muon.hpp), all else those of AdamW
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.01;      // of matrices and embeddings; norms and biases have none
  double max_gradient_norm = 1;    // of all weights together (Pascanu et al. 2013); 0: none
  float smoothing = 0;             // of the labels (Szegedy et al. 2016, section 7)
  float dropout = 0.1f;            // of embeddings, sub-layers' outputs and attention weights (Vaswani et al. 2017, section 5.4)
  uint64_t seed = 0;               // of what is dropped
  bool checkpointing = false;      // blocks keep only their input, and run again for their backward
  size_t tokens = 0, longest = 0;  // of the largest micro-batch, and of its longest sequence, on either side: for planning memory

  // optimizer 'adamw' | 'adam' | 'muon', learningRate, schedule 'constant' | 'linear' | 'cosine' | 'inverse_sqrt' | 'paper', warmup, steps,
  // beta1, beta2, epsilon, weightDecay, maxGradNorm, labelSmoothing, dropout, seed, checkpointing, tokens, longest. An unknown key, or a
  // value out of range, is kInvalidArgument.
  static TrainOptions parse(const Config& options, const ModelInfo& info);
};

struct TrainStep {
  uint32_t step;  // counted from 1
  double loss;    // mean over all labels of the step
  double gradient_norm;
  double learning_rate;
};

class Trainer {
 public:
  // Takes memory for the moments. What is trained, the model's own parameters or changes of them (lora.hpp), must be trainable; all that
  // is given outlives the trainer.
  Trainer(const Model& model, const Parameters& trained, Arena& arena, ThreadPool* threads, const TrainOptions& options);

  // Bytes of the moments of every weight that is trained.
  static uint64_t moment_bytes(const Parameters& trained);
  // About what the arena needs for the largest micro-batch, from passes over a few tokens. Leaves the gradients cleared.
  uint64_t workspace_bytes();

  // Forward and backward of a micro-batch. kDiverged, naming the step and the tensor, when the loss is not finite or explodes; what
  // had been accumulated is then dropped, and the weights are as after the last step.
  LossSum accumulate(LossBatch batch);
  // Divides what was accumulated by its labels, clips it, and takes the step. kInvalidArgument when nothing was.
  TrainStep update();
  // Without dropout, and nothing is learned from it.
  LossSum evaluate(const LossBatch& batch);

  uint32_t step() const { return step_; }  // steps taken
  void set_step(uint32_t step) { step_ = step; }

  // First and second moment of a parameter, as it is stored, (shape.size()) each; Muon's momentum is a first moment.
  void read_moments(const Parameter& parameter, float* first, float* second) const;
  void write_moments(const Parameter& parameter, const float* first, const float* second);

 private:
  struct Moments {
    Weight* weight;
    Buffer first, second;  // (weight rows, weight cols)
  };

  Context context(Arena& arena, Dropout* dropout) const;
  size_t index_of(const Parameter& parameter) const;  // of its weight's moments
  void clear();
  bool takes_muon(const Weight& weight) const { return options_.muon && weight.use() == Weight::Use::kMatrix; }
  [[noreturn]] void diverge(const char* what, double value);

  const Model& model_;
  const Parameters& trained_;
  Arena& arena_;
  ThreadPool* threads_;
  TrainOptions options_;
  std::vector<Moments> moments_;
  LossSum gathered_;
  uint32_t batches_ = 0;  // gathered
  uint32_t step_ = 0;
  std::optional<double> first_loss_;
};

}  // namespace wf
