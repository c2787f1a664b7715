// GPT-NeoX and Pythia. Decoder-only, pre-norm with LayerNorm, partial rotary positions, attention and feed-forward side by side
// or one after the other (Black et al. 2022; Biderman et al. 2023).
#include "models/fields.hpp"
#include "models/model.hpp"
#include "nn/checkpoint.hpp"
#include "nn/feed_forward.hpp"
#include "nn/residual.hpp"

namespace wf {

namespace {

struct Block {
  ResidualPair residual;
  SelfAttention attention;
  FeedForward feed_forward;
};

class GptNeox final : public Model {
 public:
  explicit GptNeox(const Config& config) : Model("gpt_neox.") {
    configure(config);
    name_weights();
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    Tensor x = embedding(ctx, batch.tokens, token_embedding_);  // (T, D)
    const Rope::Angles angles = rope_.angles(ctx, batch);
    ctx.observe(Site::kHidden, 0, x);
    for (size_t l = 0; l < blocks_.size(); ++l) {
      const Block& block = blocks_[l];
      x = checkpointed(ctx, x, [this, &block, &batch, caches, angles](Context& ctx, const Tensor& x) {
        return block.residual(
            ctx, x, [&](const Tensor& h) { return block.attention(ctx, h, batch, caches, &rope_, &angles); },
            [&](const Tensor& h) { return block.feed_forward(ctx, h); });
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
    const size_t D = dimension(config, "hidden_size", 6144), H = head_count(config, "num_attention_heads", 64),
                 V = vocabulary(config, 50432);
    const size_t head_size = divided(D, "hidden_size", H, "num_attention_heads");
    const size_t positions = dimension(config, "max_position_embeddings", 2048), inner = dimension(config, "intermediate_size", 24576);
    const float eps = epsilon(config, "layer_norm_eps", 1e-5);
    const auto act = activation(config, "hidden_act", "gelu");
    const bool bias = config.boolean("attention_bias", true), parallel = config.boolean("use_parallel_residual", true);

    token_embedding_ = Weight::vocabulary(V, D);
    rope_ = Rope(config, head_size, positions, config.number("rotary_emb_base", 10000), config.number("rotary_pct", 0.25));
    blocks_.resize(layer_count(config, "num_hidden_layers", 44));
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      block.residual = {Norm::layer(D, eps), Norm::layer(D, eps), parallel};
      block.attention = SelfAttention(l, D, H, H, head_size, bias, bias);
      block.feed_forward = FeedForward(act, false, D, inner, true, l);
    }
    final_norm_ = Norm::layer(D, eps);
    tied_ = config.boolean("tie_word_embeddings", false);
    if (!tied_) head_ = Weight::vocabulary(V, D);

    info_ = {"gpt_neox", blocks_.size(), H, H, head_size, D, V, "rope", positions, false};
    cache_shape_ = {H, H, head_size, head_size};
    windows_.assign(blocks_.size(), 0);
  }

  void name_weights() {
    const std::string base = parameters_.prefix();
    parameters_.weight(base + "embed_in.weight", token_embedding_);
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      const std::string at = join(base, "layers.", l, ".");
      parameters_.norm(at + "input_layernorm", block.residual.norm_1);
      parameters_.norm(at + "post_attention_layernorm", block.residual.norm_2);
      parameters_.linear_by_head(at + "attention.query_key_value", block.attention.qkv, info_.heads, 3);
      parameters_.linear(at + "attention.dense", block.attention.output);
      parameters_.linear(at + "mlp.dense_h_to_4h", block.feed_forward.up);
      parameters_.linear(at + "mlp.dense_4h_to_h", block.feed_forward.down);
    }
    parameters_.norm(base + "final_layer_norm", final_norm_);
    parameters_.weight("embed_out.weight", head_, "lm_head.weight");
  }

  Weight token_embedding_;  // (V, D)
  Rope rope_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  Weight head_;  // (V, D), absent when tied
  bool tied_ = false;
};

}  // namespace

std::unique_ptr<Model> make_gpt_neox(const Config& config) { return std::make_unique<GptNeox>(config); }

}  // namespace wf
