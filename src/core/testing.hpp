// What tests of all layers share: JSON, as our own generators write it, and configurations read from it.
#pragma once

#include <charconv>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "core/error.hpp"

namespace wf::testing {

struct Json {
  Config::Value value;  // of anything but an object or an array of objects or arrays
  std::vector<Json> items;
  std::map<std::string, Json> fields;

  bool has(const std::string& key) const { return fields.contains(key); }
  const Json& operator[](const std::string& key) const { return fields.at(key); }
  double number() const { return std::get<double>(value); }
  const std::string& string() const { return std::get<std::string>(value); }
  template <class T>
  std::vector<T> list() const {
    std::vector<T> all;
    for (const Json& item : items) all.push_back(static_cast<T>(item.number()));
    return all;
  }
  template <class T>
  std::vector<std::vector<T>> lists() const {
    std::vector<std::vector<T>> all;
    for (const Json& item : items) all.push_back(item.list<T>());
    return all;
  }
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  Json read() {
    Json json;
    const char c = peek();
    if (c == '{') {
      for (++at_; peek() != '}';) {
        const std::string key = string();
        take(':');
        json.fields.emplace(key, read());
        if (peek() == ',') ++at_;
      }
      ++at_;
    } else if (c == '[') {
      for (++at_; peek() != ']';) {
        json.items.push_back(read());
        if (peek() == ',') ++at_;
      }
      ++at_;
    } else if (c == '"') {
      json.value = string();
    } else if (c == 't' || c == 'f') {
      json.value = c == 't';
      at_ += c == 't' ? 4 : 5;
    } else if (c == 'n') {
      at_ += 4;
    } else {
      char* after = nullptr;
      json.value = std::strtod(at_, &after);  // wasm's standard library has no from_chars for doubles
      at_ = after;
    }
    return json;
  }

 private:
  char peek() {
    while (at_ < end_ && std::strchr(" \n\r\t", *at_)) ++at_;
    if (at_ == end_) throw std::runtime_error("JSON ends early");
    return *at_;
  }
  void take(char c) {
    if (peek() != c) throw std::runtime_error("malformed JSON");
    ++at_;
  }
  std::string string() {
    take('"');
    std::string text;
    for (; *at_ != '"'; ++at_) {
      if (*at_ == '\\') ++at_;
      text += *at_;
    }
    ++at_;
    return text;
  }

  const char* at_;
  const char* end_;
};

// As JavaScript hands a configuration over: dotted keys, arrays of numbers or strings.
inline void flatten(const Json& json, const std::string& prefix, Config& config) {
  for (const auto& [key, field] : json.fields) {
    if (!field.fields.empty()) {
      flatten(field, prefix + key + ".", config);
    } else if (!field.items.empty() && std::holds_alternative<std::string>(field.items[0].value)) {
      std::vector<std::string> strings;
      for (const Json& item : field.items) strings.push_back(item.string());
      config.set(prefix + key, strings);
    } else if (!field.items.empty()) {
      config.set(prefix + key, field.list<double>());
    } else {
      config.set(prefix + key, field.value);
    }
  }
}

inline Config config_of(std::string_view json) {
  Config config;
  const Json parsed = JsonReader(json).read();
  flatten(parsed, "", config);
  const auto labels = parsed.fields.find("id2label");
  if (labels != parsed.fields.end() && !labels->second.fields.empty())
    config.set("num_labels", static_cast<double>(labels->second.fields.size()));
  return config;
}

// The code of the error that `run` ends with, and its message; "none" when it ends well.
template <class Run>
std::string outcome(Run run) {
  try {
    run();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + " " + error.message();
  }
  return "none";
}

}  // namespace wf::testing
