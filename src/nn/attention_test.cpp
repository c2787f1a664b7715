// Self-attention over caches, over the rows themselves, and under a tape.
#include "nn/attention.hpp"

#include <catch_amalgamated.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/rng.hpp"

using namespace wf;

namespace {

constexpr size_t D = 12, T = 40;

void fill(Weight& weight, uint64_t seed) {
  weight.allocate(DType::kF32, true);
  const size_t rows = weight.use() == Weight::Use::kVector ? weight.cols() : weight.rows();
  std::vector<float> values(weight.rows() * weight.cols());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(normal({seed, 0, 0}, i)) / 2;
  weight.write_rows(0, rows, values.data(), DType::kF32);
}

SelfAttention example(size_t window, bool alibi) {
  SelfAttention attention(0, D, 3, 1, 6, true, true);
  uint64_t seed = 1;
  for (Weight* weight : {&attention.qkv.weight, &attention.qkv.bias, &attention.output.weight, &attention.output.bias})
    fill(*weight, seed++);
  attention.core.window = window;
  if (alibi) attention.core.slopes = alibi_slopes(3);
  return attention;
}

struct Rows {
  std::vector<int32_t> tokens = std::vector<int32_t>(T);
  std::vector<float> x;
  Rows() {
    for (size_t i = 0; i < T * D; ++i) x.push_back(static_cast<float>(normal({9, 0, 0}, i)));
  }
  Tensor tensor(size_t begin, size_t count) { return {x.data() + begin * D, count, D, D}; }
};

}  // namespace

TEST_CASE("hidden positions are hidden over caches, over rows, and under a tape", "[attention]") {
  const size_t window = GENERATE(0, 7);
  const bool alibi = GENERATE(false, true);
  CAPTURE(window, alibi);
  const SelfAttention attention = example(window, alibi);
  Rows rows;
  std::vector<float> bias(T, 0.0f);
  for (const size_t hidden : {0, 1, 11, 12, 30}) bias[hidden] = -std::numeric_limits<float>::infinity();
  const float* const key_bias[] = {bias.data()};

  Arena arena;
  Context ctx{arena};
  const std::vector<size_t> offsets{0, T};
  Batch batch{rows.tokens, rows.tokens, offsets, {}, key_bias};
  const Tensor streamed = attention(ctx, rows.tensor(0, T), batch, {});

  KvPool pool(attention.core.shape, 4);
  KvCache cache(pool, {window});
  KvCache* const caches[] = {&cache};
  for (size_t t = 0; t < T; t += 8) {
    const std::vector<size_t> part{0, 8};
    const Tensor y = attention(ctx, rows.tensor(t, 8), {{rows.tokens.data(), 8}, {rows.tokens.data(), 8}, part, {}, key_bias}, caches);
    cache.advance(8);
    for (size_t r = 0; r < 8; ++r) CHECK(std::memcmp(y.row(r), streamed.row(t + r), D * sizeof(float)) == 0);
  }

  Tape tape(arena);
  Context taped{arena, &tape};
  const Tensor exact = attention(taped, rows.tensor(0, T), batch, {});
  for (size_t i = 0; i < T * D; ++i) CHECK(std::abs(exact.data[i] - streamed.data[i]) < 1e-5f);

  // Whatever stands at a hidden position, the others do not notice.
  for (const size_t hidden : {0, 1, 11, 12, 30}) std::fill_n(rows.x.begin() + static_cast<ptrdiff_t>(hidden * D), D, 100.0f);
  const Tensor changed = attention(ctx, rows.tensor(0, T), batch, {});
  for (size_t t = 0; t < T; ++t) {
    if (bias[t] == 0) CHECK(std::memcmp(changed.row(t), streamed.row(t), D * sizeof(float)) == 0);
  }
  // The first two see nothing: zeros, and so the bias of the output alone.
  for (size_t t = 0; t < 2; ++t) {
    for (size_t d = 0; d < D; ++d) {
      CHECK(changed.row(t)[d] == attention.output.bias.values()[d]);
      CHECK(exact.row(t)[d] == attention.output.bias.values()[d]);
    }
  }
}
