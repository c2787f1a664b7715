// The LLaMA kit: decoder-only, pre-norm with RMSNorm, rotary positions, gated feed-forward, grouped key/value heads
// (Touvron et al. 2023). LLaMA, Mistral, Qwen2, Qwen3 and Gemma differ in values only.
#include <cmath>

#include "core/error.hpp"
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

// What model_type decides where config.json is silent, and what only it decides.
struct Family {
  bool qkv_bias = false;    // Qwen2
  bool head_norms = false;  // Qwen3: RMSNorm of each query and key head
  bool tied = false;
  bool is_gemma = false;  // embeddings times sqrt(D), norm weights stored as w - 1
  double eps = 1e-6;
  size_t head_size = 0;  // 0: D / H
  const char* act = "silu";
};

Family family_of(const std::string& type) {
  Family family;
  if (type == "qwen2") family.qkv_bias = true;
  if (type == "qwen3") {
    family.head_norms = true;
    family.head_size = 128;
  }
  if (type == "gemma") {
    family.is_gemma = family.tied = true;
    family.head_size = 256;
    family.act = "gelu_pytorch_tanh";
  }
  return family;
}

class Llama final : public Model {
 public:
  explicit Llama(const Config& config) : Model("model.") {
    configure(config);
    name_weights();
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    Tensor x = dropout(ctx, embedding(ctx, batch.tokens, token_embedding_, embedding_scale_));  // (T, D)
    const Rope::Angles angles = rope_.angles(ctx, batch);
    ctx.observe(Site::kHidden, 0, x);
    for (size_t l = 0; l < blocks_.size(); ++l) {
      const Block& block = blocks_[l];
      x = checkpointed(ctx, x, [this, &block, &batch, caches, angles](Context& ctx, Tensor x) {
        x = block.residual_1(ctx, x, [&](const Tensor& h) { return block.attention(ctx, h, batch, caches, &rope_, &angles); });
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
    const std::string type = config.string("model_type");
    const Family family = family_of(type);
    const size_t D = dimension(config, "hidden_size"), H = head_count(config, "num_attention_heads", 0), V = vocabulary(config, 32000);
    const size_t Hk = head_count(config, "num_key_value_heads", H);
    divided(H, "num_attention_heads", Hk, "num_key_value_heads");
    const size_t head_size = config.has("head_dim") || family.head_size != 0 ? dimension(config, "head_dim", family.head_size)
                                                                             : divided(D, "hidden_size", H, "num_attention_heads");
    if (H * head_size > size_t{1} << 20) config.reject("head_dim", join("at most 2^20 / num_attention_heads (", H, ")"));
    const size_t positions = dimension(config, "max_position_embeddings", 2048);
    const float eps = epsilon(config, "rms_norm_eps", family.eps);
    const size_t inner = dimension(config, "intermediate_size");
    const bool attention_bias = config.boolean("attention_bias", false), inner_bias = config.boolean("mlp_bias", false);
    // Old Gemma files say "gelu" and mean its tanh form; the field of theirs that counts is hidden_activation.
    auto act = activation(config, config.has("hidden_activation") ? "hidden_activation" : "hidden_act", family.act);
    if (family.is_gemma && act == kernels::Activation::kGelu) act = kernels::Activation::kGeluTanh;
    const float offset = family.is_gemma ? 1 : 0;

    token_embedding_ = Weight::vocabulary(V, D);
    embedding_scale_ = family.is_gemma ? std::sqrt(static_cast<float>(D)) : 1;
    rope_ = Rope(config, head_size, positions, 10000);
    blocks_.resize(layer_count(config, "num_hidden_layers", 32));
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      block.residual_1 = {Norm::rms(D, eps, offset)};
      block.residual_2 = {Norm::rms(D, eps, offset)};
      block.attention = SelfAttention(l, D, H, Hk, head_size, attention_bias || family.qkv_bias, attention_bias);
      block.attention.core.window = window_of(config, type, l);
      if (family.head_norms) {
        block.attention.query_norm = Norm::rms(head_size, eps);
        block.attention.key_norm = Norm::rms(head_size, eps);
      }
      block.feed_forward = FeedForward(act, true, D, inner, inner_bias, l);
      windows_.push_back(block.attention.core.window);
    }
    final_norm_ = Norm::rms(D, eps, offset);
    tied_ = config.boolean("tie_word_embeddings", family.tied);
    if (!tied_) head_ = Weight::vocabulary(V, D);

    info_ = {type, blocks_.size(), H, Hk, head_size, D, V, "rope", positions, false};
    cache_shape_ = {H, Hk, head_size, head_size};
  }

  // Positions a query of that layer sees; 0: all.
  static size_t window_of(const Config& config, const std::string& type, size_t layer) {
    size_t window = 0;
    if (type == "mistral") window = config.is_null("sliding_window") ? 0 : dimension(config, "sliding_window", 4096);
    if (type == "qwen2" || type == "qwen3") {
      if (!config.boolean("use_sliding_window", false) || config.is_null("sliding_window")) return 0;
      window = dimension(config, "sliding_window", 4096);
      if (!config.has("layer_types")) return layer >= config.size("max_window_layers", 28) ? window : 0;
    }
    const std::vector<std::string> types = config.strings("layer_types");
    if (types.empty() || type == "mistral") return window;
    if (layer >= types.size() || (types[layer] != "full_attention" && types[layer] != "sliding_attention")) {
      fail(Code::kUnsupported, "config.json", "layer_types: expected full_attention or sliding_attention for layer ", layer, ", got ",
           layer < types.size() ? "'" + types[layer] + "'" : "nothing");
    }
    if (types[layer] == "full_attention") return 0;
    if (window == 0) fail(Code::kUnsupported, "config.json", "layer_types: sliding_attention in a ", type, " model without a window");
    return window;
  }

  void name_weights() {
    const std::string base = parameters_.prefix();
    parameters_.weight(base + "embed_tokens.weight", token_embedding_);
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block& block = blocks_[l];
      const std::string at = join(base, "layers.", l, ".");
      const size_t queries = info_.heads * info_.head_size, keys = info_.kv_heads * info_.head_size;
      const size_t inner = block.feed_forward.down.weight.cols();
      parameters_.norm(at + "input_layernorm", block.residual_1.norm);
      parameters_.linear_rows(at + "self_attn.q_proj", block.attention.qkv, 0, queries);
      parameters_.linear_rows(at + "self_attn.k_proj", block.attention.qkv, queries, keys);
      parameters_.linear_rows(at + "self_attn.v_proj", block.attention.qkv, queries + keys, keys);
      parameters_.norm(at + "self_attn.q_norm", block.attention.query_norm);
      parameters_.norm(at + "self_attn.k_norm", block.attention.key_norm);
      parameters_.linear(at + "self_attn.o_proj", block.attention.output);
      parameters_.norm(at + "post_attention_layernorm", block.residual_2.norm);
      parameters_.linear_rows(at + "mlp.gate_proj", block.feed_forward.up, 0, inner);
      parameters_.linear_rows(at + "mlp.up_proj", block.feed_forward.up, inner, inner);
      parameters_.linear(at + "mlp.down_proj", block.feed_forward.down);
    }
    parameters_.norm(base + "norm", final_norm_);
    parameters_.weight("lm_head.weight", head_);
  }

  Weight token_embedding_;  // (V, D)
  float embedding_scale_ = 1;
  Rope rope_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  Weight head_;  // (V, D), absent when tied
  bool tied_ = false;
};

}  // namespace

std::unique_ptr<Model> make_llama(const Config& config) { return std::make_unique<Llama>(config); }

}  // namespace wf
