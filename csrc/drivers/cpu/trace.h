// SPDX-License-Identifier: Apache-2.0
// The device's trace: begin and end of each job, in a bounded list that the host drains.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt::cpu {

// Thread-safe. While it is off, an event costs one relaxed load.
class Trace {
 public:
  static constexpr uint32_t kMostEvents = 1u << 20;

  // Begins anew: no event and no count of an earlier trace is left.
  Result<void> start(uint32_t capacity);
  void stop() { on_.store(false, std::memory_order_relaxed); }
  // `name` is HANDLE of the driver. What does not fit is counted: those already kept stay in one
  // piece.
  void add(const char* name, int32_t phase, uint64_t job_seq, uint64_t t_ns);
  // Moves up to `room` events to `out`, oldest first; returns how many.
  uint32_t drain(cald_trace_event* out, uint32_t room);
  uint64_t dropped();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;  // guards what follows
  std::vector<cald_trace_event> ring_;
  size_t first_ = 0, count_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace calrt::cpu
