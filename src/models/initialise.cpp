#include "models/initialise.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/rng.hpp"

namespace wf {

namespace {

bool is_embedding(std::string_view name) {
  return name.find("embed") != std::string_view::npos || name.ends_with("shared.weight") || name.ends_with("wte.weight");
}

}  // namespace

Initialiser::Initialiser(const Config& config, const Model& model, uint64_t seed)
    : model_(model),
      seed_(seed),
      deviation_(config.number("initializer_range", config.number("init_std", 0.02))),
      factor_(config.number("initializer_factor", 1)),
      sinusoids_(config.boolean("sinusoidal_pos_embds", false)),
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
  for (size_t r = 0; r < count; ++r) {
    if (parameter.weight->is_padding(begin + r)) std::fill_n(out + r * width, width, 0.0f);
  }
}

}  // namespace wf
