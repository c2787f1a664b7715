#include "train/lora.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/error.hpp"
#include "core/rng.hpp"
#include "core/shape.hpp"

namespace wf {

namespace {

constexpr const char* kWhere = "lora";
constexpr std::string_view kWeight = ".weight";

struct Settings {
  size_t rank;
  float scale;
  uint64_t seed;
  std::vector<std::string> targets;
};

Settings settings(const Config& options) {
  constexpr std::string_view kKnown[] = {"r", "lora_alpha", "target_modules", "use_rslora", "seed"};
  for (const auto& [key, value] : options.values()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      fail(Code::kInvalidArgument, kWhere, key, ": unknown option");
    }
  }
  const size_t rank = options.size("r", 8);
  const double alpha = options.number("lora_alpha", 8), seed = options.number("seed", 0);
  if (rank == 0) options.reject("r", "a rank from 1");
  if (!std::isfinite(alpha)) options.reject("lora_alpha", "a finite number");
  if (!(seed >= 0 && seed < 0x1p53)) options.reject("seed", "a whole number from 0");
  if (!options.has("target_modules")) fail(Code::kInvalidArgument, kWhere, "target_modules: expected names of modules, got none");
  const double share = options.boolean("use_rslora", false) ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank);
  return {rank, static_cast<float>(alpha / share), static_cast<uint64_t>(seed), options.strings("target_modules")};
}

std::string_view module_of(const Parameter& parameter) {
  return std::string_view(parameter.name).substr(0, parameter.name.size() - kWeight.size());
}

bool is_named(std::string_view module, std::string_view target) {
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

// The parameters that are changed; every target names one at least.
std::vector<const Parameter*> targets_of(const Model& model, const Settings& given) {
  std::vector<const Parameter*> found;
  std::vector<bool> used(given.targets.size());
  for (const Parameter& parameter : model.parameters().list()) {
    if (parameter.weight->use() != Weight::Use::kMatrix || !parameter.name.ends_with(kWeight)) continue;
    bool wanted = false;
    for (size_t i = 0; i < given.targets.size(); ++i) {
      if (!is_named(module_of(parameter), given.targets[i])) continue;
      wanted = used[i] = true;
    }
    if (!wanted) continue;
    if (parameter.layout == Parameter::Layout::kByHead) {
      fail(Code::kUnsupported, kWhere, "target_modules: ", module_of(parameter), ", whose rows run by head");
    }
    found.push_back(&parameter);
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      fail(Code::kInvalidArgument, kWhere, "target_modules: expected names of linear layers of ", model.info().architecture, ", got ",
           given.targets[i]);
    }
  }
  return found;
}

size_t outputs_of(const Parameter& parameter) {
  return parameter.layout == Parameter::Layout::kTransposed ? parameter.row_size() : parameter.stored_rows();
}

}  // namespace

uint64_t Lora::bytes(const Model& model, const Config& options) {
  const Settings given = settings(options);
  uint64_t total = 0;
  for (const Parameter* parameter : targets_of(model, given)) {
    const size_t sides = checked_sum(parameter->weight->cols(), outputs_of(*parameter), kWhere);
    total += 2 * sizeof(float) * uint64_t{checked_product(given.rank, sides, kWhere)};
  }
  return total;
}

Lora::Lora(const Model& model, const Config& options) {
  const Settings given = settings(options);
  uint32_t site = 0;
  for (const Parameter* target : targets_of(model, given)) {
    const size_t D = target->weight->cols(), F = outputs_of(*target);
    auto adapter = std::make_unique<Adapter>();
    adapter->a = Weight::matrix(given.rank, D);
    adapter->b = Weight::matrix(F, given.rank);
    adapter->row = target->row;
    adapter->scale = given.scale;
    adapter->a.allocate(DType::kF32, true);
    adapter->b.allocate(DType::kF32, true);
    const double bound = 1 / std::sqrt(static_cast<double>(D));
    for (size_t i = 0; i < given.rank * D; ++i) {
      adapter->a.values()[i] = static_cast<float>((2 * uniform({given.seed, 0, site}, i) - 1) * bound);
    }
    std::fill_n(adapter->b.values(), F * given.rank, 0.0f);
    adapter->a.clear_gradient();
    adapter->b.clear_gradient();
    ++site;
    const std::string module(module_of(*target));
    parameters_.weight(module + ".lora_A.weight", adapter->a);
    parameters_.weight(module + ".lora_B.weight", adapter->b);
    target->weight->attach(*adapter);
    changes_.push_back({target, std::move(adapter)});
  }
}

Lora::~Lora() {
  for (const Change& change : changes_) change.target->weight->detach();
}

void Lora::merge() {
  for (const Change& change : changes_) {
    const DType dtype = change.target->weight->dtype();
    if (is_block(dtype)) fail(Code::kUnsupported, kWhere, "merging into ", change.target->name, ", which is held as ", name_of(dtype));
  }
  for (Change& change : changes_) {
    Adapter& adapter = *change.adapter;
    Weight& weight = *change.target->weight;
    const size_t D = adapter.a.cols(), R = adapter.a.rows();
    std::vector<float> row(D);
    for (size_t f = 0; f < adapter.b.rows(); ++f) {
      weight.read_row(adapter.row + f, row.data());
      for (size_t r = 0; r < R; ++r) {
        const float factor = adapter.scale * adapter.b.values()[f * R + r];
        for (size_t d = 0; d < D; ++d) row[d] += factor * adapter.a.values()[r * D + d];
      }
      weight.write_rows(adapter.row + f, 1, row.data(), DType::kF32);
    }
    std::fill_n(adapter.b.values(), adapter.b.rows() * R, 0.0f);
  }
}

}  // namespace wf
