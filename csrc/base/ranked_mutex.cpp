// SPDX-License-Identifier: Apache-2.0
#include "base/ranked_mutex.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"

namespace calrt {
namespace {

constexpr int kMostHeld = 16;        // deeper nesting is not followed
constexpr uint64_t kMostLines = 16;  // one wrong order on a hot path must not fill the log

struct Held {
  const void* mutex;
  LockRank rank;
  const char* name;
};
struct HeldByThread {
  Held list[kMostHeld];
  int count = 0;
  bool reporting = false;  // what a log sink locks is not followed
};
thread_local HeldByThread held;
std::atomic<uint64_t> violations{0};

void report(const Held& outer, const Held& inner) {
  if (violations.fetch_add(1, std::memory_order_relaxed) >= kMostLines) return;
  held.reporting = true;
  log_line(LOG_ERROR, "locks", "'%s' (rank %d) was taken while '%s' (rank %d) is held", inner.name,
           static_cast<int>(inner.rank), outer.name, static_cast<int>(outer.rank));
  held.reporting = false;
}

}  // namespace

uint64_t lock_order_violations() noexcept { return violations.load(std::memory_order_relaxed); }

void detail::note_lock(const void* mutex, LockRank rank, const char* name) noexcept {
  if (held.reporting) return;
  const Held taken{mutex, rank, name};
  for (int i = 0; i < held.count; ++i)
    if (held.list[i].rank >= rank) {
      report(held.list[i], taken);
      break;
    }
  if (held.count < kMostHeld) held.list[held.count++] = taken;
}

void detail::note_unlock(const void* mutex) noexcept {
  if (held.reporting) return;
  for (int i = held.count; i-- > 0;) {
    if (held.list[i].mutex != mutex) continue;
    std::copy(held.list + i + 1, held.list + held.count, held.list + i);
    --held.count;
    return;
  }
}

}  // namespace calrt
