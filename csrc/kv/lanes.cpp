// SPDX-License-Identifier: Apache-2.0
#include "kv/lanes.h"

#include <algorithm>
#include <iterator>

namespace calrt::kv {

namespace {

constexpr const char* kStateNames[] = {"FREE",     "RESERVED", "PREFILLING", "DECODING",
                                       "DRAINING", "POISONED", "OFFLINE"};

uint64_t saturating_add(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

}  // namespace

const char* lane_state_name(LaneState state) {
  const auto index = static_cast<size_t>(state);
  return index < std::size(kStateNames) ? kStateNames[index] : "?";
}

// ---- Reservation ------------------------------------------------------------------------------

Reservation::Reservation(Reservation&& other) noexcept
    : table_(std::move(other.table_)), ref_(other.ref_) {
  other.table_.reset();
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    table_ = std::move(other.table_);
    other.table_.reset();
    ref_ = other.ref_;
  }
  return *this;
}

Reservation::~Reservation() { release(); }

void Reservation::release() {
  if (table_ == nullptr) return;
  auto table = std::move(table_);
  table_.reset();
  (void)table->release(ref_);  // stale when the reservation has expired: the lane is not ours
}

Result<LaneRef> Reservation::commit() {
  if (table_ == nullptr) {
    return fail(Status::INVALID_STATE, "the reservation was already committed or released");
  }
  auto table = std::move(table_);
  table_.reset();
  std::lock_guard lock(table->mutex_);
  auto slot = table->find(ref_);
  if (!slot) {
    return fail(Status::KV_TIMEOUT,
                "the reservation of lane %u has expired: commit within its TTL, or reserve again",
                ref_.lane);
  }
  (*slot)->committed = true;
  (*slot)->expires_ns = UINT64_MAX;
  return ref_;
}

// ---- LaneTable --------------------------------------------------------------------------------

std::shared_ptr<LaneTable> LaneTable::make(uint32_t lanes, uint32_t cells, uint32_t generation) {
  return std::shared_ptr<LaneTable>(new LaneTable(lanes, cells, generation));
}

LaneTable::LaneTable(uint32_t lanes, uint32_t cells, uint32_t generation)
    : slots_(lanes), cells_(cells), generation_(generation) {}

Result<void> LaneTable::check_fits(uint32_t tokens) const {
  if (tokens == 0) return fail(Status::OUT_OF_RANGE, "tokens=0: ask for at least 1 cell");
  if (tokens > cells_) {
    return fail(Status::OUT_OF_RANGE, "tokens=%u can never fit: a lane has %u cells", tokens,
                cells_);
  }
  return {};
}

uint32_t LaneTable::count_free() const {
  return static_cast<uint32_t>(std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == LaneState::FREE;
  }));
}

Result<Capacity> LaneTable::can_allocate(uint32_t tokens) const {
  CALRT_TRY(check_fits(tokens));
  std::lock_guard lock(mutex_);
  const uint32_t free = count_free();
  return Capacity{free > 0, free, lanes(), cells_};
}

Result<Reservation> LaneTable::try_reserve(uint32_t tokens, uint64_t now_ns, uint32_t prefer,
                                           bool only, uint64_t ttl_ns) {
  CALRT_TRY(check_fits(tokens));
  if (prefer == kAnyLane ? only : prefer >= lanes()) {
    return fail(Status::OUT_OF_RANGE, "lane=%d: the model has lanes 0 to %d",
                static_cast<int>(prefer), static_cast<int>(lanes()) - 1);
  }
  std::lock_guard lock(mutex_);
  expire_locked(now_ns);
  uint32_t chosen = kAnyLane;
  if (prefer != kAnyLane && slots_[prefer].state == LaneState::FREE) {
    chosen = prefer;
  } else if (!only) {
    // Least recently used; of lanes never used the one with the highest index.
    for (uint32_t i = lanes(); i-- > 0;) {
      if (slots_[i].state != LaneState::FREE) continue;
      if (chosen == kAnyLane || slots_[i].last_used < slots_[chosen].last_used) chosen = i;
    }
  }
  if (chosen == kAnyLane) {
    if (only) {
      return fail(Status::KV_NO_CAPACITY, "lane %u is not free (%s): wait, or ask for any lane",
                  prefer, lane_state_name(slots_[prefer].state));
    }
    return fail(Status::KV_NO_CAPACITY, "none of the %u lanes is free: wait for one", lanes());
  }
  Slot& slot = slots_[chosen];
  slot.state = LaneState::RESERVED;
  slot.committed = false;
  slot.length = 0;
  slot.reserved = tokens;
  slot.lease = next_lease_++;
  slot.expires_ns = saturating_add(now_ns, ttl_ns);
  Reservation reservation;
  reservation.table_ = shared_from_this();
  reservation.ref_ = LaneRef{chosen, generation_, slot.lease};
  return reservation;
}

uint32_t LaneTable::expire(uint64_t now_ns) {
  std::lock_guard lock(mutex_);
  return expire_locked(now_ns);
}

uint32_t LaneTable::expire_locked(uint64_t now_ns) {
  uint32_t expired = 0;
  for (Slot& slot : slots_) {
    if (slot.state == LaneState::RESERVED && !slot.committed && now_ns >= slot.expires_ns) {
      make_free(slot);
      ++expired;
    }
  }
  return expired;
}

void LaneTable::make_free(Slot& slot) {
  slot.state = LaneState::FREE;
  slot.committed = false;
  slot.length = slot.reserved = slot.job_cells = 0;
  slot.lease = slot.job_seq = slot.expires_ns = 0;
  slot.last_used = ++uses_;
}

Result<LaneTable::Slot*> LaneTable::find(const LaneRef& ref) {
  if (ref.generation != generation_) {
    return fail(Status::INVALID_HANDLE,
                "the lane belongs to generation %u of the model, this is generation %u",
                ref.generation, generation_);
  }
  if (ref.lane >= lanes()) {
    return fail(Status::INVALID_HANDLE, "lane=%u: the model has %u lanes", ref.lane, lanes());
  }
  Slot& slot = slots_[ref.lane];
  if (ref.lease == 0 || slot.lease != ref.lease || slot.state == LaneState::DRAINING) {
    return fail(Status::INVALID_HANDLE, "lane %u was given back: reserve it again", ref.lane);
  }
  return &slot;
}

Result<void> LaneTable::begin_job(const LaneRef& ref, uint64_t job_seq, uint32_t n, bool prefill) {
  std::lock_guard lock(mutex_);
  CALRT_TRY_ASSIGN(Slot * slot, find(ref));
  if (slot->state == LaneState::POISONED) {
    return fail(Status::KV_POISONED, "lane %u is poisoned: release it and reserve another",
                ref.lane);
  }
  if (!slot->committed) {
    return fail(Status::INVALID_STATE, "lane %u is only reserved: commit it first", ref.lane);
  }
  if (slot->job_seq != 0) {
    return fail(Status::INVALID_STATE, "lane %u is busy with job %llu: one job per lane", ref.lane,
                static_cast<unsigned long long>(slot->job_seq));
  }
  if (job_seq <= slot->last_seq) {
    return fail(Status::INVALID_ARGUMENT, "job_seq=%llu on lane %u: must rise above %llu",
                static_cast<unsigned long long>(job_seq), ref.lane,
                static_cast<unsigned long long>(slot->last_seq));
  }
  if (n == 0) return fail(Status::INVALID_ARGUMENT, "a job writes at least 1 cell, got 0");
  if (n > cells_ - slot->length) {
    return fail(Status::OUT_OF_RANGE, "lane %u: %u cells filled + %u to write > %u cells", ref.lane,
                slot->length, n, cells_);
  }
  slot->job_seq = slot->last_seq = job_seq;
  slot->job_cells = n;
  slot->state = prefill ? LaneState::PREFILLING : LaneState::DECODING;
  return {};
}

bool LaneTable::end_job(const LaneRef& ref, uint64_t job_seq, bool ok, bool written) {
  std::lock_guard lock(mutex_);
  Slot* slot = ref.lane < lanes() ? &slots_[ref.lane] : nullptr;
  if (slot == nullptr || ref.generation != generation_ || job_seq == 0 ||
      slot->lease != ref.lease || slot->job_seq != job_seq) {
    ++stale_;
    return false;
  }
  const bool draining = slot->state == LaneState::DRAINING;
  if (ok) slot->length += slot->job_cells;
  slot->job_seq = 0;
  slot->job_cells = 0;
  if (!ok && written) {
    slot->state = LaneState::POISONED;
    if (draining) forget_owner(*slot);
  } else if (draining) {
    make_free(*slot);
  }
  return true;
}

void LaneTable::forget_owner(Slot& slot) {
  slot.lease = 0;
  slot.committed = false;
  slot.length = slot.reserved = 0;
}

Result<void> LaneTable::release(const LaneRef& ref) {
  std::lock_guard lock(mutex_);
  CALRT_TRY_ASSIGN(Slot * slot, find(ref));
  if (slot->job_seq != 0) {
    slot->state = LaneState::DRAINING;
  } else if (slot->state == LaneState::POISONED) {
    forget_owner(*slot);
  } else {
    make_free(*slot);
  }
  return {};
}

Result<void> LaneTable::truncate(const LaneRef& ref, uint32_t length) {
  std::lock_guard lock(mutex_);
  CALRT_TRY_ASSIGN(Slot * slot, find(ref));
  if (slot->job_seq != 0) {
    return fail(Status::INVALID_STATE, "lane %u is busy with job %llu: truncate when it has ended",
                ref.lane, static_cast<unsigned long long>(slot->job_seq));
  }
  if (length > slot->length) {
    return fail(Status::OUT_OF_RANGE, "length=%u: lane %u holds only %u cells", length, ref.lane,
                slot->length);
  }
  slot->length = length;
  return {};
}

Result<void> LaneTable::scrubbed(uint32_t lane) {
  std::lock_guard lock(mutex_);
  if (lane >= lanes()) {
    return fail(Status::OUT_OF_RANGE, "lane=%u: the model has %u lanes", lane, lanes());
  }
  Slot& slot = slots_[lane];
  if (slot.state != LaneState::POISONED) {
    return fail(Status::INVALID_STATE, "lane %u is %s: only a poisoned lane can be scrubbed", lane,
                lane_state_name(slot.state));
  }
  if (slot.lease != 0) {
    return fail(Status::INVALID_STATE, "lane %u still has its owner: release it first", lane);
  }
  make_free(slot);
  return {};
}

std::vector<uint32_t> LaneTable::scrub(uint64_t job_seq) {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> emptied;
  for (uint32_t lane = 0; lane < lanes(); ++lane) {
    Slot& slot = slots_[lane];
    if (slot.state != LaneState::POISONED || (job_seq != 0 && slot.last_seq != job_seq)) continue;
    if (slot.lease == 0) {
      make_free(slot);
    } else {
      slot.state = LaneState::RESERVED;
      slot.length = 0;
    }
    emptied.push_back(lane);
  }
  return emptied;
}

LaneSnapshot LaneTable::snapshot(uint32_t lane) const {
  std::lock_guard lock(mutex_);
  if (lane >= lanes()) return {LaneState::OFFLINE, 0, 0, 0};
  const Slot& slot = slots_[lane];
  return {slot.state, slot.length, slot.reserved, slot.job_seq};
}

Result<LaneSnapshot> LaneTable::snapshot(const LaneRef& ref) const {
  std::lock_guard lock(mutex_);
  CALRT_TRY_ASSIGN(const Slot* slot, const_cast<LaneTable*>(this)->find(ref));
  return LaneSnapshot{slot->state, slot->length, slot->reserved, slot->job_seq};
}

uint64_t LaneTable::stale_completions() const {
  std::lock_guard lock(mutex_);
  return stale_;
}

uint32_t LaneTable::free_lanes() const {
  std::lock_guard lock(mutex_);
  return count_free();
}

Result<void> LaneTable::check_integrity() const {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < lanes(); ++i) {
    const Slot& slot = slots_[i];
    const auto broken = [&](const char* rule) -> Error {
      return fail(Status::INTERNAL,
                  "lane %u (%s, length %u, reserved %u, lease %llu, job %llu) breaks: %s", i,
                  lane_state_name(slot.state), slot.length, slot.reserved,
                  static_cast<unsigned long long>(slot.lease),
                  static_cast<unsigned long long>(slot.job_seq), rule);
    };
    const bool idle = slot.state == LaneState::FREE || slot.state == LaneState::OFFLINE;
    const bool owned = slot.state == LaneState::PREFILLING || slot.state == LaneState::DECODING;
    if (slot.length > cells_) return broken("length <= cells");
    if (slot.reserved > cells_) return broken("reserved <= cells");
    if (slot.job_cells > cells_ - slot.length) return broken("length + job cells <= cells");
    if ((slot.job_seq == 0) != (slot.job_cells == 0)) return broken("a job writes cells");
    if (slot.job_seq != 0 && slot.job_seq != slot.last_seq) return broken("the job is the latest");
    if (idle && (slot.lease != 0 || slot.job_seq != 0 || slot.length != 0)) {
      return broken("a free lane has no owner, no job and no cells");
    }
    if (slot.state == LaneState::DRAINING && slot.job_seq == 0) {
      return broken("a draining lane has a job in flight");
    }
    if (slot.state == LaneState::POISONED && slot.job_seq != 0) {
      return broken("a poisoned lane has no job in flight");
    }
    if (slot.state == LaneState::RESERVED && slot.job_seq != 0) {
      return broken("a reserved lane has no job in flight");
    }
    if ((owned || slot.state == LaneState::RESERVED) && slot.lease == 0) {
      return broken("a lane in use has an owner");
    }
    if (owned && !slot.committed) return broken("a lane with jobs is committed");
    if (slot.lease >= next_lease_) return broken("leases are handed out once");
    for (uint32_t j = 0; j < i; ++j) {
      if (slot.lease != 0 && slots_[j].lease == slot.lease) return broken("one lane per lease");
    }
  }
  return {};
}

}  // namespace calrt::kv
