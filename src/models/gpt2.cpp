// GPT-2. Decoder-only, pre-norm, learned positions, head tied to the token embedding (Radford et al. 2019).
#include <cmath>

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

class Gpt2 final : public Model {
 public:
  explicit Gpt2(const Config& config) : Model("transformer.") {
    configure(config);
    name_weights();
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    Tensor x = add(ctx, embedding(ctx, batch.tokens, token_embedding_), embedding(ctx, batch.positions, position_embedding_));  // (T, D)
    x = dropout(ctx, x);
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
    expect_flag(config, "add_cross_attention", false);
    const size_t D = dimension(config, "n_embd", 768), H = head_count(config, "n_head", 12), V = vocabulary(config, 50257);
    const size_t head_size = divided(D, "n_embd", H, "n_head");
    const size_t positions = dimension(config, "n_positions", config.size("n_ctx", 1024));
    const size_t inner = dimension(config, "n_inner", 4 * D);
    const float eps = epsilon(config, "layer_norm_epsilon", 1e-5);
    const auto act = activation(config, "activation_function", "gelu_new");
    const bool scaled = config.boolean("scale_attn_weights", true), by_layer = config.boolean("scale_attn_by_inverse_layer_idx", false);

    token_embedding_ = Weight::vocabulary(V, D);
    position_embedding_ = Weight::table(positions, D);
    blocks_.resize(layer_count(config, "n_layer", 12));
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      block.residual_1 = {Norm::layer(D, eps)};
      block.residual_2 = {Norm::layer(D, eps)};
      block.attention = SelfAttention(l, D, H, H, head_size, true, true);
      if (!scaled) block.attention.core.scale = 1;
      if (by_layer) block.attention.core.scale /= static_cast<float>(l + 1);
      block.feed_forward = FeedForward(act, false, D, inner, true, l);
    }
    final_norm_ = Norm::layer(D, eps);
    tied_ = config.boolean("tie_word_embeddings", true);
    if (!tied_) head_ = Weight::vocabulary(V, D);

    info_ = {"gpt2", blocks_.size(), H, H, head_size, D, V, "learned", positions, true};
    cache_shape_ = {H, H, head_size, head_size};
    windows_.assign(blocks_.size(), 0);
  }

  void name_weights() {
    const std::string base = parameters_.prefix();
    parameters_.weight(base + "wte.weight", token_embedding_);
    parameters_.weight(base + "wpe.weight", position_embedding_);
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      const std::string at = join(base, "h.", l, ".");
      parameters_.norm(at + "ln_1", block.residual_1.norm);
      parameters_.linear_transposed(at + "attn.c_attn", block.attention.qkv);
      parameters_.linear_transposed(at + "attn.c_proj", block.attention.output);
      parameters_.norm(at + "ln_2", block.residual_2.norm);
      parameters_.linear_transposed(at + "mlp.c_fc", block.feed_forward.up);
      parameters_.linear_transposed(at + "mlp.c_proj", block.feed_forward.down);
    }
    parameters_.norm(base + "ln_f", final_norm_);
    parameters_.weight("lm_head.weight", head_);
  }

  Weight token_embedding_;     // (V, D)
  Weight position_embedding_;  // (positions, D)
  std::vector<Block> blocks_;
  Norm final_norm_;
  Weight head_;  // (V, D), absent when tied
  bool tied_ = true;
};

}  // namespace

std::unique_ptr<Model> make_gpt2(const Config& config) { return std::make_unique<Gpt2>(config); }

}  // namespace wf
