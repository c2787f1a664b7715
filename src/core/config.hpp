// A configuration or a set of options as flat values under dotted keys ("rope_scaling.factor"), the way JavaScript hands over
// config.json. A value that is null counts as absent, except where `is_null` tells the two apart.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace wf {

class Config {
 public:
  // std::monostate is null.
  using Value = std::variant<std::monostate, double, bool, std::string, std::vector<double>, std::vector<std::string>>;

  Config() = default;
  explicit Config(std::string where) : where_(std::move(where)) {}  // `where`: what error messages call it

  void set(std::string key, Value value) { values_[std::move(key)] = std::move(value); }
  const std::string& where() const { return where_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is_null(std::string_view key) const;  // present, and null
  const std::map<std::string, Value, std::less<>>& values() const { return values_; }

  // The value under `key`; absent: the fallback, or without one kInvalidArgument naming the key. Of the wrong type, negative
  // or not whole where a size is asked for: kInvalidArgument naming the key, what is expected and what was found.
  size_t size(std::string_view key) const;
  size_t size(std::string_view key, size_t fallback) const;
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string string(std::string_view key) const;
  std::string string(std::string_view key, std::string_view fallback) const;
  std::vector<double> numbers(std::string_view key) const;  // empty when absent; a single number is a list of one
  std::vector<std::string> strings(std::string_view key) const;

  [[noreturn]] void reject(std::string_view key, std::string_view expected) const;  // throws kInvalidArgument with the value found

 private:
  const Value* find(std::string_view key) const;

  std::string where_ = "config.json";
  std::map<std::string, Value, std::less<>> values_;
};

}  // namespace wf
