// SPDX-License-Identifier: Apache-2.0
// A KV operation's description turned into work: checked whole before anything is touched.
#pragma once

#include <atomic>

#include "drivers/cpu/model.h"
#include "drivers/cpu/pool.h"

namespace calrt::cpu {

inline constexpr uint32_t kKvOps = CALD_KV_CLEAR | CALD_KV_LANE_COPY | CALD_KV_RANGE_COPY |
                                   CALD_KV_ROTATE | CALD_KV_READ | CALD_KV_WRITE;

uint64_t kv_bytes_per_cell(const LoadPlan& plan);

struct KvWork {
  cald_kv_desc desc;
  const char* name;  // HANDLE of the driver

  // False when `cancel` was seen set; the target is then partly written. One call at a time.
  bool run(Pool& pool, const std::atomic<bool>& cancel) const;
};

Result<KvWork> read_kv(const cald_kv_desc& desc);

}  // namespace calrt::cpu
