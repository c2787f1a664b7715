#include "core/heap_counter.hpp"

#include <atomic>
#include <catch_amalgamated.hpp>
#include <cstdlib>
#include <memory>
#include <new>

namespace {

std::atomic<size_t> count{0};

void* counted(size_t bytes) {
  ++count;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return counted(bytes); }
void* operator new[](size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace wf::testing {

size_t new_count() { return count; }

TEST_CASE("operator new is counted") {
  const size_t before = new_count();
  const auto memory = std::make_unique<int[]>(100);
  CHECK(new_count() == before + 1);
}

}  // namespace wf::testing
