// SPDX-License-Identifier: Apache-2.0
// reserve(deadline) for scripts: one bounded FIFO in front of try_reserve, and the only place in
// calrt that waits for a lane. The server never uses it.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "kv/lanes.h"

namespace calrt::engine {

class ReserveQueue {
 public:
  explicit ReserveQueue(std::shared_ptr<kv::LaneTable> table, uint32_t max_waiters = 64);
  const std::shared_ptr<kv::LaneTable>& table() const { return table_; }

  // Waits in order of arrival until a lane is free or `deadline_ns` (CLOCK_MONOTONIC) passes:
  // KV_TIMEOUT. What can never fit is OUT_OF_RANGE at once; a full queue is QUEUE_FULL at once.
  // Returns early with CANCELLED when `interrupted` (called at >= 10 Hz, may be null) says so.
  Result<kv::Reservation> reserve(uint32_t tokens, uint64_t deadline_ns,
                                  bool (*interrupted)(void*) = nullptr, void* user = nullptr);
  // Ends every wait, and each later reserve(), with MODEL_UNLOADED. Idempotent.
  void close();
  // To be called after a lane was given back.
  void lane_freed();

 private:
  std::shared_ptr<kv::LaneTable> table_;
  const uint32_t max_waiters_;
  RankedMutex mutex_{LockRank::LEAF, "reserve queue"};
  RankedCondition changed_;
  std::deque<uint64_t> waiting_;
  uint64_t next_ticket_ = 1;
  bool closed_ = false;
};

}  // namespace calrt::engine
