#include "models/model.hpp"

#include "core/error.hpp"

namespace wf {

Tensor Model::head(Context&, const Tensor&) const {
  fail(Code::kUnsupported, info_.architecture, "logits: expected a model with a head over its tokens");
}

Tensor Model::classify(Context&, const Tensor&, std::span<const size_t>) const {
  fail(Code::kUnsupported, info_.architecture, "a label of the whole text: expected a model with a head for sequence classification");
}

Tensor Model::pool(Context&, const Tensor&, std::span<const size_t>) const {
  fail(Code::kUnsupported, info_.architecture, "a pooled state: expected a model with a pooler");
}

Tensor EncoderDecoder::forward(Context&, const Batch&, Caches) const {
  fail(Code::kUnsupported, info_.architecture,
       "a forward pass of one text: expected a source for the encoder and a target for the decoder");
}

}  // namespace wf
