// Buffers, the arena, and sizes that do not wrap around.
#include <catch_amalgamated.hpp>
#include <cstdint>

#include "core/arena.hpp"
#include "core/shape.hpp"
#include "core/testing.hpp"

#if defined(__SANITIZE_ADDRESS__)
// An allocation that is too large is to return null, as it does without the sanitizer.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

using namespace wf;
using namespace wf::testing;

TEST_CASE("a buffer is aligned, zeroed, and moves", "[memory]") {
  Buffer buffer(100, "a test");
  CHECK(buffer.bytes() == 100);
  CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0);
  for (size_t i = 0; i < 25; ++i) CHECK(buffer.floats()[i] == 0);
  buffer.floats()[3] = 7;
  Buffer other = std::move(buffer);
  CHECK(other.floats()[3] == 7);
  buffer = std::move(other);
  CHECK(buffer.floats()[3] == 7);
  CHECK(Buffer(0, "nothing").data() == nullptr);
}

TEST_CASE("running out of memory is an error with what and how much", "[memory]") {
  CHECK(outcome([] { Buffer(SIZE_MAX, "a test"); }) ==
        "out-of-memory [memory] a test needs " + std::to_string(SIZE_MAX) + " bytes, more than is left");
  const size_t more_than_there_is = sizeof(size_t) == 8 ? SIZE_MAX / 16 : SIZE_MAX - 4096;
  CHECK(outcome([&] { Buffer(more_than_there_is, "a test"); }).starts_with("out-of-memory [memory] a test needs "));
  Arena arena;
  CHECK(outcome([&] { arena.floats(SIZE_MAX / 4); }).starts_with("out-of-memory"));
  CHECK(outcome([&] { arena.floats(SIZE_MAX / 4 + 1); }).starts_with("out-of-memory"));
  CHECK(outcome([&] { arena.floats(more_than_there_is / 4); }).starts_with("out-of-memory"));
  arena.floats(10)[9] = 1;  // still in order
}

TEST_CASE("allocations are counted", "[memory]") {
  const size_t before = allocation_count();
  Buffer one(8, "a test"), none(0, "a test");
  CHECK(allocation_count() == before + 1);
}

TEST_CASE("sums and products that do not fit are errors", "[memory]") {
  CHECK(checked_product(3, 5) == 15);
  CHECK(checked_product(SIZE_MAX, 1) == SIZE_MAX);
  CHECK(checked_sum(SIZE_MAX, 0) == SIZE_MAX);
  CHECK(outcome([] { checked_product(SIZE_MAX / 2 + 1, 2, "here"); }).starts_with("out-of-memory [here] "));
  CHECK(outcome([] { checked_sum(SIZE_MAX, 1, "here"); }).starts_with("out-of-memory [here] "));
  const size_t half = size_t{1} << (sizeof(size_t) * 4);
  CHECK(outcome([&] { static_cast<void>(Shape{half, half}.size()); }).starts_with("out-of-memory"));
  CHECK(outcome([&] { static_cast<void>(Shape{half, half, 3}.rows()); }).starts_with("out-of-memory"));
}

TEST_CASE("shapes", "[memory]") {
  const Shape shape{2, 3, 4};
  CHECK(shape.size() == 24);
  CHECK(shape.rows() == 6);
  CHECK(shape.last() == 4);
  CHECK(shape.text() == "(2, 3, 4)");
  CHECK(shape == Shape{2, 3, 4});
  CHECK_FALSE(shape == Shape{2, 3});
  CHECK(Shape{}.size() == 1);
  CHECK(outcome([] { Shape{1, 2, 3, 4, 5}; }).starts_with("internal"));
}

TEST_CASE("an arena gives aligned memory that does not overlap, and gives it again after a release", "[memory]") {
  Arena arena(1024);
  float* a = arena.floats(3);
  float* b = arena.floats(100);
  float* c = arena.floats(1000);  // a block of its own
  for (float* p : {a, b, c}) CHECK(reinterpret_cast<uintptr_t>(p) % kAlignment == 0);
  std::fill_n(a, 3, 1.0f);
  std::fill_n(b, 100, 2.0f);
  std::fill_n(c, 1000, 3.0f);
  CHECK(a[2] == 1);
  CHECK(b[99] == 2);
  const auto mark = arena.mark();
  float* d = arena.floats(50);
  std::fill_n(d, 50, 4.0f);
  CHECK(c[999] == 3);
  arena.release(mark);
  CHECK(arena.floats(50) == d);
  arena.release({});
  CHECK(arena.floats(3) == a);
  arena.clear();
  CHECK(arena.bytes() == 0);
}

TEST_CASE("a warm arena allocates nothing", "[memory]") {
  Arena arena(1024);
  const auto pass = [&](size_t scale) {
    const auto mark = arena.mark();
    for (const size_t count : {10, 300, 5, 700, 200, 90}) {
      const auto inner = arena.mark();
      arena.floats(count * scale);
      arena.floats(17);
      if (count == 300) arena.release(inner);
    }
    arena.release(mark);
  };
  pass(3);
  pass(3);
  const size_t before = allocation_count(), held = arena.bytes();
  for (int i = 0; i < 10; ++i) pass(3);
  pass(1);
  CHECK(allocation_count() == before);
  CHECK(arena.bytes() == held);
  CHECK(arena.peak_bytes() > 0);
  CHECK(arena.peak_bytes() <= arena.bytes());
}

TEST_CASE("requests that grow step by step leave no trail of blocks", "[memory]") {
  Arena arena(1024);
  arena.floats(100);
  const auto mark = arena.mark();
  const size_t before = allocation_count();
  size_t count = 300;
  for (; count < 30000; count += 40) {
    arena.floats(count);
    arena.release(mark);
  }
  CHECK(arena.bytes() < 2 * count * sizeof(float));
  CHECK(allocation_count() - before < 40);
}
