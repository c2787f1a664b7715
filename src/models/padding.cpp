#include "models/padding.hpp"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace wf {

namespace {

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

void mark_padding(const Config& config, const Model& model) {
  const std::optional<size_t> padding = padding_of(config, model.info().architecture);
  if (!padding) return;
  for (const Parameter& parameter : model.parameters().list()) {
    const std::string_view name = parameter.name;
    const bool is_tokens = name.find("embed_tokens") != std::string_view::npos || name.find("word_embeddings") != std::string_view::npos ||
                           name.ends_with("shared.weight");
    const bool is_positions = name.find("position_embeddings") != std::string_view::npos;
    if (is_tokens || (is_positions && model.info().position_rule == PositionRule::kNotPad)) parameter.weight->set_padding(*padding);
  }
}

}  // namespace wf
