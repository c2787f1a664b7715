#include "session/runtime.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "kernels/matmul.hpp"

namespace wf {

namespace {

constexpr size_t kSlabTokens = 64;                // positions by which the key/value pool grows
constexpr size_t kLogitFloats = size_t{1} << 20;  // of logits computed at once

const char* calls_for(HeadKind head) {
  switch (head) {
    case HeadKind::kLanguage:
      return "generate";
    case HeadKind::kMaskedLanguage:
      return "fillMask and forward";
    case HeadKind::kSequence:
    case HeadKind::kToken:
      return "classify and forward";
    case HeadKind::kQuestion:
      return "answer and forward";
    case HeadKind::kNone:
      break;
  }
  return "embed and forward";
}

}  // namespace

void expect_next_token(const Model& model, std::string_view where) {
  const ModelInfo& info = model.info();
  if (!info.encoder_only) return;
  fail(Code::kUnsupported, where, "model: expected one that predicts the next token, got ", info.architecture,
       ", an encoder alone, which is for ", calls_for(info.head));
}

Runtime::Runtime(std::unique_ptr<Model> model_, size_t memory_limit_, DType cache_store)
    : model(std::move(model_)),
      pool(model->cache_shape(), std::max<size_t>(model->info().layers, 1) * (kSlabTokens / kernels::kBlock), cache_store),
      memory_limit(memory_limit_) {}

size_t Runtime::cache_bytes(size_t tokens) const {
  size_t blocks = 0;
  for (const size_t window : model->windows()) {
    const size_t seen = window == 0 ? tokens : std::min(tokens, checked_sum(window, 2 * kernels::kBlock, "cache"));
    blocks = checked_sum(blocks, seen / kernels::kBlock + 1, "cache");
  }
  return checked_product(blocks, pool.block_bytes(), "cache");
}

size_t Runtime::workspace_bytes(size_t rows, size_t keys, size_t logit_rows) const {
  const ModelInfo& info = model->info();
  // A layer's activations are at most the outputs of all its matrices; the residual stream and its copies come on top.
  size_t outputs = 0, scratch = 0;
  const size_t workers = threads == nullptr ? 1 : threads->threads();
  for (const Weight* weight : model->parameters().weights()) {
    if (!weight->is_matrix()) continue;
    const bool is_head = weight->use() == Weight::Use::kVocabulary;
    if (!is_head) outputs = checked_sum(outputs, weight->rows(), "workspace");
    const size_t each = kernels::matmul_scratch(DType::kF32, is_head ? logit_rows : rows, weight->cols(), weight->rows());
    scratch = std::max(scratch, checked_product(each, workers, "workspace"));
  }
  const EncoderDecoder* translator = model->encoder_decoder();
  const size_t layers = std::max<size_t>(info.layers + (translator ? translator->encoder_layers() : 0), 1);
  size_t floats = checked_product(rows, checked_sum(outputs / layers * 2, 8 * info.hidden_size, "workspace"), "workspace");
  floats = checked_sum(floats, checked_product(logit_rows, checked_sum(info.vocab_size, info.hidden_size, "workspace"), "workspace"),
                       "workspace");
  floats =
      checked_sum(floats, checked_product(kernels::attention_scratch(model->cache_shape(), rows, keys), workers, "workspace"), "workspace");
  if (translator || info.encoder_only) {
    // Keys and values that are in no cache.
    const size_t block = kernels::cache_block_bytes(model->cache_shape(), DType::kF32) / sizeof(float);
    floats = checked_sum(floats, checked_product(keys / kernels::kBlock + 1, block, "workspace"), "workspace");
  }
  floats = checked_sum(floats, scratch, "workspace");
  return checked_product(floats, sizeof(float), "workspace");
}

size_t Runtime::logit_rows() const { return std::max<size_t>(kLogitFloats / model->info().vocab_size, 1); }

void Runtime::expect_room(uint64_t needed, std::string_view where, std::string_view what) const {
  const size_t held = bytes(), left = memory_limit > held ? memory_limit - held : 0;
  if (needed > left) fail(Code::kOutOfMemory, where, what, ": expected at most ", left, " bytes, which is what is left, got ", needed);
}

void Runtime::make_room(uint64_t needed, std::string_view where, std::string_view what) {
  if (needed > memory_limit - std::min(memory_limit, bytes())) pool.trim();
  expect_room(needed, where, what);
}

}  // namespace wf
