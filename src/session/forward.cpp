#include "session/forward.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.hpp"

namespace wf {

namespace {

void expect_below(const std::vector<size_t>& indices, size_t count, const char* what) {
  for (const size_t index : indices) {
    if (index >= count) fail(Code::kInvalidArgument, "forward", what, ": expected indices below ", count, ", got ", index);
  }
}

void check_ids(const std::vector<int32_t>& ids, size_t count, const char* what, size_t sequence, const char* kind = "token ids") {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= count) {
      fail(Code::kInvalidArgument, "forward", what, " of sequence ", sequence, ": expected ", kind, " from 0 to ", count - 1, ", got ", id);
    }
  }
}

template <class T>
void check_length(const std::vector<std::vector<T>>& lists, size_t sequence, const char* what, size_t length) {
  if (lists.empty() || lists[sequence].size() == length) return;
  fail(Code::kInvalidArgument, "forward", what, " of sequence ", sequence, ": expected ", length, " entries, got ", lists[sequence].size());
}

template <class T>
std::span<const T> of(const std::vector<std::vector<T>>& lists, size_t sequence) {
  return lists.empty() ? std::span<const T>() : std::span<const T>(lists[sequence]);
}

// Whether padding between tokens must stay: sliding windows and relative positions count it.
bool counts_distance(const Model& model) {
  const auto& windows = model.windows();
  return model.info().relative_positions || std::any_of(windows.begin(), windows.end(), [](size_t window) { return window != 0; });
}

// Saturating: beyond what size_t can say in WebAssembly, so that the error tells how many.
uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}
uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? UINT64_MAX : result;
}

// Floats that a request takes of one side of one sequence.
class Demand {
 public:
  Demand(const ForwardRequest& request, const Model& model) : request_(request), info_(model.info()) {
    shape_ = model.cache_shape();
    for (const Weight* weight : model.parameters().weights()) {
      if (weight->is_matrix()) inner_ = std::max(inner_, weight->cols());
    }
  }

  uint64_t floats() const { return floats_; }
  void outputs(size_t rows, size_t width) { floats_ = sum(floats_, product(rows, width)); }
  void states(size_t layers, size_t rows) {
    if (request_.hidden_states) floats_ = sum(floats_, product(product(layers + 1, rows), info_.hidden_size));
  }
  void lens(size_t layers, size_t rows) {
    const size_t width = request_.top_k == 0 ? info_.vocab_size : 2 * request_.top_k;
    if (request_.logit_lens) floats_ = sum(floats_, product(product(layers + 1, rows), width));
  }
  void attention(size_t layers, size_t heads, size_t queries, size_t keys, bool is_cross = false) {
    matrices(request_.attentions, layers, heads, queries, keys);
    matrices(request_.trace, layers, heads, queries, keys);
    if (!request_.trace.wanted) return;
    // An encoder's heads may be larger than its decoder's.
    const size_t size = std::max(shape_.Dk + shape_.Dv, 2 * (info_.hidden_size / heads + 1));
    const uint64_t of_queries = product(queries, size), of_keys = product(keys, size);
    uint64_t layer = product(count(request_.trace.heads, heads), sum(of_queries, of_keys));
    if (!is_cross) layer = sum(layer, product(queries, inner_));
    floats_ = sum(floats_, product(count(request_.trace.layers, layers), layer));
  }

 private:
  static size_t count(const std::vector<size_t>& asked, size_t all) { return asked.empty() ? all : asked.size(); }
  void matrices(const Selection& selection, size_t layers, size_t heads, size_t queries, size_t keys) {
    if (!selection.wanted) return;
    floats_ = sum(floats_, product(product(count(selection.layers, layers), count(selection.heads, heads)), product(queries, keys)));
  }

  const ForwardRequest& request_;
  const ModelInfo& info_;
  kernels::AttentionShape shape_{};
  size_t inner_ = 0;  // of the feed-forward network
  uint64_t floats_ = 0;
};

}  // namespace

Forward::Forward(std::shared_ptr<Runtime> runtime, ForwardInput input, ForwardRequest request)
    : runtime_(std::move(runtime)), input_(std::move(input)), request_(std::move(request)), results_(input_.ids.size()) {
  check_counts();
  check_request();
  for (size_t s = 0; s < input_.ids.size(); ++s) check(s);
  expect_room();
}

void Forward::check_counts() const {
  const ModelInfo& info = runtime_->model->info();
  const auto expect_count = [&](size_t count, const char* what) {
    if (count != 0 && count != input_.ids.size()) {
      fail(Code::kInvalidArgument, "forward", what, ": expected one for each of ", input_.ids.size(), " sequences, got ", count);
    }
  };
  const auto expect_none = [](bool given, const char* what, const char* because) {
    if (given) fail(Code::kInvalidArgument, "forward", what, ": expected none, ", because);
  };
  if (input_.ids.empty()) fail(Code::kInvalidArgument, "forward", "inputIds: expected at least one sequence, got none");
  expect_count(input_.positions.size(), "positionIds");
  expect_count(input_.masks.size(), "attentionMask");
  expect_count(input_.decoder_ids.size(), "decoderInputIds");
  expect_count(input_.types.size(), "tokenTypeIds");
  expect_count(input_.decoder_masks.size(), "decoderAttentionMask");
  if (translator() != nullptr && input_.decoder_ids.empty()) {
    fail(Code::kInvalidArgument, "forward", "decoderInputIds: expected the tokens of the decoder, got none");
  }
  const bool alone = translator() == nullptr;
  expect_none(alone && !input_.decoder_ids.empty(), "decoderInputIds", "the model has no decoder of its own");
  expect_none(alone && !input_.decoder_masks.empty(), "decoderAttentionMask", "the model has no decoder of its own");
  expect_none(info.token_types == 0 && !input_.types.empty(), "tokenTypeIds", "the model has no token types");
  expect_none(info.relative_positions && !input_.positions.empty(), "positionIds", "the model knows of distances only");
}

void Forward::check_request() const {
  const ModelInfo& info = runtime_->model->info();
  const size_t layers = std::max(info.layers, translator() ? translator()->encoder_layers() : 0);
  const size_t heads = std::max(info.heads, translator() ? translator()->encoder_heads() : 0);
  expect_below(request_.attentions.layers, layers, "attentions.layers");
  expect_below(request_.attentions.heads, heads, "attentions.heads");
  expect_below(request_.trace.layers, layers, "trace.layers");
  expect_below(request_.trace.heads, heads, "trace.heads");
  if (!request_.logit_lens) return;
  if (info.head != HeadKind::kLanguage && info.head != HeadKind::kMaskedLanguage) {
    fail(Code::kUnsupported, "forward", "logitLens: expected a model whose head predicts tokens");
  }
  if (request_.top_k > info.vocab_size) {
    fail(Code::kInvalidArgument, "forward", "logitLens.topK: expected at most ", info.vocab_size, ", all tokens there are, got ",
         request_.top_k);
  }
}

void Forward::check(size_t s) const {
  const ModelInfo& info = runtime_->model->info();
  const size_t source_vocabulary = info.source_vocab_size != 0 ? info.source_vocab_size : info.vocab_size, T = input_.ids[s].size();
  check_ids(input_.ids[s], source_vocabulary, "inputIds", s);
  check_length(input_.masks, s, "attentionMask", T);
  check_length(input_.positions, s, "positionIds", T);
  check_length(input_.types, s, "tokenTypeIds", T);
  if (!input_.types.empty()) check_ids(input_.types[s], info.token_types, "tokenTypeIds", s, "token types");
  if (translator() != nullptr) {
    check_ids(input_.decoder_ids[s], info.vocab_size, "decoderInputIds", s);
    check_length(input_.decoder_masks, s, "decoderAttentionMask", input_.decoder_ids[s].size());
  }
  if (!input_.positions.empty()) {
    for (const int32_t given : input_.positions[s]) {
      if (given < 0) fail(Code::kInvalidArgument, "forward", "positionIds of sequence ", s, ": expected whole numbers from 0, got ", given);
    }
  }
  if (!info.positions_are_a_wall) return;
  const auto expect_within = [&](const Unpadded& text) {
    for (const int32_t position : text.positions) {
      if (position >= 0 && static_cast<size_t>(position) >= info.context) {
        fail(Code::kInvalidArgument, "forward", "sequence ", s, ": expected positions below ", info.context,
             ", which is all the model has, got ", position);
      }
    }
  };
  expect_within(input_text(s));
  if (translator() != nullptr) expect_within(decoder_text(s));
}

Unpadded Forward::input_text(size_t s) const {
  const Model& model = *runtime_->model;
  return without_padding(model.info(), {input_.ids[s], of(input_.positions, s), of(input_.masks, s), of(input_.types, s)},
                         counts_distance(model));
}

Unpadded Forward::decoder_text(size_t s) const {
  const Model& model = *runtime_->model;
  return without_padding(model.info(), {input_.decoder_ids[s], {}, of(input_.decoder_masks, s), {}}, counts_distance(model));
}

void Forward::expect_room() const {
  const Runtime& runtime = *runtime_;
  const ModelInfo& info = runtime.model->info();
  const bool whole = translator() != nullptr || info.encoder_only;
  Demand demand(request_, *runtime.model);
  size_t longest = 0;
  for (size_t s = 0; s < input_.ids.size(); ++s) {
    const size_t source = input_.ids[s].size(), target = translator() ? input_.decoder_ids[s].size() : source;
    if (request_.logits) demand.outputs(target, info.head == HeadKind::kNone ? info.hidden_size : std::max(info.vocab_size, info.labels));
    demand.states(info.layers, target);
    demand.lens(info.layers, target);
    demand.attention(info.layers, info.heads, target, target);
    if (translator()) {
      demand.states(translator()->encoder_layers(), source);
      demand.attention(translator()->encoder_layers(), translator()->encoder_heads(), source, source);
      demand.attention(info.layers, info.heads, target, source, true);
    }
    longest = std::max({longest, source, target});
  }
  uint64_t bytes = product(demand.floats(), sizeof(float));
  bytes = sum(bytes, product(runtime.cache_bytes(longest), translator() ? 2 : 1));
  const size_t rows = whole ? longest : std::min(longest, kChunk);
  uint64_t workspace = runtime.workspace_bytes(rows, longest, std::min(rows, runtime.logit_rows()));
  if (request_.attentions.wanted || request_.trace.wanted) workspace = sum(workspace, product(product(rows, longest), 2 * sizeof(float)));
  bytes = sum(bytes, workspace - std::min<uint64_t>(workspace, runtime.arena.bytes()));
  runtime_->make_room(bytes, "forward", "request");
}

// Takes up the next sequence: its tokens without padding, an empty cache, and the encoder's work where there are two sides.
void Forward::begin() {
  const ModelInfo& info = runtime_->model->info();
  text_ = translator() ? decoder_text(sequence_) : input_text(sequence_);
  started_ = true;
  ForwardResult& result = results_[sequence_];
  if (request_.logits) {
    const size_t T = text_.tokens;
    switch (info.head) {
      case HeadKind::kLanguage:
      case HeadKind::kMaskedLanguage:
        result.logits = zeros({T, info.vocab_size});
        break;
      case HeadKind::kSequence:
        result.logits = zeros({info.labels});
        break;
      case HeadKind::kToken:
        result.logits = zeros({T, info.labels});
        break;
      case HeadKind::kQuestion:
        result.start_logits = zeros({T});
        result.end_logits = zeros({T});
        break;
      case HeadKind::kNone:
        result.last_hidden_state = zeros({T, info.hidden_size});
        if (info.has_pooler) result.pooled = zeros({info.hidden_size});
    }
  }
  if (text_.ids.empty() && (request_.hidden_states || request_.logit_lens || request_.attentions.wanted || request_.trace.wanted)) {
    // Of a text without visible tokens one hidden token is read, so that all that was asked for has its shape, of zeros.
    text_.ids = text_.positions = {0};
    text_.places = {0};
    text_.key_bias = {-std::numeric_limits<float>::infinity()};
    text_.extent = 1;
  }
  if (info.encoder_only) return;
  cache_ = std::make_unique<KvCache>(runtime_->make_cache());
  if (translator() != nullptr) read_source();
}

void Forward::read_source() {
  Runtime& runtime = *runtime_;
  source_ = input_text(sequence_);
  source_cache_ = std::make_unique<KvCache>(runtime.make_source_cache());
  memory_.clear();
  for (size_t row = 0; row < source_.ids.size(); ++row) {
    if (!source_.hides(row)) memory_.push_back(source_.places[row]);
  }
  Collector collector(runtime, request_, results_[sequence_], {&text_, &source_, memory_});
  Context ctx = runtime.context(&collector);
  const Scope scope(ctx);
  const std::vector<size_t> offsets{0, source_.ids.size()}, memory_offsets{0, memory_.size()};
  Batch batch{source_.ids, source_.positions, offsets, {}};
  const float* key_bias = source_.key_bias.data();
  if (!source_.key_bias.empty()) batch.key_bias = {&key_bias, 1};
  Tensor states = translator()->encode(ctx, batch);
  if (!source_.key_bias.empty()) {
    // The decoder never sees padding: what is left of the states.
    const Tensor seen = ctx.tensor(memory_.size(), states.cols);
    for (size_t row = 0, next = 0; row < states.rows; ++row) {
      if (!source_.hides(row)) std::memcpy(seen.row(next++), states.row(row), states.cols * sizeof(float));
    }
    states = seen;
  }
  KvCache* source = source_cache_.get();
  translator()->remember(ctx, states, memory_offsets, {&source, 1});
}

bool Forward::decode_chunk() {
  Runtime& runtime = *runtime_;
  const size_t past = cache_->length(), count = std::min(kChunk, text_.ids.size() - past);
  if (count == 0) return true;
  Collector collector(runtime, request_, results_[sequence_], {&text_, &source_, memory_, past});
  Context ctx = runtime.context(&collector);
  const Scope scope(ctx);
  const std::vector<size_t> offsets{0, count}, extents{text_.extent};
  const float* key_bias = text_.key_bias.data();
  Batch batch{std::span(text_.ids).subspan(past, count), std::span(text_.positions).subspan(past, count), offsets, extents};
  if (!text_.key_bias.empty()) batch.key_bias = {&key_bias, 1};
  KvCache *cache = cache_.get(), *source = source_cache_.get();
  const Tensor states =
      translator() ? translator()->decode(ctx, batch, {&cache, 1}, {&source, 1}) : runtime.model->forward(ctx, batch, {&cache, 1});
  if (request_.logits) write_outputs(ctx, states, past);
  cache_->advance(count);
  return cache_->length() == text_.ids.size();
}

void Forward::encode_whole() {
  if (text_.ids.empty()) return;
  Collector collector(*runtime_, request_, results_[sequence_], {&text_});
  Context ctx = runtime_->context(&collector);
  const Scope scope(ctx);
  const std::vector<size_t> offsets{0, text_.ids.size()};
  Batch batch{text_.ids, text_.positions, offsets, {}};
  batch.types = text_.types;
  const float* key_bias = text_.key_bias.data();
  if (!text_.key_bias.empty()) batch.key_bias = {&key_bias, 1};
  const Tensor states = runtime_->model->forward(ctx, batch, {});
  if (request_.logits) write_outputs(ctx, states, 0);
}

// `states`: the rows from `begin` on, of an encoder all of them.
void Forward::write_outputs(Context& ctx, const Tensor& states, size_t begin) {
  const Model& model = *runtime_->model;
  ForwardResult& result = results_[sequence_];
  const auto visit_rows = [&](const Tensor& rows, size_t first, const auto& visit) {
    for (size_t r = 0; r < rows.rows; ++r) {
      if (!text_.hides(first + r)) visit(text_.places[first + r], rows.row(r));
    }
  };
  const auto copy_to = [](Array& array) {
    return [&array, cols = array.shape.back()](size_t place, const float* row) {
      std::copy_n(row, cols, array.data.begin() + static_cast<ptrdiff_t>(place * cols));
    };
  };
  const size_t ends[] = {0, states.rows};
  switch (model.info().head) {
    case HeadKind::kNone:
      visit_rows(states, begin, copy_to(result.last_hidden_state));
      if (model.info().has_pooler && !text_.hides(0))
        std::copy_n(model.pool(ctx, states, ends).row(0), states.cols, result.pooled.data.begin());
      break;
    case HeadKind::kSequence:
      if (!text_.hides(0)) std::copy_n(model.classify(ctx, states, ends).row(0), result.logits.data.size(), result.logits.data.begin());
      break;
    case HeadKind::kQuestion:
      visit_rows(model.head(ctx, states), begin, [&](size_t place, const float* row) {
        result.start_logits.data[place] = row[0];
        result.end_logits.data[place] = row[1];
      });
      break;
    default:
      runtime_->for_logits(ctx, states,
                           [&](size_t first, const Tensor& logits) { visit_rows(logits, begin + first, copy_to(result.logits)); });
  }
}

// A stack may have fewer layers and heads than another: its list holds those asked for that it has.
void Forward::settle_attentions(ForwardResult& result) const {
  if (!request_.attentions.wanted) return;
  const bool two_stacks = runtime_->model->encoder_decoder() != nullptr;
  for (const Site site : {Site::kAttention, Site::kEncoderAttention, Site::kDecoderAttention, Site::kCrossAttention}) {
    if ((site == Site::kAttention) == two_stacks) continue;
    std::erase_if(result.attentions[site], [](const Array& array) { return array.shape.empty(); });
  }
}

bool Forward::advance() {
  if (sequence_ == input_.ids.size()) return true;
  if (!started_) begin();
  if (runtime_->model->info().encoder_only) {
    encode_whole();
  } else if (!decode_chunk()) {
    return false;
  }
  settle_attentions(results_[sequence_]);
  cache_.reset();
  source_cache_.reset();
  started_ = false;
  return ++sequence_ == input_.ids.size();
}

const std::vector<ForwardResult>& Forward::results() const {
  if (sequence_ != input_.ids.size())
    fail(Code::kInvalidArgument, "forward", "result: expected to be asked for when advance has said done");
  return results_;
}

}  // namespace wf
