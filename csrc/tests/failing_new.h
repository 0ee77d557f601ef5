// SPDX-License-Identifier: Apache-2.0
// Every nth allocation fails in turn. Replaces operator new: include it in one file of a test.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace calrt::testing {

// Allocations of this thread until one fails; negative: none does.
inline thread_local int64_t allocations_left = -1;

// Calls attempt(), first with its 1st allocation failing, then with its 2nd, until one call needs
// no more than it gets. Calls failed() after each of the others. How many those were.
template <class Attempt, class Failed>
int each_allocation_fails(Attempt&& attempt, Failed&& failed) {
  for (int n = 0;; ++n) {
    allocations_left = n;
    attempt();
    const bool all_given = allocations_left >= 0;
    allocations_left = -1;
    if (all_given) return n;
    failed();
  }
}

// A pair that the compiler sees through is taken for new with free: hence not inlined.
[[gnu::noinline]] inline void* new_or_fail(size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* const out = std::malloc(bytes > 0 ? bytes : 1);
  if (out == nullptr) throw std::bad_alloc();
  return out;
}

[[gnu::noinline]] inline void free_new(void* memory) noexcept { std::free(memory); }

}  // namespace calrt::testing

void* operator new(size_t bytes) { return calrt::testing::new_or_fail(bytes); }
void* operator new[](size_t bytes) { return calrt::testing::new_or_fail(bytes); }
void operator delete(void* memory) noexcept { calrt::testing::free_new(memory); }
void operator delete[](void* memory) noexcept { calrt::testing::free_new(memory); }
void operator delete(void* memory, size_t) noexcept { calrt::testing::free_new(memory); }
void operator delete[](void* memory, size_t) noexcept { calrt::testing::free_new(memory); }
