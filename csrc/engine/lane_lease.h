// SPDX-License-Identifier: Apache-2.0
// A committed lane with an owner: given back once, by release() or by the destructor.
#pragma once

#include <memory>
#include <mutex>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "engine/reserve.h"
#include "kv/lanes.h"

namespace calrt::engine {

// Thread-safe. Never waits, calls no driver.
class LaneLease {
 public:
  // `ref` is committed in the queue's table and this lease's from here on.
  LaneLease(std::shared_ptr<ReserveQueue> queue, const kv::LaneRef& ref);
  ~LaneLease();
  LaneLease(const LaneLease&) = delete;
  LaneLease& operator=(const LaneLease&) = delete;

  uint32_t lane() const { return ref_.lane; }
  const std::shared_ptr<ReserveQueue>& queue() const { return queue_; }
  // INVALID_HANDLE once the lane was released or handed over.
  Result<kv::LaneRef> ref() const;
  Result<kv::LaneSnapshot> snapshot() const;
  Result<void> truncate(uint32_t length);
  // The lane is free for the next owner, once its job (if any) has ended. Idempotent.
  void release();
  // Somebody else gives the lane back; this lease is over. INVALID_HANDLE if it was over already.
  Result<void> hand_over();

 private:
  bool end();  // true for the call that ends the lease

  const std::shared_ptr<ReserveQueue> queue_;
  const kv::LaneRef ref_;
  mutable RankedMutex mutex_{LockRank::LEAF, "lane lease"};
  bool ended_ = false;
};

}  // namespace calrt::engine
