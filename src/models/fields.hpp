// Reading the fields that many configurations share, with their limits.
#pragma once

#include <initializer_list>
#include <string_view>

#include "core/config.hpp"
#include "kernels/activation.hpp"

namespace wf {

// A dimension: a whole number from 1 to 2^20 (vocabularies to 2^24), so that products of two stay checkable.
size_t dimension(const Config& config, std::string_view key);
size_t dimension(const Config& config, std::string_view key, size_t fallback);
size_t vocabulary(const Config& config, size_t fallback);
// A number of attention heads: 1 to 1024.
size_t head_count(const Config& config, std::string_view key, size_t fallback);
// A number of layers: 1 to 1024.
size_t layer_count(const Config& config, std::string_view key, size_t fallback);
size_t layer_count_or_none(const Config& config, std::string_view key, size_t fallback);  // 0 to 1024
// A norm's epsilon: above 0.
float epsilon(const Config& config, std::string_view key, double fallback);
// The first of the keys that is present, else the last: old and new spellings of one field.
std::string_view first_present(const Config& config, std::initializer_list<std::string_view> keys);
// An activation under Hugging Face's name; another name is kUnsupported.
kernels::Activation activation(const Config& config, std::string_view key, std::string_view fallback);
// kUnsupported unless this entry of `architectures` names a bare model or one that predicts the next token.
void expect_language_model(std::string_view name);
// kUnsupported unless the field is absent or has the value.
void expect_flag(const Config& config, std::string_view key, bool value);
// `whole` / `parts`, an error naming both fields when it does not divide.
size_t divided(size_t whole, std::string_view whole_name, size_t parts, std::string_view parts_name);

}  // namespace wf
