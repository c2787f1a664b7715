// BLOOM. Decoder-only, pre-norm, no positions but linear biases on the scores (ALiBi), a norm behind the embedding, head tied
// (BigScience 2022).
#include "models/fields.hpp"
#include "models/model.hpp"
#include "nn/checkpoint.hpp"
#include "nn/feed_forward.hpp"
#include "nn/residual.hpp"

namespace wf {

namespace {

struct Block {
  Residual residual_1, residual_2;
  SelfAttention attention;
  FeedForward feed_forward;
};

class Bloom final : public Model {
 public:
  explicit Bloom(const Config& config) : Model("transformer.") {
    configure(config);
    name_weights();
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    Tensor x = embedding_norm_(ctx, embedding(ctx, batch.tokens, token_embedding_));  // (T, D)
    ctx.observe(Site::kHidden, 0, x);
    for (size_t l = 0; l < blocks_.size(); ++l) {
      const Block& block = blocks_[l];
      x = checkpointed(ctx, x, [&block, &batch, caches](Context& ctx, Tensor x) {
        x = block.residual_1(ctx, x, [&](const Tensor& h) { return block.attention(ctx, h, batch, caches); });
        return block.residual_2(ctx, x, [&](const Tensor& h) { return block.feed_forward(ctx, h); });
      });
      if (l + 1 < blocks_.size()) ctx.observe(Site::kHidden, l + 1, x);
    }
    x = final_norm(ctx, x);
    ctx.observe(Site::kHidden, blocks_.size(), x);
    return x;
  }

  Tensor final_norm(Context& ctx, const Tensor& states) const override { return final_norm_(ctx, states); }

  Tensor head(Context& ctx, const Tensor& states) const override { return linear(ctx, states, tied_ ? token_embedding_ : head_, Weight()); }

 private:
  void configure(const Config& config) {
    const auto width = first_present(config, {"hidden_size", "n_embed"}), heads = first_present(config, {"n_head", "num_attention_heads"});
    const size_t D = dimension(config, width, 64), H = head_count(config, heads, 8), V = vocabulary(config, 250880);
    const size_t head_size = divided(D, width, H, heads);
    const float eps = epsilon(config, "layer_norm_epsilon", 1e-5);
    const auto order = config.boolean("apply_residual_connection_post_layernorm", false) ? Residual::Order::kNormed : Residual::Order::kPre;

    token_embedding_ = Weight::vocabulary(V, D);
    embedding_norm_ = Norm::layer(D, eps);
    blocks_.resize(layer_count(config, first_present(config, {"n_layer", "num_hidden_layers"}), 2));
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      block.residual_1 = {Norm::layer(D, eps), order};
      block.residual_2 = {Norm::layer(D, eps), order};
      block.attention = SelfAttention(l, D, H, H, head_size, true, true);
      block.attention.core.slopes = alibi_slopes(H);
      block.feed_forward = FeedForward(kernels::Activation::kGeluTanh, false, D, 4 * D, true, l);
    }
    final_norm_ = Norm::layer(D, eps);
    tied_ = config.boolean("tie_word_embeddings", true);
    if (!tied_) head_ = Weight::vocabulary(V, D);

    info_ = {"bloom", blocks_.size(), H, H, head_size, D, V, "alibi", config.size("seq_length", 0), false};
    cache_shape_ = {H, H, head_size, head_size};
    windows_.assign(blocks_.size(), 0);
  }

  void name_weights() {
    const std::string base = parameters_.prefix();
    parameters_.weight(base + "word_embeddings.weight", token_embedding_);
    parameters_.norm(base + "word_embeddings_layernorm", embedding_norm_);
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      const std::string at = join(base, "h.", l, ".");
      parameters_.norm(at + "input_layernorm", block.residual_1.norm);
      parameters_.linear_by_head(at + "self_attention.query_key_value", block.attention.qkv, info_.heads, 3);
      parameters_.linear(at + "self_attention.dense", block.attention.output);
      parameters_.norm(at + "post_attention_layernorm", block.residual_2.norm);
      parameters_.linear(at + "mlp.dense_h_to_4h", block.feed_forward.up);
      parameters_.linear(at + "mlp.dense_4h_to_h", block.feed_forward.down);
    }
    parameters_.norm(base + "ln_f", final_norm_);
    parameters_.weight("lm_head.weight", head_);
  }

  Weight token_embedding_;  // (V, D)
  Norm embedding_norm_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  Weight head_;  // (V, D), absent when tied
  bool tied_ = true;
};

}  // namespace

std::unique_ptr<Model> make_bloom(const Config& config) { return std::make_unique<Bloom>(config); }

}  // namespace wf
