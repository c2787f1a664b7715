// What the models' tests share: fixtures (config.json, safetensors, expected values), models with random weights, ragged batches,
// and an observer that keeps everything.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/rng.hpp"
#include "core/testing.hpp"
#include "models/model.hpp"

namespace wf::testing {

// --- Fixtures ---------------------------------------------------------------------------------------------------------------

struct Stored {
  DType dtype = DType::kF32;
  std::vector<size_t> shape;
  std::string bytes;

  std::vector<float> floats() const {  // of F32
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

using Tensors = std::map<std::string, Stored>;

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return (std::ostringstream() << file.rdbuf()).str();
}

inline void read_safetensors(const std::filesystem::path& path, Tensors& into) {
  const std::string file = read_file(path);
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  const std::string_view data = std::string_view(file).substr(sizeof header + static_cast<size_t>(header));
  const Json index = JsonReader(std::string_view(file).substr(sizeof header, static_cast<size_t>(header))).read();
  for (const auto& [name, entry] : index.fields) {
    if (name == "__metadata__") continue;
    const std::string& dtype = entry["dtype"].string();
    if (dtype != "F32" && dtype != "F16" && dtype != "BF16") continue;
    const auto range = entry["data_offsets"].list<size_t>();
    into[name] = {dtype_named(dtype), entry["shape"].list<size_t>(), std::string(data.substr(range[0], range[1] - range[0]))};
  }
}

struct Fixture {
  Config config;
  Json answers;      // expected.json
  Tensors expected;  // expected.safetensors
  Tensors weights;
};

inline std::filesystem::path fixtures() { return std::filesystem::path(WASMFORMER_SOURCE_DIR) / "wasm-tests" / "fixtures"; }

inline Fixture read_fixture(const std::string& name) {
  Fixture fixture;
  const auto folder = fixtures() / name;
  fixture.config = config_of(read_file(folder / "config.json"));
  fixture.answers = JsonReader(read_file(folder / "expected.json")).read();
  read_safetensors(folder / "expected.safetensors", fixture.expected);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with("model") && file.ends_with(".safetensors")) read_safetensors(entry.path(), fixture.weights);
  }
  return fixture;
}

// --- Models -----------------------------------------------------------------------------------------------------------------

inline void load_parameter(const Parameter& parameter, const Stored& stored) {
  // In two pieces, as a stream would bring them.
  const size_t rows = parameter.stored_rows(), half = rows / 2, row_bytes = stored_bytes(stored.dtype, parameter.row_size());
  parameter.load(0, half, stored.bytes.data(), stored.dtype);
  parameter.load(half, rows - half, stored.bytes.data() + half * row_bytes, stored.dtype);
}

// The tensor under one of the names that a parameter may have: without the prefix of the base model, as BERT's norms were once
// called, or under its alias. Null when there is none.
inline const Stored* find_tensor(const Tensors& tensors, const Parameter& parameter, const std::string& prefix) {
  std::vector<std::string> names{parameter.name};
  if (parameter.name.starts_with(prefix)) names.push_back(parameter.name.substr(prefix.size()));
  names.push_back(parameter.alias);
  for (std::string name : names) {
    if (const auto found = tensors.find(name); found != tensors.end()) return &found->second;
    if (name.ends_with("LayerNorm.weight")) name.replace(name.size() - 6, 6, "gamma");
    if (name.ends_with("LayerNorm.bias")) name.replace(name.size() - 4, 4, "beta");
    if (const auto found = tensors.find(name); found != tensors.end()) return &found->second;
  }
  return nullptr;
}

// The model of a configuration, without the parts that it may lack and `tensors` do lack.
inline std::unique_ptr<Model> make_model_for(Config config, const Tensors& tensors) {
  auto model = make_model(config);
  std::map<std::string, bool> present;
  for (const Parameter& parameter : model->parameters().list()) {
    if (!parameter.option.empty()) present[parameter.option] |= find_tensor(tensors, parameter, model->parameters().prefix()) != nullptr;
  }
  for (const auto& [option, is_present] : present) config.set(option, is_present);
  return make_model(config);
}

// A frozen matrix is held in the dtype of its first tensor.
inline std::unique_ptr<Model> load_model(const Fixture& fixture, bool trainable = false) {
  auto model = make_model_for(fixture.config, fixture.weights);
  std::map<Weight*, bool> allocated;
  for (const Parameter& parameter : model->parameters().list()) {
    const Stored* stored = find_tensor(fixture.weights, parameter, model->parameters().prefix());
    if (stored == nullptr) throw std::runtime_error("fixture lacks " + parameter.name);
    std::vector<size_t> shape;
    for (size_t i = 0; i < parameter.shape.rank(); ++i) shape.push_back(parameter.shape[i]);
    if (shape != stored->shape) throw std::runtime_error(parameter.name + " should be " + parameter.shape.text());
    if (!std::exchange(allocated[parameter.weight], true)) parameter.weight->allocate(stored->dtype, trainable);
    load_parameter(parameter, *stored);
  }
  return model;
}

// Normal weights, spread so that attention and text are not dull. `dtype` says how frozen matrices are held.
inline std::unique_ptr<Model> random_model(const Config& config, DType dtype = DType::kF32, bool trainable = false, uint64_t seed = 1) {
  auto model = make_model(config);
  for (Weight* weight : model->parameters().weights()) weight->allocate(dtype, trainable);
  uint32_t site = 0;
  for (const Parameter& parameter : model->parameters().list()) {
    std::vector<float> values(parameter.shape.size());
    const bool is_scale = parameter.shape.rank() == 1 && parameter.name.ends_with("weight");
    const float spread = parameter.shape.rank() == 1 ? 0.2f : 1.6f / std::sqrt(static_cast<float>(parameter.weight->cols()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(is_scale) + spread * static_cast<float>(normal({seed, 0, site}, i));
    parameter.load(0, parameter.stored_rows(), values.data(), DType::kF32);
    ++site;
  }
  return model;
}

// --- Batches ----------------------------------------------------------------------------------------------------------------

struct Ragged {
  std::vector<int32_t> tokens, positions;
  std::vector<size_t> offsets{0};

  // `starts`: positions of the first tokens; none: 0.
  explicit Ragged(const std::vector<std::vector<int32_t>>& sequences, const std::vector<size_t>& starts = {}) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (size_t t = 0; t < sequences[s].size(); ++t) {
        tokens.push_back(sequences[s][t]);
        positions.push_back(static_cast<int32_t>(t + (starts.empty() ? 0 : starts[s])));
      }
      offsets.push_back(tokens.size());
    }
  }
  Batch batch() const { return {tokens, positions, offsets, {}}; }
};

inline std::vector<int32_t> random_tokens(size_t count, size_t vocabulary, uint64_t seed) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(philox({seed, 0, 7}, i)[0] % vocabulary);
  return tokens;
}

inline std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values;
  for (size_t r = 0; r < tensor.rows; ++r) values.insert(values.end(), tensor.row(r), tensor.row(r) + tensor.cols);
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Largest distance, over the spread (standard deviation) of the expected values; infinite where the sizes differ or one is NaN.
inline double off_by(const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size() || got.empty()) return INFINITY;
  double mean = 0, square = 0, worst = 0;
  for (const float x : expected) mean += static_cast<double>(x) / static_cast<double>(expected.size());
  for (const float x : expected) square += (x - mean) * (x - mean) / static_cast<double>(expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double distance = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    worst = distance <= worst ? worst : std::isnan(distance) ? INFINITY : distance;
  }
  return square == 0 ? (worst == 0 ? 0 : INFINITY) : worst / std::sqrt(square);
}

// Keeps copies of all there is to see.
class Recorder final : public Observer {
 public:
  std::map<std::pair<Site, size_t>, std::vector<float>> states;                              // by site and layer: (T, D)
  std::map<std::tuple<Site, size_t, size_t>, std::map<size_t, std::vector<float>>> weights;  // by site, layer, sequence; head: (T, S)

  bool wants(Site, size_t) const override { return true; }
  void observe(Site site, size_t layer, const Tensor& tensor) override { states[{site, layer}] = values_of(tensor); }
  void observe_attention(Site site, const AttentionRows& rows) override {
    weights[{site, rows.layer, rows.sequence}][rows.head] = {rows.weights, rows.weights + rows.queries * rows.keys};
  }
  // (H, T, S) of one sequence.
  std::vector<float> attention(Site site, size_t layer, size_t sequence = 0) const {
    std::vector<float> all;
    for (const auto& [head, values] : weights.at({site, layer, sequence})) all.insert(all.end(), values.begin(), values.end());
    return all;
  }
};

// Memory of caches for one model, and the passes that go through them.
class Runner {
 public:
  explicit Runner(const Model& model, ThreadPool* threads = nullptr) : model_(model), pool_(model.cache_shape(), 4), threads_(threads) {}

  KvCache cache() { return {pool_, model_.windows()}; }
  KvPool& pool() { return pool_; }
  Arena& arena() { return arena_; }

  // Logits (T, V) of all rows; with caches, one a sequence, the rows join their past.
  std::vector<float> logits(const std::vector<std::vector<int32_t>>& sequences, const std::vector<KvCache*>& caches = {},
                            Observer* observer = nullptr) {
    const auto mark = arena_.mark();
    Context ctx{arena_, nullptr, observer, 0, threads_};
    std::vector<size_t> starts;
    for (const KvCache* cache : caches) starts.push_back(cache->length());
    const Ragged ragged(sequences, starts);
    auto values = values_of(model_.head(ctx, model_.forward(ctx, ragged.batch(), caches)));
    for (size_t s = 0; s < caches.size(); ++s) caches[s]->advance(sequences[s].size());
    arena_.release(mark);
    return values;
  }

 private:
  const Model& model_;
  KvPool pool_;
  ThreadPool* threads_;
  Arena arena_;
};

}  // namespace wf::testing
