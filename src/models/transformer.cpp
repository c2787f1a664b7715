// The Transformer as it was first described: encoder and decoder, post-norm, sinusoidal positions, ReLU, one matrix for both
// embeddings and the head (Vaswani et al. 2017).
#include <cmath>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/model.hpp"
#include "nn/feed_forward.hpp"
#include "nn/residual.hpp"
#include "nn/sinusoids.hpp"

namespace wf {

namespace {

struct EncoderLayer {
  Residual residual_1, residual_2;
  SelfAttention attention;
  FeedForward feed_forward;
};

struct DecoderLayer {
  Residual residual_1, residual_2, residual_3;
  SelfAttention attention;
  CrossAttention cross_attention;
  FeedForward feed_forward;
};

class Transformer final : public EncoderDecoder {
 public:
  explicit Transformer(const Config& config) : EncoderDecoder("") {
    configure(config);
    name_weights();
  }

  Tensor encode(Context& ctx, const Batch& source) const override {
    Tensor x = embed(ctx, source);  // (S, D)
    ctx.observe(Site::kEncoderHidden, 0, x);
    for (size_t l = 0; l < encoder_.size(); ++l) {
      const EncoderLayer& layer = encoder_[l];
      x = layer.residual_1(ctx, x, [&](const Tensor& h) { return layer.attention(ctx, h, source, {}); });
      x = layer.residual_2(ctx, x, [&](const Tensor& h) { return layer.feed_forward(ctx, h); });
      ctx.observe(Site::kEncoderHidden, l + 1, x);
    }
    return x;
  }

  void remember(Context& ctx, const Tensor& memory, std::span<const size_t> memory_offsets, Caches cross) const override {
    for (const DecoderLayer& layer : decoder_) layer.cross_attention.remember(ctx, memory, memory_offsets, cross);
    for (size_t s = 0; s < cross.size(); ++s) cross[s]->advance(memory_offsets[s + 1] - memory_offsets[s]);
  }

  Tensor decode(Context& ctx, const Batch& target, Caches self, Caches cross) const override {
    return decode(ctx, target, self,
                  [&](const DecoderLayer& layer, const Tensor& h) { return layer.cross_attention(ctx, h, target, cross); });
  }

  Tensor decode(Context& ctx, const Batch& target, const Tensor& memory, std::span<const size_t> memory_offsets) const override {
    return decode(ctx, target, {}, [&](const DecoderLayer& layer, const Tensor& h) {
      return layer.cross_attention(ctx, h, target, memory, memory_offsets);
    });
  }

  Tensor head(Context& ctx, const Tensor& states) const override { return linear(ctx, states, tied_ ? token_embedding_ : head_, Weight()); }

 private:
  Tensor embed(Context& ctx, const Batch& batch) const {
    return add(ctx, embedding(ctx, batch.tokens, token_embedding_, embedding_scale_), positions_(ctx, batch.positions));
  }

  template <class LookAtSource>
  Tensor decode(Context& ctx, const Batch& target, Caches self, const LookAtSource& look_at_source) const {
    Tensor x = embed(ctx, target);  // (T, D)
    ctx.observe(Site::kDecoderHidden, 0, x);
    for (size_t l = 0; l < decoder_.size(); ++l) {
      const DecoderLayer& layer = decoder_[l];
      x = layer.residual_1(ctx, x, [&](const Tensor& h) { return layer.attention(ctx, h, target, self); });
      x = layer.residual_2(ctx, x, [&](const Tensor& h) { return look_at_source(layer, h); });
      x = layer.residual_3(ctx, x, [&](const Tensor& h) { return layer.feed_forward(ctx, h); });
      ctx.observe(Site::kDecoderHidden, l + 1, x);
    }
    return x;
  }

  void configure(const Config& config) {
    const size_t D = dimension(config, "d_model", 512), V = vocabulary(config, 37000);
    if (D % 2 != 0) config.reject("d_model", "an even number");
    const size_t encoder_heads = head_count(config, "encoder_attention_heads", 8);
    const size_t H = head_count(config, "decoder_attention_heads", 8), head_size = divided(D, "d_model", H, "decoder_attention_heads");
    const size_t encoder_inner = dimension(config, "encoder_ffn_dim", 2048), inner = dimension(config, "decoder_ffn_dim", 2048);
    const float eps = epsilon(config, "layer_norm_eps", 1e-5);
    const auto act = activation(config, "activation_function", "relu");
    const auto residual = [&] { return Residual{Norm::layer(D, eps), Residual::Order::kPost}; };

    token_embedding_ = Weight::matrix(V, D);
    embedding_scale_ = config.boolean("scale_embedding", true) ? std::sqrt(static_cast<float>(D)) : 1;
    positions_ = Sinusoids(D);
    encoder_.resize(layer_count(config, "encoder_layers", 6));
    for (size_t l = 0; l < encoder_.size(); ++l) {
      EncoderLayer& layer = encoder_[l];
      layer.residual_1 = residual();
      layer.residual_2 = residual();
      layer.attention =
          SelfAttention(l, D, encoder_heads, encoder_heads, divided(D, "d_model", encoder_heads, "encoder_attention_heads"), true, true);
      layer.attention.core.causal = false;
      layer.attention.core.site = Site::kEncoderAttention;
      layer.feed_forward = FeedForward(act, false, D, encoder_inner, true);
    }
    decoder_.resize(layer_count(config, "decoder_layers", 6));
    for (size_t l = 0; l < decoder_.size(); ++l) {
      DecoderLayer& layer = decoder_[l];
      layer.residual_1 = residual();
      layer.residual_2 = residual();
      layer.residual_3 = residual();
      layer.attention = SelfAttention(l, D, H, H, head_size, true, true);
      layer.attention.core.site = Site::kDecoderAttention;
      layer.cross_attention = CrossAttention(l, D, H);
      layer.feed_forward = FeedForward(act, false, D, inner, true);
    }
    tied_ = config.boolean("tie_word_embeddings", true);
    if (!tied_) head_ = Weight::matrix(V, D);

    encoder_layers_ = encoder_.size();
    encoder_heads_ = encoder_heads;
    info_ = {"transformer", decoder_.size(), H, H, head_size, D, V, "sinusoidal", config.size("max_position_embeddings", 0)};
    cache_shape_ = {H, H, head_size, head_size};
    windows_.assign(decoder_.size(), 0);
  }

  void name_weights() {
    const std::string base = parameters_.prefix();
    parameters_.weight(base + "shared.weight", token_embedding_);
    for (size_t l = 0; l < encoder_.size(); ++l) {
      EncoderLayer& layer = encoder_[l];
      const std::string at = join(base, "encoder.layers.", l, ".");
      name_self_attention(at + "self_attn", layer.attention, layer.residual_1.norm);
      name_feed_forward(at, layer.feed_forward, layer.residual_2.norm);
    }
    for (size_t l = 0; l < decoder_.size(); ++l) {
      DecoderLayer& layer = decoder_[l];
      const std::string at = join(base, "decoder.layers.", l, ".");
      const size_t D = info_.hidden_size;
      name_self_attention(at + "self_attn", layer.attention, layer.residual_1.norm);
      parameters_.linear(at + "encoder_attn.q_proj", layer.cross_attention.query);
      parameters_.linear_rows(at + "encoder_attn.k_proj", layer.cross_attention.key_value, 0, D);
      parameters_.linear_rows(at + "encoder_attn.v_proj", layer.cross_attention.key_value, D, D);
      parameters_.linear(at + "encoder_attn.out_proj", layer.cross_attention.output);
      parameters_.norm(at + "encoder_attn_layer_norm", layer.residual_2.norm);
      name_feed_forward(at, layer.feed_forward, layer.residual_3.norm);
    }
    parameters_.weight("lm_head.weight", head_);
  }

  void name_self_attention(const std::string& at, SelfAttention& attention, Norm& norm) {
    const size_t D = info_.hidden_size;
    parameters_.linear_rows(at + ".q_proj", attention.qkv, 0, D);
    parameters_.linear_rows(at + ".k_proj", attention.qkv, D, D);
    parameters_.linear_rows(at + ".v_proj", attention.qkv, 2 * D, D);
    parameters_.linear(at + ".out_proj", attention.output);
    parameters_.norm(at + "_layer_norm", norm);
  }

  void name_feed_forward(const std::string& at, FeedForward& feed_forward, Norm& norm) {
    parameters_.linear(at + "fc1", feed_forward.up);
    parameters_.linear(at + "fc2", feed_forward.down);
    parameters_.norm(at + "final_layer_norm", norm);
  }

  Weight token_embedding_;  // (V, D), of both sides
  float embedding_scale_ = 1;
  Sinusoids positions_;
  std::vector<EncoderLayer> encoder_;
  std::vector<DecoderLayer> decoder_;
  Weight head_;  // (V, D), absent when tied
  bool tied_ = true;
};

}  // namespace

std::unique_ptr<Model> make_transformer(const Config& config) { return std::make_unique<Transformer>(config); }

}  // namespace wf
