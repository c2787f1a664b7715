#include "session/session.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "models/initialise.hpp"

namespace wf {

namespace {

constexpr size_t kReservedTokens = 256;   // generated tokens for whose keys and values memory is set aside at the start
constexpr size_t kPlannedContext = 2048;  // positions assumed when the workspace is planned
// In WebAssembly, the largest memory less a page, which no pointer reaches.
constexpr double kAddressable = sizeof(size_t) == 4 ? 4294901760.0 : 0x1p62;

void refuse_unknown(const Config& options) {
  for (const auto& [key, value] : options.values()) {
    if (key != "dtype" && key != "cacheDtype" && key != "trainable" && key != "memoryLimit")
      fail(Code::kInvalidArgument, "load", key, ": unknown option");
  }
}

std::shared_ptr<Runtime> make_runtime(const Config& config, const Config& options) {
  refuse_unknown(options);
  const double limit = options.number("memoryLimit", kAddressable);
  if (!(limit >= 1 && limit <= kAddressable)) options.reject("memoryLimit", "a number of bytes");
  const DType cache = options.has("cacheDtype") ? dtype_named(options.string("cacheDtype")) : DType::kF32;
  if (cache != DType::kF32 && cache != DType::kF16) options.reject("cacheDtype", "F32 or F16");
  return std::make_shared<Runtime>(make_model(config), static_cast<size_t>(limit), cache);
}

std::optional<DType> store_of(const Config& options) {
  if (!options.has("dtype")) return std::nullopt;
  const DType dtype = dtype_named(options.string("dtype"));
  if (is_block(dtype) && !is_quantised_store(dtype)) options.reject("dtype", "F32, F16, BF16, Q8_0 or Q4_0");
  return dtype;
}

using Lists = std::vector<std::vector<int32_t>>;

void check_source(const ModelInfo& info, std::span<const int32_t> ids, size_t p) {
  const size_t vocab_size = info.source_vocab_size ? info.source_vocab_size : info.vocab_size;
  if (ids.empty()) fail(Code::kInvalidArgument, "generate", "prompt ", p, ": expected at least one token, got none");
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
      fail(Code::kInvalidArgument, "generate", "prompt ", p, ": expected token ids from 0 to ", vocab_size - 1, ", got ", id);
    }
  }
  if (info.positions_are_a_wall && ids.size() > info.context) {
    fail(Code::kInvalidArgument, "generate", "prompt ", p, ": expected at most ", info.context,
         " tokens, the model's learned positions, got ", ids.size());
  }
}

// One for all, or one a prompt.
template <class T>
const T& entry(const std::vector<T>& list, size_t p, size_t prompts, const char* option) {
  if (list.size() != 1 && list.size() != prompts) {
    fail(Code::kInvalidArgument, "generate", option, ": expected one, or one for each of ", prompts, " prompts, got ", list.size());
  }
  return list[list.size() == 1 ? 0 : p];
}

// What generation continues: the prompts, or of an encoder-decoder model the decoder's start and what is given of its tokens.
Lists beginnings(const Runtime& runtime, const Lists& prompts, const generate::Options& options) {
  if (runtime.model->encoder_decoder() == nullptr) {
    for (const auto& [given, option] : {std::pair(!options.decoder_start.empty(), "decoderStartTokenId"),
                                        std::pair(!options.decoder_prefix.empty(), "decoderInputIds")}) {
      if (given) fail(Code::kInvalidArgument, "generate", option, ": expected none, the model has no decoder of its own");
    }
    return prompts;
  }
  Lists all;
  for (size_t p = 0; p < prompts.size(); ++p) {
    check_source(runtime.model->info(), prompts[p], p);
    std::optional<int32_t> start = options.bos;
    if (!options.decoder_start.empty()) start = entry(options.decoder_start, p, prompts.size(), "decoderStartTokenId");
    if (!start) fail(Code::kInvalidArgument, "generate", "decoderStartTokenId: expected a token to begin with, got none");
    std::vector<int32_t> ids;
    if (!options.decoder_prefix.empty()) ids = entry(options.decoder_prefix, p, prompts.size(), "decoderInputIds");
    if (ids.empty() || ids[0] != *start) ids.insert(ids.begin(), *start);
    all.push_back(std::move(ids));
  }
  return all;
}

// The sources, where a rule looks at them.
Lists looked_at(const Runtime& runtime, const Lists& prompts, const generate::Options& options) {
  const bool needed = options.encoder_no_repeat_ngram_size > 0 || options.encoder_repetition_penalty != 1;
  return needed && runtime.model->encoder_decoder() != nullptr ? prompts : Lists();
}

// How much of `prompt` a cache stands for.
size_t common_length(const HeldCache& held, const std::vector<int32_t>& prompt) {
  const auto [differs, end] = std::mismatch(held.tokens.begin(), held.tokens.end(), prompt.begin(), prompt.end());
  return static_cast<size_t>(differs - held.tokens.begin());
}

}  // namespace

GenerationRun::GenerationRun(std::shared_ptr<Runtime> runtime, std::vector<std::vector<int32_t>> prompts, const generate::Options& options,
                             std::shared_ptr<HeldCache> held)
    : runtime_(std::move(runtime)), width_(generate::slots_a_prompt(options)) {
  Lists begun = beginnings(*runtime_, prompts, options);
  const size_t new_tokens = std::min(options.max_new_tokens.value_or(kReservedTokens), kReservedTokens);
  const size_t slots = checked_product(prompts.size(), width_, "generate");
  const size_t source_layers = runtime_->model->encoder_decoder() ? runtime_->model->info().layers : 0;
  const size_t block = runtime_->pool.block_bytes();
  size_t bytes = 0, longest = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const size_t length = checked_sum(std::max<size_t>(begun[p].size(), 1), new_tokens, "generate");
    const size_t source = checked_product(source_layers * block, prompts[p].size() / kernels::kBlock + 1, "generate");
    bytes = checked_sum(bytes, checked_sum(runtime_->cache_bytes(length), source, "generate"), "generate");
    bytes = checked_sum(bytes, checked_product(width_ - 1, runtime_->cache_bytes(new_tokens), "generate"), "generate");
    longest = std::max({longest, length, prompts[p].size()});
  }
  const size_t blocks = bytes / block;
  // What lies free in the pool, or belongs to the cache that is gone on with, is there already.
  const size_t common = held ? common_length(*held, prompts[0]) : 0;
  const size_t in_use = runtime_->pool.blocks_in_use() - (held ? held->cache.blocks_after_truncation(common) : 0);
  bytes -= std::min(bytes, runtime_->pool.bytes() - std::min(runtime_->pool.bytes(), checked_product(in_use, block, "generate")));
  const size_t rows = std::max(slots, source_layers ? longest : std::min(options.prefill_chunk, longest));
  const size_t workspace = runtime_->workspace_bytes(rows, longest, std::min(slots, runtime_->logit_rows()));
  bytes = checked_sum(bytes, workspace - std::min(workspace, runtime_->arena.bytes()), "generate");
  bytes = checked_sum(bytes, generate::generator_bytes(prompts.size(), options, runtime_->model->info().vocab_size), "generate");
  runtime_->expect_room(bytes, "generate", "request");

  if (held && common < held->tokens.size()) held->tokens.resize(held->cache.truncate(common));
  const bool continues = held != nullptr;
  decoder_.emplace(*runtime_, slots, std::move(held));
  generator_ = generate::make_generator(*decoder_, std::move(begun), options, looked_at(*runtime_, prompts, options));
  if (!continues) runtime_->pool.reserve(blocks);  // of all prompts at once; the one that continues reserves what it lacks
  for (size_t p = 0; p < prompts.size(); ++p) decoder_->reserve(p * width_, generator_->prompt(p).size() + new_tokens);
  if (source_layers) sources_ = std::move(prompts);
}

const generate::Step& GenerationRun::advance() {
  if (next_source_ == sources_.size() || generator_->done()) return generator_->advance();
  decoder_->read_source(next_source_ * width_, sources_[next_source_]);
  ++next_source_;
  return nothing_yet_;
}

Session::Session(const Config& config, const Config& options, ThreadPool* threads)
    : config_(config),
      runtime_(make_runtime(config, options)),
      trainable_(options.boolean("trainable", false)),
      loader_(runtime_->model->parameters(), store_of(options), trainable_) {
  runtime_->threads = threads;
}

double Session::parameter_count() const {
  double count = 0;
  for (const Parameter& parameter : parameters()) count += static_cast<double>(parameter.shape.size());
  return count;
}

Plan Session::plan(std::span<const DType> dtypes) {
  planned_bytes_ = loader_.plan(dtypes);
  const ModelInfo& info = runtime_->model->info();
  const size_t context = info.context == 0 ? kPlannedContext : std::min(info.context, kPlannedContext);
  return {planned_bytes_, runtime_->workspace_bytes(kChunk, context, 1),
          checked_product(runtime_->model->windows().size(), runtime_->pool.block_bytes(), "cache") / kernels::kBlock, loader_.stores()};
}

void Session::allocate() {
  runtime_->expect_room(planned_bytes_, "load", "weights");
  loader_.allocate();
  runtime_->weight_bytes = static_cast<size_t>(planned_bytes_);
}

void Session::draw_rows(double seed, size_t parameter, size_t begin, size_t count) {
  if (!(seed >= 0 && seed < 0x1p53) || seed != std::floor(seed))
    fail(Code::kInvalidArgument, "create", "seed: expected a whole number from 0 to 2^53 - 1, got ", seed);
  if (parameter >= parameters().size())
    fail(Code::kInvalidArgument, "create", "parameter: expected one of ", parameters().size(), ", got ", parameter);
  const size_t floats = checked_product(count, parameters()[parameter].row_size(), "create");
  void* staged = stage(checked_product(floats, sizeof(float), "create"));
  Initialiser(config_, *runtime_->model, static_cast<uint64_t>(seed)).draw(parameter, begin, count, static_cast<float*>(staged));
  load_rows(parameter, begin, count);
}

Array Session::read(const std::vector<Parameter>& list, const char* where, size_t index) const {
  expect_loaded(where);
  if (index >= list.size()) fail(Code::kInvalidArgument, where, "expected one of ", list.size(), ", got ", index);
  const Parameter& parameter = list[index];
  runtime_->expect_room(uint64_t{parameter.shape.size()} * sizeof(float), where, parameter.name);
  Array array{{}, std::vector<float>(parameter.shape.size())};
  for (size_t i = 0; i < parameter.shape.rank(); ++i) array.shape.push_back(parameter.shape[i]);
  parameter.read(array.data.data(), false);
  return array;
}

void Session::finish_loading() {
  loader_.finish();
  loaded_ = true;
}

void Session::expect_loaded(const char* where) const {
  if (!loaded_) fail(Code::kInvalidArgument, where, "model: expected its weights to be loaded first");
}

std::unique_ptr<GenerationRun> Session::start_generation(std::vector<std::vector<int32_t>> prompts, const Config& options, uint32_t cache) {
  expect_loaded("generate");
  expect_next_token(*runtime_->model, "generate");
  const generate::Options parsed = generate::parse_options(options, info().vocab_size);
  std::shared_ptr<HeldCache> held_cache;
  if (cache != 0) {
    if (prompts.size() != 1 || parsed.return_sequences != 1) {
      fail(Code::kInvalidArgument, "generate", "cache: expected one prompt and one sequence, got ", prompts.size(), " and ",
           parsed.return_sequences);
    }
    if (parsed.beams > 1) fail(Code::kUnsupported, "generate", "cache: with numBeams > 1");
    if (has_encoder()) fail(Code::kUnsupported, "generate", "cache: of an encoder-decoder model");
    held_cache = held(cache);
  }
  return std::make_unique<GenerationRun>(runtime_, std::move(prompts), parsed, std::move(held_cache));
}

std::unique_ptr<Forward> Session::start_forward(ForwardInput input, const Config& request) {
  expect_loaded("forward");
  return std::make_unique<Forward>(runtime_, std::move(input), parse_forward_request(request));
}

std::unique_ptr<Score> Session::start_score(std::vector<std::vector<int32_t>> sequences) {
  expect_loaded("score");
  return std::make_unique<Score>(runtime_, std::move(sequences));
}

uint32_t Session::hold(std::shared_ptr<HeldCache> cache) {
  caches_.emplace(++last_cache_, std::move(cache));
  return last_cache_;
}

const std::shared_ptr<HeldCache>& Session::held(uint32_t id) const {
  const auto found = caches_.find(id);
  if (found == caches_.end()) fail(Code::kInvalidArgument, "cache", "id: expected one that was created and not deleted, got ", id);
  found->second->forget_unless(runtime_->weights_version);
  return found->second;
}

uint32_t Session::create_cache() {
  expect_loaded("cache");
  return hold(std::make_shared<HeldCache>(*runtime_));
}

uint32_t Session::clone_cache(uint32_t id) { return hold(std::make_shared<HeldCache>(*held(id))); }

size_t Session::truncate_cache(uint32_t id, size_t length) {
  HeldCache& cache = *held(id);
  if (length > cache.tokens.size()) {
    fail(Code::kInvalidArgument, "cache", "length: expected at most ", cache.tokens.size(), ", got ", length);
  }
  cache.tokens.resize(cache.cache.truncate(length));
  return cache.tokens.size();
}

size_t Session::cache_length(uint32_t id) const { return held(id)->cache.length(); }

double Session::compute_gradients(const LossBatch& batch) {
  expect_loaded("gradients");
  if (!trainable_) fail(Code::kInvalidArgument, "gradients", "model: expected one loaded with trainable: true");
  return gradients(*runtime_->model, runtime_->context(), batch);
}

std::unique_ptr<Training> Session::start_training(const Config& options) {
  expect_loaded("train");
  if (!trainable_ && lora_ == nullptr) {
    fail(Code::kInvalidArgument, "train", "model: expected one loaded with trainable: true, or one with an adapter");
  }
  return std::make_unique<Training>(runtime_, lora_, options);
}

void Session::add_adapter(const Config& options) {
  expect_loaded("lora");
  if (lora_ != nullptr) fail(Code::kInvalidArgument, "lora", "model: expected one without an adapter, got one that has one");
  const uint64_t bytes = Lora::bytes(*runtime_->model, options);
  runtime_->make_room(bytes, "lora", "the adapter");
  lora_ = std::make_shared<Lora>(*runtime_->model, options);
  lora_bytes_ = static_cast<size_t>(bytes);
  runtime_->weight_bytes += lora_bytes_;
  ++runtime_->weights_version;
}

const std::vector<Parameter>& Session::adapter_parameters() const {
  static const std::vector<Parameter> none;
  return lora_ ? lora_->parameters().list() : none;
}

void Session::write_adapter(size_t index, DType dtype, std::span<const uint8_t> bytes) {
  const std::vector<Parameter>& list = adapter_parameters();
  if (index >= list.size()) fail(Code::kInvalidArgument, "lora", "parameter: expected one of ", list.size(), ", got ", index);
  const Parameter& parameter = list[index];
  if (is_block(dtype)) fail(Code::kUnsupported, "lora", parameter.name, ": in ", name_of(dtype));
  const size_t expected = stored_bytes(dtype, parameter.shape.size());
  if (bytes.size() != expected) {
    fail(Code::kShapeMismatch, "lora", parameter.name, ": expected ", expected, " bytes of ", name_of(dtype), ", got ", bytes.size());
  }
  parameter.load(0, parameter.stored_rows(), bytes.data(), dtype);
  ++runtime_->weights_version;
}

void Session::merge_adapter() {
  if (lora_ == nullptr) fail(Code::kInvalidArgument, "lora", "model: expected one with an adapter, got one without");
  lora_->merge();
  remove_adapter();
}

void Session::remove_adapter() {
  if (lora_ == nullptr) return;
  lora_.reset();
  runtime_->weight_bytes -= std::exchange(lora_bytes_, 0);
  ++runtime_->weights_version;
}

}  // namespace wf
