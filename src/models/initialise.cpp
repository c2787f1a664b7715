#include "models/initialise.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "core/rng.hpp"

namespace wf {

namespace {

bool is_embedding(std::string_view name) {
  return name.find("embed") != std::string_view::npos || name.ends_with("shared.weight") || name.ends_with("wte.weight");
}

// The padding token of configurations that do not say, as transformers has it; none where it has none.
std::optional<size_t> padding_of(const Config& config, std::string_view architecture) {
  constexpr std::array<std::pair<std::string_view, size_t>, 13> kDefaults{{{"bert", 0},
                                                                           {"distilbert", 0},
                                                                           {"albert", 0},
                                                                           {"roberta", 1},
                                                                           {"xlm-roberta", 1},
                                                                           {"camembert", 1},
                                                                           {"opt", 1},
                                                                           {"gemma", 0},
                                                                           {"bart", 1},
                                                                           {"mbart", 1},
                                                                           {"marian", 58100},
                                                                           {"pegasus", 0},
                                                                           {"m2m_100", 1}}};
  const bool without = architecture == "transformer" || architecture == "gpt2" || architecture == "gpt_neox" || architecture == "bloom" ||
                       architecture == "t5" || architecture == "mt5";
  if (without || config.is_null("pad_token_id")) return std::nullopt;
  if (config.has("pad_token_id")) return config.number("pad_token_id") < 0 ? std::nullopt : std::optional(config.size("pad_token_id"));
  for (const auto& [name, id] : kDefaults) {
    if (name == architecture) return id;
  }
  return std::nullopt;
}

}  // namespace

Initialiser::Initialiser(const Config& config, const Model& model, uint64_t seed)
    : model_(model),
      seed_(seed),
      deviation_(config.number("initializer_range", config.number("init_std", 0.02))),
      factor_(config.number("initializer_factor", 1)),
      sinusoids_(config.boolean("sinusoidal_pos_embds", false)),
      padding_(padding_of(config, model.info().architecture)),
      inner_(config.number("d_ff", model.info().architecture == "mt5" ? 1024 : 2048)) {
  for (const char* key : {"initializer_range", "init_std", "initializer_factor"}) {
    if (config.has(key) && !(config.number(key) >= 0 && std::isfinite(config.number(key)))) config.reject(key, "a number from 0");
  }
  if (deviation_ == 0 && config.has("initializer_range")) deviation_ = 0.02;
}

Initialiser::Rule Initialiser::rule_of_t5(const Parameter& parameter) const {
  const ModelInfo& info = model_.info();
  const std::string_view name = parameter.name;
  const double D = static_cast<double>(info.hidden_size), Dk = static_cast<double>(info.head_size), H = static_cast<double>(info.heads);
  const auto normal = [&](double variance) { return Rule{Rule::Kind::kNormal, factor_ / std::sqrt(variance)}; };
  if (parameter.weight->use() == Weight::Use::kVector) return {Rule::Kind::kConstant, factor_};
  if (name == "shared.weight" || name == "lm_head.weight") return normal(1);
  if (name.ends_with(".q.weight")) return normal(D * Dk);
  if (name.ends_with(".o.weight")) return normal(H * Dk);
  if (name.ends_with(".wo.weight")) return normal(inner_);
  return normal(D);
}

Initialiser::Rule Initialiser::rule(const Parameter& parameter) const {
  const ModelInfo& info = model_.info();
  const std::string_view name = parameter.name;
  if (info.architecture == "t5" || info.architecture == "mt5") return rule_of_t5(parameter);
  if (parameter.weight->use() == Weight::Use::kVector) {
    // A norm of Gemma's adds one to its weight.
    const bool is_norm = name.ends_with(".weight");
    return {Rule::Kind::kConstant, is_norm && info.architecture != "gemma" ? 1.0 : 0.0};
  }
  if (info.architecture == "transformer") {
    if (is_embedding(name) || name == "lm_head.weight") return {Rule::Kind::kNormal, 1 / std::sqrt(static_cast<double>(info.hidden_size))};
    return {Rule::Kind::kUniform, std::sqrt(6.0 / static_cast<double>(parameter.shape[0] + parameter.shape[1]))};
  }
  if (sinusoids_ && info.architecture == "distilbert" && name.find("position_embeddings") != std::string_view::npos) {
    return {Rule::Kind::kSinusoids, 1};
  }
  const bool into_stream = info.architecture == "gpt2" && name.ends_with(".c_proj.weight");
  return {Rule::Kind::kNormal, into_stream ? deviation_ / std::sqrt(2.0 * static_cast<double>(info.layers)) : deviation_};
}

// Tables of tokens, and of positions where those begin behind the padding token's.
std::optional<size_t> Initialiser::padding_row(const Parameter& parameter) const {
  const std::string_view name = parameter.name;
  const bool is_positions = name.find("position") != std::string_view::npos;
  const bool is_tokens = name.find("embed_tokens") != std::string_view::npos || name.find("word_embeddings") != std::string_view::npos ||
                         name.ends_with("shared.weight");
  const bool counted = is_positions && model_.info().position_rule == PositionRule::kNotPad;
  return is_tokens || (counted && is_embedding(name)) ? padding_ : std::nullopt;
}

void Initialiser::draw(size_t index, size_t begin, size_t count, float* out) const {
  const Parameter& parameter = model_.parameters().list()[index];
  const auto [kind, size] = rule(parameter);
  const size_t width = parameter.row_size();
  const RngKey key{seed_, 0, static_cast<uint32_t>(index)};
  for (size_t r = 0; r < count; ++r) {
    for (size_t i = 0; i < width; ++i) {
      const uint64_t element = uint64_t{begin + r} * width + i;
      double value = size;
      if (kind == Rule::Kind::kNormal) value = size * normal(key, element);
      if (kind == Rule::Kind::kUniform) value = size * (2 * uniform(key, element) - 1);
      if (kind == Rule::Kind::kSinusoids) {
        const double angle =
            static_cast<double>(begin + r) * std::pow(10000.0, -static_cast<double>(i / 2 * 2) / static_cast<double>(width));
        value = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
      }
      out[r * width + i] = static_cast<float>(value);
    }
  }
  if (kind != Rule::Kind::kNormal) return;
  const auto row = padding_row(parameter);
  if (row && *row >= begin && *row - begin < count) std::fill_n(out + (*row - begin) * width, width, 0.0f);
}

}  // namespace wf
