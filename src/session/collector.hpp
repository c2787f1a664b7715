// Copies what was asked for out of a pass to its place among all tokens, padding included.
#pragma once

#include <string>
#include <vector>

#include "ops/observer.hpp"
#include "session/forward_request.hpp"
#include "session/runtime.hpp"
#include "session/unpadded.hpp"

namespace wf {

// Whose rows pass by.
struct PassRows {
  const Unpadded* text;              // the sequence, or the decoder's
  const Unpadded* source = nullptr;  // the encoder's, where there are two
  std::vector<size_t> memory = {};   // where the tokens of the source stand whose states the decoder looks at
  size_t begin = 0;                  // of this chunk's rows of `text`
};

class Collector final : public Observer {
 public:
  Collector(Runtime& runtime, const ForwardRequest& request, ForwardResult& result, PassRows rows)
      : runtime_(runtime), model_(*runtime.model), request_(request), result_(result), rows_(std::move(rows)) {}

  bool wants(Site site, size_t layer) const override;
  bool wants_head(Site site, size_t layer, size_t head) const override;
  bool wants_scores(Site, size_t layer) const override { return request_.trace.has_layer(layer); }
  bool wants_part(Site, Part, size_t layer) const override { return request_.trace.has_layer(layer); }
  void observe(Site site, size_t layer, const Tensor& states) override;
  void observe_part(Site site, Part part, size_t layer, const Tensor& rows, size_t heads) override;
  void observe_attention(Site site, const AttentionRows& rows) override;

 private:
  // The rows or the keys of a site: which of them are shown, and where.
  struct Axis {
    const Unpadded* text;
    const std::vector<size_t>* places;
    bool may_hide;

    size_t size() const { return text->tokens; }
    bool hides(size_t row) const { return may_hide && text->hides(row); }
    size_t place(size_t row) const { return (*places)[row]; }
  };
  Axis rows_of(Site site) const;
  Axis keys_of(Site site) const;
  size_t heads_of(Site site) const;
  std::vector<size_t> chosen(const Selection& selection, Site site) const;
  std::vector<size_t> chosen_pairs(Site site, size_t kv_heads) const;
  Array& traced(const std::string& name, std::vector<size_t> shape, float fill);
  void copy_matrix(Site site, const AttentionRows& rows, const float* from, float* to) const;
  void lens(size_t layer, const Tensor& states);

  Runtime& runtime_;
  const Model& model_;
  const ForwardRequest& request_;
  ForwardResult& result_;
  PassRows rows_;
};

}  // namespace wf
