// OPT. Decoder-only, pre-norm (350m: post-norm, with narrower embeddings projected in and out), learned positions counted from
// the third row of their table, head tied (Zhang et al. 2022).
#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/model.hpp"
#include "nn/checkpoint.hpp"
#include "nn/feed_forward.hpp"
#include "nn/residual.hpp"

namespace wf {

namespace {

constexpr int32_t kPositionOffset = 2;

struct Block {
  Residual residual_1, residual_2;
  SelfAttention attention;
  FeedForward feed_forward;
};

class Opt final : public Model {
 public:
  explicit Opt(const Config& config) : Model("model.decoder.") {
    configure(config);
    name_weights();
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    Tensor x = embedding(ctx, batch.tokens, token_embedding_);  // (T, embedding width)
    if (project_in_.weight.present()) x = project_in_(ctx, x);  // (T, D)
    x = add(ctx, x, position_embedding(ctx, batch));
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
    if (project_out_.weight.present()) x = project_out_(ctx, x);
    ctx.observe(Site::kHidden, blocks_.size(), x);
    return x;
  }

  Tensor final_norm(Context& ctx, const Tensor& states) const override { return has_final_norm_ ? final_norm_(ctx, states) : states; }

  Tensor head(Context& ctx, const Tensor& states) const override { return linear(ctx, states, tied_ ? token_embedding_ : head_, Weight()); }

 private:
  Tensor position_embedding(Context& ctx, const Batch& batch) const {
    auto* rows = reinterpret_cast<int32_t*>(ctx.arena.floats(batch.positions.size()));
    for (size_t t = 0; t < batch.positions.size(); ++t) rows[t] = batch.positions[t] + kPositionOffset;
    return embedding(ctx, {rows, batch.positions.size()}, position_embedding_);
  }

  void configure(const Config& config) {
    const size_t D = dimension(config, "hidden_size", 768), H = head_count(config, "num_attention_heads", 12),
                 V = vocabulary(config, 50272);
    const size_t head_size = divided(D, "hidden_size", H, "num_attention_heads");
    const size_t positions = dimension(config, "max_position_embeddings", 2048), inner = dimension(config, "ffn_dim", 3072);
    const size_t width = dimension(config, "word_embed_proj_dim", D);
    const bool pre_norm = config.boolean("do_layer_norm_before", true), bias = config.boolean("enable_bias", true);
    const bool affine = config.boolean("layer_norm_elementwise_affine", true);
    const auto act = activation(config, "activation_function", "relu");
    const auto order = pre_norm ? Residual::Order::kPre : Residual::Order::kPost;
    const auto norm = [&] { return affine ? Norm::layer(D, 1e-5f) : Norm{}; };

    token_embedding_ = Weight::vocabulary(V, width);
    position_embedding_ = Weight::table(positions + kPositionOffset, D);
    if (width != D) {
      project_in_ = Linear(D, width, false);
      project_out_ = Linear(width, D, false);
    }
    blocks_.resize(layer_count(config, "num_hidden_layers", 12));
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      block.residual_1 = {norm(), order};
      block.residual_2 = {norm(), order};
      block.attention = SelfAttention(l, D, H, H, head_size, bias, bias);
      block.feed_forward = FeedForward(act, false, D, inner, bias, l);
    }
    has_final_norm_ = pre_norm && !config.boolean("_remove_final_layer_norm", false);
    final_norm_ = has_final_norm_ ? norm() : Norm{};
    tied_ = config.boolean("tie_word_embeddings", true);
    if (!tied_) head_ = Weight::vocabulary(V, width);

    info_ = {"opt", blocks_.size(), H, H, head_size, D, V, "learned", positions, true, PositionRule::kVisible};
    cache_shape_ = {H, H, head_size, head_size};
    windows_.assign(blocks_.size(), 0);
  }

  void name_weights() {
    const std::string base = parameters_.prefix();
    parameters_.weight(base + "embed_tokens.weight", token_embedding_);
    parameters_.weight(base + "embed_positions.weight", position_embedding_);
    parameters_.weight(base + "project_in.weight", project_in_.weight);
    parameters_.weight(base + "project_out.weight", project_out_.weight);
    const size_t D = info_.hidden_size;
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      const std::string at = join(base, "layers.", l, ".");
      parameters_.linear_rows(at + "self_attn.q_proj", block.attention.qkv, 0, D);
      parameters_.linear_rows(at + "self_attn.k_proj", block.attention.qkv, D, D);
      parameters_.linear_rows(at + "self_attn.v_proj", block.attention.qkv, 2 * D, D);
      parameters_.linear(at + "self_attn.out_proj", block.attention.output);
      parameters_.norm(at + "self_attn_layer_norm", block.residual_1.norm);
      parameters_.linear(at + "fc1", block.feed_forward.up);
      parameters_.linear(at + "fc2", block.feed_forward.down);
      parameters_.norm(at + "final_layer_norm", block.residual_2.norm);
    }
    parameters_.norm(base + "final_layer_norm", final_norm_);
    parameters_.weight("lm_head.weight", head_);
  }

  Weight token_embedding_;     // (V, embedding width)
  Weight position_embedding_;  // (positions + 2, D)
  Linear project_in_, project_out_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  bool has_final_norm_ = true;
  Weight head_;  // (V, embedding width), absent when tied
  bool tied_ = true;
};

}  // namespace

std::unique_ptr<Model> make_opt(const Config& config) { return std::make_unique<Opt>(config); }

}  // namespace wf
