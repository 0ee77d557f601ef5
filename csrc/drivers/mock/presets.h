// SPDX-License-Identifier: Apache-2.0
// The facts of each mock device. A preset's name also names the package that is made for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "calrt/driver.h"
#include "drivers/mock/timing.h"

namespace calrt::mock {

inline constexpr uint32_t kMostSessions = 2;

struct Placement {
  const char* name;
  uint64_t chips;  // as bits
};

struct Preset {
  const char* name;
  const char* device_class;
  const char* id;               // names the device's lock
  const char *source, *absent;  // why a capability is there, or is not
  std::span<const cald_chip* const> chips;
  std::span<const cald_link> links;
  std::span<const uint64_t> session_chips;  // one mask a session
  std::span<const char* const> modes;
  std::span<const Placement> placements;
  std::span<const char* const> placement_names;
  uint32_t queue;
  uint32_t domains;
  int32_t completion;
  bool cancel;
  uint32_t kv_ops;
  uint32_t lane_maps;  // bit 1 << CALD_LANE_MAP_*
  uint32_t most_lanes, most_cells, most_batch, most_chunk;
  uint64_t memory_bytes;
  // What a load takes on the device; 0: what the package's tensors and the cells truly have.
  uint64_t weight_bytes = 0, kv_bytes_per_cell = 0;
  Timing timing;
};

// "" is tiny. INVALID_ARGUMENT listing the names there are.
Result<const Preset*> find_preset(const char* name);

}  // namespace calrt::mock
