#include "session/session.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "core/error.hpp"
#include "core/shape.hpp"

namespace wf {

namespace {

constexpr size_t kReservedTokens = 256;   // generated tokens for whose keys and values memory is set aside at the start
constexpr size_t kPlannedContext = 2048;  // positions assumed when the workspace is planned
// In WebAssembly, the largest memory less a page, which no pointer reaches.
constexpr double kAddressable = sizeof(size_t) == 4 ? 4294901760.0 : 0x1p62;

void refuse_unknown(const Config& options) {
  for (const auto& [key, value] : options.values()) {
    if (key != "dtype" && key != "trainable" && key != "memoryLimit") fail(Code::kInvalidArgument, "load", key, ": unknown option");
  }
}

std::shared_ptr<Runtime> make_runtime(const Config& config, const Config& options) {
  refuse_unknown(options);
  const double limit = options.number("memoryLimit", kAddressable);
  if (!(limit >= 1 && limit <= kAddressable)) options.reject("memoryLimit", "a number of bytes");
  return std::make_shared<Runtime>(make_model(config), static_cast<size_t>(limit));
}

std::optional<DType> store_of(const Config& options) {
  if (!options.has("dtype")) return std::nullopt;
  return dtype_named(options.string("dtype"));
}

// What generation continues: the prompts, or of an encoder-decoder model the decoder's start.
std::vector<std::vector<int32_t>> beginnings(const Runtime& runtime, const std::vector<std::vector<int32_t>>& prompts,
                                             const generate::Options& options) {
  if (runtime.model->encoder_decoder() == nullptr) {
    if (options.decoder_start)
      fail(Code::kInvalidArgument, "generate", "decoderStartTokenId: expected none, the model has no decoder of its own");
    return prompts;
  }
  const auto start = options.decoder_start ? options.decoder_start : options.bos;
  if (!start) fail(Code::kInvalidArgument, "generate", "decoderStartTokenId: expected a token to begin with, got none");
  const size_t vocab_size = runtime.model->info().vocab_size;
  for (size_t p = 0; p < prompts.size(); ++p) {
    if (prompts[p].empty()) fail(Code::kInvalidArgument, "generate", "prompt ", p, ": expected at least one token, got none");
    for (const int32_t id : prompts[p]) {
      if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
        fail(Code::kInvalidArgument, "generate", "prompt ", p, ": expected token ids from 0 to ", vocab_size - 1, ", got ", id);
      }
    }
  }
  return std::vector(prompts.size(), std::vector<int32_t>{*start});
}

std::shared_ptr<HeldCache> fitted(std::shared_ptr<HeldCache> held, const std::vector<int32_t>& prompt) {
  if (held == nullptr) return held;
  const auto [differs, end] = std::mismatch(held->tokens.begin(), held->tokens.end(), prompt.begin(), prompt.end());
  const size_t common = static_cast<size_t>(differs - held->tokens.begin());
  if (common < held->tokens.size()) held->tokens.resize(held->cache.truncate(common));
  return held;
}

}  // namespace

GenerationRun::GenerationRun(std::shared_ptr<Runtime> runtime, std::vector<std::vector<int32_t>> prompts, const generate::Options& options,
                             std::shared_ptr<HeldCache> held)
    : runtime_(std::move(runtime)),
      returns_(options.return_sequences),
      decoder_(*runtime_, checked_product(prompts.size(), returns_, "generate"),
               fitted(std::move(held), prompts.empty() ? std::vector<int32_t>() : prompts[0])),
      generation_(decoder_, beginnings(*runtime_, prompts, options), options) {
  const size_t new_tokens = std::min(options.max_new_tokens.value_or(kReservedTokens), kReservedTokens);
  const size_t slots = generation_.sequences();
  size_t bytes = 0, longest = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const size_t length = checked_sum(generation_.prompt(p).size(), new_tokens, "generate");
    bytes = checked_sum(bytes, runtime_->cache_bytes(length), "generate");
    bytes = checked_sum(bytes, checked_product(returns_ - 1, runtime_->cache_bytes(new_tokens), "generate"), "generate");
    longest = std::max({longest, length, prompts[p].size()});
  }
  const size_t blocks = bytes / runtime_->pool.block_bytes();
  // What lies free in the pool is there already.
  const size_t in_use = checked_product(runtime_->pool.blocks_in_use(), runtime_->pool.block_bytes(), "generate");
  bytes -= std::min(bytes, runtime_->pool.bytes() - std::min(runtime_->pool.bytes(), in_use));
  const size_t rows = std::max(slots, runtime_->model->encoder_decoder() ? longest : std::min(options.prefill_chunk, longest));
  const size_t workspace = runtime_->workspace_bytes(rows, longest, std::min(slots, runtime_->logit_rows()));
  bytes = checked_sum(bytes, workspace - std::min(workspace, runtime_->arena.bytes()), "generate");
  runtime_->expect_room(bytes, "generate", "request");
  runtime_->pool.reserve(blocks);
  for (size_t p = 0; p < prompts.size(); ++p) decoder_.reserve(p * returns_, generation_.prompt(p).size() + new_tokens);
  if (runtime_->model->encoder_decoder() != nullptr) sources_ = std::move(prompts);
}

const generate::Step& GenerationRun::advance() {
  if (next_source_ == sources_.size() || generation_.done()) return generation_.advance();
  decoder_.read_source(next_source_ * returns_, sources_[next_source_]);
  ++next_source_;
  return nothing_yet_;
}

Session::Session(const Config& config, const Config& options)
    : runtime_(make_runtime(config, options)),
      trainable_(options.boolean("trainable", false)),
      loader_(runtime_->model->parameters(), store_of(options), trainable_) {}

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
          checked_product(runtime_->model->windows().size(), runtime_->pool.block_bytes(), "cache") / kernels::kBlock};
}

void Session::allocate() {
  runtime_->expect_room(planned_bytes_, "load", "weights");
  loader_.allocate();
  runtime_->weight_bytes = static_cast<size_t>(planned_bytes_);
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
  const generate::Options parsed = generate::parse_options(options, info().vocab_size);
  std::shared_ptr<HeldCache> held_cache;
  if (cache != 0) {
    if (prompts.size() != 1 || parsed.return_sequences != 1) {
      fail(Code::kInvalidArgument, "generate", "cache: expected one prompt and one sequence, got ", prompts.size(), " and ",
           parsed.return_sequences);
    }
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
  return gradients(*runtime_->model, runtime_->arena, batch);
}

}  // namespace wf
