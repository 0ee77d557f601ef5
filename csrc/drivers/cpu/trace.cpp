// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/trace.h"

#include <algorithm>

namespace calrt::cpu {

Result<void> Trace::start(uint32_t capacity) {
  if (capacity == 0 || capacity > kMostEvents)
    return fail(Status::OUT_OF_RANGE, "capacity=%u: 1 to %u events expected", capacity,
                kMostEvents);
  std::vector<cald_trace_event> ring(capacity);
  const std::lock_guard lock(mutex_);
  ring_.swap(ring);
  first_ = count_ = 0;
  dropped_ = 0;
  on_.store(true, std::memory_order_relaxed);
  return {};
}

void Trace::add(const char* name, int32_t phase, uint64_t job_seq, uint64_t t_ns) {
  if (!on_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  if (count_ == ring_.size()) {
    ++dropped_;
    return;
  }
  ring_[(first_ + count_++) % ring_.size()] = {t_ns, job_seq, name, phase, 0, 0};
}

uint32_t Trace::drain(cald_trace_event* out, uint32_t room) {
  const std::lock_guard lock(mutex_);
  const auto n = static_cast<uint32_t>(std::min<size_t>(room, count_));
  for (uint32_t i = 0; i < n; ++i) out[i] = ring_[(first_ + i) % ring_.size()];
  if (n != 0) first_ = (first_ + n) % ring_.size();
  count_ -= n;
  return n;
}

uint64_t Trace::dropped() {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace calrt::cpu
