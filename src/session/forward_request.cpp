#include "session/forward_request.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.hpp"

namespace wf {

namespace {

constexpr std::array<std::string_view, 10> kKeys = {"logits", "hiddenStates", "attentions",  "attentions.layers", "attentions.heads",
                                                    "trace",  "trace.layers", "trace.heads", "logitLens",         "logitLens.topK"};

std::vector<size_t> indices(const Config& config, std::string_view key) {
  std::vector<size_t> indices;
  for (const double value : config.numbers(key)) {
    if (!(value >= 0 && value < 1e6) || value != static_cast<double>(static_cast<size_t>(value)))
      config.reject(key, "indices, whole numbers from 0");
    indices.push_back(static_cast<size_t>(value));
  }
  if (config.has(key) && indices.empty()) config.reject(key, "at least one index");
  return indices;
}

Selection selection(const Config& config, const std::string& key) {
  Selection chosen{false, indices(config, key + ".layers"), indices(config, key + ".heads")};
  chosen.wanted = config.boolean(key, !chosen.layers.empty() || !chosen.heads.empty());
  return chosen;
}

}  // namespace

bool Selection::contains(const std::vector<size_t>& list, size_t value) {
  return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

ForwardRequest parse_forward_request(const Config& config) {
  for (const auto& [key, value] : config.values()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) fail(Code::kInvalidArgument, "forward", key, ": unknown option");
  }
  ForwardRequest request;
  request.logits = config.boolean("logits", true);
  request.hidden_states = config.boolean("hiddenStates", false);
  request.attentions = selection(config, "attentions");
  request.trace = selection(config, "trace");
  request.top_k = config.size("logitLens.topK", 0);
  if (config.has("logitLens.topK") && request.top_k == 0) config.reject("logitLens.topK", "a number from 1");
  request.logit_lens = config.boolean("logitLens", request.top_k != 0);
  return request;
}

}  // namespace wf
