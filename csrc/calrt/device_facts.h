// SPDX-License-Identifier: Apache-2.0
// What a device tells about itself, copied out of the driver: nothing here points into it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calrt/driver.h"

namespace calrt {

struct DeviceInfo {
  std::string driver, driver_version, driver_path, name, device_class, runtime;
  uint32_t chips = 1, sessions = 1, depth = 1, queue = 0;
  bool exclusive = false;
  uint64_t memory_bytes = 0, memory_free = 0;  // 0 = unknown
  std::string id;                              // the same in every process; "" = not stated
  uint32_t domains = 0;                        // that buffers can be in, as bits; 0 = not stated
  int32_t completion = CALD_COMPLETION_CALLBACK;
  uint32_t clock = CALD_CLOCK_REAL;
};

struct Capability {
  std::string name, source;
  int32_t level = 3;
  int64_t value = 0;
};

struct Topology {
  struct Chip {
    uint32_t index = 0;
    std::string name;
    uint64_t memory_bytes = 0;  // 0 = unknown
  };
  std::vector<Chip> chips;
  std::vector<cald_link> links;
  std::vector<uint64_t> session_chips;         // of each session, chip indices as bits
  std::vector<std::string> modes, placements;  // what a load may ask for; empty = not stated
};

struct BufferRules {
  uint64_t align = 64;     // least alignment of an address, a power of two
  uint64_t padding = 1;    // sizes are rounded up to a multiple
  uint64_t max_bytes = 0;  // of one buffer; 0 = not stated
};

// What was drained of a device's trace.
struct DeviceTrace {
  struct Event {
    uint64_t t_ns = 0;  // of the device's clock; host_ns() makes it the host's
    uint64_t id = 0;    // job_seq, 0 = of no job
    std::string name;
    int32_t phase = 0;  // CALD_TRACE_*
    uint32_t track = 0;
    int64_t value = 0;  // of a counter
  };
  std::vector<Event> events;  // oldest first
  uint64_t dropped = 0;       // events that did not fit since the trace began
  // Two readings of the clocks, and how far apart they may truly be.
  uint64_t device_clock_ns = 0, host_clock_ns = 0, residual_ns = 0;

  // CLOCK_MONOTONIC, true to residual_ns as far as the clocks run alike.
  uint64_t host_ns(uint64_t device_ns) const { return device_ns - device_clock_ns + host_clock_ns; }
};

}  // namespace calrt
