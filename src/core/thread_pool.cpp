#include "core/thread_pool.hpp"

#include <algorithm>

#include "core/error.hpp"

#ifndef __wasm__
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#endif

namespace wf {

namespace {

constexpr uint32_t kStop = UINT32_MAX;
constexpr int64_t kNap = 100;  // milliseconds of a wait that looks after lost threads

// About 30 microseconds: longer than the serial stretches between two operations, shorter than anybody notices.
constexpr size_t kSpins = 20000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

size_t spins_for(size_t threads, size_t cores) {
#ifndef __wasm__
  if (cores == 0) cores = std::thread::hardware_concurrency();
#endif
  return threads <= cores ? kSpins : 0;
}

}  // namespace

#ifdef __wasm__

// In wasm the threads are JavaScript's.
struct ThreadPool::Native {};

void ThreadPool::sleep(std::atomic<uint32_t>& word, uint32_t value, bool forever) {
#ifdef __wasm_atomics__
  __builtin_wasm_memory_atomic_wait32(reinterpret_cast<int*>(&word), static_cast<int>(value), forever ? -1 : kNap * 1000000);
#else
  static_cast<void>(word), static_cast<void>(value), static_cast<void>(forever);
#endif
}

void ThreadPool::wake(std::atomic<uint32_t>& word, size_t count) {
#ifdef __wasm_atomics__
  __builtin_wasm_memory_atomic_notify(reinterpret_cast<int*>(&word), static_cast<uint32_t>(count));
#else
  static_cast<void>(word), static_cast<void>(count);
#endif
}

ThreadPool::ThreadPool(size_t threads, size_t cores, size_t patience)
    : threads_(std::max<size_t>(threads, 1)), spins_(spins_for(threads, cores)), patience_(patience) {}

ThreadPool::~ThreadPool() { stop(); }

#else

struct ThreadPool::Native {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> threads;
};

void ThreadPool::sleep(std::atomic<uint32_t>& word, uint32_t value, bool forever) {
  std::unique_lock lock(native_->mutex);
  const auto differs = [&] { return word.load() != value; };
  if (forever) {
    native_->changed.wait(lock, differs);
  } else {
    native_->changed.wait_for(lock, std::chrono::milliseconds(kNap), differs);
  }
}

void ThreadPool::wake(std::atomic<uint32_t>&, size_t) {
  const std::lock_guard lock(native_->mutex);
  native_->changed.notify_all();
}

ThreadPool::ThreadPool(size_t threads, size_t cores, size_t patience)
    : threads_(std::max<size_t>(threads, 1)), spins_(spins_for(threads, cores)), patience_(patience), native_(std::make_unique<Native>()) {
  for (size_t thread = 1; thread < threads_; ++thread) native_->threads.emplace_back([this, thread] { serve(thread); });
}

ThreadPool::~ThreadPool() {
  stop();
  for (std::thread& thread : native_->threads) thread.join();
}

#endif

// Between two jobs nobody holds a part, so that writing the next one races with nobody; a claim always belongs to the job that is
// there, however late it comes.
void ThreadPool::run_job(size_t parts, Job job) {
  job_ = job;
  parts_ = static_cast<uint32_t>(parts);
  unfinished_.store(parts_, std::memory_order_relaxed);
  unclaimed_.store(parts_);
  // A thread announces that it sleeps before it looks at `unclaimed_` for the last time.
  if (sleepers_.load() != 0) wake(unclaimed_, parts - 1);
  for (uint32_t left; (left = unclaimed_.load(std::memory_order_relaxed)) != 0;) take_part(left, 0);

  size_t looks = 0, naps = 0;
  for (uint32_t left, before = parts_; (left = unfinished_.load(std::memory_order_acquire)) != 0; before = left) {
    if (left != before) looks = naps = 0;
    if (lost_.load() != 0 || naps > patience_) {
      lost_ = 1;
      break;
    }
    if (looks++ < spins_) {
      pause();
      continue;
    }
    caller_sleeps_.store(1);
    if (unfinished_.load() == left) sleep(unfinished_, left, false);
    caller_sleeps_.store(0);
    ++naps;
  }
  if (lost_.load() != 0) fail(Code::kDead, "threads", "one of ", threads_, " ended in the middle of its work");
}

// Whether there was one: `left` parts were unclaimed a moment ago.
bool ThreadPool::take_part(uint32_t left, size_t thread) {
  if (!unclaimed_.compare_exchange_strong(left, left - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) return false;
  job_.call(job_.work, parts_ - left, thread);
  if (unfinished_.fetch_sub(1) == 1 && caller_sleeps_.load() != 0) wake(unfinished_, 1);
  return true;
}

void ThreadPool::serve(size_t thread) {
  for (size_t looks = 0;;) {
    const uint32_t left = unclaimed_.load(std::memory_order_relaxed);
    if (left == kStop) return;
    if (left != 0) {
      if (take_part(left, thread)) looks = 0;
    } else if (looks++ < spins_) {
      pause();
    } else {
      sleepers_.fetch_add(1);
      if (unclaimed_.load() == 0) sleep(unclaimed_, 0, true);
      sleepers_.fetch_sub(1);
      looks = 0;
    }
  }
}

void ThreadPool::stop() {
  if (threads_ == 1) return;
  unclaimed_.store(kStop);
  wake(unclaimed_, threads_);
}

void ThreadPool::lose() noexcept {
  lost_.store(1);
  wake(unfinished_, 1);
}

}  // namespace wf
