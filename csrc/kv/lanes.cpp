// SPDX-License-Identifier: Apache-2.0
// Who gets a lane, and how it comes back.
#include "kv/lanes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/out_of_memory.h"
#include "kv/lane_change.h"

namespace calrt::kv {

namespace {

constexpr const char* kStateNames[] = {"FREE",     "RESERVED", "PREFILLING", "DECODING",
                                       "DRAINING", "PARKED",   "POISONED",   "OFFLINE"};
static_assert(std::size(kStateNames) == kLaneStates);

uint64_t saturating_add(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

}  // namespace

const char* lane_state_name(LaneState state) {
  const auto index = static_cast<size_t>(state);
  return index < std::size(kStateNames) ? kStateNames[index] : "?";
}

// ---- Reservation ------------------------------------------------------------------------------

Reservation::Reservation(Reservation&& other) noexcept
    : table_(std::move(other.table_)),
      ref_(other.ref_),
      reuse_(other.reuse_),
      evicted_(std::move(other.evicted_)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    table_ = std::move(other.table_);
    ref_ = other.ref_;
    reuse_ = other.reuse_;
    evicted_ = std::move(other.evicted_);
  }
  return *this;
}

Reservation::~Reservation() { release(); }

void Reservation::release() {
  if (table_ == nullptr) return;
  const auto table = std::move(table_);
  (void)table->release(ref_);  // stale when the reservation has expired: the lane is not ours
}

Result<LaneRef> Reservation::commit() {
  return or_out_of_memory([&]() -> Result<LaneRef> {
    if (table_ == nullptr) {
      return fail(Status::INVALID_STATE, "the reservation was already committed or released");
    }
    const auto table = table_;
    LaneTable::Change change(*table);
    auto slot = table->find(ref_);
    if (!slot.ok()) {
      Error gone =
          slot.error().code == Status::DEVICE_LOST
              ? std::move(slot).error()
              : fail(Status::KV_TIMEOUT,
                     "the reservation of lane %u has expired: commit within its TTL, or reserve "
                     "again",
                     ref_.lane);
      table_.reset();
      return gone;
    }
    (*slot)->committed = true;
    table_.reset();
    return ref_;
  });
}

// ---- LaneTable --------------------------------------------------------------------------------

std::shared_ptr<LaneTable> LaneTable::make(uint32_t lanes, uint32_t cells, uint32_t generation,
                                           MoveCaps caps) {
  return std::shared_ptr<LaneTable>(new LaneTable(lanes, cells, generation, caps));
}

LaneTable::LaneTable(uint32_t lanes, uint32_t cells, uint32_t generation, MoveCaps caps)
    : slots_(lanes, Slot(cells)),
      cells_(cells),
      generation_(generation),
      caps_(caps),
      free_(lanes) {
  for (uint32_t lane = lanes; lane-- > 0;) free_.push(lane);
  for (int op = 0; op < kSeqOps; ++op) hows_[op] = support_of(static_cast<SeqOp>(op), caps).how;
  counts_[static_cast<size_t>(LaneState::FREE)] = lanes;
  available_.store(lanes);
}

Error LaneTable::bad_lane(uint32_t lane) const {
  return fail(Status::OUT_OF_RANGE, "lane=%d: the model has lanes 0 to %d", static_cast<int>(lane),
              static_cast<int>(lanes()) - 1);
}

Result<void> LaneTable::check_lane(uint32_t lane) const {
  if (lane >= lanes()) return bad_lane(lane);
  return {};
}

Result<void> LaneTable::check_fits(uint32_t tokens) const {
  if (tokens == 0) return fail(Status::OUT_OF_RANGE, "tokens=0: ask for at least 1 cell");
  if (tokens > cells_) {
    return fail(Status::OUT_OF_RANGE, "tokens=%u can never fit: a lane has %u cells", tokens,
                cells_);
  }
  return {};
}

Result<Capacity> LaneTable::can_allocate(uint32_t tokens) const {
  if (tokens == 0 || tokens > cells_) {
    return or_out_of_memory([&]() -> Result<Capacity> { return check_fits(tokens).error(); });
  }
  const uint32_t free = free_lanes();
  return Capacity{free > 0, free, lanes(), cells_};
}

Error LaneTable::device_lost() const {
  return fail(
      Status::DEVICE_LOST,
      "the device was lost, and its %u lanes with it: open it again and load the model anew",
      lanes());
}

Result<uint32_t> LaneTable::choose(const Need& need) const {
  if (lost_) return device_lost();
  if (need.prefer != kAnyLane) {
    const LaneState state = slots_[need.prefer].state;
    if (state == LaneState::FREE) return need.prefer;
    const PrefixHolder parked{PrefixPlace::LANE, need.prefer};
    if (need.only && state == LaneState::PARKED && prefixes_->get(parked)->pins == 0)
      return need.prefer;
    if (need.only)
      return fail(Status::KV_NO_CAPACITY, "lane %u is not free (%s): wait, or ask for any lane",
                  need.prefer, lane_state_name(state));
  }
  if (!free_.empty()) return free_.front();
  if (prefixes_) {
    if (const auto victim = prefixes_->victim_lane()) return *victim;
  }
  if (counts_[static_cast<size_t>(LaneState::OFFLINE)] == lanes()) {
    return fail(Status::DEVICE_LOST, "none of the %u lanes works any more: load the model again",
                lanes());
  }
  return fail(Status::KV_NO_CAPACITY,
              "none of the %u lanes is free (%u are poisoned, %u offline): wait for one", lanes(),
              counts_[static_cast<size_t>(LaneState::POISONED)],
              counts_[static_cast<size_t>(LaneState::OFFLINE)]);
}

Result<Reservation> LaneTable::try_reserve(uint32_t tokens, uint64_t now_ns, uint32_t prefer,
                                           bool only, uint64_t ttl_ns) {
  return try_reserve(
      {.tokens = tokens, .prefer = prefer, .only = only, .ttl_ns = ttl_ns, .prompt = nullptr},
      now_ns);
}

Result<Reservation> LaneTable::try_reserve(const Need& need, uint64_t now_ns) {
  return or_out_of_memory([&]() -> Result<Reservation> {
    CALRT_TRY(check_fits(need.tokens));
    if (need.prefer == kAnyLane ? need.only : need.prefer >= lanes()) return bad_lane(need.prefer);
    Reservation reservation;
    std::unique_ptr<PrefixEntry> gone;  // destroyed after the mutex
    Change change(*this);
    expire_locked(now_ns);
    const Reuse reuse = find_reuse(need);
    const bool in_place = reuse.kind == Reuse::Kind::IN_PLACE;
    auto lane = static_cast<uint32_t>(reuse.id);
    if (!in_place) {
      CALRT_TRY_ASSIGN(lane, choose(need));
    }
    Slot& slot = slots_[lane];
    const bool parked = slot.state == LaneState::PARKED;
    if (parked) gone = std::make_unique<PrefixEntry>();
    CALRT_TRY(count_reuse(need, reuse));
    if (parked) {
      CALRT_TRY_ASSIGN(
          *gone, prefixes_->take({PrefixPlace::LANE, lane},
                                 in_place ? PrefixEventKind::REMOVED : PrefixEventKind::EVICTED));
      if (!in_place) reservation.evicted_ = std::move(gone);
    }
    slot.spillable = reservation.evicted_ ? slot.sequence.length() : 0;
    slot.sequence.truncate(in_place ? reuse.tokens : 0);
    set_state(slot, LaneState::RESERVED);
    slot.committed = false;
    slot.reserved = need.tokens;
    slot.lease = next_lease_++;
    slot.expires_ns = saturating_add(now_ns, need.ttl_ns);
    slot.reuse = in_place ? Reuse{} : reuse;
    earliest_ns_ = std::min(earliest_ns_, slot.expires_ns);
    reservation.table_ = shared_from_this();
    reservation.ref_ = LaneRef{lane, generation_, slot.lease};
    reservation.reuse_ = reuse;
    return reservation;
  });
}

uint32_t LaneTable::expire(uint64_t now_ns) {
  Change change(*this);
  return expire_locked(now_ns);
}

uint32_t LaneTable::expire_locked(uint64_t now_ns) {
  if (now_ns < earliest_ns_) return 0;
  uint32_t expired = 0;
  earliest_ns_ = UINT64_MAX;
  for (Slot& slot : slots_) {
    if (slot.state != LaneState::RESERVED || slot.committed) continue;
    if (now_ns >= slot.expires_ns) {
      make_free(slot);
      ++expired;
    } else {
      earliest_ns_ = std::min(earliest_ns_, slot.expires_ns);
    }
  }
  return expired;
}

Result<void> LaneTable::release(const LaneRef& ref) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find(ref));
    if (slot->job_seq != 0) {
      set_state(*slot, LaneState::DRAINING);
    } else if (slot->state == LaneState::POISONED) {
      forget_owner(*slot);
    } else {
      make_free(*slot);
    }
    return {};
  });
}

// ---- slots ------------------------------------------------------------------------------------

Result<const LaneTable::Slot*> LaneTable::find(const LaneRef& ref) const {
  if (lost_) return device_lost();
  if (ref.generation != generation_) {
    return fail(Status::INVALID_HANDLE,
                "the lane belongs to generation %u of the model, this is generation %u",
                ref.generation, generation_);
  }
  if (ref.lane >= lanes()) {
    return fail(Status::INVALID_HANDLE, "lane=%u: the model has %u lanes", ref.lane, lanes());
  }
  const Slot& slot = slots_[ref.lane];
  if (ref.lease == 0 || slot.lease != ref.lease || slot.state == LaneState::DRAINING) {
    return fail(Status::INVALID_HANDLE, "lane %u was given back: reserve it again", ref.lane);
  }
  return &slot;
}

Result<LaneTable::Slot*> LaneTable::find(const LaneRef& ref) {
  CALRT_TRY_ASSIGN(const Slot* slot, std::as_const(*this).find(ref));
  return const_cast<Slot*>(slot);
}

void LaneTable::set_state(Slot& slot, LaneState state) {
  if (slot.state == state) return;
  --counts_[static_cast<size_t>(slot.state)];
  ++counts_[static_cast<size_t>(state)];
  const auto lane = static_cast<uint32_t>(&slot - slots_.data());
  if (slot.state == LaneState::FREE) free_.remove(lane);
  if (state == LaneState::FREE) free_.push(lane);
  slot.state = state;
}

void LaneTable::make_free(Slot& slot) {
  forget_owner(slot);
  set_state(slot, LaneState::FREE);
}

void LaneTable::forget_owner(Slot& slot) {
  let_go(slot);
  slot.lease = slot.expires_ns = 0;
  slot.committed = false;
  slot.reserved = slot.spillable = 0;
  slot.sequence.clear();
}

}  // namespace calrt::kv
