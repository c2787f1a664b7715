#include "kernels/attention.hpp"

#include <catch_amalgamated.hpp>

#include "kernels/panels.hpp"
#include "kernels/reference.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

// Keys and values of S positions, plain (rounded as the blocks' format has it) and in blocks. What lies beyond S in the last block is
// NaN.
struct Cache {
  AttentionShape shape;
  size_t S;
  DType store;
  std::vector<float> k, v;
  std::vector<std::vector<float>> memory;
  std::vector<const void*> blocks;

  Cache(const AttentionShape& s, size_t positions, uint64_t seed, DType format = DType::kF32, size_t slab = 5)
      : shape(s), S(positions), store(format) {
    k = normals(S * shape.Hk * shape.Dk, seed), v = normals(S * shape.Hk * shape.Dv, seed + 1);
    const size_t count = (S + kBlock - 1) / kBlock;
    for (size_t b = 0; b < count; ++b) memory.emplace_back(cache_block_bytes(shape, store) / 4, kNaN);
    for (size_t j = 0; j < S;) {  // written in slabs that do not fall together with the blocks
      const size_t n = std::min({slab, S - j, kBlock - j % kBlock});
      write_block(shape, store, memory[j / kBlock].data(), j % kBlock, n, &k[j * shape.Hk * shape.Dk], shape.Hk * shape.Dk,
                  &v[j * shape.Hk * shape.Dv], shape.Hk * shape.Dv);
      j += n;
    }
    for (const auto& block : memory) blocks.push_back(block.data());
    if (store == DType::kF16) {
      for (auto* numbers : {&k, &v}) {
        for (float& number : *numbers) number = widen(DType::kF16, narrow(DType::kF16, number));
      }
    }
  }
};

std::vector<float> run(const Cache& cache, const AttentionMask& mask, const std::vector<float>& q, size_t begin, size_t T, size_t q_begin,
                       size_t S, size_t first_block = 0) {
  const size_t row = cache.shape.H * cache.shape.Dk, out_row = cache.shape.H * cache.shape.Dv;
  Row queries(std::vector<float>(q.begin() + static_cast<long>(begin * row), q.begin() + static_cast<long>((begin + T) * row)), begin % 4);
  Row out(T * out_row, 1), scratch(attention_scratch(cache.shape, T, S));
  AttentionMask local = mask;
  if (local.bias) local.bias += static_cast<ptrdiff_t>(begin) * local.bias_row_stride;
  attention(cache.shape, local, queries.data(), row, T, q_begin + begin, {cache.store, cache.blocks.data() + first_block, first_block, S},
            out.data(), out_row, 0, attention_parts(cache.shape, T), scratch.data());
  CHECK(out.intact());
  return out.values();
}

struct Expected {
  std::vector<double> scores, weights, out;
};

Expected expected(const Cache& cache, const AttentionMask& mask, const std::vector<float>& q, size_t T, size_t q_begin) {
  const AttentionShape& s = cache.shape;
  Expected e{std::vector<double>(s.H * T * cache.S), std::vector<double>(s.H * T * cache.S), std::vector<double>(T * s.H * s.Dv)};
  reference::attention(s, mask, widened(q).data(), widened(cache.k).data(), widened(cache.v).data(), T, q_begin, cache.S, e.scores.data(),
                       e.weights.data(), e.out.data());
  return e;
}

// Scores of size about `sqrt(Dk)` rounded at that size, and sums of S terms.
double tolerance(const AttentionShape& shape, size_t S) {
  return kEps * (8 + 4 * std::sqrt(static_cast<double>(shape.Dk)) + std::sqrt(static_cast<double>(S)));
}

const AttentionShape kShapes[] = {{1, 1, 4, 4}, {4, 4, 8, 8},   {6, 2, 16, 16}, {4, 1, 5, 7},
                                  {3, 3, 1, 1}, {9, 3, 64, 64}, {2, 1, 20, 33}, {20, 1, 3, 18}};

TEST_CASE("Attention against its definition, for every number of keys around the blocks", "[kernels][attention]") {
  const DType store = GENERATE(DType::kF32, DType::kF16);
  for (const AttentionShape& shape : kShapes) {
    for (const size_t S : {1, 2, 15, 16, 17, 31, 32, 33, 50, 63, 64, 65, 100, 150}) {
      const Cache cache(shape, S, S, store);
      const std::vector<float> slopes = normals(shape.H, 9, 0.1f);
      for (int form = 0; form < 8; ++form) {
        AttentionMask mask;
        mask.scale = 1 / std::sqrt(static_cast<float>(shape.Dk));
        mask.causal = form & 1;
        if (form & 2) mask.window = 20;
        if (form & 4) mask.slopes = slopes.data();
        const size_t T = std::min<size_t>(S, 19), q_begin = S - T;
        const std::vector<float> bias = normals(shape.H * T * S, 8);
        // None, one a head, one for all heads, by distance, one a key.
        for (const int biased : {0, 1, 2, 3, 4}) {
          if (biased != 0) {
            mask.bias = bias.data();
            mask.bias_head_stride = biased == 1 ? static_cast<ptrdiff_t>(T * S) : 0;
            mask.bias_row_stride = static_cast<ptrdiff_t>(S);
          }
          const std::vector<float> distances = normals(shape.H * (T + S), 10);
          if (biased == 3) {
            mask.bias = distances.data() + T - 1;
            mask.bias_head_stride = static_cast<ptrdiff_t>(T + S);
            mask.bias_row_stride = -1;
          }
          if (biased == 4) mask.bias = nullptr, mask.key_bias = bias.data();
          const std::vector<float> q = normals(T * shape.H * shape.Dk, S + 7);
          const Expected e = expected(cache, mask, q, T, q_begin);
          const std::vector<float> out = run(cache, mask, q, 0, T, q_begin, S);
          CAPTURE(shape.H, shape.Hk, shape.Dk, shape.Dv, S, form, biased);
          CHECK(distance(out, e.out, out.size(), 4 * tolerance(shape, S), tolerance(shape, S)) <= 1);

          const size_t head_end = shape.H, head_begin = shape.H / 2;
          Row weights((head_end - head_begin) * T * S), scores((head_end - head_begin) * T * S), scratch(attention_scratch(shape, T, S));
          attention_weights(shape, mask, q.data(), shape.H * shape.Dk, T, q_begin, {cache.store, cache.blocks.data(), 0, S}, head_begin,
                            head_end, weights.data(), scores.data(), scratch.data());
          CHECK(distance(weights.values(), e.weights.data() + head_begin * T * S, weights.size(), 0, 4 * tolerance(shape, S)) <= 1);
          CHECK(distance(scores.values(), e.scores.data() + head_begin * T * S, scores.size(), tolerance(shape, 1), tolerance(shape, 1)) <=
                1);
          Row only(weights.size());
          attention_weights(shape, mask, q.data(), shape.H * shape.Dk, T, q_begin, {cache.store, cache.blocks.data(), 0, S}, head_begin,
                            head_end, only.data(), nullptr, scratch.data());
          CHECK(same_bits(only.values(), weights.values()));
          attention_weights(shape, mask, q.data(), shape.H * shape.Dk, T, q_begin, {cache.store, cache.blocks.data(), 0, S}, head_begin,
                            head_end, nullptr, only.data(), scratch.data());
          CHECK(same_bits(only.values(), scores.values()));
        }
      }
    }
  }
}

TEST_CASE("A query's result does not depend on other queries, chunks, or later keys", "[kernels][attention]") {
  const DType store = GENERATE(DType::kF32, DType::kF16);
  for (const AttentionShape& shape : kShapes) {
    const size_t S = 139, row = shape.H * shape.Dv;
    const Cache cache(shape, S, 3, store);
    const std::vector<float> q = normals(S * shape.H * shape.Dk, 4), slopes = normals(shape.H, 9, 0.1f), bias = normals(shape.H * S * S, 8);
    for (int form = 0; form < 8; ++form) {
      AttentionMask mask;
      mask.scale = 0.3f;
      mask.causal = true;
      if (form & 1) mask.window = 21;
      if (form & 2) mask.slopes = slopes.data();
      if (form & 4) {
        mask.bias = bias.data();
        mask.bias_head_stride = static_cast<ptrdiff_t>(S * S);
        mask.bias_row_stride = static_cast<ptrdiff_t>(S);
      }
      const std::vector<float> whole = run(cache, mask, q, 0, S, 0, S);
      CAPTURE(shape.H, shape.Hk, shape.Dk, form);
      for (const size_t chunk : {1, 2, 3, 7, 16, 40, 100}) {
        size_t wrong = 0;
        for (size_t t = 0; t < S; t += chunk) {
          const size_t n = std::min(chunk, S - t);
          wrong += !same_bits(run(cache, mask, q, t, n, 0, S).data(), whole.data() + t * row, n * row);      // later keys exist
          wrong += !same_bits(run(cache, mask, q, t, n, 0, t + n).data(), whole.data() + t * row, n * row);  // they do not
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("However the parts are divided, the bits are the same", "[kernels][attention]") {
  for (const AttentionShape& shape : kShapes) {
    for (const size_t T : {1, 5, 70}) {
      const size_t S = 100, row = shape.H * shape.Dv, parts = attention_parts(shape, T);
      const Cache cache(shape, S, 11);
      const std::vector<float> q = normals(T * shape.H * shape.Dk, 12);
      AttentionMask mask;
      mask.causal = true;
      const std::vector<float> whole = run(cache, mask, q, 0, T, S - T, S);
      Row out(T * row), scratch(attention_scratch(shape, T, S));
      for (size_t part = parts; part-- > 0;) {
        attention(shape, mask, q.data(), shape.H * shape.Dk, T, S - T, {cache.store, cache.blocks.data(), 0, S}, out.data(), row, part,
                  part + 1, scratch.data());
      }
      CAPTURE(shape.H, shape.Hk, T);
      CHECK(same_bits(out.values(), whole));
    }
  }
}

TEST_CASE("What f16 cannot keep is known", "[kernels][attention]") {
  for (size_t n = 1; n <= kLongest; ++n) {
    for (size_t at = 0; at < n; ++at) {
      for (const float number : {65504.0f, -65519.9f, 65520.0f, -70000.0f, kInf, kNaN}) {
        std::vector<float> x(n, 1.0f);
        x[at] = number;
        CHECK(is_cacheable(DType::kF32, x.data(), n));
        CHECK(is_cacheable(DType::kF16, x.data(), n) == std::isfinite(widen(DType::kF16, narrow(DType::kF16, number))));
      }
    }
  }
}

TEST_CASE("Blocks behind the window may be gone", "[kernels][attention]") {
  const AttentionShape shape{4, 2, 8, 8};
  const size_t S = 100, T = 5, q_begin = 95;
  Cache cache(shape, S, 5);
  const std::vector<float> q = normals(T * shape.H * shape.Dk, 6);
  AttentionMask mask;
  mask.causal = true;
  mask.window = 20;
  const std::vector<float> whole = run(cache, mask, q, 0, T, q_begin, S);
  // The first query, at 95, sees 76..95: blocks 4, 5 and 6 are read.
  for (size_t b = 0; b < 4; ++b) cache.blocks[b] = nullptr;
  for (const size_t first : {0, 2, 4}) CHECK(same_bits(run(cache, mask, q, 0, T, q_begin, S, first), whole));
}

TEST_CASE("A query that sees nothing gives zeros; hidden keys of any content do not matter", "[kernels][attention]") {
  const AttentionShape shape{2, 1, 4, 4};
  const size_t S = 20, T = 3;
  Cache cache(shape, S, 5);
  const std::vector<float> q = normals(T * shape.H * shape.Dk, 6);
  std::vector<float> bias(T * S, 0.0f);
  for (size_t j = 0; j < S; ++j) bias[S + j] = -kInf;
  AttentionMask mask;
  mask.bias = bias.data();
  mask.bias_row_stride = static_cast<ptrdiff_t>(S);
  const std::vector<float> out = run(cache, mask, q, 0, T, 0, S);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(std::isfinite(out[i]));
    CHECK(out[8 + i] == 0.0f);
    CHECK(out[16 + i] != 0.0f);
  }
  CHECK(run(cache, AttentionMask(), q, 0, T, 0, 0) == std::vector<float>(T * 8, 0.0f));

  AttentionMask causal;
  causal.causal = true;
  const std::vector<float> before = run(cache, causal, q, 0, T, 5, S);
  for (size_t j = 8; j < S; ++j) {
    for (size_t d = 0; d < 4; ++d) {
      cache.memory[j / 16][d * 16 + j % 16] = kNaN;
      cache.memory[j / 16][4 * 16 + j % 16 * 4 + d] = kInf;
    }
  }
  CHECK(same_bits(run(cache, causal, q, 0, T, 5, S), before));
}

TEST_CASE("Attention with extreme scores", "[kernels][attention]") {
  const AttentionShape shape{1, 1, 4, 4};
  const size_t S = 40;
  Cache cache(shape, S, 5);
  std::vector<float> q(4, 0.0f);
  q[0] = 1e4f;  // the softmax is all but a maximum
  size_t best = 0;
  for (size_t j = 0; j < S; ++j) {
    if (cache.k[j * 4] > cache.k[best * 4]) best = j;
  }
  const std::vector<float> out = run(cache, AttentionMask(), q, 0, 1, 0, S);
  CHECK(distance(out, cache.v.data() + best * 4, 4, 0, 1e-6) <= 1);
  q[0] = kNaN;
  for (const float value : run(cache, AttentionMask(), q, 0, 1, 0, S)) CHECK(std::isnan(value));
}

TEST_CASE("Attention for training, and its gradients", "[kernels][attention][gradient]") {
  const AttentionShape shapes[] = {{1, 1, 4, 4}, {4, 2, 5, 3}, {3, 1, 8, 8}};
  for (const AttentionShape& s : shapes) {
    for (const bool causal : {false, true}) {
      const size_t T = 6, S = causal ? 6 : 19;
      const size_t qn = s.H * s.Dk, kn = s.Hk * s.Dk, vn = s.Hk * s.Dv, on = s.H * s.Dv;
      const std::vector<float> slopes_alibi = normals(s.H, 1, 0.1f);
      AttentionMask mask;
      mask.causal = causal;
      mask.slopes = slopes_alibi.data();
      mask.scale = 0.4f;
      const std::vector<float> q = normals(T * qn, 2), k = normals(S * kn, 3), v = normals(S * vn, 4), dout = normals(T * on, 5);
      Row weights(s.H * T * S), out(T * on), scratch(attention_exact_scratch(s, T, S));
      const ExactAttention x{s, mask, T, S, q.data(), k.data(), v.data(), qn, kn, vn, weights.data(), {0, {}, 0}};
      attention_forward_exact(x, 0, s.Hk, out.data(), on, scratch.data());
      const auto loss = [&](const std::vector<double>& qs, const std::vector<double>& ks, const std::vector<double>& vs) {
        std::vector<double> scores(s.H * T * S), w(s.H * T * S), o(T * on);
        reference::attention(s, mask, qs.data(), ks.data(), vs.data(), T, 0, S, scores.data(), w.data(), o.data());
        return weighed(o, dout, T * on);
      };
      std::vector<double> scores(s.H * T * S), w(s.H * T * S), o(T * on);
      const std::vector<double> qd = widened(q), kd = widened(k), vd = widened(v);
      reference::attention(s, mask, qd.data(), kd.data(), vd.data(), T, 0, S, scores.data(), w.data(), o.data());
      CHECK(distance(weights.values(), w, w.size(), 0, 4 * tolerance(s, S)) <= 1);
      CHECK(distance(out.values(), o, o.size(), 4 * tolerance(s, S), tolerance(s, S)) <= 1);

      Row dq(normals(T * qn, 6)), dk(normals(S * kn, 7)), dv(normals(S * vn, 8));
      const std::vector<float> old_q = dq.values(), old_k = dk.values(), old_v = dv.values();
      attention_backward(x, 0, s.Hk, dout.data(), on, dq.data(), dk.data(), dv.data(), nullptr, scratch.data());
      const auto eq = slopes([&](const std::vector<double>& x) { return loss(x, kd, vd); }, qd);
      const auto ek = slopes([&](const std::vector<double>& x) { return loss(qd, x, vd); }, kd);
      const auto ev = slopes([&](const std::vector<double>& x) { return loss(qd, kd, x); }, vd);
      for (size_t i = 0; i < eq.size(); ++i) CHECK(std::abs(dq[i] - (old_q[i] + eq[i])) <= 2e-6);
      for (size_t i = 0; i < ek.size(); ++i) CHECK(std::abs(dk[i] - (old_k[i] + ek[i])) <= 2e-6);
      for (size_t i = 0; i < ev.size(); ++i) CHECK(std::abs(dv[i] - (old_v[i] + ev[i])) <= 4e-6);
    }
  }
}

}  // namespace
}  // namespace wf::kernels
