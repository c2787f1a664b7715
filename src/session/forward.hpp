// One forward pass over whole sequences, with what the caller wants to look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "session/collector.hpp"
#include "session/forward_request.hpp"
#include "session/runtime.hpp"
#include "session/unpadded.hpp"

namespace wf {

class Forward {
 public:
  // Checks the input against the model, and the memory that the results and the pass will take against the limit (kOutOfMemory,
  // with the bytes), before any work.
  Forward(std::shared_ptr<Runtime> runtime, ForwardInput input, ForwardRequest request);

  // One chunk of a sequence, of an encoder a whole one; true when all is done.
  bool advance();
  const std::vector<ForwardResult>& results() const;

 private:
  const EncoderDecoder* translator() const { return runtime_->model->encoder_decoder(); }
  Unpadded input_text(size_t sequence) const;
  Unpadded decoder_text(size_t sequence) const;
  void check_request() const;
  void check_counts() const;
  void check(size_t sequence) const;
  void expect_room() const;
  void begin();
  void read_source();
  bool decode_chunk();
  void settle_attentions(ForwardResult& result) const;
  void encode_whole();
  void write_outputs(Context& ctx, const Tensor& states, size_t begin);

  std::shared_ptr<Runtime> runtime_;
  ForwardInput input_;
  ForwardRequest request_;
  std::vector<ForwardResult> results_;
  size_t sequence_ = 0;
  // The sequence under way.
  Unpadded text_, source_;      // what the model, or its decoder, reads, and its encoder
  std::vector<size_t> memory_;  // where the tokens of the source stand that the decoder looks at
  std::unique_ptr<KvCache> cache_, source_cache_;
  bool started_ = false;
};

}  // namespace wf
