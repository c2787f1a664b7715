// The key/value cache against a plain list of what was written.
#include "nn/kv_cache.hpp"

#include <catch_amalgamated.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "core/rng.hpp"
#include "kernels/panels.hpp"

using namespace wf;
using kernels::kBlock;

namespace {

constexpr kernels::AttentionShape kShape{4, 2, 3, 5};
constexpr size_t kKey = kShape.Hk * kShape.Dk, kValue = kShape.Hk * kShape.Dv;

// Writes `count` positions to every layer; keys and values count up from `stamp`, by layer and position.
void write(KvCache& cache, size_t count, float stamp) {
  for (size_t l = 0; l < cache.layers(); ++l) {
    std::vector<float> k(count * (kKey + 2)), v(count * (kValue + 1));
    for (size_t t = 0; t < count; ++t) {
      for (size_t d = 0; d < kKey; ++d) k[t * (kKey + 2) + d] = stamp + static_cast<float>(1000 * l + t) + static_cast<float>(d) / 64;
      for (size_t d = 0; d < kValue; ++d) v[t * (kValue + 1) + d] = -stamp - static_cast<float>(1000 * l + t) - static_cast<float>(d) / 64;
    }
    cache.write(l, {k.data(), count, kKey, kKey + 2}, {v.data(), count, kValue, kValue + 1});
  }
}

// The stamp of a position of a layer, or nothing when its block is gone or holds something else somewhere.
std::optional<float> stamp_at(const KvCache& cache, size_t layer, size_t position) {
  if (position / kBlock < cache.first_block(layer)) return {};
  const float* block = static_cast<const float*>(cache.blocks(layer)[position / kBlock - cache.first_block(layer)]);
  const size_t at = position % kBlock;
  const float first = block[at];
  for (size_t d = 0; d < kKey; ++d) {
    if (block[d * kBlock + at] != first + static_cast<float>(d) / 64) return {};
  }
  for (size_t d = 0; d < kValue; ++d) {
    const float value = block[kKey * kBlock + (d / kShape.Dv * kBlock + at) * kShape.Dv + d % kShape.Dv];
    if (value != -first - static_cast<float>(d) / 64) return {};
  }
  return first - static_cast<float>(1000 * layer);
}

// What a cache should hold: one stamp a position.
struct Plain {
  KvCache cache;
  std::vector<float> stamps;
};

void check(const Plain& plain, const std::vector<size_t>& windows) {
  REQUIRE(plain.cache.length() == plain.stamps.size());
  const size_t length = plain.stamps.size();
  for (size_t l = 0; l < windows.size(); ++l) {
    const size_t oldest = windows[l] == 0 || length < windows[l] ? 0 : length + 1 - windows[l];
    size_t right = oldest;
    while (right < length && stamp_at(plain.cache, l, right) == plain.stamps[right]) ++right;
    CAPTURE(l);
    REQUIRE(right == length);
  }
}

size_t distinct_blocks(const std::vector<Plain>& all, size_t layers) {
  std::set<const void*> blocks;
  for (const Plain& plain : all) {
    for (size_t l = 0; l < layers; ++l) {
      const size_t held = (plain.cache.length() + kBlock - 1) / kBlock - plain.cache.first_block(l);
      blocks.insert(plain.cache.blocks(l), plain.cache.blocks(l) + held);
    }
  }
  return blocks.size();
}

}  // namespace

TEST_CASE("random writes, copies, truncations and windows keep every cache right", "[kv_cache]") {
  const std::vector<size_t> windows = GENERATE(std::vector<size_t>{0, 0}, std::vector<size_t>{0, 7, 33}, std::vector<size_t>{1, 16});
  const uint64_t seed = GENERATE(1, 2, 3);
  KvPool pool(kShape, 3);
  std::vector<Plain> all;
  all.push_back({KvCache(pool, windows), {}});
  float stamp = 1;
  uint64_t draws = 0;
  const auto draw = [&](size_t below) { return philox({seed, 0, 0}, draws++)[0] % below; };
  for (int step = 0; step < 400; ++step) {
    const size_t which = draw(all.size()), action = draw(10);
    Plain& plain = all[which];
    if (action < 5) {
      const size_t count = 1 + draw(action == 0 ? 50 : 4);
      if (draw(4) == 0) write(plain.cache, count, -5);  // a pass that was given up
      write(plain.cache, count, stamp);
      plain.cache.advance(count);
      for (size_t t = 0; t < count; ++t) plain.stamps.push_back(stamp + static_cast<float>(t));
      stamp += static_cast<float>(count);
    } else if (action < 7 && all.size() < 6) {
      all.push_back({plain.cache, plain.stamps});
    } else if (action == 7 && all.size() > 1) {
      all.erase(all.begin() + static_cast<ptrdiff_t>(which));
    } else if (action == 8) {
      const size_t wanted = plain.stamps.size() - std::min(plain.stamps.size(), draw(draw(3) == 0 ? 60 : 5));
      const size_t kept = plain.cache.truncate(wanted);
      CHECK((kept == wanted || kept == 0));
      if (windows == std::vector<size_t>{0, 0}) CHECK(kept == wanted);
      plain.stamps.resize(kept);
    } else if (draw(8) == 0) {
      const size_t other = draw(all.size());
      all[which].cache = all[other].cache;
      all[which].stamps = std::vector<float>(all[other].stamps);
    }
    for (const Plain& each : all) check(each, windows);
    CHECK(pool.blocks_in_use() == distinct_blocks(all, windows.size()));
  }
  all.clear();
  CHECK(pool.blocks_in_use() == 0);
}

TEST_CASE("copies share blocks until one writes", "[kv_cache]") {
  KvPool pool(kShape, 8);
  KvCache cache(pool, {0});
  write(cache, 40, 1);
  cache.advance(40);
  CHECK(pool.blocks_in_use() == 3);
  CHECK(cache.blocks_after_truncation(0) == 3);
  std::vector<KvCache> beams(4, cache);
  CHECK(pool.blocks_in_use() == 3);
  write(beams[0], 1, 500);
  beams[0].advance(1);
  CHECK(pool.blocks_in_use() == 4);  // the half-full block alone was copied
  CHECK(stamp_at(beams[0], 0, 40) == 500.0f);
  CHECK(stamp_at(beams[0], 0, 39) == 40.0f);
  CHECK(beams[1].length() == 40);
  CHECK(stamp_at(beams[1], 0, 39) == 40.0f);
  CHECK(beams[0].blocks_after_truncation(41) == 3);  // two that it shares, and its own
  CHECK(beams[0].blocks_after_truncation(20) == 2);  // the second would be copied, the third is given back
  CHECK(beams[1].blocks_after_truncation(40) == 2);
  beams.clear();
  CHECK(pool.blocks_in_use() == 3);
}

TEST_CASE("a windowed layer keeps its window and no more", "[kv_cache]") {
  KvPool pool(kShape, 8);
  KvCache cache(pool, {20});
  for (size_t t = 0; t < 500; ++t) {
    write(cache, 1, static_cast<float>(t));
    cache.advance(1);
    CHECK(pool.blocks_in_use() <= 3);
  }
  CHECK(stamp_at(cache, 0, 481) == 481.0f);
}

TEST_CASE("what a window has let go cannot be gone back to", "[kv_cache]") {
  KvPool pool(kShape, 8);
  KvCache cache(pool, {8});
  write(cache, 40, 0);
  cache.advance(40);  // position 40 sees 33 on: the blocks of 0 to 31 are gone
  KvCache copy = cache;
  CHECK(cache.truncate(39) == 39);  // position 39 sees 32 on
  CHECK(cache.truncate(38) == 0);   // position 38 would see 31
  CHECK(cache.length() == 0);
  CHECK(cache.first_block(0) == 0);
  CHECK(copy.length() == 40);
  write(cache, 3, 7);
  cache.advance(3);
  CHECK(stamp_at(cache, 0, 2) == 9.0f);
}

TEST_CASE("a truncation beyond the end keeps everything", "[kv_cache]") {
  KvPool pool(kShape, 8);
  KvCache cache(pool, {0});
  write(cache, 5, 0);
  cache.advance(5);
  CHECK(cache.truncate(9) == 5);
  cache.clear();
  CHECK(pool.blocks_in_use() == 0);
}

TEST_CASE("steps on the way to a reserved length allocate nothing", "[kv_cache]") {
  const std::vector<size_t> windows = GENERATE(std::vector<size_t>{0}, std::vector<size_t>{0, 24});
  KvPool pool(kShape, 1);
  KvCache cache(pool, windows);
  write(cache, 10, 0);
  cache.advance(10);
  KvCache other = cache;  // so that the first step must copy a block
  cache.reserve(200);
  const size_t before = allocation_count();
  const void* const* table = cache.blocks(0);
  for (size_t t = 10; t < 200; ++t) {
    write(cache, 1, static_cast<float>(t));
    cache.advance(1);
  }
  CHECK(allocation_count() == before);
  CHECK(cache.blocks(0) == table);
}

TEST_CASE("trimming gives back the slabs without a block in use, and only those", "[kv_cache]") {
  KvPool pool(kShape, 2);
  KvCache kept(pool, {0});
  const auto right = [&kept](size_t length) {
    for (size_t t = 0; t < length; ++t) {
      if (stamp_at(kept, 0, t) != static_cast<float>(t)) return false;
    }
    return kept.length() == length;
  };
  {
    KvCache other(pool, {0});
    for (size_t t = 0; t < 6 * kBlock; ++t) {  // blocks of both in most slabs
      KvCache& cache = t < kBlock ? kept : other;
      write(cache, 1, static_cast<float>(t));
      cache.advance(1);
    }
    const size_t all = pool.bytes();
    pool.trim();
    CHECK(pool.bytes() == all);
  }
  pool.trim();
  CHECK(pool.bytes() == 2 * pool.block_bytes());
  CHECK(pool.blocks_in_use() == 1);
  CHECK(right(kBlock));
  write(kept, 2 * kBlock, static_cast<float>(kBlock));
  kept.advance(2 * kBlock);
  CHECK(pool.blocks_in_use() == 3);
  CHECK(right(3 * kBlock));
  kept.clear();
  pool.trim();
  CHECK(pool.bytes() == 0);
}

TEST_CASE("a cache in f16 takes half the memory, rounds once, and refuses what it cannot keep", "[kv_cache]") {
  KvPool wide(kShape, 1), half(kShape, 1, DType::kF16);
  KvCache cache(half, {0});
  std::vector<float> k(3 * kKey), v(3 * kValue);
  for (size_t i = 0; i < k.size(); ++i) k[i] = 1 + static_cast<float>(i) / 4096;  // between f16's steps of 1 / 1024
  for (size_t i = 0; i < v.size(); ++i) v[i] = -65504 + static_cast<float>(i);
  cache.write(0, {k.data(), 3, kKey, kKey}, {v.data(), 3, kValue, kValue});
  cache.advance(3);
  KvCache copy = cache;
  copy.write(0, {k.data(), 1, kKey, kKey}, {v.data(), 1, kValue, kValue});
  CHECK(half.blocks_in_use() == 2);
  for (const KvCache* each : {&cache, &copy}) {
    const uint16_t* block = static_cast<const uint16_t*>(each->blocks(0)[0]);
    for (size_t t = 0; t < 3; ++t) {
      for (size_t d = 0; d < kKey; ++d) {
        CHECK(kernels::widen(DType::kF16, block[d * kBlock + t]) == std::nearbyint(k[t * kKey + d] * 1024) / 1024);
      }
    }
    CHECK(block[kKey * kBlock] == 0xfbff);  // -65504
  }
  CHECK(2 * (half.block_bytes() - kAlignment) == wide.block_bytes() - kAlignment);
  v[7] = 65520;
  CHECK_THROWS_WITH(cache.write(0, {k.data(), 3, kKey, kKey}, {v.data(), 3, kValue, kValue}),
                    "[cache] a value of layer 0: expected at most 65504 in size with cacheDtype 'f16', got 65520");
  k[1] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(cache.write(0, {k.data(), 3, kKey, kKey}, {v.data(), 3, kValue, kValue}), Error);
  CHECK(cache.length() == 3);
}

TEST_CASE("a pool that does not fit is out of memory", "[kv_cache]") {
  CHECK_THROWS_AS(KvPool({1, SIZE_MAX / 64, 1, 1}, 1), Error);
  KvPool pool(kShape, 1);
  CHECK_THROWS_AS(pool.reserve(SIZE_MAX / 64), Error);
}
