#include "core/thread_pool.hpp"

#include <atomic>
#include <catch_amalgamated.hpp>
#include <vector>

#include "core/error.hpp"

using namespace wf;

TEST_CASE("every part is worked once, whatever the number of threads", "[thread_pool]") {
  for (const size_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const size_t parts : {0, 1, 2, 7, 64, 1000}) {
      std::vector<int> times(parts, 0);
      std::atomic<bool> in_range = true;
      pool.run(parts, [&](size_t part, size_t thread) {
        ++times[part];
        if (thread >= threads) in_range = false;
      });
      CHECK(times == std::vector<int>(parts, 1));
      CHECK(in_range);
    }
  }
}

TEST_CASE("what one job wrote the next one reads, over many short jobs", "[thread_pool]") {
  for (const size_t cores : {1, 64}) {  // sleeping and spinning
    ThreadPool pool(4, cores);
    std::vector<size_t> values(9, 0);
    for (size_t round = 0; round < 3000; ++round) {
      pool.run(values.size(), [&](size_t part, size_t) { values[part] += part; });
      pool.run(3, [&](size_t part, size_t) { values[part] += values[8 - part] == (round + 1) * (8 - part); });
    }
    for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == 3000 * i + (i < 3 ? 3000 : 0));
  }
}

TEST_CASE("a pool that lost a thread says so and does not wait", "[thread_pool]") {
  ThreadPool pool(3);
  pool.lose();
  try {
    pool.run(5, [](size_t, size_t) {});
    FAIL("expected an error");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kDead);
    CHECK(error.message() == "[threads] one of 3 ended in the middle of its work");
  }
}

TEST_CASE("pools start and stop in any state", "[thread_pool]") {
  for (size_t i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 5);
    if (i % 2 == 0) pool.run(i, [](size_t, size_t) {});
  }
}
