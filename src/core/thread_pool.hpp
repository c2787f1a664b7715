// Threads that share the work of one operation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace wf {

class ThreadPool {
 public:
  // `threads` with the caller's; `cores` the machine has: with more threads than that none waits by spinning. Natively the others
  // are started here. In wasm each is a worker's, which calls `serve` once; until then, and without, the caller does all the work.
  // `patience`: naps of a tenth of a second without progress after which a thread counts as lost: a starved machine needs seconds.
  explicit ThreadPool(size_t threads, size_t cores = 0, size_t patience = 1200);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return threads_; }

  // work(part, thread) once for every part in [0, parts), on whichever thread is free, thread in [0, threads()); returns when all
  // are done. A part never throws, allocates, or calls `run`; what it computes must not depend on `thread`, which is for scratch.
  // Throws kDead when a thread was lost with a part in its hands: memory is then in an unknown state.
  template <class Work>
  void run(size_t parts, const Work& work) {
    if (threads_ == 1 || parts <= 1) {
      for (size_t part = 0; part < parts; ++part) work(part, size_t{0});
    } else {
      run_job(parts, {[](const void* object, size_t part, size_t thread) { (*static_cast<const Work*>(object))(part, thread); }, &work});
    }
  }

  // The life of thread number `thread` in [1, threads()): works until `stop`.
  void serve(size_t thread);
  void stop();
  // A thread trapped: `run` gives up waiting for it. Needs no stack to speak of.
  void lose() noexcept;

 private:
  struct Job {
    void (*call)(const void* work, size_t part, size_t thread);
    const void* work;
  };
  struct Native;

  void run_job(size_t parts, Job job);
  bool take_part(uint32_t left, size_t thread);
  void sleep(std::atomic<uint32_t>& word, uint32_t value, bool forever);
  void wake(std::atomic<uint32_t>& word, size_t count);

  const size_t threads_;
  const size_t spins_;  // looks at a word before sleeping on it
  const size_t patience_;
  Job job_{};  // these two belong to whoever holds a part
  uint32_t parts_ = 0;
  // Each on a cache line of its own.
  alignas(64) std::atomic<uint32_t> unclaimed_{0};   // parts that nobody has begun, or kStop
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // parts that are not done
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  std::atomic<uint32_t> lost_{0};
  std::unique_ptr<Native> native_;
};

}  // namespace wf
