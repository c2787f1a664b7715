#include "models/model.hpp"

#include "core/error.hpp"

namespace wf {

Tensor EncoderDecoder::forward(Context&, const Batch&, Caches) const {
  fail(Code::kUnsupported, info_.architecture,
       "a forward pass of one text: expected a source for the encoder and a target for the decoder");
}

}  // namespace wf
