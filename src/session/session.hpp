// What the bindings call: one model, its memory, and the computations that run on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "generate/generator.hpp"
#include "session/forward.hpp"
#include "session/loader.hpp"
#include "session/model_decoder.hpp"
#include "session/runtime.hpp"
#include "session/score.hpp"
#include "session/training.hpp"

namespace wf {

// Bytes.
struct Plan {
  uint64_t weights;
  size_t workspace;           // of a chunk of a prompt
  size_t cache_per_token;     // of one sequence
  std::vector<DType> stores;  // of the parameters, in their order: the formats they will be kept in
};

struct Memory {
  size_t weights, arena, cache;
};

// A generation under way, with the caches of its sequences. It keeps the session's memory alive.
class GenerationRun {
 public:
  GenerationRun(std::shared_ptr<Runtime> runtime, std::vector<std::vector<int32_t>> prompts, const generate::Options& options,
                std::shared_ptr<HeldCache> held);

  // One chunk of prompt tokens, one source of an encoder-decoder model, or one token for every live sequence or beam.
  const generate::Step& advance();
  void stop(size_t sequence) { generator_->stop(sequence); }
  const generate::Step& conclude() { return generator_->conclude(); }

 private:
  std::shared_ptr<Runtime> runtime_;
  std::vector<std::vector<int32_t>> sources_;  // still to be read by the encoder; slot i * width_ is the i-th's
  size_t width_;                               // slots a prompt
  size_t next_source_ = 0;
  std::optional<ModelDecoder> decoder_;
  std::unique_ptr<generate::Generator> generator_;
  generate::Step nothing_yet_;
};

class Session {
 public:
  // `config`: config.json. `options`: dtype ("F32", "F16", "BF16", "Q8_0", "Q4_0": the format in which matrices are kept, see Loader),
  // cacheDtype ("F32", the default, or "F16": keys and values), trainable (flag), memoryLimit (bytes). No weight is allocated yet.
  // Errors: kUnsupported or kInvalidArgument naming the field of the configuration or the option.
  // `threads` outlives the session; null: the caller's thread alone.
  Session(const Config& config, const Config& options, ThreadPool* threads = nullptr);

  const ModelInfo& info() const { return runtime_->model->info(); }
  const std::vector<Parameter>& parameters() const { return runtime_->model->parameters().list(); }
  const std::string& prefix() const { return runtime_->model->parameters().prefix(); }
  double parameter_count() const;  // of models that cannot be loaded here too, so perhaps beyond 32 bits
  bool has_encoder() const { return runtime_->model->encoder_decoder() != nullptr; }
  // Of a model with an encoder and a decoder; otherwise 0.
  size_t encoder_layers() const { return has_encoder() ? runtime_->model->encoder_decoder()->encoder_layers() : 0; }
  size_t encoder_heads() const { return has_encoder() ? runtime_->model->encoder_decoder()->encoder_heads() : 0; }
  Memory memory() const { return {runtime_->weight_bytes, runtime_->arena.bytes(), runtime_->pool.bytes()}; }

  // Loading, in this order (session/loader.hpp).
  Plan plan(std::span<const DType> dtypes);
  void allocate();
  void* stage(size_t bytes) { return loader_.stage(bytes); }
  void load_rows(size_t parameter, size_t begin, size_t count) { loader_.load_rows(parameter, begin, count); }
  // Instead of staging and loading them: `count` rows as of a new model, from `seed` on (models/initialise.hpp).
  void draw_rows(double seed, size_t parameter, size_t begin, size_t count);
  void finish_loading();

  // Everything below needs a loaded model (kInvalidArgument before).

  // Options as in generate/options.hpp. Of an encoder-decoder model the prompts are sources. `cache`: the id of a cache that
  // continues with the only sequence of the only prompt, or 0; what it has in common with the prompt is not computed again.
  std::unique_ptr<GenerationRun> start_generation(std::vector<std::vector<int32_t>> prompts, const Config& options, uint32_t cache);
  std::unique_ptr<Forward> start_forward(ForwardInput input, const Config& request);
  std::unique_ptr<Score> start_score(std::vector<std::vector<int32_t>> sequences);

  // A whole weight as stored, as floats; kOutOfMemory, with the bytes, where that cannot be had.
  Array parameter(size_t index) const { return read(parameters(), "parameter", index); }

  // Caches that the caller holds, by id. An unknown id is kInvalidArgument, but may be deleted.
  uint32_t create_cache();
  uint32_t clone_cache(uint32_t id);                  // shares memory until one of the two goes on
  size_t truncate_cache(uint32_t id, size_t length);  // returns the length kept: 0 where a sliding window has lost what it would need
  size_t cache_length(uint32_t id) const;
  void delete_cache(uint32_t id) { caches_.erase(id); }

  // Loss of a batch; the gradients are then read from the parameters (Parameter::read). Only of a trainable model.
  double compute_gradients(const LossBatch& batch);
  // Options as in train/trainer.hpp. Of a trainable model, or of one with an adapter, which is then what is trained.
  std::unique_ptr<Training> start_training(const Config& options);

  // Low-rank changes of the weights (train/lora.hpp), one set at a time.
  void add_adapter(const Config& options);
  const std::vector<Parameter>& adapter_parameters() const;  // none without one
  Array adapter_parameter(size_t index) const { return read(adapter_parameters(), "lora", index); }
  // `bytes`: the whole parameter in `dtype` (F32, F16 or BF16).
  void write_adapter(size_t index, DType dtype, std::span<const uint8_t> bytes);
  void merge_adapter();  // into the weights; it is then gone
  void remove_adapter();

 private:
  void expect_loaded(const char* where) const;
  Array read(const std::vector<Parameter>& list, const char* where, size_t index) const;
  const std::shared_ptr<HeldCache>& held(uint32_t id) const;
  uint32_t hold(std::shared_ptr<HeldCache> cache);

  Config config_;
  std::shared_ptr<Runtime> runtime_;
  bool trainable_;
  Loader loader_;
  uint64_t planned_bytes_ = 0;
  bool loaded_ = false;
  std::shared_ptr<Lora> lora_;
  size_t lora_bytes_ = 0;
  std::map<uint32_t, std::shared_ptr<HeldCache>> caches_;
  uint32_t last_cache_ = 0;
};

}  // namespace wf
