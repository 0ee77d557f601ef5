// SPDX-License-Identifier: Apache-2.0
#include "engine/lane_lease.h"

#include <utility>

namespace calrt::engine {

LaneLease::LaneLease(std::shared_ptr<ReserveQueue> queue, const kv::LaneRef& ref)
    : queue_(std::move(queue)), ref_(ref) {}

LaneLease::~LaneLease() { release(); }

bool LaneLease::end() {
  std::lock_guard lock(mutex_);
  return !std::exchange(ended_, true);
}

Result<kv::LaneRef> LaneLease::ref() const {
  std::lock_guard lock(mutex_);
  if (ended_)
    return fail(Status::INVALID_HANDLE, "lane %u was released or handed over: reserve a new one",
                ref_.lane);
  return ref_;
}

Result<kv::LaneSnapshot> LaneLease::snapshot() const {
  CALRT_TRY_ASSIGN(const kv::LaneRef ref, this->ref());
  return queue_->table()->snapshot(ref);
}

Result<void> LaneLease::truncate(uint32_t length) {
  CALRT_TRY_ASSIGN(const kv::LaneRef ref, this->ref());
  return queue_->table()->truncate(ref, length);
}

void LaneLease::release() {
  if (!end()) return;
  const auto& table = queue_->table();
  // Fails only for a lane that is no longer ours (the table was reset): then there is nothing to
  // do.
  if (!table->release(ref_).ok()) return;
  queue_->lane_freed();
}

Result<void> LaneLease::hand_over() {
  if (!end())
    return fail(Status::INVALID_HANDLE, "lane %u was released or handed over: reserve a new one",
                ref_.lane);
  return {};
}

}  // namespace calrt::engine
