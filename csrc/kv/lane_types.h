// SPDX-License-Identifier: Apache-2.0
// The words of KV bookkeeping: what is asked of a LaneTable, and what it answers. Plain data.
#pragma once

#include <cstdint>

#include "kv/prefix.h"

namespace calrt::kv {

enum class LaneState : uint8_t {
  FREE,
  RESERVED,  // owned, no graph job yet; perhaps filled by a prefix, a copy or a loaded state
  PREFILLING,
  DECODING,
  DRAINING,  // its owner is gone, its job is not
  PARKED,    // nobody's; keeps the cells of a prefix
  POISONED,  // what its cells hold is unknown
  OFFLINE    // not used any more by this table
};
inline constexpr int kLaneStates = 8;
const char* lane_state_name(LaneState state);

inline constexpr uint32_t kAnyLane = UINT32_MAX;
inline constexpr uint32_t kScrubs = 2;  // so many that failed make a lane OFFLINE
inline constexpr uint64_t kReservationTtlNs = 5'000'000'000;

// Names one lease of one lane; stale once the lane was released.
struct LaneRef {
  uint32_t lane = 0;
  uint32_t generation = 0;  // of the table (a loaded model)
  uint64_t lease = 0;
};

struct LaneSnapshot {
  LaneState state;
  uint32_t length;        // cells that hold a token, from the beginning
  uint32_t reserved;      // cells promised
  uint64_t job_seq;       // of the job in flight, 0 = none
  bool canonical = true;  // no data move is pending
  uint32_t pins = 0;      // readers of a parked lane
  uint32_t failed_scrubs = 0;
};

struct Capacity {
  bool now;
  uint32_t free, lanes, cells;  // free: and parked lanes that would be evicted
};

// What to reserve.
struct Need {
  uint32_t tokens = 0;  // cells: the prompt and everything that may be generated
  uint32_t prefer = kAnyLane;
  bool only = false;  // `prefer` or nothing; then no prefix is looked for
  uint64_t ttl_ns = kReservationTtlNs;
  const Prefix* prompt = nullptr;  // whose beginning may be reused; null: none
};

// What a reserved lane begins with. At least the prompt's last token is left to be computed.
struct Reuse {
  enum class Kind : uint8_t {
    NONE,
    IN_PLACE,  // the cells are there
    COPY,      // of the parked lane `id`: begin_reuse() gives the plan
    HOSTED     // of blob `id`: write its first `tokens` cells by begin_write()
  };
  Kind kind = Kind::NONE;
  uint32_t tokens = 0;
  uint64_t id = 0;
};

}  // namespace calrt::kv
