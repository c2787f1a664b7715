#include "session/mechanism.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "core/error.hpp"
#include "models/fields.hpp"
#include "nn/feed_forward.hpp"
#include "nn/residual.hpp"
#include "nn/rope.hpp"
#include "nn/sinusoids.hpp"

namespace wf {

namespace {

constexpr double kMostBytes = 4294901760.0;   // what WebAssembly can address
constexpr double kMostPosition = 16777216.0;  // beyond it a float does not tell neighbours apart
constexpr float kHidden = -std::numeric_limits<float>::infinity();

std::string text_of_shape(const std::vector<size_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += join(i ? ", " : "", shape[i]);
  return text + ")";
}

double count_of(const std::vector<size_t>& shape) {
  double count = 1;
  for (const size_t size : shape) count *= static_cast<double>(size);
  return count;
}

double product(std::initializer_list<size_t> sizes) { return count_of(sizes); }

// One dimension that is expected: a size, or a letter for any.
struct Dim {
  Dim(const char* letter_) : letter(letter_) {}
  Dim(size_t size_) : size(size_) {}
  const char* letter = nullptr;
  size_t size = 0;
};

// The arguments of a call. Whatever is asked for counts as known.
class Given {
 public:
  Given(std::string_view where, const Arrays& tensors, const Config& options) : where_(where), tensors_(tensors), options_(options) {}

  const std::string& where() const { return where_; }

  const Array* find(std::string_view name) {
    known_.emplace(name);
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      if (options_.has(name)) options_.reject(name, "a tensor");
      return nullptr;
    }
    const Array& array = found->second;
    if (array.shape.empty() || count_of(array.shape) < 1) mismatch(name, "dimensions of at least 1", array);
    if (count_of(array.shape) != static_cast<double>(array.data.size())) {
      mismatch(name, join(static_cast<uint64_t>(count_of(array.shape)), " numbers for its shape ", text_of_shape(array.shape)),
               join(array.data.size()));
    }
    return &array;
  }
  const Array* find(std::string_view name, std::initializer_list<Dim> expected) {
    const Array* array = find(name);
    if (array) expect(name, *array, expected);
    return array;
  }
  const Array& tensor(std::string_view name) {
    const Array* array = find(name);
    if (array == nullptr) fail(Code::kInvalidArgument, where_, name, ": expected a tensor, got none");
    return *array;
  }
  const Array& tensor(std::string_view name, std::initializer_list<Dim> expected) {
    const Array& array = tensor(name);
    expect(name, array, expected);
    return array;
  }
  void expect(std::string_view name, const Array& array, std::initializer_list<Dim> expected) const {
    bool fits = array.shape.size() == expected.size();
    std::string text = "(";
    size_t i = 0;
    for (const Dim& dim : expected) {
      fits = fits && (dim.letter || dim.size == array.shape[i]);
      text += join(i++ ? ", " : "", dim.letter ? dim.letter : std::to_string(dim.size));
    }
    if (!fits) mismatch(name, text + ")", array);
  }
  [[noreturn]] void mismatch(std::string_view name, std::string_view expected, std::string_view got) const {
    fail(Code::kShapeMismatch, where_, name, ": expected ", expected, ", got ", got);
  }
  [[noreturn]] void mismatch(std::string_view name, std::string_view expected, const Array& array) const {
    mismatch(name, expected, text_of_shape(array.shape));
  }

  // The options, `name` being one of them.
  const Config& option(std::string_view name) {
    known_.emplace(name);
    if (tensors_.contains(name)) fail(Code::kInvalidArgument, where_, name, ": expected a number, a word, true or false, got a tensor");
    return options_;
  }
  bool flag(std::string_view name, bool fallback) { return option(name).boolean(name, fallback); }
  double number(std::string_view name, double fallback) {
    const double value = option(name).number(name, fallback);
    if (!std::isfinite(value)) options_.reject(name, "a finite number");
    return value;
  }
  double integer(std::string_view name, double fallback) {
    const double value = number(name, fallback);
    if (value != std::floor(value)) options_.reject(name, "a whole number");
    return value;
  }
  float eps(double fallback) { return epsilon(option("eps"), "eps", fallback); }
  // Which of two words.
  bool chooses(std::string_view name, std::string_view word, std::string_view other) {
    const std::string value = option(name).string(name, word);
    if (value != word && value != other) options_.reject(name, join("'", word, "' or '", other, "'"));
    return value == word;
  }

  // To be called when everything has been asked for, before the work: nothing else may have been given, and `floats` numbers,
  // results and workspace, are to fit.
  void settle(double floats) const {
    const auto unknown = [&](const std::string& name) {
      if (known_.contains(name)) return;
      std::string known;
      for (const std::string& other : known_) known += join(known.empty() ? "" : ", ", other);
      fail(Code::kInvalidArgument, where_, "unknown argument '", name, "': expected one of ", known);
    };
    for (const auto& [name, array] : tensors_) {
      unknown(name);
      floats += static_cast<double>(array.data.size());
    }
    for (const auto& [name, value] : options_.values()) unknown(name);
    const double bytes = floats * sizeof(float);
    if (bytes > kMostBytes) {
      const double countable = std::min(bytes, 0x1p63);
      fail(Code::kOutOfMemory, where_, "memory: expected at most ", static_cast<uint64_t>(kMostBytes), " bytes, got ",
           static_cast<uint64_t>(countable));
    }
  }

 private:
  std::string where_;
  const Arrays& tensors_;
  const Config& options_;
  std::set<std::string, std::less<>> known_;
};

// An array as rows of its last dimension. Nothing writes into it.
Tensor rows_of(const Array& array) {
  const size_t cols = array.shape.back();
  return {const_cast<float*>(array.data.data()), array.data.size() / cols, cols, cols};
}

Tensor copied(Context& ctx, const Array& array) {
  const Tensor from = rows_of(array), to = ctx.tensor(from.rows, from.cols);
  std::copy(array.data.begin(), array.data.end(), to.data);
  return to;
}

Array array_of(std::vector<size_t> shape, const Tensor& tensor) {
  Array array{std::move(shape), std::vector<float>(tensor.size())};
  for (size_t r = 0; r < tensor.rows; ++r) std::copy_n(tensor.row(r), tensor.cols, array.data.data() + r * tensor.cols);
  return array;
}

// (T, D) as it is, (H, T, D) as (T, H * D): the heads of a row side by side.
Tensor side_by_side(Context& ctx, const Array& array) {
  if (array.shape.size() == 2) return rows_of(array);
  const size_t H = array.shape[0], T = array.shape[1], D = array.shape[2];
  const Tensor out = ctx.tensor(T, H * D);
  for (size_t h = 0; h < H; ++h) {
    for (size_t t = 0; t < T; ++t) std::copy_n(array.data.data() + (h * T + t) * D, D, out.row(t) + h * D);
  }
  return out;
}

// The way back: (T, H * D) as an array of shape (T, D) or (H, T, D).
Array by_head(std::vector<size_t> shape, const Tensor& rows) {
  const size_t D = shape.back(), H = rows.cols / D;
  Array array{std::move(shape), std::vector<float>(rows.size())};
  for (size_t h = 0; h < H; ++h) {
    for (size_t t = 0; t < rows.rows; ++t) std::copy_n(rows.row(t) + h * D, D, array.data.data() + (h * rows.rows + t) * D);
  }
  return array;
}

// A linear layer's weight (F, D) and bias (F), checked and not yet loaded.
struct Matrix {
  const Array* weight = nullptr;
  const Array* bias = nullptr;

  // `name`.weight and `name`.bias, or `name` alone.
  Matrix() = default;
  Matrix(Given& given, const std::string& name, Dim outputs, Dim inputs) {
    weight = given.find(name, {outputs, inputs});
    if (weight == nullptr) weight = &given.tensor(name + ".weight", {outputs, inputs});
    bias = given.find(name + ".bias", {this->outputs()});
  }

  size_t outputs() const { return weight->shape[0]; }
  size_t inputs() const { return weight->shape[1]; }
  double floats() const { return count_of(weight->shape); }
};

// Several matrices with the same inputs, one above the other.
Linear loaded(std::initializer_list<const Matrix*> parts) {
  size_t rows = 0;
  bool with_bias = false;
  for (const Matrix* part : parts) {
    rows += part->outputs();
    with_bias = with_bias || part->bias != nullptr;
  }
  Linear linear(rows, (*parts.begin())->inputs(), with_bias);
  linear.weight.allocate(DType::kF32, false);
  if (with_bias) linear.bias.allocate(DType::kF32, false);
  size_t row = 0;
  for (const Matrix* part : parts) {
    const size_t count = part->outputs();
    linear.weight.write_rows(row, count, part->weight->data.data(), DType::kF32);
    if (with_bias) {
      const std::vector<float> bias = part->bias ? part->bias->data : std::vector<float>(count);
      linear.bias.write_rows(row, count, bias.data(), DType::kF32);
    }
    row += count;
  }
  return linear;
}

Weight loaded(const Array* vector) {
  if (vector == nullptr) return {};
  Weight weight = Weight::vector(vector->data.size());
  weight.allocate(DType::kF32, false);
  weight.write_rows(0, vector->data.size(), vector->data.data(), DType::kF32);
  return weight;
}

Norm layer_norm_of(Given& given, const std::string& name, size_t size, float eps) {
  const Array& weight = given.tensor(name + ".weight", {size});
  return {Norm::Kind::kLayer, loaded(&weight), loaded(given.find(name + ".bias", {size})), eps};
}

// What hides keys from queries and what is added to their scores.
struct Masking {
  const Array* mask = nullptr;  // 1 = visible; like bias, of a shape that broadcasts to (H, T, S)
  const Array* bias = nullptr;
  bool causal = false;  // query t stands at position S - T + t
  double scale = 0;     // 0: by the head size
  size_t H, T, S;

  Masking(Given& given, size_t heads, size_t queries, size_t keys, bool causal_by_default) : H(heads), T(queries), S(keys) {
    mask = read(given, "mask");
    bias = given.find("bias");
    if (bias) expect_broadcast(given, "bias", *bias);
    causal = given.flag("causal", causal_by_default);
  }
  // Of what stands outside the sequence, such as the encoder's output.
  Masking(Given& given, std::string_view name, size_t heads, size_t queries, size_t keys) : H(heads), T(queries), S(keys) {
    mask = read(given, name);
  }

  const Array* read(Given& given, std::string_view name) {
    const Array* found = given.find(name);
    if (found == nullptr) return nullptr;
    expect_broadcast(given, name, *found);
    for (const float value : found->data) {
      if (value != 0 && value != 1) {
        fail(Code::kInvalidArgument, given.where(), name, ": expected 1 where a key is visible and 0 where it is hidden, got ", value);
      }
    }
    return found;
  }

  void expect_broadcast(Given& given, std::string_view name, const Array& array) const {
    const size_t sizes[] = {H, T, S}, rank = array.shape.size();
    bool fits = rank <= 3;
    for (size_t i = 0; fits && i < rank; ++i) fits = array.shape[i] == 1 || array.shape[i] == sizes[3 - rank + i];
    if (!fits) given.mismatch(name, join("a shape that broadcasts to ", text_of_shape({H, T, S})), array);
  }

  bool is_table() const { return mask || bias || (causal && T > S); }
  bool is_by_head() const {
    const auto has_heads = [](const Array* array) { return array && array->shape.size() == 3 && array->shape[0] > 1; };
    return has_heads(mask) || has_heads(bias);
  }
  double floats() const { return is_table() ? product({is_by_head() ? H : 1, T, S}) : 0; }

  // (H or 1, T, S): the bias, -inf where a key is hidden.
  void fill(float* table) const {
    const auto at = [&](const Array& array, size_t h, size_t t, size_t j) {
      const size_t index[] = {h, t, j}, rank = array.shape.size();
      size_t offset = 0;
      for (size_t i = 0; i < rank; ++i) offset = offset * array.shape[i] + (array.shape[i] == 1 ? 0 : index[3 - rank + i]);
      return array.data[offset];
    };
    for (size_t h = 0; h < (is_by_head() ? H : 1); ++h) {
      for (size_t t = 0; t < T; ++t) {
        for (size_t j = 0; j < S; ++j) {
          const bool hidden = (mask && at(*mask, h, t, j) == 0) || (causal && j + T > S + t);
          *table++ = hidden ? kHidden : bias ? at(*bias, h, t, j) : 0;
        }
      }
    }
  }
};

// Attention over one sequence of keys, and what it lets a caller see.
struct Attention {
  kernels::AttentionShape shape{};
  Masking masking;
  bool with_scores = false;

  double floats() const {
    const auto& [H, Hk, Dk, Dv] = shape;
    return masking.floats() + product({H, masking.T, masking.S}) * (with_scores ? 2 : 1) +
           static_cast<double>((masking.T + kernels::kBlock) * H + (masking.S + kernels::kBlock) * Hk) * static_cast<double>(Dk + Dv) * 2;
  }

  // q (T, H * Dk), k (S, Hk * Dk), v (S, Hk * Dv) -> (T, H * Dv). Puts (H, T, S) into results[name], and into "scores" when asked.
  Tensor operator()(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, Arrays& results, const char* name = "weights") const {
    const size_t T = masking.T, S = masking.S, H = shape.H;
    const Tensor out = ctx.tensor(T, H * shape.Dv);
    std::vector<const void*> blocks((S + kernels::kBlock - 1) / kernels::kBlock);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const size_t begin = i * kernels::kBlock;
      float* block = ctx.arena.floats(kernels::cache_block_bytes(shape, DType::kF32) / sizeof(float));
      kernels::write_block(shape, DType::kF32, block, 0, std::min(kernels::kBlock, S - begin), k.row(begin), k.stride, v.row(begin),
                           v.stride);
      blocks[i] = block;
    }
    kernels::AttentionMask mask;
    mask.scale = static_cast<float>(masking.scale);
    if (masking.is_table()) {
      float* table = ctx.arena.floats(static_cast<size_t>(masking.floats()));
      masking.fill(table);
      mask.bias = table;
      mask.bias_row_stride = static_cast<decltype(mask.bias_row_stride)>(S);
      if (masking.is_by_head()) mask.bias_head_stride = static_cast<decltype(mask.bias_head_stride)>(T * S);
    }
    mask.causal = masking.causal && T <= S;
    const size_t first = mask.causal ? S - T : 0;
    float* scratch = ctx.arena.floats(kernels::attention_scratch(shape, T, S));
    const kernels::KeyValues keys{DType::kF32, blocks.data(), 0, S};
    kernels::attention(shape, mask, q.data, q.stride, T, first, keys, out.data, out.stride, 0, kernels::attention_parts(shape, T), scratch);
    const auto result = [&](const char* what) {
      Array& array = results[what] = {{H, T, S}, std::vector<float>(H * T * S)};
      return array.data.data();
    };
    float* weights = result(name);
    kernels::attention_weights(shape, mask, q.data, q.stride, T, first, keys, 0, H, weights, with_scores ? result("scores") : nullptr,
                               scratch);
    return out;
  }
};

double by_head_size(size_t Dk) { return 1 / std::sqrt(static_cast<double>(Dk)); }

// Arena and context of a call; the arena ends with it.
struct Workplace {
  Arena arena;
  Context ctx{arena};
};

Arrays attention(Given& given) {
  const Array& q = given.tensor("q");
  const size_t rank = q.shape.size();
  if (rank != 2 && rank != 3) given.mismatch("q", "(T, Dk) or (H, T, Dk)", q);
  const bool has_heads = rank == 3;
  const size_t T = q.shape[rank - 2], Dk = q.shape[rank - 1], H = has_heads ? q.shape[0] : 1;
  const Array& k = has_heads ? given.tensor("k", {"Hk", "S", Dk}) : given.tensor("k", {"S", Dk});
  const size_t S = k.shape[rank - 2], Hk = has_heads ? k.shape[0] : 1;
  if (H % Hk != 0) given.mismatch("k", join("a number of heads that divides ", H), k);
  const Array& v = has_heads ? given.tensor("v", {Hk, S, "Dv"}) : given.tensor("v", {S, "Dv"});
  const size_t Dv = v.shape[rank - 1];

  Attention attention{{H, Hk, Dk, Dv}, {given, H, T, S, false}};
  attention.masking.scale = given.number("scale", by_head_size(Dk));
  attention.with_scores = given.flag("scores", false);
  given.settle(attention.floats() + product({H, T, Dv}));

  Workplace place;
  Arrays results;
  const Tensor out = attention(place.ctx, side_by_side(place.ctx, q), side_by_side(place.ctx, k), side_by_side(place.ctx, v), results);
  std::vector<size_t> shape = q.shape;
  shape.back() = Dv;
  results["output"] = by_head(shape, out);
  if (!has_heads) {
    for (auto& [name, array] : results) {
      if (array.shape.size() == 3) array.shape.erase(array.shape.begin());
    }
  }
  return results;
}

// The four matrices around attention, under the names that a caller knows them by.
struct Projections {
  Matrix query, key, value, output;

  Projections(Given& given, const std::string& at, std::initializer_list<const char*> names, size_t width, size_t memory_width,
              size_t heads, size_t kv_heads) {
    const auto* name = names.begin();
    const auto read = [&](Matrix& matrix, Dim outputs, Dim inputs) { matrix = Matrix(given, at + *name++, outputs, inputs); };
    const auto expect_multiple = [&](const Matrix& matrix, const char* what, size_t of) {
      if (matrix.outputs() % of != 0) given.mismatch(at + what, join("a multiple of ", of, " rows, one part a head"), *matrix.weight);
    };
    read(query, "H * Dk", width);
    expect_multiple(query, names.begin()[0], heads);
    const size_t head_size = query.outputs() / heads;
    read(key, kv_heads * head_size, memory_width);
    read(value, "Hk * Dv", memory_width);
    expect_multiple(value, names.begin()[2], kv_heads);
    const size_t value_size = value.outputs() / kv_heads;
    shape = {heads, kv_heads, head_size, value_size};
    read(output, "F", heads * value_size);
  }

  kernels::AttentionShape shape{};
  double floats() const { return query.floats() + key.floats() + value.floats() + output.floats(); }
};

// softmax(scale (x Wq) (m Wk)^T + mask) (m Wv) Wo, for any number of heads (Vaswani et al. 2017, section 3.2.2).
struct MultiHead {
  Linear query, key, value, output;
  Attention attention;

  static double floats(const Projections& parts, const Attention& attention) {
    return parts.floats() + attention.floats() + product({attention.masking.T, parts.output.outputs()}) * 2;
  }
  MultiHead(const Projections& parts, const Attention& core)
      : query(loaded({&parts.query})),
        key(loaded({&parts.key})),
        value(loaded({&parts.value})),
        output(loaded({&parts.output})),
        attention(core) {}

  // x (T, D) looks at m (S, M) -> (T, F)
  Tensor operator()(Context& ctx, const Tensor& x, const Tensor& m, Arrays& results, const char* name = "weights") const {
    return output(ctx, attention(ctx, query(ctx, x), key(ctx, m), value(ctx, m), results, name));
  }
};

Arrays multi_head_attention(Given& given) {
  const Array& x = given.tensor("x", {"T", "D"});
  const Array* memory = given.find("memory", {"S", "M"});
  const Array& m = memory ? *memory : x;
  const size_t H = head_count(given.option("heads"), "heads", 1), Hk = head_count(given.option("kvHeads"), "kvHeads", H);
  if (H % Hk != 0) given.option("kvHeads").reject("kvHeads", join("a number that divides ", H, " heads"));
  const Projections parts(given, "weights.", {"query", "key", "value", "output"}, x.shape[1], m.shape[1], H, Hk);
  Attention attention{parts.shape, {given, H, x.shape[0], m.shape[0], false}};
  attention.masking.scale = given.number("scale", by_head_size(parts.shape.Dk));
  attention.with_scores = given.flag("scores", false);
  given.settle(MultiHead::floats(parts, attention));

  Workplace place;
  Arrays results;
  const Tensor y = MultiHead(parts, attention)(place.ctx, rows_of(x), rows_of(m), results);
  results["output"] = array_of({y.rows, y.cols}, y);
  return results;
}

Arrays normalized(Given& given, Norm::Kind kind) {
  const Array& x = given.tensor("x");
  const size_t D = x.shape.back();
  const bool is_rms = kind == Norm::Kind::kRms;
  const Array* weight = given.find("weight", {D});
  const Array* bias = is_rms ? nullptr : given.find("bias", {D});
  const float eps = given.eps(is_rms ? 1e-6 : 1e-5);
  given.settle(2 * count_of(x.shape));

  Workplace place;
  const Array ones{{D}, std::vector<float>(D, 1)};
  const Norm norm{kind, loaded(weight || !is_rms ? weight : &ones), loaded(bias), eps};
  return {{"output", array_of(x.shape, norm(place.ctx, rows_of(x)))}};
}

Arrays layer_norm(Given& given) { return normalized(given, Norm::Kind::kLayer); }
Arrays rms_norm(Given& given) { return normalized(given, Norm::Kind::kRms); }

Arrays softmax(Given& given) {
  const Array& x = given.tensor("x");
  given.settle(2 * count_of(x.shape));
  Workplace place;
  return {{"output", array_of(x.shape, wf::softmax(place.ctx, rows_of(x)))}};
}

struct FeedForwardParts {
  Matrix up, down, gate;
  kernels::Activation act;

  FeedForwardParts(Given& given, const std::string& up_name, const std::string& down_name, const std::string& gate_name, size_t width)
      : up(given, up_name, "F", width), down(given, down_name, "D", up.outputs()) {
    if (!gate_name.empty() && (given.find(gate_name) || given.find(gate_name + ".weight")))
      gate = Matrix(given, gate_name, up.outputs(), width);
    act = wf::activation(given.option("activation"), "activation", "relu");
  }

  double floats(size_t T) const {
    return up.floats() * (gate.weight ? 2 : 1) + down.floats() + product({T, up.outputs()}) * 3 + product({T, down.outputs()}) * 2;
  }
  FeedForward load() const {
    FeedForward block;
    block.activation = act;
    block.is_gated = gate.weight != nullptr;
    block.up = block.is_gated ? loaded({&gate, &up}) : loaded({&up});
    block.down = loaded({&down});
    return block;
  }
};

Arrays feed_forward(Given& given) {
  const Array& x = given.tensor("x");
  const FeedForwardParts parts(given, "up", "down", "gate", x.shape.back());
  given.settle(parts.floats(x.data.size() / x.shape.back()));

  Workplace place;
  std::vector<size_t> shape = x.shape;
  shape.back() = parts.down.outputs();
  return {{"output", array_of(shape, parts.load()(place.ctx, rows_of(x)))}};
}

Arrays sinusoidal_positions(Given& given) {
  const size_t T = given.option("length").size("length"), D = given.option("size").size("size");
  if (T == 0) given.option("length").reject("length", "a whole number from 1");
  if (D == 0 || D % 2 != 0) given.option("size").reject("size", "an even number from 2: sines and cosines come in pairs");
  const double first = given.integer("first", 0);
  if (std::abs(first) + static_cast<double>(T) > kMostPosition) {
    given.option("first").reject("first", join("positions of at most ", static_cast<uint64_t>(kMostPosition), " with the length ", T));
  }
  const bool interleaved = given.chooses("layout", "interleaved", "halves");
  given.settle(product({T, D}) * 2 + static_cast<double>(T));

  Workplace place;
  std::vector<int32_t> positions(T);
  for (size_t t = 0; t < T; ++t) positions[t] = static_cast<int32_t>(first) + static_cast<int32_t>(t);
  const Sinusoids block = interleaved ? Sinusoids(D) : Sinusoids::halves(D);
  return {{"output", array_of({T, D}, block(place.ctx, positions))}};
}

Arrays rope(Given& given) {
  const Array& x = given.tensor("x");
  const size_t rank = x.shape.size();
  if (rank != 2 && rank != 3) given.mismatch("x", "(T, Dk) or (H, T, Dk)", x);
  const size_t T = x.shape[rank - 2], Dk = x.shape[rank - 1];
  const size_t rotary = given.option("rotary").size("rotary", Dk);
  if (rotary == 0 || rotary % 2 != 0 || rotary > Dk) {
    if (!given.option("rotary").has("rotary")) given.mismatch("x", "an even number of features", x);
    given.option("rotary").reject("rotary", join("an even number from 2 to ", Dk));
  }
  const double theta = given.number("theta", 10000);
  if (!(theta > 1 && theta < 1e30)) given.option("theta").reject("theta", "a number above 1, below 1e30");
  const bool interleaved = given.flag("interleaved", false);
  const Array* at = given.find("positions", {T});
  std::vector<int32_t> positions(T);
  for (size_t t = 0; t < T; ++t) {
    const double position = at ? static_cast<double>(at->data[t]) : static_cast<double>(t);
    if (!(position >= 0 && position <= kMostPosition && position == std::floor(position))) {
      fail(Code::kInvalidArgument, given.where(), "positions: expected whole numbers from 0 to ", static_cast<uint64_t>(kMostPosition),
           ", got ", position);
    }
    positions[t] = static_cast<int32_t>(position);
  }
  given.settle(2 * count_of(x.shape) + product({T, rotary}));

  Workplace place;
  Context& ctx = place.ctx;
  Config config(given.where());
  config.set("rope_theta", theta);
  config.set("rope_interleaved", interleaved);
  const Rope block(config, rotary, 2, theta);
  const std::vector<size_t> offsets = {0, T};
  const Batch batch{positions, positions, offsets, {}};
  const Rope::Angles angles = block.angles(ctx, batch);
  Tensor y = rank == 2 ? copied(ctx, x) : side_by_side(ctx, x);
  rotate(ctx, y, Dk, rotary, angles.cos, angles.sin, interleaved);
  return {{"output", by_head(x.shape, y)}};
}

// What the layers share: the options, a sub-layer's attention, its norms.
struct LayerParts {
  Given& given;
  size_t D, heads;
  float eps;
  Residual::Order order;
  bool connected, has_scale;
  double scale;

  explicit LayerParts(Given& given_, size_t width) : given(given_), D(width) {
    heads = head_count(given.option("heads"), "heads", 1);
    eps = given.eps(1e-5);
    order = given.chooses("norm", "post", "pre") ? Residual::Order::kPost : Residual::Order::kPre;
    connected = given.flag("residual", true);
    has_scale = given.option("scale").has("scale");
    scale = given.number("scale", 1);
  }

  Projections projections(const std::string& name, size_t memory_width) const {
    Projections parts(given, "weights." + name + ".", {"q_proj", "k_proj", "v_proj", "out_proj"}, D, memory_width, heads, heads);
    if (parts.output.outputs() != D) given.mismatch("weights." + name + ".out_proj", join(D, " rows"), *parts.output.weight);
    return parts;
  }
  FeedForwardParts feed_forward() const {
    FeedForwardParts parts(given, "weights.fc1", "weights.fc2", "", D);
    if (parts.down.outputs() != D) given.mismatch("weights.fc2", join(D, " rows"), *parts.down.weight);
    return parts;
  }
  Attention attention(const Projections& parts, Masking masking) const {
    masking.scale = has_scale ? scale : by_head_size(parts.shape.Dk);
    return {parts.shape, masking};
  }
  Residual residual(const std::string& name) const { return {layer_norm_of(given, "weights." + name, D, eps), order, connected}; }
};

Arrays encoder_layer(Given& given) {
  const Array& x = given.tensor("x", {"T", "D"});
  const size_t T = x.shape[0], D = x.shape[1];
  const LayerParts layer(given, D);
  const Projections self = layer.projections("self_attn", D);
  const Attention attention = layer.attention(self, {given, layer.heads, T, T, false});
  const FeedForwardParts inner = layer.feed_forward();
  const Residual residual_1 = layer.residual("self_attn_layer_norm"), residual_2 = layer.residual("final_layer_norm");
  given.settle(MultiHead::floats(self, attention) + inner.floats(T) + 4 * product({T, D}));

  Workplace place;
  Context& ctx = place.ctx;
  Arrays results;
  const MultiHead look(self, attention);
  const FeedForward feed_forward = inner.load();
  Tensor y = copied(ctx, x);
  y = residual_1(ctx, y, [&](const Tensor& h) { return look(ctx, h, h, results); });
  y = residual_2(ctx, y, [&](const Tensor& h) { return feed_forward(ctx, h); });
  results["output"] = array_of({T, D}, y);
  return results;
}

Arrays decoder_layer(Given& given) {
  const Array& x = given.tensor("x", {"T", "D"});
  const Array& memory = given.tensor("memory", {"S", "M"});
  const size_t T = x.shape[0], D = x.shape[1], S = memory.shape[0];
  const LayerParts layer(given, D);
  const Projections self = layer.projections("self_attn", D), cross = layer.projections("encoder_attn", memory.shape[1]);
  const Attention attention = layer.attention(self, {given, layer.heads, T, T, true});
  const Attention cross_attention = layer.attention(cross, {given, "memoryMask", layer.heads, T, S});
  const FeedForwardParts inner = layer.feed_forward();
  const Residual residual_1 = layer.residual("self_attn_layer_norm"), residual_2 = layer.residual("encoder_attn_layer_norm"),
                 residual_3 = layer.residual("final_layer_norm");
  given.settle(MultiHead::floats(self, attention) + MultiHead::floats(cross, cross_attention) + inner.floats(T) + 4 * product({T, D}));

  Workplace place;
  Context& ctx = place.ctx;
  Arrays results;
  const MultiHead look(self, attention), look_at_source(cross, cross_attention);
  const FeedForward feed_forward = inner.load();
  Tensor y = copied(ctx, x);
  y = residual_1(ctx, y, [&](const Tensor& h) { return look(ctx, h, h, results); });
  y = residual_2(ctx, y, [&](const Tensor& h) { return look_at_source(ctx, h, rows_of(memory), results, "crossWeights"); });
  y = residual_3(ctx, y, [&](const Tensor& h) { return feed_forward(ctx, h); });
  results["output"] = array_of({T, D}, y);
  return results;
}

}  // namespace

Arrays run_mechanism(std::string_view operation, const Arrays& tensors, const Config& options) {
  static const std::map<std::string_view, Arrays (*)(Given&)> operations = {
      {"attention", attention},
      {"multiHeadAttention", multi_head_attention},
      {"layerNorm", layer_norm},
      {"rmsNorm", rms_norm},
      {"softmax", softmax},
      {"feedForward", feed_forward},
      {"rope", rope},
      {"sinusoidalPositions", sinusoidal_positions},
      {"encoderLayer", encoder_layer},
      {"decoderLayer", decoder_layer},
  };
  const auto found = operations.find(operation);
  if (found == operations.end()) fail(Code::kInvalidArgument, "ops", "expected the name of an operation, got '", operation, "'");
  Given given(operation, tensors, options);
  return found->second(given);
}

}  // namespace wf
