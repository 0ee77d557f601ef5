// SPDX-License-Identifier: Apache-2.0
// What the table says of its lanes, and whether it agrees with itself.
#include "base/out_of_memory.h"
#include "kv/lanes.h"

namespace calrt::kv {

LaneSnapshot LaneTable::describe(uint32_t lane) const {
  const Slot& slot = slots_[lane];
  const PrefixEntry* parked =
      slot.state == LaneState::PARKED ? prefixes_->get({PrefixPlace::LANE, lane}) : nullptr;
  return {.state = slot.state,
          .length = slot.sequence.length(),
          .reserved = slot.reserved,
          .job_seq = slot.job_seq,
          .canonical = slot.sequence.canonical(),
          .pins = parked != nullptr ? parked->pins : 0,
          .failed_scrubs = slot.failed_scrubs};
}

LaneSnapshot LaneTable::snapshot(uint32_t lane) const {
  if (lane >= lanes()) return {LaneState::OFFLINE, 0, 0, 0};
  std::lock_guard lock(mutex_);
  return describe(lane);
}

Result<LaneSnapshot> LaneTable::snapshot(const LaneRef& ref) const {
  return or_out_of_memory([&]() -> Result<LaneSnapshot> {
    std::lock_guard lock(mutex_);
    CALRT_TRY(find(ref));
    return describe(ref.lane);
  });
}

uint64_t LaneTable::stale_completions() const {
  std::lock_guard lock(mutex_);
  return stale_;
}

const char* LaneTable::broken_rule(const Slot& slot) const {
  const LaneState state = slot.state;
  const bool busy = slot.job != Job::NONE;
  const bool owned = state == LaneState::RESERVED || state == LaneState::PREFILLING ||
                     state == LaneState::DECODING;
  const uint32_t length = slot.sequence.length();
  // I1
  if (free_.has(static_cast<uint32_t>(&slot - slots_.data())) != (state == LaneState::FREE))
    return "the free lanes are those to choose from";
  // I2
  if (owned && slot.lease == 0) return "a lane in use has an owner";
  if (slot.lease >= next_lease_) return "leases are handed out once";
  // I3
  if ((state == LaneState::FREE || state == LaneState::OFFLINE) &&
      (slot.lease != 0 || busy || slot.sequence.cells() != 0 || slot.reserved != 0))
    return "a free lane has no owner, no job and no cells";
  if (state == LaneState::PARKED && (slot.lease != 0 || busy || !slot.sequence.canonical()))
    return "a parked lane has no owner, no job and whole cells";
  // I4
  if (state == LaneState::DRAINING && !busy) return "a draining lane has a job in flight";
  if (state == LaneState::POISONED && busy) return "a poisoned lane has no job in flight";
  if (state == LaneState::RESERVED && slot.job == Job::GRAPH)
    return "a lane with graph jobs is not merely reserved";
  // I5
  if (slot.sequence.cells() > cells_) return "length <= cells";
  if (slot.reserved > cells_) return "reserved <= cells";
  if (slot.job_cells > cells_ - length) return "length + job cells <= cells";
  // I6
  if (slot.lease != 0 && !slot.committed && state != LaneState::RESERVED)
    return "a promise is a reserved lane";
  if (slot.lease != 0 && !slot.committed && slot.expires_ns < earliest_ns_)
    return "no promise ends before the earliest";
  // I9
  if ((slot.job_seq != 0) != busy) return "a job has a number";
  if ((slot.job == Job::GRAPH) != (slot.job_cells != 0)) return "a graph job writes cells";
  if (busy && slot.job_seq != slot.last_seq) return "the job is the latest";
  if (slot.job != Job::MOVE && (slot.from != kAnyLane || slot.next.cells() != 0))
    return "only a move has a source and a result";
  if (slot.from != kAnyLane &&
      (slots_[slot.from].job != Job::SOURCE || slots_[slot.from].job_seq != slot.job_seq))
    return "the source of a copy is read by the same job";
  return nullptr;
}

Result<void> LaneTable::check_integrity() const {
  return or_out_of_memory([&]() -> Result<void> {
    std::lock_guard lock(mutex_);
    std::array<uint32_t, kLaneStates> counts{};
    uint32_t evictable = 0;
    for (uint32_t i = 0; i < lanes(); ++i) {
      const Slot& slot = slots_[i];
      const char* broken = broken_rule(slot);
      ++counts[static_cast<size_t>(slot.state)];
      uint32_t readers = 0;
      for (uint32_t j = 0; j < lanes(); ++j) {
        if (j < i && slot.lease != 0 && slots_[j].lease == slot.lease)
          broken = "one lane per lease";  // I2
        readers += slots_[j].reuse.kind == Reuse::Kind::COPY && slots_[j].reuse.id == i;
      }
      const PrefixEntry* entry = prefixes_ ? prefixes_->get({PrefixPlace::LANE, i}) : nullptr;
      const bool is_parked = slot.state == LaneState::PARKED;
      if ((entry != nullptr) != is_parked) broken = "the parked lanes are those in the index";
      if (entry != nullptr && entry->prefix.tokens.size() != slot.sequence.length())
        broken = "a parked lane holds the cells of its tokens";
      const uint32_t pins = entry != nullptr ? entry->pins : 0;
      if (pins != readers) broken = "a parked lane has as many pins as readers";  // I8
      evictable += is_parked && pins == 0;
      if (broken != nullptr)
        return fail(Status::INTERNAL,
                    "lane %u (%s, length %u, reserved %u, lease %llu, job %llu) breaks: %s", i,
                    lane_state_name(slot.state), slot.sequence.length(), slot.reserved,
                    static_cast<unsigned long long>(slot.lease),
                    static_cast<unsigned long long>(slot.job_seq), broken);
    }
    const uint32_t available = counts[static_cast<size_t>(LaneState::FREE)] + evictable;
    if (counts != counts_)
      return fail(Status::INTERNAL, "lanes by state are not as counted");  // I1
    if (available != available_.load())
      return fail(Status::INTERNAL, "%u lanes to be had, %u published", available,
                  available_.load());
    return prefixes_ ? prefixes_->check_integrity() : Result<void>();  // I10
  });
}

}  // namespace calrt::kv
