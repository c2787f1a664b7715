#include "core/thread_pool.hpp"

#include <atomic>
#include <catch_amalgamated.hpp>
#include <chrono>
#include <string>
#include <thread>
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

// In wasm a pool of the tests has no threads but the caller's.
#ifndef __wasm__
TEST_CASE("a thread that vanishes with a part in its hands is missed", "[thread_pool]") {
  ThreadPool pool(2, 0, 3);
  std::atomic<bool> taken = false, found = false;
  const auto vanish = [&](size_t, size_t thread) {
    if (thread == 1) taken = true;
    std::atomic<bool>& awaited = thread == 1 ? found : taken;
    while (!awaited) std::this_thread::yield();
  };
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    pool.run(2, vanish);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kDead);
    message = error.message();
  }
  found = true;
  CHECK(message == "[threads] one of 2 ended in the middle of its work");
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(300));
  CHECK_THROWS_AS(pool.run(2, [](size_t, size_t) {}), Error);
}

TEST_CASE("threads that are slow, but get on, are not missed", "[thread_pool]") {
  ThreadPool pool(3, 0, 10);
  std::atomic<size_t> begun = 0, done = 0;
  pool.run(3, [&](size_t, size_t thread) {
    for (++begun; begun != 3;) std::this_thread::yield();
    // Either is within the pool's patience, both together are not.
    while (thread == 2 && done != 2) std::this_thread::yield();
    if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    ++done;
  });
  CHECK(done == 3);
}
#endif

TEST_CASE("pools start and stop in any state", "[thread_pool]") {
  for (size_t i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 5);
    if (i % 2 == 0) pool.run(i, [](size_t, size_t) {});
  }
}
