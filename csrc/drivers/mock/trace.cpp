// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/trace.h"

#include <algorithm>

namespace calrt::mock {

Result<void> Trace::start(uint32_t capacity) {
  if (capacity == 0 || capacity > kMostEvents)
    return fail(Status::OUT_OF_RANGE, "capacity=%u: 1 to %u events expected", capacity,
                kMostEvents);
  std::vector<cald_trace_event> events;
  events.reserve(capacity);  // so that add() never allocates
  const std::lock_guard lock(mutex_);
  events_.swap(events);
  capacity_ = capacity;
  dropped_ = 0;
  on_.store(true, std::memory_order_relaxed);
  return {};
}

void Trace::add(const char* name, uint64_t job_seq, uint32_t track, uint64_t begin_ns,
                uint64_t end_ns) {
  const std::lock_guard lock(mutex_);
  if (events_.size() + 2 > capacity_) {
    dropped_ += 2;
    return;
  }
  events_.push_back({begin_ns, job_seq, name, CALD_TRACE_BEGIN, track, 0});
  events_.push_back({end_ns, job_seq, name, CALD_TRACE_END, track, 0});
}

// Jobs of several sessions are written down when they end, which is not the order of their begins.
uint32_t Trace::drain(cald_trace_event* out, uint32_t room) {
  const std::lock_guard lock(mutex_);
  std::stable_sort(events_.begin(), events_.end(),
                   [](const auto& a, const auto& b) { return a.t_ns < b.t_ns; });
  const auto n = std::min<size_t>(room, events_.size());
  std::copy_n(events_.begin(), n, out);
  events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(n));
  return static_cast<uint32_t>(n);
}

uint64_t Trace::dropped() {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace calrt::mock
