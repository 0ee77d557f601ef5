// SPDX-License-Identifier: Apache-2.0
// The device's own record of what ran when: begin and end of each stage of each ended job.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt::mock {

// Thread-safe. While it is off, a job costs one relaxed load.
class Trace {
 public:
  static constexpr uint32_t kMostEvents = 1u << 20;

  // Begins anew: no event and no count of an earlier trace is left.
  Result<void> start(uint32_t capacity);
  void stop() { on_.store(false, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // A stage from begin_ns to end_ns of the device's clock. One that does not fit is counted whole:
  // what is kept stays in pairs.
  void add(const char* name, uint64_t job_seq, uint32_t track, uint64_t begin_ns, uint64_t end_ns);
  // Moves up to `room` events to `out`, oldest first; returns how many.
  uint32_t drain(cald_trace_event* out, uint32_t room);
  uint64_t dropped();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;  // guards what follows
  std::vector<cald_trace_event> events_;
  size_t capacity_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace calrt::mock
