#include "models/fields.hpp"

#include "core/error.hpp"

namespace wf {

namespace {

size_t within(const Config& config, std::string_view key, size_t value, size_t most) {
  if (value == 0 || value > most) config.reject(key, join("a whole number from 1 to ", most));
  return value;
}

}  // namespace

size_t dimension(const Config& config, std::string_view key) { return within(config, key, config.size(key), size_t{1} << 20); }

size_t dimension(const Config& config, std::string_view key, size_t fallback) {
  return within(config, key, config.size(key, fallback), size_t{1} << 20);
}

size_t vocabulary(const Config& config, size_t fallback) {
  return within(config, "vocab_size", config.size("vocab_size", fallback), size_t{1} << 24);
}

size_t head_count(const Config& config, std::string_view key, size_t fallback) {
  return within(config, key, config.size(key, fallback), 1024);
}

size_t layer_count(const Config& config, std::string_view key, size_t fallback) {
  return within(config, key, config.size(key, fallback), 1024);
}

size_t layer_count_or_none(const Config& config, std::string_view key, size_t fallback) {
  const size_t count = config.size(key, fallback);
  return count == 0 ? 0 : within(config, key, count, 1024);
}

float epsilon(const Config& config, std::string_view key, double fallback) {
  const double value = config.number(key, fallback);
  if (!(value > 0) || value >= 1) config.reject(key, "a number above 0, below 1");
  return static_cast<float>(value);
}

std::string_view first_present(const Config& config, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (config.has(key)) return key;
  }
  return *(keys.end() - 1);
}

kernels::Activation activation(const Config& config, std::string_view key, std::string_view fallback) {
  using kernels::Activation;
  const std::string name = config.string(key, fallback);
  if (name == "gelu" || name == "gelu_python") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name == "quick_gelu") return Activation::kQuickGelu;
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "tanh") return Activation::kTanh;
  if (name == "sigmoid") return Activation::kSigmoid;
  if (name == "linear") return Activation::kIdentity;
  fail(
      Code::kUnsupported, config.where(), key,
      ": expected gelu, gelu_python, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, silu, swish, relu, tanh, sigmoid or linear, got '",
      name, "'");
}

void expect_language_model(std::string_view name) {
  const bool is_bare = name.ends_with("Model") && !name.ends_with("HeadModel");
  if (is_bare || name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel") || name.ends_with("ForConditionalGeneration")) return;
  fail(Code::kUnsupported, "config.json",
       "architectures: expected a language model (...ForCausalLM, ...LMHeadModel, ...ForConditionalGeneration), got '", name, "'");
}

void expect_flag(const Config& config, std::string_view key, bool value) {
  if (config.boolean(key, value) != value) {
    fail(Code::kUnsupported, "config.json", key, ": expected ", value, ", got ", !value);
  }
}

size_t divided(size_t whole, std::string_view whole_name, size_t parts, std::string_view parts_name) {
  if (whole % parts != 0) {
    fail(Code::kInvalidArgument, "config.json", whole_name, ": expected a multiple of ", parts_name, " (", parts, "), got ", whole);
  }
  return whole / parts;
}

}  // namespace wf
