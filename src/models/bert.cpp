// Encoders in which every token sees the whole text, and their heads: BERT (Devlin et al. 2019), DistilBERT (Sanh et al. 2019),
// RoBERTa (Liu et al. 2019) with XLM-RoBERTa and CamemBERT, ALBERT (Lan et al. 2020). Post-norm, learned positions.
#include "models/bert.hpp"

#include <vector>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "models/model.hpp"
#include "nn/checkpoint.hpp"
#include "nn/feed_forward.hpp"
#include "nn/residual.hpp"

namespace wf {

namespace {

// The keys by which a configuration does without a part that some published files lack.
constexpr const char *kAddPooler = "add_pooling_layer", *kAddHead = "add_lm_head";

HeadKind head_of(const Config& config) {
  const auto architectures = config.strings("architectures");
  if (architectures.empty()) return HeadKind::kNone;
  const std::string& name = architectures.front();
  if (name.ends_with("Model") && !name.ends_with("HeadModel")) return HeadKind::kNone;
  if (name.ends_with("ForMaskedLM") || name.ends_with("ForPreTraining")) {
    return config.boolean(kAddHead, true) ? HeadKind::kMaskedLanguage : HeadKind::kNone;
  }
  if (name.ends_with("ForSequenceClassification")) return HeadKind::kSequence;
  if (name.ends_with("ForTokenClassification")) return HeadKind::kToken;
  if (name.ends_with("ForQuestionAnswering")) return HeadKind::kQuestion;
  fail(Code::kUnsupported, config.where(),
       "architectures: expected ...Model, ...ForMaskedLM, ...ForPreTraining, ...ForSequenceClassification, ...ForTokenClassification or "
       "...ForQuestionAnswering, got '",
       name, "'");
}

struct Block {
  Residual residual_1, residual_2;
  SelfAttention attention;
  FeedForward feed_forward;
};

class Bert final : public Model {
 public:
  Bert(const Config& config, const EncoderFamily& family) : Model(family.prefix), family_(family) {
    configure(config);
    name_weights();
  }

  Tensor forward(Context& ctx, const Batch& batch, Caches caches) const override {
    if (!caches.empty()) fail(Code::kUnsupported, info_.architecture, "cache: expected none, since every token sees those after it");
    Tensor x = embed(ctx, batch);
    if (family_.shares_layers) x = widen_(ctx, x);  // (T, D)
    ctx.observe(Site::kHidden, 0, x);
    for (size_t l = 0; l < order_.size(); ++l) {
      const Block& block = blocks_[order_[l]];
      ctx.layer_shift = l - order_[l];
      x = checkpointed(ctx, x, [&block, &batch](Context& ctx, Tensor x) {
        x = block.residual_1(ctx, x, [&](const Tensor& h) { return block.attention(ctx, h, batch, {}); });
        return block.residual_2(ctx, x, [&](const Tensor& h) { return block.feed_forward(ctx, h); });
      });
      ctx.observe(Site::kHidden, l + 1, x);
    }
    ctx.layer_shift = 0;
    return x;
  }

  Tensor head(Context& ctx, const Tensor& states) const override {
    if (info_.head == HeadKind::kToken || info_.head == HeadKind::kQuestion) return classifier_(ctx, states);
    if (info_.head != HeadKind::kMaskedLanguage) return Model::head(ctx, states);
    const Tensor h = activate(ctx, transform_activation_, transform_(ctx, states));
    return linear(ctx, transform_norm_(ctx, h), tied_ ? word_embedding_ : decoder_, decoder_bias_);
  }

  Tensor classify(Context& ctx, const Tensor& states, std::span<const size_t> offsets) const override {
    if (info_.head != HeadKind::kSequence) return Model::classify(ctx, states, offsets);
    return classifier_(ctx, summarize(ctx, states, offsets));
  }

  Tensor pool(Context& ctx, const Tensor& states, std::span<const size_t> offsets) const override {
    return info_.has_pooler ? summarize(ctx, states, offsets) : Model::pool(ctx, states, offsets);
  }

 private:
  Tensor embed(Context& ctx, const Batch& batch) const {
    Tensor x = embedding(ctx, batch.tokens, word_embedding_);  // (T, E)
    if (family_.has_types) {
      const std::vector<int32_t> all_first(batch.types.empty() ? batch.tokens.size() : 0);
      x = add(ctx, x, embedding(ctx, batch.types.empty() ? all_first : batch.types, type_embedding_));
    } else if (!batch.types.empty()) {
      fail(Code::kUnsupported, info_.architecture, "token types: expected none, since the model tells no segments apart");
    }
    std::vector<int32_t> table_rows(batch.positions.begin(), batch.positions.end());
    for (int32_t& row : table_rows) row += static_cast<int32_t>(first_row_);
    x = add(ctx, x, embedding(ctx, table_rows, position_embedding_));
    return dropout(ctx, embedding_norm_(ctx, x));
  }

  // The first token's state stands for its sequence, (sequences, D).
  Tensor summarize(Context& ctx, const Tensor& states, std::span<const size_t> offsets) const {
    return activate(ctx, family_.summary_activation, summary_(ctx, rows(ctx, states, offsets.first(offsets.size() - 1))));
  }

  void configure(const Config& config) {
    const auto position_type = config.string("position_embedding_type", "absolute");
    if (position_type != "absolute")
      fail(Code::kUnsupported, config.where(), "position_embedding_type: expected absolute, got '", position_type, "'");
    expect_flag(config, "is_decoder", false);
    expect_flag(config, "add_cross_attention", false);
    const size_t D = dimension(config, family_.size_key, family_.D), H = head_count(config, family_.heads_key, family_.H);
    const size_t V = vocabulary(config, family_.V), inner = dimension(config, family_.inner_key, family_.F);
    const size_t E = family_.shares_layers ? dimension(config, "embedding_size", 128) : D;
    const size_t Dk = divided(D, family_.size_key, H, family_.heads_key), layers = layer_count(config, family_.layers_key, family_.layers);
    const size_t table = dimension(config, "max_position_embeddings", 512);
    const float eps = epsilon(config, "layer_norm_eps", 1e-12);
    const auto act = activation(config, family_.activation_key, family_.activation);
    if (family_.counts_from_padding) {
      const size_t padding = config.size("pad_token_id", 1);
      if (padding >= V) config.reject("pad_token_id", "an id of the vocabulary");
      info_.padding = static_cast<int32_t>(padding);
      info_.position_rule = PositionRule::kNotPad;
      first_row_ = padding + 1;
      if (table <= first_row_) config.reject("max_position_embeddings", join("more than pad_token_id + 1 (", first_row_, ")"));
    }

    word_embedding_ = Weight::vocabulary(V, E);
    position_embedding_ = Weight::table(table, E);
    if (family_.has_types) {
      info_.token_types = dimension(config, "type_vocab_size", 2);
      type_embedding_ = Weight::table(info_.token_types, E);
    }
    embedding_norm_ = Norm::layer(E, eps);
    if (family_.shares_layers) widen_ = Linear(D, E, true);
    const size_t groups = family_.shares_layers ? layer_count(config, "num_hidden_groups", 1) : layers;
    group_size_ = family_.shares_layers ? layer_count(config, "inner_group_num", 1) : 1;
    if (groups > layers) config.reject("num_hidden_groups", join("at most ", family_.layers_key, " (", layers, ")"));
    if (layers * group_size_ > 1024) config.reject("inner_group_num", join("at most 1024 layers in all, ", layers, " of these"));
    blocks_.resize(groups * group_size_);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      Block& block = blocks_[b];
      block.residual_1 = {Norm::layer(D, eps), Residual::Order::kPost};
      block.residual_2 = {Norm::layer(D, eps), Residual::Order::kPost};
      block.attention = SelfAttention(b, D, H, H, Dk, true, true);
      block.attention.core.causal = false;
      block.feed_forward = FeedForward(act, false, D, inner, true, b);
    }
    const double layers_a_group = static_cast<double>(layers) / static_cast<double>(groups);
    for (size_t l = 0; l < layers; ++l) {
      const auto group = static_cast<size_t>(static_cast<double>(l) / layers_a_group);
      for (size_t i = 0; i < group_size_; ++i) order_.push_back(group * group_size_ + i);
    }

    info_.architecture = config.string("model_type");
    info_.layers = order_.size();
    info_.heads = info_.kv_heads = H;
    info_.head_size = Dk;
    info_.hidden_size = D;
    info_.vocab_size = V;
    info_.positions = "learned";
    info_.context = table - first_row_;
    info_.positions_are_a_wall = true;
    info_.encoder_only = true;
    cache_shape_ = {H, H, Dk, Dk};
    configure_head(config, D, E, eps, act);
  }

  void configure_head(const Config& config, size_t D, size_t E, float eps, kernels::Activation act) {
    info_.head = head_of(config);
    const bool is_bare = info_.head == HeadKind::kNone;
    const bool asks_pooler = is_bare && config.boolean(kAddPooler, true);
    info_.has_pooler = family_.pooler != nullptr && (asks_pooler || (info_.head == HeadKind::kSequence && family_.summary == nullptr));
    if (info_.has_pooler || info_.head == HeadKind::kSequence) summary_ = Linear(D, D, true);
    if (info_.head == HeadKind::kMaskedLanguage) {
      tied_ = config.boolean("tie_word_embeddings", true);
      transform_ = Linear(E, D, true);
      transform_activation_ = family_.head_has_gelu ? kernels::Activation::kGelu : act;
      transform_norm_ = Norm::layer(E, eps);
      if (!tied_) decoder_ = Weight::vocabulary(info_.vocab_size, E);
      decoder_bias_ = Weight::vector(info_.vocab_size);
    } else if (!is_bare) {
      info_.labels = dimension(config, "num_labels", 2);
      if (info_.head == HeadKind::kQuestion && info_.labels != 2) config.reject("num_labels", "2, for the start and the end of an answer");
      classifier_ = Linear(info_.labels, D, true);
    }
  }

  void name_weights() {
    const EncoderFamily& f = family_;
    const std::string base = f.prefix;
    parameters_.weight(base + "embeddings.word_embeddings.weight", word_embedding_);
    parameters_.weight(base + "embeddings.position_embeddings.weight", position_embedding_);
    parameters_.weight(base + "embeddings.token_type_embeddings.weight", type_embedding_);
    parameters_.norm(base + "embeddings.LayerNorm", embedding_norm_);
    if (f.shares_layers) parameters_.linear(base + "encoder.embedding_hidden_mapping_in", widen_);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      Block& block = blocks_[b];
      const std::string number = f.shares_layers ? join(b / group_size_, ".albert_layers.", b % group_size_) : join(b);
      const std::string at = base + f.layers_name + number + ".";
      const size_t D = info_.hidden_size;
      parameters_.linear_rows(at + f.query, block.attention.qkv, 0, D);
      parameters_.linear_rows(at + f.key, block.attention.qkv, D, D);
      parameters_.linear_rows(at + f.value, block.attention.qkv, 2 * D, D);
      parameters_.linear(at + f.output, block.attention.output);
      parameters_.norm(at + f.attention_norm, block.residual_1.norm);
      parameters_.linear(at + f.up, block.feed_forward.up);
      parameters_.linear(at + f.down, block.feed_forward.down);
      parameters_.norm(at + f.norm, block.residual_2.norm);
    }
    const size_t heads_begin = parameters_.list().size();
    if (summary_.weight.present()) parameters_.linear(info_.has_pooler ? base + f.pooler : f.summary, summary_);
    if (info_.head == HeadKind::kNone) parameters_.optional_from(heads_begin, kAddPooler);
    if (classifier_.weight.present()) {
      const bool is_question = info_.head == HeadKind::kQuestion, is_token = info_.head == HeadKind::kToken;
      parameters_.linear(is_question ? "qa_outputs" : is_token ? "classifier" : f.classifier, classifier_);
    }
    if (info_.head == HeadKind::kMaskedLanguage) {
      parameters_.linear(f.transform, transform_);
      parameters_.norm(f.transform_norm, transform_norm_);
      const std::string decoder = f.decoder, bias = decoder + ".bias";
      parameters_.weight(decoder + ".weight", decoder_);
      // Both names stand in some files: of a tied head with the same values, of another head the decoder's are in use.
      parameters_.weight(tied_ ? f.decoder_bias : bias, decoder_bias_, tied_ ? bias : f.decoder_bias);
      parameters_.optional_from(heads_begin, kAddHead);
    }
  }

  EncoderFamily family_;
  size_t first_row_ = 0;                                         // of the position table, for position 0
  size_t group_size_ = 1;                                        // blocks that follow one another each time a group's turn comes
  Weight word_embedding_, position_embedding_, type_embedding_;  // (V, E), (rows, E), (types, E)
  Norm embedding_norm_;
  Linear widen_;  // (D, E), of ALBERT
  std::vector<Block> blocks_;
  std::vector<size_t> order_;  // the block that is layer l
  Linear summary_;             // (D, D): the pooler, or what stands before the classifier of sequences
  Linear classifier_;          // (labels, D)
  Linear transform_;           // (E, D), and what follows, of the masked-language head
  kernels::Activation transform_activation_ = kernels::Activation::kGelu;
  Norm transform_norm_;
  bool tied_ = true;
  Weight decoder_, decoder_bias_;  // (V, E), absent when tied; (V)
};

}  // namespace

std::unique_ptr<Model> make_bert(const Config& config) {
  const std::string type = config.string("model_type");
  const EncoderFamily& family = type == "distilbert" ? kDistilBert : type == "albert" ? kAlbert : type == "bert" ? kBert : kRoberta;
  return std::make_unique<Bert>(config, family);
}

}  // namespace wf
