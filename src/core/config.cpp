#include "core/config.hpp"

#include <cmath>

#include "core/error.hpp"

namespace wf {

namespace {

std::string described(const Config::Value* value) {
  if (value == nullptr) return "nothing";
  if (const auto* number = std::get_if<double>(value)) return join(*number);
  if (const auto* flag = std::get_if<bool>(value)) return join(*flag);
  if (const auto* string = std::get_if<std::string>(value)) return join("'", *string, "'");
  if (const auto* list = std::get_if<std::vector<double>>(value)) return join("a list of ", list->size(), " numbers");
  return "a list of strings";
}

}  // namespace

const Config::Value* Config::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() || std::holds_alternative<std::monostate>(found->second) ? nullptr : &found->second;
}

bool Config::is_null(std::string_view key) const {
  const auto found = values_.find(key);
  return found != values_.end() && std::holds_alternative<std::monostate>(found->second);
}

void Config::reject(std::string_view key, std::string_view expected) const {
  fail(Code::kInvalidArgument, where_, key, ": expected ", expected, ", got ", described(find(key)));
}

size_t Config::size(std::string_view key) const {
  const Value* value = find(key);
  const double* number = value ? std::get_if<double>(value) : nullptr;
  if (number == nullptr || !(*number >= 0) || *number != std::floor(*number) || *number > 2147483647.0) {
    reject(key, "a whole number from 0 to 2147483647");
  }
  return static_cast<size_t>(*number);
}

size_t Config::size(std::string_view key, size_t fallback) const { return has(key) ? size(key) : fallback; }

double Config::number(std::string_view key) const {
  const Value* value = find(key);
  const double* number = value ? std::get_if<double>(value) : nullptr;
  if (number == nullptr) reject(key, "a number");
  return *number;
}

double Config::number(std::string_view key, double fallback) const { return has(key) ? number(key) : fallback; }

bool Config::boolean(std::string_view key, bool fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  const bool* flag = std::get_if<bool>(value);
  if (flag == nullptr) reject(key, "true or false");
  return *flag;
}

std::string Config::string(std::string_view key) const {
  const Value* value = find(key);
  const std::string* string = value ? std::get_if<std::string>(value) : nullptr;
  if (string == nullptr) reject(key, "a string");
  return *string;
}

std::string Config::string(std::string_view key, std::string_view fallback) const { return has(key) ? string(key) : std::string(fallback); }

std::vector<double> Config::numbers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (const double* number = std::get_if<double>(value)) return {*number};
  if (const auto* list = std::get_if<std::vector<double>>(value)) return *list;
  if (const auto* list = std::get_if<std::vector<std::string>>(value); list && list->empty()) return {};
  reject(key, "a list of numbers");
}

std::vector<std::string> Config::strings(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<std::string>>(value)) return *list;
  if (const auto* list = std::get_if<std::vector<double>>(value); list && list->empty()) return {};
  if (const std::string* string = std::get_if<std::string>(value)) return {*string};
  reject(key, "a list of strings");
}

}  // namespace wf
