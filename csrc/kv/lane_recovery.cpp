// SPDX-License-Identifier: Apache-2.0
// Poisoned lanes on their way back.
#include "base/out_of_memory.h"
#include "kv/lane_change.h"

namespace calrt::kv {

Error poisoned_lane(uint32_t lane) {
  return fail(Status::KV_POISONED,
              "lane %u is poisoned: a job failed after it had begun to write it, so what its cells "
              "hold is unknown; kv.scrub() tries it and gives it back empty, or release it and "
              "reserve another",
              lane);
}

std::vector<uint32_t> LaneTable::poisoned(uint64_t job_seq, bool unowned) const {
  std::vector<uint32_t> found;
  found.reserve(lanes());
  std::lock_guard lock(mutex_);
  for (uint32_t lane = 0; lane < lanes(); ++lane) {
    const Slot& slot = slots_[lane];
    if (slot.state == LaneState::POISONED && (job_seq == 0 || slot.last_seq == job_seq) &&
        (!unowned || slot.lease == 0))
      found.push_back(lane);
  }
  return found;
}

uint32_t LaneTable::offline_lanes() const {
  std::lock_guard lock(mutex_);
  return counts_[static_cast<size_t>(LaneState::OFFLINE)];
}

Result<void> LaneTable::begin_scrub(uint32_t lane) {
  return or_out_of_memory([&]() -> Result<void> {
    CALRT_TRY(check_lane(lane));
    std::lock_guard lock(mutex_);
    Slot& slot = slots_[lane];
    if (slot.state != LaneState::POISONED)
      return fail(Status::INVALID_STATE, "lane %u is %s: only a poisoned lane can be scrubbed",
                  lane, lane_state_name(slot.state));
    if (slot.scrubbing)
      return fail(Status::INVALID_STATE, "lane %u is being scrubbed by someone else", lane);
    slot.scrubbing = true;
    return {};
  });
}

Result<LaneState> LaneTable::end_scrub(uint32_t lane, bool works) {
  return or_out_of_memory([&]() -> Result<LaneState> {
    CALRT_TRY(check_lane(lane));
    Change change(*this);
    Slot& slot = slots_[lane];
    if (!slot.scrubbing) return fail(Status::INVALID_STATE, "lane %u is not being scrubbed", lane);
    slot.scrubbing = false;
    if (slot.state != LaneState::POISONED) return slot.state;  // the device was lost meanwhile
    if (!works) {
      if (++slot.failed_scrubs >= kScrubs) {
        forget_owner(slot);
        set_state(slot, LaneState::OFFLINE);
      }
      return slot.state;
    }
    slot.failed_scrubs = 0;
    if (slot.lease == 0) {
      make_free(slot);
    } else {
      slot.sequence.clear();
      set_state(slot, LaneState::RESERVED);
    }
    return slot.state;
  });
}

void LaneTable::take_offline() {
  Change change(*this);
  lost_ = true;
  for (Slot& slot : slots_) {
    forget_owner(slot);
    slot.next.clear();
    slot.job = Job::NONE;
    slot.job_seq = 0;
    slot.job_cells = 0;
    slot.from = kAnyLane;
    set_state(slot, LaneState::OFFLINE);
  }
  if (prefixes_) (void)prefixes_->clear();
}

}  // namespace calrt::kv
