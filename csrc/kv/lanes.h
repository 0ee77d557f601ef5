// SPDX-License-Identifier: Apache-2.0
// Fixed-capacity KV bookkeeping: who owns which lane, how far it is filled, which job may write it.
// Knows no device, clock, tenant or Python; time is an argument. Thread-safe: one mutex, held for
// a few instructions, under which nothing is called.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"

namespace calrt::kv {

enum class LaneState : uint8_t {
  FREE,
  RESERVED,
  PREFILLING,
  DECODING,
  DRAINING,
  POISONED,
  OFFLINE
};
const char* lane_state_name(LaneState state);

inline constexpr uint32_t kAnyLane = UINT32_MAX;

// Names one lease of one lane; stale once the lane was released.
struct LaneRef {
  uint32_t lane = 0;
  uint32_t generation = 0;  // of the table (a loaded model)
  uint64_t lease = 0;
};

struct LaneSnapshot {
  LaneState state;
  uint32_t length;    // cells that hold a token
  uint32_t reserved;  // cells promised
  uint64_t job_seq;   // of the job in flight, 0 = none
};

struct Capacity {
  bool now;
  uint32_t free, lanes, cells;
};

class LaneTable;

// RAII promise of one lane for `tokens` cells. Releases on destruction unless committed or expired.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();
  const LaneRef& ref() const { return ref_; }
  explicit operator bool() const { return table_ != nullptr; }
  void release();
  // The lane is the caller's now: no TTL, no RAII; to be given back by LaneTable::release.
  Result<LaneRef> commit();

 private:
  friend class LaneTable;
  std::shared_ptr<LaneTable> table_;
  LaneRef ref_;
};

class LaneTable : public std::enable_shared_from_this<LaneTable> {
 public:
  static std::shared_ptr<LaneTable> make(uint32_t lanes, uint32_t cells, uint32_t generation);

  uint32_t lanes() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t cells() const { return cells_; }

  // Advice: true when it was asked. OUT_OF_RANGE if `tokens` can never fit a lane.
  Result<Capacity> can_allocate(uint32_t tokens) const;
  // The promise. KV_NO_CAPACITY if no lane (or not `prefer` when `only` is set) is free,
  // OUT_OF_RANGE if it can never fit. The lane is FREE again at now_ns + ttl_ns unless committed.
  Result<Reservation> try_reserve(uint32_t tokens, uint64_t now_ns, uint32_t prefer = kAnyLane,
                                  bool only = false, uint64_t ttl_ns = 5'000'000'000);
  // Frees reservations whose TTL has passed; their number.
  uint32_t expire(uint64_t now_ns);

  // A job writes cells [length, length + n) of the lane. One job per lane: INVALID_STATE otherwise.
  Result<void> begin_job(const LaneRef& ref, uint64_t job_seq, uint32_t n, bool prefill);
  // The job ended: its cells count if `ok`; POISONED if not ok and `written`. A job_seq that is not
  // the lane's current one is counted as stale and dropped (false).
  bool end_job(const LaneRef& ref, uint64_t job_seq, bool ok, bool written);
  // Gives the lane back: FREE, or DRAINING until its job has ended.
  Result<void> release(const LaneRef& ref);
  // Cells [length, ...) are forgotten: metadata only, always possible.
  Result<void> truncate(const LaneRef& ref, uint32_t length);
  // A poisoned lane whose device writes have ended becomes FREE again (its content is rewritten
  // from cell 0 by the next owner).
  Result<void> scrubbed(uint32_t lane);
  // Poisoned lanes become empty: FREE, or their owner's again with length 0, to be written anew
  // from cell 0. Only those that job `job_seq` was the last to write; 0 = all. Their numbers.
  std::vector<uint32_t> scrub(uint64_t job_seq);

  LaneSnapshot snapshot(uint32_t lane) const;
  Result<LaneSnapshot> snapshot(const LaneRef& ref) const;
  uint64_t stale_completions() const;
  uint32_t free_lanes() const;
  // Every invariant of the table; the first broken one is named.
  Result<void> check_integrity() const;

 private:
  friend class Reservation;
  struct Slot {
    LaneState state = LaneState::FREE;
    bool committed = false;
    uint32_t length = 0, reserved = 0, job_cells = 0;
    uint64_t lease = 0, job_seq = 0, expires_ns = 0, last_used = 0;
    uint64_t last_seq = 0;  // survives leases: job_seq rises per lane
  };
  LaneTable(uint32_t lanes, uint32_t cells, uint32_t generation);
  Result<void> check_fits(uint32_t tokens) const;
  // The rest with the mutex held.
  Result<Slot*> find(const LaneRef& ref);
  uint32_t count_free() const;
  uint32_t expire_locked(uint64_t now_ns);
  void make_free(Slot& slot);
  static void forget_owner(Slot& slot);

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  const uint32_t cells_, generation_;
  uint64_t next_lease_ = 1, uses_ = 0, stale_ = 0;
};

}  // namespace calrt::kv
