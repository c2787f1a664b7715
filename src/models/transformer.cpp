// Encoder and decoder, decoder alone, or encoder alone: embeddings and positions, layers of self-attention, cross-attention and
// feed-forward network, each in a residual connection (Vaswani et al. 2017, figure 1).
#include "models/transformer.hpp"

#include "core/error.hpp"
#include "nn/checkpoint.hpp"
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

// What is particular to one side.
struct Side {
  Weight own_embedding;       // (V, D), unless both share one
  Weight position_embedding;  // (rows, D), learned
  Norm embedding_norm, final_norm;
};

class Transformer final : public EncoderDecoder {
 public:
  explicit Transformer(const TransformerConfig& config) : EncoderDecoder(config.prefix), config_(config) {
    build();
    name_weights();
  }

  const EncoderDecoder* encoder_decoder() const override { return encoder_.empty() || decoder_.empty() ? nullptr : this; }

  Tensor encode(Context& ctx, const Batch& source) const override {
    const Site hidden = decoder_.empty() ? Site::kHidden : Site::kEncoderHidden;
    Tensor x = embed(ctx, source, encoder_side_);  // (S, D)
    ctx.observe(hidden, 0, x);
    for (size_t l = 0; l < encoder_.size(); ++l) {
      const EncoderLayer& layer = encoder_[l];
      x = checkpointed(ctx, x, [&layer, &source](Context& ctx, Tensor x) {
        x = layer.residual_1(ctx, x, [&](const Tensor& h) { return layer.attention(ctx, h, source, {}); });
        return layer.residual_2(ctx, x, [&](const Tensor& h) { return layer.feed_forward(ctx, h); });
      });
      if (l + 1 < encoder_.size()) ctx.observe(hidden, l + 1, x);
    }
    x = normed(ctx, encoder_side_, x);
    ctx.observe(hidden, encoder_.size(), x);
    return x;
  }

  void remember(Context& ctx, const Tensor& memory, std::span<const size_t> memory_offsets, Caches cross) const override {
    for (const DecoderLayer& layer : decoder_) layer.cross_attention.remember(ctx, memory, memory_offsets, cross);
    for (size_t s = 0; s < cross.size(); ++s) cross[s]->advance(memory_offsets[s + 1] - memory_offsets[s]);
  }

  Tensor decode(Context& ctx, const Batch& target, Caches self, Caches cross) const override {
    return decode(ctx, target, self, nullptr, [&target, cross](Context& ctx, const DecoderLayer& layer, const Tensor& h) {
      return layer.cross_attention(ctx, h, target, cross);
    });
  }

  Tensor decode(Context& ctx, const Batch& target, const Tensor& memory, std::span<const size_t> memory_offsets) const override {
    return decode(ctx, target, {}, &memory, [&target, memory, memory_offsets](Context& ctx, const DecoderLayer& layer, const Tensor& h) {
      return layer.cross_attention(ctx, h, target, memory, memory_offsets);
    });
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    if (decoder_.empty()) return encode(ctx, batch);
    if (!encoder_.empty()) return EncoderDecoder::forward(ctx, batch, caches);
    return decode(ctx, batch, caches, nullptr, [](Context&, const DecoderLayer&, const Tensor& h) { return h; });
  }

  Tensor head(Context& ctx, const Tensor& states) const override {
    if (info_.head == HeadKind::kNone) return Model::head(ctx, states);
    return linear(ctx, states, config_.tied ? target_embedding() : head_, logits_bias_);
  }

  Tensor final_norm(Context& ctx, const Tensor& states) const override {
    return normed(ctx, decoder_.empty() ? encoder_side_ : decoder_side_, states);
  }

 private:
  using Positions = TransformerConfig::Positions;

  const Weight& target_embedding() const {
    const Side& side = decoder_.empty() ? encoder_side_ : decoder_side_;
    return side.own_embedding.present() ? side.own_embedding : shared_embedding_;
  }

  Tensor normed(Context& ctx, const Side& side, const Tensor& x) const { return config_.final_norm ? side.final_norm(ctx, x) : x; }

  Tensor embed(Context& ctx, const Batch& batch, const Side& side) const {
    const Weight& table = side.own_embedding.present() ? side.own_embedding : shared_embedding_;
    Tensor x = embedding(ctx, batch.tokens, table, config_.embedding_scale);
    if (config_.positions == Positions::kLearned) {
      std::vector<int32_t> rows(batch.positions.begin(), batch.positions.end());
      for (int32_t& row : rows) row += static_cast<int32_t>(config_.position_offset);
      x = add(ctx, x, embedding(ctx, rows, side.position_embedding));
    } else if (config_.positions != Positions::kNone) {
      x = add(ctx, x, sinusoids_(ctx, batch.positions));
    }
    return dropout(ctx, config_.embedding_norm ? side.embedding_norm(ctx, x) : x);
  }

  template <class LookAtSource>
  Tensor decode(Context& ctx, const Batch& target, Caches self, const Tensor* memory, const LookAtSource& look_at_source) const {
    const Site hidden = encoder_.empty() ? Site::kHidden : Site::kDecoderHidden;
    Tensor x = embed(ctx, target, decoder_side_);  // (T, D)
    ctx.observe(hidden, 0, x);
    for (size_t l = 0; l < decoder_.size(); ++l) {
      const DecoderLayer& layer = decoder_[l];
      const auto block = [this, &layer, &target, self, look_at_source](Context& ctx, Tensor x) {
        x = layer.residual_1(ctx, x, [&](const Tensor& h) { return layer.attention(ctx, h, target, self); });
        if (!encoder_.empty()) x = layer.residual_2(ctx, x, [&](const Tensor& h) { return look_at_source(ctx, layer, h); });
        return layer.residual_3(ctx, x, [&](const Tensor& h) { return layer.feed_forward(ctx, h); });
      };
      x = checkpointed(ctx, x, block, memory);
      if (l + 1 < decoder_.size()) ctx.observe(hidden, l + 1, x);
    }
    x = normed(ctx, decoder_side_, x);
    ctx.observe(hidden, decoder_.size(), x);
    return x;
  }

  void build() {
    const TransformerConfig& c = config_;
    const auto norm = [&] { return Norm::layer(c.D, c.eps); };
    const auto residual = [&] { return Residual{norm(), c.order, c.residual}; };
    const auto self_attention = [&](size_t l, const kernels::AttentionShape& shape, Site site) {
      SelfAttention attention(l, c.D, shape, true, true);
      if (c.scale != 0) attention.core.scale = c.scale;
      attention.core.site = site;
      return attention;
    };
    const bool both = c.encoder_layers != 0 && c.decoder_layers != 0;
    encoder_.resize(c.encoder_layers);
    for (size_t l = 0; l < encoder_.size(); ++l) {
      EncoderLayer& layer = encoder_[l];
      const Site site = both ? Site::kEncoderAttention : Site::kAttention;
      layer.residual_1 = residual();
      layer.residual_2 = residual();
      layer.attention = self_attention(l, c.encoder_shape, site);
      layer.attention.core.causal = false;
      layer.feed_forward = FeedForward(c.activation, false, c.D, c.encoder_inner, true, l, site);
    }
    decoder_.resize(c.decoder_layers);
    for (size_t l = 0; l < decoder_.size(); ++l) {
      DecoderLayer& layer = decoder_[l];
      const Site site = both ? Site::kDecoderAttention : Site::kAttention;
      layer.residual_1 = residual();
      if (both) {
        layer.residual_2 = residual();
        layer.cross_attention = CrossAttention(l, c.D, c.decoder_shape, true);
        if (c.scale != 0) layer.cross_attention.core.scale = c.scale;
      }
      layer.residual_3 = residual();
      layer.attention = self_attention(l, c.decoder_shape, site);
      layer.feed_forward = FeedForward(c.activation, false, c.D, c.decoder_inner, true, l, site);
    }
    const auto side = [&](size_t own_vocabulary) {
      Side made;
      if (own_vocabulary != 0) made.own_embedding = Weight::vocabulary(own_vocabulary, c.D);
      if (c.positions == Positions::kLearned) made.position_embedding = Weight::table(c.context + c.position_offset, c.D);
      if (c.embedding_norm) made.embedding_norm = norm();
      if (c.final_norm) made.final_norm = norm();
      return made;
    };
    if (!encoder_.empty()) encoder_side_ = side(c.source_vocab_size);
    if (!decoder_.empty()) decoder_side_ = side(c.source_vocab_size != 0 ? c.vocab_size : 0);
    if (c.source_vocab_size == 0) shared_embedding_ = Weight::vocabulary(c.vocab_size, c.D);
    if (!c.tied) head_ = Weight::vocabulary(c.vocab_size, c.D);
    if (c.logits_bias) logits_bias_ = Weight::constant(c.vocab_size);
    if (c.positions == Positions::kSinusoids) sinusoids_ = Sinusoids(c.D);
    if (c.positions == Positions::kHalves) sinusoids_ = Sinusoids::halves(c.D);
    if (c.positions == Positions::kSpread) sinusoids_ = Sinusoids::spread(c.D, c.position_offset);

    encoder_layers_ = encoder_.size();
    encoder_heads_ = c.encoder_shape.H;
    describe();
  }

  void describe() {
    const TransformerConfig& c = config_;
    const kernels::AttentionShape& shape = decoder_.empty() ? c.encoder_shape : c.decoder_shape;
    const bool learned = c.positions == Positions::kLearned;
    info_.architecture = c.architecture;
    info_.layers = decoder_.empty() ? encoder_.size() : decoder_.size();
    info_.heads = info_.kv_heads = shape.H;
    info_.head_size = shape.Dk;
    info_.hidden_size = c.D;
    info_.vocab_size = c.vocab_size;
    info_.positions = learned ? "learned" : c.positions == Positions::kNone ? "none" : "sinusoidal";
    info_.context = c.context;
    info_.positions_are_a_wall = learned;
    info_.position_rule = c.position_rule;
    info_.padding = c.padding;
    info_.encoder_only = decoder_.empty();
    info_.head = decoder_.empty() ? c.head : HeadKind::kLanguage;
    info_.source_vocab_size = encoder_decoder() != nullptr ? c.source_vocab_size : 0;
    cache_shape_ = shape;
    windows_.assign(decoder_.size(), 0);
  }

  void name_weights() {
    const std::string base = parameters_.prefix();
    const bool encoder_only = decoder_.empty();
    if (shared_embedding_.present()) {
      parameters_.weight(base + "shared.weight", shared_embedding_,
                         join(base, encoder_only ? "encoder" : "decoder", ".embed_tokens.weight"));
    }
    name_side(base + "encoder.", encoder_side_);
    for (size_t l = 0; l < encoder_.size(); ++l) {
      EncoderLayer& layer = encoder_[l];
      const std::string at = join(base, "encoder.layers.", l, ".");
      name_self_attention(at + "self_attn", layer.attention, layer.residual_1.norm);
      name_feed_forward(at, layer.feed_forward, layer.residual_2.norm);
    }
    name_side(base + "decoder.", decoder_side_);
    for (size_t l = 0; l < decoder_.size(); ++l) {
      DecoderLayer& layer = decoder_[l];
      const std::string at = join(base, "decoder.layers.", l, ".");
      name_self_attention(at + "self_attn", layer.attention, layer.residual_1.norm);
      if (!encoder_.empty()) {
        const auto& [H, Hk, Dk, Dv] = layer.cross_attention.core.shape;
        parameters_.linear(at + "encoder_attn.q_proj", layer.cross_attention.query);
        parameters_.linear_rows(at + "encoder_attn.k_proj", layer.cross_attention.key_value, 0, Hk * Dk);
        parameters_.linear_rows(at + "encoder_attn.v_proj", layer.cross_attention.key_value, Hk * Dk, Hk * Dv);
        parameters_.linear(at + "encoder_attn.out_proj", layer.cross_attention.output);
        parameters_.norm(at + "encoder_attn_layer_norm", layer.residual_2.norm);
      }
      name_feed_forward(at, layer.feed_forward, layer.residual_3.norm);
    }
    parameters_.weight("lm_head.weight", head_);
    if (logits_bias_.present()) {
      const size_t begin = parameters_.list().size();
      parameters_.row("final_logits_bias", logits_bias_);
      parameters_.optional_from(begin, kAddLogitsBias);
    }
  }

  void name_side(const std::string& at, Side& side) {
    parameters_.weight(at + "embed_tokens.weight", side.own_embedding);
    parameters_.weight(at + "embed_positions.weight", side.position_embedding);
    parameters_.norm(at + "layernorm_embedding", side.embedding_norm);
    parameters_.norm(at + "layer_norm", side.final_norm);
  }

  void name_self_attention(const std::string& at, SelfAttention& attention, Norm& norm) {
    const auto& [H, Hk, Dk, Dv] = attention.core.shape;
    parameters_.linear_rows(at + ".q_proj", attention.qkv, 0, H * Dk);
    parameters_.linear_rows(at + ".k_proj", attention.qkv, H * Dk, Hk * Dk);
    parameters_.linear_rows(at + ".v_proj", attention.qkv, (H + Hk) * Dk, Hk * Dv);
    parameters_.linear(at + ".out_proj", attention.output);
    parameters_.norm(at + "_layer_norm", norm);
  }

  void name_feed_forward(const std::string& at, FeedForward& feed_forward, Norm& norm) {
    parameters_.linear(at + "fc1", feed_forward.up);
    parameters_.linear(at + "fc2", feed_forward.down);
    parameters_.norm(at + "final_layer_norm", norm);
  }

  TransformerConfig config_;
  Weight shared_embedding_;  // (V, D), of both sides
  Sinusoids sinusoids_;
  Side encoder_side_, decoder_side_;
  std::vector<EncoderLayer> encoder_;
  std::vector<DecoderLayer> decoder_;
  Weight head_;         // (V, D), absent when tied
  Weight logits_bias_;  // (V), or absent
};

}  // namespace

std::unique_ptr<Model> build_transformer(const TransformerConfig& config) { return std::make_unique<Transformer>(config); }

}  // namespace wf
