#include "session/forward.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/shape.hpp"

namespace wf {

namespace {

std::vector<size_t> indices(const Config& config, std::string_view key) {
  std::vector<size_t> indices;
  for (const double value : config.numbers(key)) {
    if (!(value >= 0 && value < 1e6) || value != static_cast<double>(static_cast<size_t>(value))) config.reject(key, "a list of indices");
    indices.push_back(static_cast<size_t>(value));
  }
  if (config.has(key) && indices.empty()) config.reject(key, "at least one index");
  return indices;
}

void expect_below(const std::vector<size_t>& indices, size_t count, const char* what) {
  for (const size_t index : indices) {
    if (index >= count) fail(Code::kInvalidArgument, "forward", "attentions.", what, ": expected indices below ", count, ", got ", index);
  }
}

void check_ids(const std::vector<int32_t>& ids, size_t vocab_size, const char* what, size_t sequence) {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
      fail(Code::kInvalidArgument, "forward", what, " of sequence ", sequence, ": expected token ids from 0 to ", vocab_size - 1, ", got ",
           id);
    }
  }
}

// Where the tokens that are not padding stand.
std::vector<size_t> visible(const std::vector<std::vector<uint8_t>>& masks, size_t sequence, size_t length) {
  std::vector<size_t> places;
  for (size_t i = 0; i < length; ++i) {
    if (masks.empty() || masks[sequence][i] != 0) places.push_back(i);
  }
  return places;
}

// Whether padding between tokens must stay: a sliding window counts it.
bool keeps_holes(const Model& model, const std::vector<size_t>& places) {
  const bool has_holes = !places.empty() && places.back() - places.front() + 1 != places.size();
  return has_holes && std::any_of(model.windows().begin(), model.windows().end(), [](size_t window) { return window != 0; });
}

Array zeros(std::vector<size_t> shape) {
  size_t size = 1;
  for (const size_t extent : shape) size = checked_product(size, extent, "forward");
  return {std::move(shape), std::vector<float>(size, 0.0f)};
}

}  // namespace

ForwardRequest parse_forward_request(const Config& config) {
  ForwardRequest request;
  for (const auto& [key, value] : config.values()) {
    const bool known =
        key == "logits" || key == "hiddenStates" || key == "attentions" || key == "attentions.layers" || key == "attentions.heads";
    if (!known) fail(Code::kInvalidArgument, "forward", key, ": unknown option");
  }
  request.logits = config.boolean("logits", true);
  request.hidden_states = config.boolean("hiddenStates", false);
  request.layers = indices(config, "attentions.layers");
  request.heads = indices(config, "attentions.heads");
  request.attentions = config.boolean("attentions", !request.layers.empty() || !request.heads.empty());
  return request;
}

// Copies what was asked for to its place among all tokens, padding included.
class Forward::Collector final : public Observer {
 public:
  Collector(const ForwardRequest& request, ForwardResult& result, const Forward& pass, size_t begin, size_t tokens, size_t source_tokens)
      : request_(request), result_(result), pass_(pass), begin_(begin), tokens_(tokens), source_tokens_(source_tokens) {}

  bool wants(Site site, size_t layer) const override {
    if (is_states(site)) return request_.hidden_states;
    return request_.attentions && (request_.layers.empty() || place_of(request_.layers, layer) < request_.layers.size());
  }
  bool wants_head(Site, size_t, size_t head) const override {
    return request_.heads.empty() || place_of(request_.heads, head) < request_.heads.size();
  }

  void observe(Site site, size_t layer, const Tensor& states) override {
    auto& list = result_.states[site];
    if (list.size() <= layer) list.resize(layer + 1);
    if (list[layer].data.empty()) list[layer] = zeros({rows_of(site), states.cols});
    for (size_t r = 0; r < states.rows; ++r) {
      std::memcpy(list[layer].data.data() + place(site, begin_ + r) * states.cols, states.row(r), states.cols * sizeof(float));
    }
  }

  void observe_attention(Site site, const AttentionRows& rows) override {
    const std::vector<size_t> heads = heads_of(site);
    const size_t keys = site == Site::kCrossAttention ? source_tokens_ : rows_of(site);
    auto& list = result_.attentions[site];
    for (size_t i = 0; i < std::max<size_t>(request_.layers.size(), 1); ++i) {
      if (!request_.layers.empty() && request_.layers[i] != rows.layer) continue;
      const size_t index = request_.layers.empty() ? rows.layer : i;
      if (list.size() <= index) list.resize(request_.layers.empty() ? index + 1 : request_.layers.size());
      if (list[index].data.empty()) list[index] = zeros({heads.size(), rows_of(site), keys});
      for (size_t h = 0; h < heads.size(); ++h) {
        if (heads[h] == rows.head) copy(site, rows, list[index].data.data() + h * rows_of(site) * keys, keys);
      }
    }
  }

 private:
  static bool is_states(Site site) { return site == Site::kHidden || site == Site::kEncoderHidden || site == Site::kDecoderHidden; }
  static bool is_of_source(Site site) { return site == Site::kEncoderHidden || site == Site::kEncoderAttention; }
  static size_t place_of(const std::vector<size_t>& list, size_t value) {
    return static_cast<size_t>(std::find(list.begin(), list.end(), value) - list.begin());
  }

  // Those asked for, as far as the site has them: an encoder may have more heads than its decoder.
  std::vector<size_t> heads_of(Site site) const {
    const Model& model = *pass_.runtime_->model;
    const size_t count = site == Site::kEncoderAttention ? model.encoder_decoder()->encoder_heads() : model.info().heads;
    std::vector<size_t> heads = request_.heads;
    if (heads.empty()) {
      heads.resize(count);
      std::iota(heads.begin(), heads.end(), size_t{0});
    }
    std::erase_if(heads, [&](size_t head) { return head >= count; });
    return heads;
  }

  size_t rows_of(Site site) const { return is_of_source(site) ? source_tokens_ : tokens_; }
  size_t place(Site site, size_t row) const { return is_of_source(site) ? pass_.sources_[row] : pass_.places_[row]; }

  void copy(Site site, const AttentionRows& rows, float* matrix, size_t keys) const {
    const bool cross = site == Site::kCrossAttention;
    for (size_t q = 0; q < rows.queries; ++q) {
      // The position of a cross-attention's queries is not that of its keys, so the pass knows it better.
      float* row = matrix + place(site, (cross ? begin_ : rows.query_begin) + q) * keys;
      for (size_t k = 0; k < rows.keys; ++k) row[cross ? pass_.sources_[k] : place(site, k)] = rows.weights[q * rows.keys + k];
    }
  }

  const ForwardRequest& request_;
  ForwardResult& result_;
  const Forward& pass_;
  size_t begin_;  // of the rows of this chunk among the tokens that are not padding
  size_t tokens_, source_tokens_;
};

Forward::Forward(std::shared_ptr<Runtime> runtime, ForwardInput input, ForwardRequest request)
    : runtime_(std::move(runtime)), input_(std::move(input)), request_(std::move(request)), results_(input_.ids.size()) {
  const ModelInfo& info = runtime_->model->info();
  const EncoderDecoder* translator = runtime_->model->encoder_decoder();
  const auto expect_count = [&](size_t count, const char* what) {
    if (count != 0 && count != input_.ids.size()) {
      fail(Code::kInvalidArgument, "forward", what, ": expected one for each of ", input_.ids.size(), " sequences, got ", count);
    }
  };
  if (input_.ids.empty()) fail(Code::kInvalidArgument, "forward", "inputIds: expected at least one sequence, got none");
  expect_count(input_.positions.size(), "positionIds");
  expect_count(input_.masks.size(), "attentionMask");
  expect_count(input_.decoder_ids.size(), "decoderInputIds");
  if (translator != nullptr && input_.decoder_ids.empty()) {
    fail(Code::kInvalidArgument, "forward", "decoderInputIds: expected the tokens of the decoder, got none");
  }
  if (translator == nullptr && !input_.decoder_ids.empty()) {
    fail(Code::kInvalidArgument, "forward", "decoderInputIds: expected none, the model has no decoder of its own");
  }
  expect_below(request_.layers, std::max(info.layers, translator ? translator->encoder_layers() : 0), "layers");
  expect_below(request_.heads, std::max(info.heads, translator ? translator->encoder_heads() : 0), "heads");
  for (size_t s = 0; s < input_.ids.size(); ++s) check(s);
  expect_room();
}

void Forward::check(size_t s) {
  const ModelInfo& info = runtime_->model->info();
  const auto& ids = input_.ids[s];
  check_ids(ids, info.vocab_size, "inputIds", s);
  if (!input_.decoder_ids.empty()) check_ids(input_.decoder_ids[s], info.vocab_size, "decoderInputIds", s);
  if (!input_.masks.empty() && input_.masks[s].size() != ids.size()) {
    fail(Code::kInvalidArgument, "forward", "attentionMask of sequence ", s, ": expected ", ids.size(), " entries, got ",
         input_.masks[s].size());
  }
  if (!input_.positions.empty() && input_.positions[s].size() != ids.size()) {
    fail(Code::kInvalidArgument, "forward", "positionIds of sequence ", s, ": expected ", ids.size(), " entries, got ",
         input_.positions[s].size());
  }
  const auto places = visible(input_.masks, s, ids.size());
  for (size_t i = 0; i < places.size(); ++i) {
    const int32_t given = input_.positions.empty() ? 0 : input_.positions[s][places[i]];
    if (given < 0) fail(Code::kInvalidArgument, "forward", "positionIds of sequence ", s, ": expected whole numbers from 0, got ", given);
    const size_t position = input_.positions.empty() ? (info.position_rule == PositionRule::kVisible ? i : places[i]) : static_cast<size_t>(given);
    if (info.positions_are_a_wall && position >= info.context) {
      fail(Code::kInvalidArgument, "forward", "sequence ", s, ": expected positions below ", info.context,
           ", which is all the model has, got ", position);
    }
  }
}

void Forward::expect_room() const {
  const Runtime& runtime = *runtime_;
  const ModelInfo& info = runtime.model->info();
  const EncoderDecoder* translator = runtime.model->encoder_decoder();
  // Beyond what size_t can say in WebAssembly, so that the error tells how many.
  const auto product = [](uint64_t a, uint64_t b) {
    uint64_t result = 0;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
  };
  const auto sum = [](uint64_t a, uint64_t b) {
    uint64_t result = 0;
    return __builtin_add_overflow(a, b, &result) ? UINT64_MAX : result;
  };
  uint64_t floats = 0;
  size_t longest = 0;
  const auto add_attention = [&](size_t layers, size_t all_heads, size_t queries, size_t keys) {
    if (!request_.attentions) return;
    const size_t heads = request_.heads.empty() ? all_heads : request_.heads.size();
    const size_t asked = request_.layers.empty() ? layers : request_.layers.size();
    floats = sum(floats, product(product(asked, heads), product(queries, keys)));
  };
  const auto add_states = [&](size_t layers, size_t rows) {
    if (request_.hidden_states) floats = sum(floats, product(product(layers + 1, rows), info.hidden_size));
  };
  for (size_t s = 0; s < input_.ids.size(); ++s) {
    const size_t source = input_.ids[s].size(), target = translator ? input_.decoder_ids[s].size() : source;
    if (request_.logits) floats = sum(floats, product(target, info.vocab_size));
    add_states(info.layers, target);
    add_attention(info.layers, info.heads, target, target);
    if (translator) {
      add_states(translator->encoder_layers(), source);
      add_attention(translator->encoder_layers(), translator->encoder_heads(), source, source);
      add_attention(info.layers, info.heads, target, source);
    }
    longest = std::max({longest, source, target});
  }
  uint64_t bytes = product(floats, sizeof(float));
  bytes = sum(bytes, product(runtime.cache_bytes(longest), translator ? 2 : 1));
  const size_t rows = translator ? longest : std::min(longest, kChunk);
  uint64_t workspace = runtime.workspace_bytes(rows, longest, std::min(rows, runtime.logit_rows()));
  if (request_.attentions) workspace = sum(workspace, product(product(rows, longest), sizeof(float)));
  bytes = sum(bytes, workspace - std::min<uint64_t>(workspace, runtime.arena.bytes()));
  runtime_->make_room(bytes, "forward", "request");
}

// Takes up the next sequence: its tokens without padding, an empty cache, and the encoder's work where there is one.
void Forward::begin() {
  Runtime& runtime = *runtime_;
  const size_t s = sequence_;
  const auto& ids = input_.ids[s];
  places_ = visible(input_.masks, s, ids.size());
  key_bias_.clear();
  if (keeps_holes(*runtime.model, places_)) {
    const size_t first = places_.front(), count = places_.back() - first + 1;
    key_bias_.assign(count, -std::numeric_limits<float>::infinity());
    for (const size_t place : places_) key_bias_[place - first] = 0;
    places_.resize(count);
    std::iota(places_.begin(), places_.end(), first);
  }
  ids_.clear();
  positions_.clear();
  for (size_t i = 0; i < places_.size(); ++i) {
    ids_.push_back(ids[places_[i]]);
    const size_t standard = runtime.model->info().position_rule == PositionRule::kVisible ? i : places_[i];
    positions_.push_back(input_.positions.empty() ? static_cast<int32_t>(standard) : input_.positions[s][places_[i]]);
  }
  // Python looks at the positions of padding too.
  extent_ = runtime.model->info().position_rule == PositionRule::kVisible ? places_.size() : ids.size();
  if (!input_.positions.empty()) {
    const auto& given = input_.positions[s];
    extent_ = given.empty() ? 0 : static_cast<size_t>(*std::max_element(given.begin(), given.end())) + 1;
  }
  cache_ = std::make_unique<KvCache>(runtime.make_cache());
  started_ = true;
  const EncoderDecoder* translator = runtime.model->encoder_decoder();
  if (translator == nullptr) return;

  sources_ = std::move(places_);
  source_cache_ = std::make_unique<KvCache>(runtime.make_source_cache());
  Collector collector(request_, results_[s], *this, 0, input_.decoder_ids[s].size(), ids.size());
  Context ctx{runtime.arena, nullptr, &collector};
  const Scope scope(ctx);
  const std::vector<size_t> offsets{0, ids_.size()};
  const Tensor memory = translator->encode(ctx, {ids_, positions_, offsets, {}});
  KvCache* source = source_cache_.get();
  translator->remember(ctx, memory, offsets, {&source, 1});
  ids_ = input_.decoder_ids[s];
  places_.resize(ids_.size());
  std::iota(places_.begin(), places_.end(), size_t{0});
  positions_.resize(ids_.size());
  std::iota(positions_.begin(), positions_.end(), 0);
}

bool Forward::advance() {
  if (sequence_ == input_.ids.size()) return true;
  Runtime& runtime = *runtime_;
  ForwardResult& result = results_[sequence_];
  const EncoderDecoder* translator = runtime.model->encoder_decoder();
  const size_t source_tokens = input_.ids[sequence_].size();
  const size_t tokens = translator ? input_.decoder_ids[sequence_].size() : source_tokens;
  if (!started_) {
    begin();
    if (request_.logits) result.logits = zeros({tokens, runtime.model->info().vocab_size});
  }
  const size_t past = cache_->length(), count = std::min(kChunk, ids_.size() - past);
  if (count != 0) {
    Collector collector(request_, result, *this, past, tokens, source_tokens);
    Context ctx{runtime.arena, nullptr, &collector};
    const Scope scope(ctx);
    const std::vector<size_t> offsets{0, count};
    const std::vector<size_t> extents{extent_};
    const float* key_bias = key_bias_.data();
    Batch batch{std::span(ids_).subspan(past, count), std::span(positions_).subspan(past, count), offsets, extents};
    if (!key_bias_.empty()) batch.key_bias = {&key_bias, 1};
    KvCache *cache = cache_.get(), *source = source_cache_.get();
    const Tensor states =
        translator ? translator->decode(ctx, batch, {&cache, 1}, {&source, 1}) : runtime.model->forward(ctx, batch, {&cache, 1});
    if (request_.logits) {
      runtime.for_logits(ctx, states, [&](size_t first, const Tensor& logits) {
        for (size_t r = 0; r < logits.rows; ++r) {
          std::memcpy(result.logits.data.data() + places_[past + first + r] * logits.cols, logits.row(r), logits.cols * sizeof(float));
        }
      });
    }
    cache_->advance(count);
  }
  if (cache_->length() < ids_.size()) return false;
  finish();
  return ++sequence_ == input_.ids.size();
}

void Forward::finish() {
  cache_.reset();
  source_cache_.reset();
  started_ = false;
  // Padding that stayed has rows like any token; they are not to be seen.
  const auto clear_rows = [&](Array& array) {
    const size_t cols = array.shape.back(), rows = array.shape[array.shape.size() - 2];
    for (size_t row = 0; row < array.data.size() / cols; ++row) {
      const size_t place = row % rows;
      if (place < places_.front() || place > places_.back() || key_bias_[place - places_.front()] == 0) continue;
      std::fill_n(array.data.begin() + static_cast<ptrdiff_t>(row * cols), cols, 0.0f);
    }
  };
  if (key_bias_.empty()) return;
  ForwardResult& result = results_[sequence_];
  if (request_.logits) clear_rows(result.logits);
  for (auto* sites : {&result.states, &result.attentions}) {
    for (auto& [site, arrays] : *sites) {
      for (Array& array : arrays) clear_rows(array);
    }
  }
}

const std::vector<ForwardResult>& Forward::results() const {
  if (sequence_ != input_.ids.size())
    fail(Code::kInvalidArgument, "forward", "result: expected to be asked for when advance has said done");
  return results_;
}

}  // namespace wf
