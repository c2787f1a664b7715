#include "session/collector.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/shape.hpp"
#include "session/probabilities.hpp"

namespace wf {

namespace {

bool is_states(Site site) { return site == Site::kHidden || site == Site::kEncoderHidden || site == Site::kDecoderHidden; }
bool is_of_source(Site site) { return site == Site::kEncoderHidden || site == Site::kEncoderAttention; }

std::string trace_name(Site site, size_t layer, const char* block, const char* what) {
  const char* stack = site == Site::kAttention ? "layers." : is_of_source(site) ? "encoder." : "decoder.";
  return join(stack, layer, ".", block, ".", what);
}

std::string attention_name(Site site, size_t layer, const char* what) {
  return trace_name(site, layer, site == Site::kCrossAttention ? "crossAttention" : "attention", what);
}

const char* name_of(Part part) {
  switch (part) {
    case Part::kQuery:
      return "query";
    case Part::kKey:
      return "key";
    case Part::kValue:
      return "value";
    case Part::kHeads:
      return "heads";
    case Part::kInner:
      break;
  }
  return "inner";
}

}  // namespace

Collector::Axis Collector::rows_of(Site site) const {
  const Unpadded* text = is_of_source(site) ? rows_.source : rows_.text;
  return {text, &text->places, true};
}

Collector::Axis Collector::keys_of(Site site) const {
  if (site == Site::kCrossAttention) return {rows_.source, &rows_.memory, false};
  return rows_of(site);
}

size_t Collector::heads_of(Site site) const {
  return site == Site::kEncoderAttention ? model_.encoder_decoder()->encoder_heads() : model_.info().heads;
}

// Those asked for, as far as the site has them: an encoder may have more heads than its decoder.
std::vector<size_t> Collector::chosen(const Selection& selection, Site site) const {
  std::vector<size_t> heads = selection.heads;
  if (heads.empty()) {
    heads.resize(heads_of(site));
    std::iota(heads.begin(), heads.end(), size_t{0});
  }
  std::erase_if(heads, [&](size_t head) { return head >= heads_of(site); });
  return heads;
}

// The heads of keys and values that those read, each once.
std::vector<size_t> Collector::chosen_pairs(Site site, size_t kv_heads) const {
  std::vector<size_t> pairs;
  for (const size_t head : chosen(request_.trace, site)) {
    const size_t pair = head / (heads_of(site) / kv_heads);
    if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
  }
  return pairs;
}

bool Collector::wants(Site site, size_t layer) const {
  if (is_states(site)) return request_.hidden_states || (request_.logit_lens && !is_of_source(site));
  return request_.attentions.has_layer(layer) || request_.trace.has_layer(layer);
}

bool Collector::wants_head(Site, size_t layer, size_t head) const {
  return (request_.attentions.has_layer(layer) && request_.attentions.has_head(head)) ||
         (request_.trace.has_layer(layer) && request_.trace.has_head(head));
}

void Collector::observe(Site site, size_t layer, const Tensor& states) {
  if (request_.logit_lens && !is_of_source(site)) lens(layer, states);
  if (!request_.hidden_states) return;
  const Axis axis = rows_of(site);
  auto& list = result_.states[site];
  if (list.size() <= layer) list.resize(layer + 1);
  if (list[layer].shape.empty()) list[layer] = zeros({axis.size(), states.cols});
  const size_t begin = is_of_source(site) ? 0 : rows_.begin;
  for (size_t r = 0; r < states.rows; ++r) {
    if (axis.hides(begin + r)) continue;
    std::memcpy(list[layer].data.data() + axis.place(begin + r) * states.cols, states.row(r), states.cols * sizeof(float));
  }
}

Array& Collector::traced(const std::string& name, std::vector<size_t> shape, float fill) {
  for (auto& [known, array] : result_.trace) {
    if (known == name) return array;
  }
  Array array = zeros(std::move(shape));
  if (fill != 0) std::fill(array.data.begin(), array.data.end(), fill);
  return result_.trace.emplace_back(name, std::move(array)).second;
}

void Collector::observe_part(Site site, Part part, size_t layer, const Tensor& rows, size_t heads) {
  const bool is_key = part == Part::kKey || part == Part::kValue;
  const Axis axis = is_key ? keys_of(site) : rows_of(site);
  const size_t size = rows.cols / heads, begin = (is_key && site == Site::kCrossAttention) || is_of_source(site) ? 0 : rows_.begin;
  if (part == Part::kInner) {
    Array& array = traced(trace_name(site, layer, "feedForward", name_of(part)), {axis.size(), size}, 0);
    for (size_t r = 0; r < rows.rows; ++r) {
      if (!axis.hides(begin + r)) std::copy_n(rows.row(r), size, array.data.data() + axis.place(begin + r) * size);
    }
    return;
  }
  const std::vector<size_t> shown = is_key ? chosen_pairs(site, heads) : chosen(request_.trace, site);
  Array& array = traced(attention_name(site, layer, name_of(part)), {shown.size(), axis.size(), size}, 0);
  for (size_t h = 0; h < shown.size(); ++h) {
    for (size_t r = 0; r < rows.rows; ++r) {
      if (axis.hides(begin + r)) continue;
      std::copy_n(rows.row(r) + shown[h] * size, size, array.data.data() + (h * axis.size() + axis.place(begin + r)) * size);
    }
  }
}

void Collector::observe_attention(Site site, const AttentionRows& rows) {
  const size_t matrix = checked_product(rows_of(site).size(), keys_of(site).size(), "forward");
  const std::vector<size_t> shape = {0, rows_of(site).size(), keys_of(site).size()};
  const auto copy_heads = [&](const Selection& selection, const float* from, Array& array) {
    const std::vector<size_t> heads = chosen(selection, site);
    for (size_t h = 0; h < heads.size(); ++h) {
      if (heads[h] == rows.head) copy_matrix(site, rows, from, array.data.data() + h * matrix);
    }
  };
  const auto shape_of = [&](const Selection& selection) { return std::vector{chosen(selection, site).size(), shape[1], shape[2]}; };
  if (request_.attentions.has_layer(rows.layer)) {
    const auto& layers = request_.attentions.layers;
    auto& list = result_.attentions[site];
    for (size_t i = 0; i < std::max<size_t>(layers.size(), 1); ++i) {
      if (!layers.empty() && layers[i] != rows.layer) continue;
      const size_t index = layers.empty() ? rows.layer : i;
      if (list.size() <= index) list.resize(layers.empty() ? index + 1 : layers.size());
      if (list[index].shape.empty()) list[index] = zeros(shape_of(request_.attentions));
      copy_heads(request_.attentions, rows.weights, list[index]);
    }
  }
  if (request_.trace.has_layer(rows.layer)) {
    Array& array = traced(attention_name(site, rows.layer, "scores"), shape_of(request_.trace), -std::numeric_limits<float>::infinity());
    copy_heads(request_.trace, rows.scores, array);
  }
}

void Collector::copy_matrix(Site site, const AttentionRows& rows, const float* from, float* to) const {
  const Axis queries = rows_of(site), keys = keys_of(site);
  // The position of a cross-attention's queries is not that of its keys, so the pass knows it better.
  const size_t begin = site == Site::kCrossAttention ? rows_.begin : rows.query_begin;
  for (size_t q = 0; q < rows.queries; ++q) {
    if (queries.hides(begin + q)) continue;
    float* row = to + queries.place(begin + q) * keys.size();
    for (size_t k = 0; k < rows.keys; ++k) row[keys.place(k)] = from[q * rows.keys + k];
  }
}

// Belrose et al. 2023, "Eliciting latent predictions from Transformers with the tuned lens", section 2, after nostalgebraist 2020.
void Collector::lens(size_t layer, const Tensor& states) {
  const size_t T = rows_.text->tokens, V = model_.info().vocab_size, k = request_.top_k, width = k == 0 ? V : k;
  if (result_.lens.size() <= layer) result_.lens.resize(layer + 1);
  Array& array = result_.lens[layer];
  if (array.shape.empty()) array = zeros({T, width});
  if (k != 0) {
    if (result_.lens_ids.size() <= layer) result_.lens_ids.resize(layer + 1);
    result_.lens_ids[layer].resize(checked_product(T, k, "forward"), -1);
  }
  Context ctx = runtime_.context();
  std::vector<int32_t> order(k == 0 ? 0 : V);
  const size_t at_once = runtime_.logit_rows();
  for (size_t first = 0; first < states.rows; first += at_once) {
    const Scope scope(ctx);
    // A copy: the head may write into what it is given, and the pass goes on with these states.
    Tensor some = ctx.tensor(std::min(at_once, states.rows - first), states.cols);
    for (size_t r = 0; r < some.rows; ++r) std::memcpy(some.row(r), states.row(first + r), states.cols * sizeof(float));
    if (layer < model_.info().layers) some = model_.final_norm(ctx, some);
    const Tensor logits = model_.head(ctx, some);
    for (size_t r = 0; r < logits.rows; ++r) {
      const size_t row = rows_.begin + first + r;
      if (rows_.text->hides(row)) continue;
      const float* values = logits.row(r);
      float* out = array.data.data() + rows_.text->places[row] * width;
      if (k == 0) {
        std::copy_n(values, V, out);
        continue;
      }
      // Of an order there is none with NaN, so that it goes last.
      const auto key = [&](int32_t id) { return std::isnan(values[id]) ? -std::numeric_limits<float>::infinity() : values[id]; };
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(),
                        [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
      const LogSum sum(values, V);
      std::copy_n(order.begin(), k, result_.lens_ids[layer].begin() + static_cast<ptrdiff_t>(rows_.text->places[row] * k));
      for (size_t i = 0; i < k; ++i) out[i] = sum.log_probability(values[order[i]]);
    }
  }
}

}  // namespace wf
