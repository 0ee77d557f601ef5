// SPDX-License-Identifier: Apache-2.0
// A device: its preset, the options it was opened with, and what it has counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "drivers/mock/border.h"
#include "drivers/mock/fold.h"
#include "drivers/mock/presets.h"
#include "drivers/mock/trace.h"

struct cald_driver {
  const cald_host* host;

  uint64_t now_ns() const;
};

namespace calrt::mock {

// Rising numbers, by name as the host asks for them.
#define CALD_MOCK_COUNTERS(X)                                           \
  X(jobs) /* begun */                                                   \
  X(jobs_done)                                                          \
  X(jobs_failed) /* begun or not */                                     \
  X(jobs_cancelled)                                                     \
  X(tokens)          /* rows computed */                                \
  X(cells_written)   /* by graphs */                                    \
  X(cells_moved)     /* by KV operations */                             \
  X(cells_read)      /* by folds */                                     \
  X(cells_displaced) /* of these, whose position was not their index */ \
  X(h2d_bytes)                                                          \
  X(d2h_bytes)                                                          \
  X(transfer_ns) /* what copies outside of jobs were charged */         \
  X(busy_ns)     /* of all sessions, in the device's time */

struct Counters {
#define CALD_MOCK_COUNTER(name) std::atomic<uint64_t> name{0};
  CALD_MOCK_COUNTERS(CALD_MOCK_COUNTER)
#undef CALD_MOCK_COUNTER
};

// The options of open, resolved.
struct Settings {
  bool virtual_clock = false;
  int32_t completion = CALD_COMPLETION_CALLBACK;
  double speed = 1;  // of the real clock against the timing tables; 0: nothing takes time
  bool exclusive = false;
  uint64_t memory_bytes = 0;
};

}  // namespace calrt::mock

struct cald_device {
  cald_driver* driver;
  const calrt::mock::Preset* preset;
  calrt::mock::Settings settings;
  calrt::mock::Fold fold;
  uint64_t opened_ns;  // the device's real clock begins here
  std::atomic<bool> session_open[calrt::mock::kMostSessions]{};
  std::atomic<uint64_t> memory_used{0};
  std::atomic<uint64_t> virtual_ns{0};  // the furthest that a session was polled to
  calrt::mock::Counters counters;
  calrt::mock::Trace trace;

  // Takes device memory: OUT_OF_DEVICE_MEMORY with the numbers, and nothing is taken.
  calrt::Result<void> charge(uint64_t bytes, const char* what);
  void give_back(uint64_t bytes) { memory_used -= bytes; }
  // A duration of the tables in the time of the clock that runs here.
  uint64_t scaled(uint64_t ns) const;
  // Of its own clock, where the host's is `host_ns`.
  uint64_t device_time(uint64_t host_ns) const {
    return settings.virtual_clock ? host_ns : host_ns - std::min(host_ns, opened_ns);
  }
};

namespace calrt::mock {

Result<std::unique_ptr<cald_device>> open_device(cald_driver* driver,
                                                 const cald_device_options& options);
// As opened, or (null) with the options of the default.
cald_device_info describe_device(const cald_device* device, const Preset& preset);
cald_topology describe_topology(const Preset& preset);
// The whole list; *count as device_caps and device_counters have it.
void list_caps(const cald_device& device, cald_cap* out, uint32_t* count);
void list_counters(const cald_device& device, cald_counter* out, uint32_t* count);
cald_trace_info read_clocks(cald_device& device);

}  // namespace calrt::mock
