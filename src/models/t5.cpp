// T5 (Raffel et al. 2020), its version 1.1 and FLAN-T5, mT5 (Xue et al. 2021): encoder-decoder, pre-norm with RMSNorm, no biases,
// unscaled attention scores, and learned numbers for the distance of two tokens in place of positions. The encoder alone as well.
#include <cmath>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/model.hpp"
#include "nn/feed_forward.hpp"
#include "nn/residual.hpp"

namespace wf {

namespace {

struct Layer {
  Residual residual_1, residual_2, residual_3;
  SelfAttention attention;
  CrossAttention cross_attention;  // of the decoder
  FeedForward feed_forward;
};

struct Stack {
  std::vector<Layer> layers;
  RelativeBias bias;  // of every layer's self-attention
  Norm final_norm;
};

class T5 final : public EncoderDecoder {
 public:
  T5(const Config& config, bool multilingual) : EncoderDecoder("") {
    configure(config, multilingual);
    name_weights();
  }

  const EncoderDecoder* encoder_decoder() const override { return info_.encoder_only ? nullptr : this; }

  Tensor encode(Context& ctx, const Batch& source) const override {
    return run(ctx, encoder_, source, {}, info_.encoder_only ? Site::kHidden : Site::kEncoderHidden,
               [](const Layer&, const Tensor& h) { return h; });
  }

  void remember(Context& ctx, const Tensor& memory, std::span<const size_t> memory_offsets, Caches cross) const override {
    for (const Layer& layer : decoder_.layers) layer.cross_attention.remember(ctx, memory, memory_offsets, cross);
    for (size_t s = 0; s < cross.size(); ++s) cross[s]->advance(memory_offsets[s + 1] - memory_offsets[s]);
  }

  Tensor decode(Context& ctx, const Batch& target, Caches self, Caches cross) const override {
    return run(ctx, decoder_, target, self, Site::kDecoderHidden,
               [&](const Layer& layer, const Tensor& h) { return layer.cross_attention(ctx, h, target, cross); });
  }

  Tensor decode(Context& ctx, const Batch& target, const Tensor& memory, std::span<const size_t> memory_offsets) const override {
    return run(ctx, decoder_, target, {}, Site::kDecoderHidden,
               [&](const Layer& layer, const Tensor& h) { return layer.cross_attention(ctx, h, target, memory, memory_offsets); });
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    return info_.encoder_only ? encode(ctx, batch) : EncoderDecoder::forward(ctx, batch, caches);
  }

  Tensor head(Context& ctx, const Tensor& states) const override {
    if (info_.head == HeadKind::kNone) return Model::head(ctx, states);
    return linear(ctx, scales_output_ ? scaled(ctx, states) : states, tied_ ? embedding_ : head_, Weight());
  }

  Tensor final_norm(Context& ctx, const Tensor& states) const override {
    return (info_.encoder_only ? encoder_ : decoder_).final_norm(ctx, states);
  }

 private:
  // states / sqrt(D), the states themselves left as they are.
  Tensor scaled(Context& ctx, const Tensor& states) const {
    const float factor = 1 / std::sqrt(static_cast<float>(info_.hidden_size));
    if (ctx.tape != nullptr) return scale(ctx, states, factor);
    const Tensor copy = ctx.tensor(states.rows, states.cols);
    for (size_t r = 0; r < states.rows; ++r) std::copy_n(states.row(r), states.cols, copy.row(r));
    return scale(ctx, copy, factor);
  }

  template <class LookAtSource>
  Tensor run(Context& ctx, const Stack& stack, const Batch& batch, Caches caches, Site hidden, const LookAtSource& look_at_source) const {
    Tensor x = embedding(ctx, batch.tokens, embedding_);  // (T, D)
    ctx.observe(hidden, 0, x);
    size_t longest = 1;
    for (size_t s = 0; s < batch.sequences(); ++s) {
      longest = std::max(longest, (caches.empty() ? 0 : caches[s]->length()) + batch.length(s));
    }
    const RelativeBias::Table bias = stack.bias.over(ctx, longest, longest);
    for (size_t l = 0; l < stack.layers.size(); ++l) {
      const Layer& layer = stack.layers[l];
      x = layer.residual_1(ctx, x, [&](const Tensor& h) { return layer.attention(ctx, h, batch, caches, nullptr, nullptr, &bias); });
      if (&stack == &decoder_) x = layer.residual_2(ctx, x, [&](const Tensor& h) { return look_at_source(layer, h); });
      x = layer.residual_3(ctx, x, [&](const Tensor& h) { return layer.feed_forward(ctx, h); });
      if (l + 1 < stack.layers.size()) ctx.observe(hidden, l + 1, x);
    }
    x = stack.final_norm(ctx, x);
    ctx.observe(hidden, stack.layers.size(), x);
    return x;
  }

  void configure(const Config& config, bool multilingual) {
    const size_t D = dimension(config, "d_model", 512), V = vocabulary(config, multilingual ? 250112 : 32128);
    const size_t inner = dimension(config, "d_ff", multilingual ? 1024 : 2048);
    const size_t H = head_count(config, "num_heads", multilingual ? 6 : 8), head_size = dimension(config, "d_kv", 64);
    const size_t layers = layer_count(config, "num_layers", multilingual ? 8 : 6);
    const size_t buckets = dimension(config, "relative_attention_num_buckets", 32);
    const size_t max_distance = dimension(config, "relative_attention_max_distance", 128);
    if (buckets < 4) config.reject("relative_attention_num_buckets", "at least 4");
    if (max_distance <= buckets / 2) config.reject("relative_attention_max_distance", "more than half of relative_attention_num_buckets");
    const float eps = epsilon(config, "layer_norm_epsilon", 1e-6);
    const auto [act, gated] = feed_forward_kind(config, multilingual ? "gated-gelu" : "relu");

    for (const std::string& name : config.strings("architectures")) info_.encoder_only |= name.ends_with("EncoderModel");
    embedding_ = Weight::vocabulary(V, D);
    const auto build = [&](Stack& stack, size_t count, bool is_decoder, Site site) {
      stack.layers.resize(count);
      stack.bias = RelativeBias(H, buckets, max_distance, !is_decoder);
      stack.final_norm = Norm::rms(D, eps);
      for (size_t l = 0; l < count; ++l) {
        Layer& layer = stack.layers[l];
        layer.residual_1.norm = Norm::rms(D, eps);
        layer.residual_3.norm = Norm::rms(D, eps);
        layer.attention = SelfAttention(l, D, H, H, head_size, false, false);
        layer.attention.core.scale = 1;
        layer.attention.core.causal = is_decoder;
        layer.attention.core.site = site;
        layer.feed_forward = FeedForward(act, gated, D, inner, false, l, site);
        if (!is_decoder) continue;
        layer.residual_2.norm = Norm::rms(D, eps);
        layer.cross_attention = CrossAttention(l, D, {H, H, head_size, head_size}, false);
        layer.cross_attention.core.scale = 1;
      }
    };
    build(encoder_, layers, false, info_.encoder_only ? Site::kAttention : Site::kEncoderAttention);
    if (!info_.encoder_only) {
      build(decoder_, config.has("num_decoder_layers") ? layer_count(config, "num_decoder_layers", layers) : layers, true,
            Site::kDecoderAttention);
    }
    // Version 1.1 and mT5 say that the head is not tied, and only where it is tied are the states scaled for it. transformers 5 writes
    // the second in place of the first.
    const bool tied = config.boolean("tie_word_embeddings", !multilingual);
    scales_output_ = !multilingual && config.boolean("scale_decoder_outputs", tied);
    tied_ = tied && scales_output_;
    info_.head = info_.encoder_only ? HeadKind::kNone : HeadKind::kLanguage;
    if (!tied_ && !info_.encoder_only) head_ = Weight::vocabulary(V, D);

    encoder_layers_ = encoder_.layers.size();
    encoder_heads_ = H;
    info_.architecture = multilingual ? "mt5" : "t5";
    info_.layers = info_.encoder_only ? encoder_.layers.size() : decoder_.layers.size();
    info_.heads = info_.kv_heads = H;
    info_.head_size = head_size;
    info_.hidden_size = D;
    info_.vocab_size = V;
    info_.positions = "relative";
    info_.context = config.size("n_positions", 0);
    info_.relative_positions = true;
    cache_shape_ = {H, H, head_size, head_size};
    windows_.assign(decoder_.layers.size(), 0);
  }

  // "relu", "gated-gelu" (which means the tanh form), "gated-silu".
  static std::pair<kernels::Activation, bool> feed_forward_kind(const Config& config, std::string_view fallback) {
    const std::string name = config.string("feed_forward_proj", fallback);
    const bool gated = name.starts_with("gated-");
    Config inner;
    inner.set("feed_forward_proj", name == "gated-gelu" ? "gelu_new" : gated ? name.substr(6) : name);
    return {activation(inner, "feed_forward_proj", ""), gated};
  }

  void name_weights() {
    parameters_.weight("shared.weight", embedding_, "encoder.embed_tokens.weight");
    name_stack("encoder.", encoder_, false);
    if (!info_.encoder_only) name_stack("decoder.", decoder_, true);
    parameters_.weight("lm_head.weight", head_, "shared.weight");
  }

  void name_stack(const std::string& base, Stack& stack, bool is_decoder) {
    const size_t width = info_.heads * info_.head_size;
    for (size_t l = 0; l < stack.layers.size(); ++l) {
      Layer& layer = stack.layers[l];
      const std::string at = join(base, "block.", l, ".layer.");
      parameters_.linear_rows(at + "0.SelfAttention.q", layer.attention.qkv, 0, width);
      parameters_.linear_rows(at + "0.SelfAttention.k", layer.attention.qkv, width, width);
      parameters_.linear_rows(at + "0.SelfAttention.v", layer.attention.qkv, 2 * width, width);
      parameters_.linear(at + "0.SelfAttention.o", layer.attention.output);
      if (l == 0) parameters_.weight(at + "0.SelfAttention.relative_attention_bias.weight", stack.bias.weight);
      parameters_.norm(at + "0.layer_norm", layer.residual_1.norm);
      if (is_decoder) {
        parameters_.linear(at + "1.EncDecAttention.q", layer.cross_attention.query);
        parameters_.linear_rows(at + "1.EncDecAttention.k", layer.cross_attention.key_value, 0, width);
        parameters_.linear_rows(at + "1.EncDecAttention.v", layer.cross_attention.key_value, width, width);
        parameters_.linear(at + "1.EncDecAttention.o", layer.cross_attention.output);
        parameters_.norm(at + "1.layer_norm", layer.residual_2.norm);
      }
      const std::string last = at + (is_decoder ? "2." : "1.");
      FeedForward& feed_forward = layer.feed_forward;
      const size_t inner = feed_forward.down.weight.cols();
      if (feed_forward.is_gated) {
        parameters_.linear_rows(last + "DenseReluDense.wi_0", feed_forward.up, 0, inner);
        parameters_.linear_rows(last + "DenseReluDense.wi_1", feed_forward.up, inner, inner);
      } else {
        parameters_.linear(last + "DenseReluDense.wi", feed_forward.up);
      }
      parameters_.linear(last + "DenseReluDense.wo", feed_forward.down);
      parameters_.norm(last + "layer_norm", layer.residual_3.norm);
    }
    parameters_.norm(base + "final_layer_norm", stack.final_norm);
  }

  Weight embedding_;  // (V, D), of both sides
  Stack encoder_, decoder_;
  Weight head_;  // (V, D), absent when tied
  bool tied_ = true, scales_output_ = true;
};

}  // namespace

std::unique_ptr<Model> make_t5(const Config& config) { return std::make_unique<T5>(config, false); }
std::unique_ptr<Model> make_mt5(const Config& config) { return std::make_unique<T5>(config, true); }

}  // namespace wf
