// Low-rank adaptation (Hu et al. 2021, "LoRA: low-rank adaptation of large language models"): frozen matrices, and small changes of
// them that are trained, under the names of the PEFT library's adapter files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "models/model.hpp"

namespace wf {

class Lora {
 public:
  // Of every matrix whose module is named by one of `target_modules`, by its last name or the end of its path ("q_proj",
  // "self_attn.q_proj"): y += scale x A^T B^T, A (r, D) uniform within 1 / sqrt(D) from `seed` on and B (F, r) zeros, as PEFT
  // begins, scale lora_alpha / r, with `use_rslora` lora_alpha / sqrt(r). Options: r (8), lora_alpha (8), target_modules, use_rslora, seed.
  // kInvalidArgument names an option that makes no sense, or a module that the model does not have; kUnsupported a matrix that several
  // modules share in turns (GPT-NeoX's and BLOOM's query_key_value).
  Lora(const Model& model, const Config& options);
  ~Lora();  // the model is as it was
  Lora(const Lora&) = delete;
  Lora& operator=(const Lora&) = delete;

  // Bytes of the changes and their gradients.
  static uint64_t bytes(const Model& model, const Config& options);
  // The changes, "<module>.lora_A.weight" (r, D) and "<module>.lora_B.weight" (F, r), in the order of the model's parameters.
  const Parameters& parameters() const { return parameters_; }

  // Adds the changes to the matrices themselves, whose format rounds them; kUnsupported where that is in few bits. This is then
  // without effect, and may go.
  void merge();

 private:
  struct Change {
    const Parameter* target;
    std::unique_ptr<Adapter> adapter;
  };

  std::vector<Change> changes_;
  Parameters parameters_{""};
};

}  // namespace wf
