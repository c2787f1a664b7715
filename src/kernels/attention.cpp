#include "kernels/attention.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/elementwise.hpp"
#include "kernels/loops.hpp"
#include "kernels/panels.hpp"
#include "kernels/softmax.hpp"
#include "kernels/tile.hpp"

namespace wf::kernels {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr size_t kTile = 32;          // queries that share the reading of keys
constexpr size_t kSpan = 4 * kBlock;  // keys that share a step of the softmax; a span begins at a multiple of it
constexpr size_t kBlocks = kSpan / kBlock;

// The keys [begin, end) that the query at a position sees; or such lanes of a span.
struct Seen {
  size_t begin, end;
  bool operator==(const Seen&) const = default;
  // Of the span or block that begins at `first`.
  bool meets(size_t first, size_t count) const { return first < end && first + count > begin; }
  Seen within(size_t first) const { return {begin > first ? begin - first : 0, std::min(kSpan, end - first)}; }
};

Seen seen(const AttentionMask& mask, size_t position, size_t S) {
  Seen keys{0, S};
  if (mask.causal) keys.end = std::min(S, position + 1);
  if (mask.window != 0 && position + 1 > mask.window) keys.begin = position + 1 - mask.window;
  keys.begin = std::min(keys.begin, keys.end);
  return keys;
}

// The multiple of kBlock at or before `lane`, at or behind it.
size_t floor_block(size_t lane) { return lane / kBlock * kBlock; }
size_t ceil_block(size_t lane) { return floor_block(lane + kBlock - 1); }

// The number, of a block's, at which the keys (Dk, kBlock) or the values (Dv * kBlock) of key/value head g begin.
size_t keys_at(const AttentionShape& shape, size_t g) { return g * shape.Dk * kBlock; }
size_t values_at(const AttentionShape& shape, size_t g) { return (shape.Hk * shape.Dk + g * shape.Dv) * kBlock; }

template <class T>
T* bias_row(T* bias, const AttentionMask& mask, size_t h, size_t t) {
  return bias + static_cast<ptrdiff_t>(h) * mask.bias_head_stride + static_cast<ptrdiff_t>(t) * mask.bias_row_stride;
}

// The scores (kSpan) of one query and the span that begins at `first`: in, q k of the blocks that have a lane in `lanes`; out, scaled
// and biased, and -inf where such a block's key is hidden. Returns the largest in every lane.
F32 finish_scores(const AttentionMask& mask, size_t h, size_t t, size_t first, Seen lanes, float* score) {
  const size_t begin = floor_block(lanes.begin), end = ceil_block(lanes.end);
  const F32 factor = simd::splat(mask.scale);
  for (size_t i = begin; i < end; i += simd::kLanes) simd::store(score + i, simd::load(score + i) * factor);
  const size_t key = first + lanes.begin, n = lanes.end - lanes.begin;
  float* shown = score + lanes.begin;
  if (mask.slopes) {
    for (size_t i = 0; i < n; ++i) shown[i] += mask.slopes[h] * static_cast<float>(key + i);
  }
  if (mask.bias) add(shown, bias_row(mask.bias, mask, h, t) + key, shown, n);
  if (mask.key_bias) add(shown, mask.key_bias + key, shown, n);
  for (size_t i = begin; i < lanes.begin; ++i) score[i] = kHidden;
  for (size_t i = lanes.end; i < end; ++i) score[i] = kHidden;
  F32 most = simd::load(score + begin), other = most;
  for (size_t i = begin; i < end; i += 2 * simd::kLanes) {
    most = simd::max(most, simd::load(score + i));
    other = simd::max(other, simd::load(score + i + simd::kLanes));
  }
  return simd::largest(simd::max(most, other));
}

// One query head's way through the spans: the softmax of what was seen so far is e^(score - most) / sum, and `out` holds the
// values weighed by the numerators.
struct Stream {
  const float* query;
  float* out;
  Seen keys;
  size_t h, t;
  float most, sum;
  float change;  // factor of `out` and `sum` when `most` has risen
  Seen lanes;    // of the span at hand; none when it sees nothing there

  void enter(size_t first) { lanes = keys.meets(first, kSpan) ? keys.within(first) : Seen{0, 0}; }
  bool here() const { return lanes.begin < lanes.end; }

  // Scores become numerators; lanes of blocks it does not see keep their zeros. Out of line, as all that is called often.
  [[gnu::noinline]] void weigh(const AttentionMask& mask, size_t first, float* score) {
    const F32 hidden = simd::splat(kHidden), before = simd::splat(most);
    const F32 now = simd::max(before, finish_scores(mask, h, t, first, lanes, score));
    const F32 shift = simd::select(now == hidden, simd::zero(), now);
    change = simd::first(simd::exp_of_negative(before - shift));
    F32 part = simd::zero();
    const size_t end = ceil_block(lanes.end);
    for (size_t i = floor_block(lanes.begin); i < end; i += simd::kLanes) {
      const F32 e = simd::exp_of_negative(simd::load(score + i) - shift);
      simd::store(score + i, e);
      part = part + e;
    }
    sum = sum * change + simd::sum(part);
    most = simd::first(now);
  }
};

[[gnu::noinline]] bool all_finite(const float* x, size_t n) {
  F32 sum = simd::zero();
  for (size_t i = 0; i < n; i += simd::kLanes) sum = sum + simd::load(x + i) * simd::zero();
  return simd::sum(sum) == 0.0f;
}

// Numbers of one head and one span: those of block i begin at at[i], or at half[i] when they are left in f16.
struct Blocks {
  const float* at[kBlocks];
  const uint16_t* half[kBlocks];
  bool is_half;
};

// Values of one head and one span: sixteen features of block i (kBlock, 16) at blocks.at[i], the next sixteen `step` floats on.
struct Values {
  Blocks blocks;
  size_t step;
  bool side_by_side;  // block i + 1 follows block i
};

// Keys or values of a span in f32, values in sixteens.
size_t room_floats(const AttentionShape& shape) { return kSpan * std::max(shape.Dk, (shape.Dv + 15) / 16 * 16); }

struct SpanReader {
  const AttentionShape& shape;
  const KeyValues& cache;
  float* room;  // room_floats(shape)

  const void* block(size_t position) const { return cache.blocks[position / kBlock - cache.first_block]; }
  // `length` numbers of the block of `position`, from number `at` on, written to `to`.
  void copy(size_t position, size_t at, size_t length, float* to) const {
    if (cache.store == DType::kF32) {
      std::memcpy(to, static_cast<const float*>(block(position)) + at, length * sizeof(float));
    } else {
      widen_run(Half::kFiniteF16, static_cast<const uint16_t*>(block(position)) + at, length, to);
    }
  }

  // Only the blocks with a lane in `lanes` are there.
  // A single stream widens f16 as it goes, several have it done once.
  Blocks keys(size_t first, Seen lanes, size_t g, size_t streams) const {
    const size_t at = keys_at(shape, g), length = shape.Dk * kBlock;
    Blocks found{};
    found.is_half = cache.store == DType::kF16 && streams == 1;
    for (size_t lane = floor_block(lanes.begin); lane < lanes.end; lane += kBlock) {
      const float*& to = found.at[lane / kBlock];
      if (found.is_half) {
        found.half[lane / kBlock] = static_cast<const uint16_t*>(block(first + lane)) + at;
      } else if (cache.store == DType::kF32) {
        to = static_cast<const float*>(block(first + lane)) + at;
      } else {
        to = room + lane * shape.Dk;
        copy(first + lane, at, length, room + lane * shape.Dk);
      }
    }
    return found;
  }

  // Several streams want the blocks side by side, a few read them where they are.
  Values values(size_t first, Seen lanes, size_t g, size_t streams) const {
    const size_t Dv = shape.Dv, at = values_at(shape, g);
    Values found{{}, 16 * kBlock, false};
    found.blocks.is_half = cache.store == DType::kF16 && streams == 1 && Dv % 16 == 0;
    found.side_by_side = streams > 3 || (cache.store == DType::kF16 && !found.blocks.is_half);
    if (found.side_by_side) found.step = 16 * kSpan;
    for (size_t lane = floor_block(lanes.begin); lane < lanes.end; lane += kBlock) {
      const float*& to = found.blocks.at[lane / kBlock];
      if (found.blocks.is_half) {
        found.blocks.half[lane / kBlock] = static_cast<const uint16_t*>(block(first + lane)) + at;
        continue;
      }
      if (!found.side_by_side) {
        to = static_cast<const float*>(block(first + lane)) + at;
        continue;
      }
      to = room + lane * 16;
      for (size_t d = 0; d < Dv; d += 16) {
        const size_t width = std::min<size_t>(16, Dv - d);
        copy(first + lane, at + d * kBlock, width * kBlock, room + d * kSpan + lane * 16);
      }
    }
    return found;
  }

  // Asks for the first lines of what comes next. WebAssembly has no other way to say so, and a processor that follows the reading of
  // several blocks needs to be set going in each.
  void touch(size_t first, Seen lanes, size_t at, size_t length) const {
    constexpr size_t kLine = 64, kLines = 8;
    const size_t bytes = block_bytes(cache.store), end = std::min(length * bytes, kLine * kLines);
    for (size_t lane = floor_block(lanes.begin); lane < lanes.end; lane += kBlock) {
      const char* from = static_cast<const char*>(block(first + lane)) + at * bytes;
      for (size_t i = 0; i < end; i += kLine) static_cast<void>(*const_cast<const volatile char*>(from + i));
    }
  }
};

// Scores (2, kSpan) of one or two streams that lie side by side, b null for one: the block at `lane`, for those that see it.
void add_scores(const Stream& a, const Stream* b, size_t lane, const Blocks& blocks, size_t Dk, float* scores) {
  const float* keys = blocks.at[lane / kBlock];
  const bool left = a.lanes.meets(lane, kBlock), right = b != nullptr && b->lanes.meets(lane, kBlock);
  scores += lane;
  if (left && right) return tile_2(a.query, b->query, keys, kBlock, Dk, 1.0f, 1.0f, scores, scores + kSpan);
  if (left && blocks.is_half) return tile_1_half(Half::kFiniteF16, a.query, blocks.half[lane / kBlock], Dk, nullptr, scores);
  if (left) tile_1(a.query, keys, kBlock, Dk, 1.0f, scores);
  if (right) tile_1(b->query, keys, kBlock, Dk, 1.0f, scores + kSpan);
}

// out = change out + numerators values over `lanes`, for one stream, or two (b not null), whose values then lie side by side.
void add_values(const Stream& a, const Stream* b, Seen lanes, const float* scores, Values values, size_t Dv) {
  const auto& from = values.blocks.at;
  size_t d = 0;
  for (; d + 16 <= Dv; d += 16) {
    if (b != nullptr) {
      const size_t at = lanes.begin, n = lanes.end - at;
      const float* rows = from[at / kBlock] + at % kBlock * 16;
      tile_2(scores + at, scores + kSpan + at, rows, 16, n, a.change, b->change, a.out + d, b->out + d);
    } else if (values.blocks.is_half) {
      tile_1_blocks_half(scores, values.blocks.half, lanes.begin, lanes.end, a.change, a.out + d);
    } else {
      tile_1_blocks(scores, from, lanes.begin, lanes.end, a.change, a.out + d);
    }
    for (size_t i = lanes.begin / kBlock; i * kBlock < lanes.end; ++i) {
      if (values.blocks.is_half) {
        values.blocks.half[i] += values.step;
      } else {
        values.blocks.at[i] += values.step;
      }
    }
  }
  const size_t width = Dv - d;
  for (const Stream* s = &a; d < Dv && s != nullptr; s = s == &a ? b : nullptr, scores += kSpan) {
    for (size_t i = 0; i < width; ++i) {
      float sum = 0.0f;
      for (size_t j = lanes.begin; j < lanes.end; ++j) sum += scores[j] * from[j / kBlock][j % kBlock * width + i];
      s->out[d + i] = s->out[d + i] * s->change + sum;
    }
  }
}

// The span that begins at `first`, for `count` streams of one key/value head; scores (count, kSpan) hold zeros.
void score(Stream* streams, size_t count, Seen lanes, const Blocks& keys, size_t Dk, float* scores) {
  for (size_t i = 0; i < count; i += 2) {
    const Stream* second = i + 1 < count ? &streams[i + 1] : nullptr;
    for (size_t lane = floor_block(lanes.begin); lane < lanes.end; lane += kBlock) {
      add_scores(streams[i], second, lane, keys, Dk, scores + i * kSpan);
    }
  }
}

void weigh_values(Stream* streams, size_t count, const AttentionMask& mask, size_t first, Seen lanes, const Values& values, size_t Dv,
                  float* scores) {
  for (size_t i = 0; i < count; ++i) {
    if (streams[i].here()) streams[i].weigh(mask, first, scores + i * kSpan);
  }
  // Two that do not see the same go together all the same: a number that is hidden from one has a weight of 0 there, which is as
  // if it were left out, unless it is infinite or NaN.
  enum { kUnknown, kFinite, kNot } numbers = kUnknown;
  for (size_t i = 0; i < count;) {
    const Stream &a = streams[i], &b = streams[std::min(i + 1, count - 1)];
    const float* p = scores + i * kSpan;
    const bool pair = values.side_by_side && &a != &b && a.here() && b.here();
    if (pair && a.lanes != b.lanes && numbers == kUnknown) {
      const size_t begin = floor_block(lanes.begin);
      bool finite = Dv % 16 == 0 && lanes.end % simd::kLanes == 0;
      for (size_t d = 0; d < Dv && finite; d += 16) {
        finite = all_finite(values.blocks.at[begin / kBlock] + d / 16 * values.step, (lanes.end - begin) * 16);
      }
      numbers = finite ? kFinite : kNot;
    }
    if (pair && (a.lanes == b.lanes || numbers == kFinite)) {
      add_values(a, &b, {std::min(a.lanes.begin, b.lanes.begin), std::max(a.lanes.end, b.lanes.end)}, p, values, Dv);
      i += 2;
      continue;
    }
    if (a.here()) add_values(a, nullptr, a.lanes, p, values, Dv);
    ++i;
  }
}

}  // namespace

size_t cache_block_bytes(const AttentionShape& shape, DType store) {
  return shape.Hk * kBlock * (shape.Dk + shape.Dv) * block_bytes(store);
}

bool is_cacheable(DType store, const float* x, size_t n) {
  if (store == DType::kF32) return true;
  const F32 limit = simd::splat(65520.0f);
  F32 beyond = simd::zero();
  each(n, [&](auto at) { beyond = beyond + simd::select(simd::abs(at.get(x)) < limit, simd::zero(), simd::splat(1.0f)); });
  return simd::sum(beyond) == 0.0f;
}

namespace {

float cached(float value, const float*) { return value; }
uint16_t cached(float value, const uint16_t*) { return narrow(DType::kF16, value); }

template <class Number>
void write_numbers(const AttentionShape& shape, Number* block, size_t offset, size_t count, const float* k, size_t k_stride, const float* v,
                   size_t v_stride) {
  for (size_t i = offset; i < offset + count; ++i, k += k_stride, v += v_stride) {
    for (size_t d = 0; d < shape.Hk * shape.Dk; ++d) block[d * kBlock + i] = cached(k[d], block);
    for (size_t g = 0; g < shape.Hk; ++g) {
      Number* values = block + values_at(shape, g);
      for (size_t d = 0; d < shape.Dv; d += 16, values += 16 * kBlock) {
        const size_t width = std::min<size_t>(16, shape.Dv - d);
        for (size_t e = 0; e < width; ++e) values[i * width + e] = cached(v[g * shape.Dv + d + e], block);
      }
    }
  }
}

}  // namespace

void write_block(const AttentionShape& shape, DType store, void* block, size_t offset, size_t count, const float* k, size_t k_stride,
                 const float* v, size_t v_stride) {
  if (store == DType::kF32) {
    write_numbers(shape, static_cast<float*>(block), offset, count, k, k_stride, v, v_stride);
  } else {
    write_numbers(shape, static_cast<uint16_t*>(block), offset, count, k, k_stride, v, v_stride);
  }
}

size_t attention_scratch(const AttentionShape& shape, size_t T, size_t S) {
  static_cast<void>(T), static_cast<void>(S);
  return kTile * kSpan + room_floats(shape);
}

// A part is a tile of queries of one key/value head, the head's parts side by side.
size_t attention_parts(const AttentionShape& shape, size_t T) { return shape.Hk * ((T * (shape.H / shape.Hk) + kTile - 1) / kTile); }

void attention(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
               const KeyValues& cache, float* out, size_t out_stride, size_t part_begin, size_t part_end, float* scratch) {
  const auto& [H, Hk, Dk, Dv] = shape;
  const size_t group = H / Hk, tiles = attention_parts(shape, T) / Hk;
  float* scores = scratch;  // (kTile, kSpan)
  const SpanReader reader{shape, cache, scores + kTile * kSpan};
  Stream streams[kTile];
  // A few queries of many heads go together, so that the cache is read in the order in which it lies.
  for (size_t heads = 0; part_begin < part_end; part_begin += heads) {
    const size_t g = part_begin / tiles, row = part_begin % tiles * kTile, count = std::min(kTile, T * group - row);
    heads = tiles > 1 ? 1 : std::min(kTile / count, part_end - part_begin);
    Seen all{cache.S, 0};
    for (size_t i = 0; i < heads * count; ++i) {
      const size_t t = (row + i % count) / group, h = (g + i / count) * group + (row + i % count) % group;
      Stream& s = streams[i];
      s.query = q + t * q_stride + h * Dk, s.out = out + t * out_stride + h * Dv;
      s.keys = seen(mask, q_begin + t, cache.S), s.h = h, s.t = t, s.most = kHidden, s.sum = 0.0f;
      std::memset(s.out, 0, Dv * sizeof(float));
      all.begin = std::min(all.begin, s.keys.begin), all.end = std::max(all.end, s.keys.end);
    }
    for (size_t first = all.begin / kSpan * kSpan; first < all.end; first += kSpan) {
      const Seen lanes = all.within(first);
      std::memset(scores, 0, heads * count * kSpan * sizeof(float));
      for (size_t i = 0; i < heads; ++i) {
        for (size_t j = i * count; j < (i + 1) * count; ++j) streams[j].enter(first);
        score(streams + i * count, count, lanes, reader.keys(first, lanes, g + i, count), Dk, scores + i * count * kSpan);
      }
      reader.touch(first, lanes, values_at(shape, g), Dv * kBlock);
      if (first + kSpan < all.end) reader.touch(first + kSpan, all.within(first + kSpan), keys_at(shape, g), Dk * kBlock);
      for (size_t i = 0; i < heads; ++i) {
        const Values values = reader.values(first, lanes, g + i, count);
        weigh_values(streams + i * count, count, mask, first, lanes, values, Dv, scores + i * count * kSpan);
      }
    }
    for (size_t i = 0; i < heads * count; ++i) {
      const Stream& s = streams[i];
      scale(s.out, s.sum == 0.0f ? 0.0f : 1.0f / s.sum, s.out, Dv);
    }
  }
}

void attention_weights(const AttentionShape& shape, const AttentionMask& mask, const float* q, size_t q_stride, size_t T, size_t q_begin,
                       const KeyValues& cache, size_t head_begin, size_t head_end, float* weights, float* scores, float* scratch) {
  const size_t group = shape.H / shape.Hk, S = cache.S;
  const SpanReader reader{shape, cache, scratch + kSpan};
  for (size_t h = head_begin; h < head_end; ++h) {
    for (size_t t = 0; t < T; ++t) {
      Stream s{};
      s.query = q + t * q_stride + h * shape.Dk, s.keys = seen(mask, q_begin + t, S);
      const size_t row = ((h - head_begin) * T + t) * S;
      float* target = weights ? weights + row : scores + row;
      std::fill(target, target + S, kHidden);
      for (size_t first = s.keys.begin / kSpan * kSpan; first < s.keys.end; first += kSpan) {
        s.enter(first);
        std::memset(scratch, 0, kSpan * sizeof(float));
        score(&s, 1, s.lanes, reader.keys(first, s.lanes, h / group, 1), shape.Dk, scratch);
        finish_scores(mask, h, t, first, s.lanes, scratch);
        std::copy(scratch + s.lanes.begin, scratch + s.lanes.end, target + first + s.lanes.begin);
      }
      if (weights && scores) std::memcpy(scores + row, target, S * sizeof(float));
      if (weights) softmax(target, target, 1, S);
    }
  }
}

namespace {

size_t rounded_up(size_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// The queries [begin, end) of T that see one of the keys [key, key + count).
Seen seeing(const AttentionMask& mask, size_t key, size_t count, size_t T) {
  Seen rows{mask.causal ? std::min(key, T) : 0, T};
  if (mask.window != 0) rows.end = std::max(rows.begin, std::min(T, key + count - 1 + mask.window));
  return rows;
}

// Panels (count / 16, rows, 16) of x (rows, count), zeros beyond; or of its transpose, (rows / 16, count, 16).
void pack_all(bool trans, const float* x, size_t stride, size_t rows, size_t count, float* out) {
  const size_t run = trans ? count : rows, columns = trans ? rows : count;
  for (size_t c = 0; c < columns; c += kBlock) pack_panel(trans, x, stride, 0, run, c, std::min(kBlock, columns - c), out + c * run);
}

// c (T, S) = a (T, D) b^T where a key is seen, zeros or whatever elsewhere; panels (S / 16, D, 16) of b.
void products_of_rows(const ExactAttention& x, const float* a, size_t a_stride, size_t D, const float* panels, float* c) {
  std::memset(c, 0, x.T * x.S * sizeof(float));
  for (size_t key = 0; key < x.S; key += kBlock) {
    const size_t width = std::min(kBlock, x.S - key);
    const Seen rows = seeing(x.mask, key, width, x.T);
    add_product(a + rows.begin * a_stride, a_stride, rows.end - rows.begin, panels + key * D, D, c + rows.begin * x.S + key, x.S, width);
  }
}

// c (rows, D) += weights (rows, S) b for queries t.. of one block; panels (D / 16, S, 16) of b.
void add_weighed(const ExactAttention& x, size_t t, size_t rows, const float* weights, const float* panels, size_t D, float* c,
                 size_t c_stride) {
  const size_t begin = seen(x.mask, t, x.S).begin, end = seen(x.mask, t + rows - 1, x.S).end;
  for (size_t k = begin / kRun * kRun; k < end; k += kRun) {
    const size_t from = std::max(k, begin), run = std::min(k + kRun, end) - from;
    for (size_t d = 0; d < D; d += kBlock) {
      add_product(weights + from, x.S, rows, panels + d * x.S + from * kBlock, run, c + d, c_stride, std::min(kBlock, D - d));
    }
  }
}

// c (S, D) += weights^T b for the keys of one block; weights (T, S), panels (D / 16, T, 16) of b; turned (kBlock, kRun).
void add_weighed_transposed(const ExactAttention& x, size_t key, const float* weights, const float* panels, size_t D, float* c,
                            size_t c_stride, float* turned) {
  const size_t width = std::min(kBlock, x.S - key);
  const Seen rows = seeing(x.mask, key, width, x.T);
  for (size_t t = rows.begin; t < rows.end; t += kRun) {
    const size_t run = std::min(kRun, rows.end - t);
    transpose(weights + t * x.S + key, x.S, run, width, turned, kRun);
    for (size_t d = 0; d < D; d += kBlock) {
      add_product(turned, kRun, width, panels + d * x.T + t * kBlock, run, c + key * c_stride + d, c_stride, std::min(kBlock, D - d));
    }
  }
}

// Zeros where a row (S) of products holds what is not seen.
void clear_hidden(float* row, Seen keys, size_t S) {
  std::fill(row + floor_block(keys.begin), row + keys.begin, 0.0f);
  std::fill(row + keys.end, row + std::min(S, ceil_block(keys.end)), 0.0f);
}

// What dropout multiplies the weights of row (h, t) by, for the keys that are seen.
void drop_factors(const ExactAttention& x, size_t h, size_t t, Seen keys, float* factors) {
  const size_t at = (h * x.T + t) * x.S + keys.begin;
  dropout_factors({x.drop.rate, x.drop.key, x.drop.first + at}, factors, keys.end - keys.begin);
}

}  // namespace

size_t attention_exact_scratch(const AttentionShape& shape, size_t T, size_t S) {
  const size_t D = rounded_up(shape.Dk) + rounded_up(shape.Dv);
  // Forward: keys, values, a block of dropped weights. Backward: those, queries and gradients; of the scores, of dropped weights.
  return (rounded_up(S) + rounded_up(T)) * D + std::max(kBlock * S, 2 * T * S + kBlock * kRun);
}

void attention_forward_exact(const ExactAttention& x, size_t begin, size_t end, float* out, size_t out_stride, float* scratch) {
  const auto& [H, Hk, Dk, Dv] = x.shape;
  const size_t T = x.T, S = x.S, group = H / Hk;
  float *keys = scratch, *values = keys + rounded_up(S) * Dk, *dropped = values + S * rounded_up(Dv);
  for (size_t g = begin; g < end; ++g) {
    pack_all(true, x.k + g * Dk, x.k_stride, S, Dk, keys);
    pack_all(false, x.v + g * Dv, x.v_stride, S, Dv, values);
    for (size_t h = g * group; h < (g + 1) * group; ++h) {
      float* weights = x.weights + h * T * S;
      products_of_rows(x, x.q + h * Dk, x.q_stride, Dk, keys, weights);
      for (size_t t = 0; t < T; t += kBlock) {
        const size_t rows = std::min(kBlock, T - t);
        float* block = weights + t * S;
        if (x.drop.rate != 0) std::memset(dropped, 0, rows * S * sizeof(float));
        for (size_t i = 0; i < rows; ++i) {
          const Seen shown = seen(x.mask, t + i, S);
          const size_t count = shown.end - shown.begin;
          float *row = block + i * S, *score = row + shown.begin;
          scale(score, x.mask.scale, score, count);
          if (x.mask.slopes) {
            for (size_t j = 0; j < count; ++j) score[j] += x.mask.slopes[h] * static_cast<float>(shown.begin + j);
          }
          if (x.mask.bias) add(score, bias_row(x.mask.bias, x.mask, h, t + i) + shown.begin, score, count);
          if (x.mask.key_bias) add(score, x.mask.key_bias + shown.begin, score, count);
          softmax(score, score, 1, count);
          clear_hidden(row, shown, S);
          if (x.drop.rate != 0) {
            float* to = dropped + i * S + shown.begin;
            drop_factors(x, h, t + i, shown, to);
            multiply(score, to, to, count);
          }
          std::memset(out + (t + i) * out_stride + h * Dv, 0, Dv * sizeof(float));
        }
        add_weighed(x, t, rows, x.drop.rate != 0 ? dropped : block, values, Dv, out + t * out_stride + h * Dv, out_stride);
      }
    }
  }
}

void attention_backward(const ExactAttention& x, size_t begin, size_t end, const float* dout, size_t dout_stride, float* dq, float* dk,
                        float* dv, float* dbias, float* scratch) {
  const auto& [H, Hk, Dk, Dv] = x.shape;
  const size_t T = x.T, S = x.S, group = H / Hk;
  float *keys = scratch, *values = keys + S * rounded_up(Dk), *queries = values + rounded_up(S) * Dv;
  float *arriving = queries + T * rounded_up(Dk), *ds = arriving + T * rounded_up(Dv), *dropped = ds + T * S, *turned = dropped + T * S;
  for (size_t g = begin; g < end; ++g) {
    pack_all(false, x.k + g * Dk, x.k_stride, S, Dk, keys);
    pack_all(true, x.v + g * Dv, x.v_stride, S, Dv, values);
    for (size_t h = g * group; h < (g + 1) * group; ++h) {
      const float* weights = x.weights + h * T * S;
      pack_all(false, x.q + h * Dk, x.q_stride, T, Dk, queries);
      pack_all(false, dout + h * Dv, dout_stride, T, Dv, arriving);
      products_of_rows(x, dout + h * Dv, dout_stride, Dv, values, ds);
      if (x.drop.rate != 0) std::memset(dropped, 0, T * S * sizeof(float));
      for (size_t t = 0; t < T; t += kBlock) {
        const size_t rows = std::min(kBlock, T - t);
        for (size_t i = t; i < t + rows; ++i) {
          const Seen shown = seen(x.mask, i, S);
          const float* w = weights + i * S + shown.begin;
          float* d = ds + i * S + shown.begin;
          const size_t count = shown.end - shown.begin;
          if (x.drop.rate != 0) {
            float* to = dropped + i * S + shown.begin;
            drop_factors(x, h, i, shown, to);
            multiply(d, to, d, count);
            multiply(w, to, to, count);
          }
          const F32 mean = simd::splat(dot(w, d, count)), factor = simd::splat(dbias ? 1 : x.mask.scale);
          each_compact(count, [=](auto at) { at.put(d, factor * (at.get(w) * (at.get(d) - mean))); });
          if (dbias) {
            float* to = bias_row(dbias, x.mask, h, i) + shown.begin;
            add(to, d, to, count);
            scale(d, x.mask.scale, d, count);
          }
          clear_hidden(ds + i * S, shown, S);
        }
        add_weighed(x, t, rows, ds + t * S, keys, Dk, dq + t * x.q_stride + h * Dk, x.q_stride);
      }
      for (size_t key = 0; key < S; key += kBlock) {
        add_weighed_transposed(x, key, x.drop.rate != 0 ? dropped : weights, arriving, Dv, dv + g * Dv, x.v_stride, turned);
        add_weighed_transposed(x, key, ds, queries, Dk, dk + g * Dk, x.k_stride, turned);
      }
    }
  }
}

}  // namespace wf::kernels
