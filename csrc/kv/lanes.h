// SPDX-License-Identifier: Apache-2.0
// Fixed-capacity KV bookkeeping: who owns which lane, what its cells hold, which job may write it,
// and which lanes nobody owns but keep a prefix. Knows no device, clock, tenant or Python; time is
// an argument. Thread-safe: one mutex, held for a few instructions, under which nothing is called.
//
// A call that fails changes nothing, OUT_OF_HOST_MEMORY included. Common errors: INVALID_HANDLE for
// a lease that ended, KV_POISONED, INVALID_STATE for a lane with a job in flight.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/lane_queue.h"
#include "kv/lane_types.h"
#include "kv/moves.h"
#include "kv/prefix.h"
#include "kv/sequence.h"

namespace calrt::kv {

class LaneTable;

// What everybody is told who wants something of such a lane.
Error poisoned_lane(uint32_t lane);

// RAII promise of one lane for `tokens` cells. Releases on destruction unless committed or expired.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();
  const LaneRef& ref() const { return ref_; }
  explicit operator bool() const { return table_ != nullptr; }
  const Reuse& reuse() const { return reuse_; }
  // The prefix whose cells still lie in the lane: it was parked there and made room. To keep it,
  // read them (begin_spill) after commit() and before anything is written. Null if none was.
  std::unique_ptr<PrefixEntry>& evicted() { return evicted_; }
  void release();
  // The lane is the caller's now: no TTL, no RAII; to be given back by LaneTable::release.
  Result<LaneRef> commit();

 private:
  friend class LaneTable;
  std::shared_ptr<LaneTable> table_;
  LaneRef ref_;
  Reuse reuse_;
  std::unique_ptr<PrefixEntry> evicted_;
};

class LaneTable : public std::enable_shared_from_this<LaneTable> {
 public:
  // `caps`: what can be done with data; an operation that needs more is UNSUPPORTED.
  static std::shared_ptr<LaneTable> make(uint32_t lanes, uint32_t cells, uint32_t generation,
                                         MoveCaps caps = MoveCaps::all());

  uint32_t lanes() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t cells() const { return cells_; }
  const MoveCaps& caps() const { return caps_; }

  // ---- admission (lanes.cpp) ----

  // Advice: true when it was asked. OUT_OF_RANGE if `tokens` can never fit a lane. Takes no lock.
  Result<Capacity> can_allocate(uint32_t tokens) const;
  // The promise. KV_NO_CAPACITY if no lane (or not `prefer` when `only` is set) is to be had,
  // OUT_OF_RANGE if it can never fit. The lane is FREE again at now_ns + ttl_ns unless committed.
  Result<Reservation> try_reserve(const Need& need, uint64_t now_ns);
  Result<Reservation> try_reserve(uint32_t tokens, uint64_t now_ns, uint32_t prefer = kAnyLane,
                                  bool only = false, uint64_t ttl_ns = kReservationTtlNs);
  // Frees reservations whose TTL has passed; their number.
  uint32_t expire(uint64_t now_ns);
  // Gives the lane back: FREE, or DRAINING until its job has ended.
  Result<void> release(const LaneRef& ref);
  // Lanes to be had: free ones, and parked ones that nobody reads. Takes no lock.
  uint32_t free_lanes() const { return available_.load(std::memory_order_acquire); }

  // ---- jobs (lane_jobs.cpp); job_seq is unique and rises on each lane ----

  // A graph job writes cells [length, length + n) of the lane. OUT_OF_RANGE past the cells that
  // were reserved, INVALID_STATE if it has a job or a data move is pending.
  Result<void> begin_job(const LaneRef& ref, uint64_t job_seq, uint32_t n, bool prefill);
  // The job ended: what it wrote counts if `ok`; POISONED if not ok and `written` (a lane that was
  // only read stays good). A job_seq that is not the lane's current one is counted as stale and
  // dropped (false).
  bool end_job(const LaneRef& ref, uint64_t job_seq, bool ok, bool written);

  // Data moves: the lanes of the plan are busy with `job_seq` until end_job(), which a plan has
  // once, however many jobs run it. Not ok and nothing written: all is as before, also what is
  // pending. An empty plan means that it is done already: there is nothing to end.

  // What the sequence operations left pending. KV_INVALID_SEQUENCE names a hole or a position that
  // is there twice.
  Result<Plan> begin_apply(const LaneRef& ref, uint64_t job_seq);
  // `to` becomes a copy of [p0, p1) of `from`, at the same cells. end_job() of `to` ends both.
  // Another lane's copy of nothing empties it.
  Result<Plan> begin_copy(const LaneRef& from, const LaneRef& to, int64_t p0, int64_t p1,
                          uint64_t job_seq, Compat compat = Compat::STRICT);
  // The lane becomes `n` cells that the caller writes: a loaded state, a hosted prefix.
  Result<Plan> begin_write(const LaneRef& ref, uint64_t job_seq, uint32_t n);
  // The lane's cells are read, and stay as they are meanwhile. Needs a canonical lane.
  Result<Plan> begin_read(const LaneRef& ref, uint64_t job_seq);
  // The copy that Reuse::COPY announced, from a parked lane that stays as it is.
  Result<Plan> begin_reuse(const LaneRef& ref, uint64_t job_seq);
  // Reads the cells of the prefix that this lease evicted. INVALID_STATE once they were written.
  Result<Plan> begin_spill(const LaneRef& ref, uint64_t job_seq);

  // ---- poison and recovery (lane_recovery.cpp) ----

  // Poisoned lanes, or those that job `job_seq` (0: any) was the last to write; `unowned`: that
  // were given back too.
  std::vector<uint32_t> poisoned(uint64_t job_seq, bool unowned) const;
  uint32_t poisoned_lanes() const { return poisoned_.load(std::memory_order_acquire); }  // no lock
  uint32_t offline_lanes() const;
  // One at a time tries a poisoned lane: INVALID_STATE for the others. If it works it is empty, and
  // FREE or its owner's again; if not it stays POISONED, and is OFFLINE after the second time. The
  // new state.
  Result<void> begin_scrub(uint32_t lane);
  Result<LaneState> end_scrub(uint32_t lane, bool works);
  // The device is lost: every lane is OFFLINE, every later completion stale, and who asks for a
  // lane or comes with a lease is told DEVICE_LOST. Idempotent.
  void take_offline();

  // ---- sequences (lane_sequences.cpp): llama.cpp's meaning, one lane a sequence ----
  // Bookkeeping at once, O(runs); what data has to follow is pending until begin_apply().
  // UNSUPPORTED if `caps` cannot make it follow; OUT_OF_RANGE and INVALID_ARGUMENT name the field.

  Result<void> seq_rm(const LaneRef& ref, int64_t p0, int64_t p1, Compat compat = Compat::STRICT);
  // On every owned lane (llama's sequence -1), or on none.
  Result<void> seq_rm_all(int64_t p0, int64_t p1, Compat compat = Compat::STRICT);
  // Other lanes are other streams and stay.
  Result<void> seq_keep(const LaneRef& ref);
  Result<void> seq_add(const LaneRef& ref, int64_t p0, int64_t p1, int64_t d,
                       Compat compat = Compat::STRICT);
  Result<void> seq_div(const LaneRef& ref, int64_t p0, int64_t p1, int64_t d,
                       Compat compat = Compat::STRICT);
  // As begin_copy() without data: for a table that has no device.
  Result<void> seq_cp(const LaneRef& from, const LaneRef& to, int64_t p0, int64_t p1,
                      Compat compat = Compat::STRICT);
  Result<void> clear(const LaneRef& ref);
  // Keeps the first `keep`, discards `discard` (0 = half) behind them, moves the rest down.
  Result<Shift> shift(const LaneRef& ref, int64_t keep, int64_t discard);
  // Cells [length, ...) are forgotten: metadata only, always possible.
  Result<void> truncate(const LaneRef& ref, uint32_t length);
  Result<int32_t> pos_min(const LaneRef& ref) const;  // -1 if empty
  Result<int32_t> pos_max(const LaneRef& ref) const;
  Result<Sequence> sequence(const LaneRef& ref) const;

  // ---- parked lanes and hosted blobs (lane_parking.cpp); UNSUPPORTED if not enabled ----

  // A key every `every` tokens, and bytes for blobs. Anew as long as nothing was kept by what was
  // said before: INVALID_STATE then. The counters begin anew.
  Result<void> enable_prefixes(uint32_t every, HostLimits limits = {});
  // The owner's idle, canonical lane keeps its cells for others; the lease ends. `prefix.tokens`
  // are those of all its cells, at least `every`. Moved from only if it succeeded.
  Result<void> park(const LaneRef& ref, Prefix&& prefix, int32_t priority);
  // What of Reuse::COPY or HOSTED was not used yet is let go.
  Result<void> drop_reuse(const LaneRef& ref);
  // The parked lane is FREE. INVALID_STATE if someone reads it.
  Result<void> unpark(uint32_t lane);
  // All prefixes that nobody reads are forgotten, hosted ones too; how many.
  Result<uint32_t> clear_prefixes();
  // As PrefixIndex has them.
  Result<PrefixMatch> find_prefix(const Prefix& wanted) const;
  Result<uint64_t> begin_hosted(Prefix&& prefix, uint64_t bytes, int32_t priority,
                                std::vector<uint64_t>* evicted);
  Result<void> end_hosted(uint64_t blob, bool ok);
  Result<void> drop_hosted(uint64_t blob);
  bool has_hosted(uint64_t blob) const;
  PrefixCounters prefix_counters() const;
  uint64_t hosted_bytes() const;
  size_t drain_events(std::span<PrefixEvent> out);

  // ---- what is (lane_integrity.cpp) ----

  LaneSnapshot snapshot(uint32_t lane) const;
  Result<LaneSnapshot> snapshot(const LaneRef& ref) const;
  uint64_t stale_completions() const;
  // Every invariant of the table; the first broken one is named.
  Result<void> check_integrity() const;

 private:
  friend class Reservation;
  // What the job in flight does with the lane.
  enum class Job : uint8_t { NONE, GRAPH, READ, SOURCE, MOVE };  // SOURCE ends with its target
  static bool writes(Job job) { return job == Job::GRAPH || job == Job::MOVE; }
  struct Slot {
    explicit Slot(uint32_t cells) : sequence(cells), next(cells) {}
    LaneState state = LaneState::FREE;
    Job job = Job::NONE;
    bool committed = false;
    uint32_t reserved = 0, job_cells = 0;
    uint32_t spillable = 0;  // cells of the evicted prefix, until something is written
    uint32_t failed_scrubs = 0;
    bool scrubbing = false;    // somebody tries it
    uint32_t from = kAnyLane;  // of a copy: the lane whose job ends with this one
    uint64_t lease = 0, job_seq = 0, expires_ns = 0;
    uint64_t last_seq = 0;  // survives leases: job_seq rises per lane
    Sequence sequence;
    Sequence next;  // of a MOVE: what it holds afterwards
    Reuse reuse;    // COPY, HOSTED: pinned
  };
  // The mutex held; what can_allocate() answers is brought up to date at the end.
  class Change;

  LaneTable(uint32_t lanes, uint32_t cells, uint32_t generation, MoveCaps caps);
  Result<void> check_fits(uint32_t tokens) const;
  Error bad_lane(uint32_t lane) const;
  Error device_lost() const;
  // The rest with the mutex held.
  Result<Slot*> find(const LaneRef& ref);
  Result<const Slot*> find(const LaneRef& ref) const;
  // Whose lane has no job and is not poisoned.
  Result<Slot*> find_idle(const LaneRef& ref);
  Result<const Slot*> find_whole(const LaneRef& ref) const;  // not poisoned
  // That `job_seq` may begin a job on.
  Result<Slot*> find_ready(const LaneRef& ref, uint64_t job_seq);
  Reuse find_reuse(const Need& need) const;
  Result<void> count_reuse(const Need& need, const Reuse& reuse);  // and pins it
  Result<uint32_t> choose(const Need& need) const;
  uint32_t expire_locked(uint64_t now_ns);
  void set_state(Slot& slot, LaneState state);
  void begin(Slot& slot, Job job, uint64_t job_seq);
  void end(Slot& slot, bool ok, bool written);
  void make_free(Slot& slot);
  void forget_owner(Slot& slot);
  void let_go(Slot& slot);  // of what it was to reuse
  bool can(SeqOp op) const;
  Result<void> check_op(SeqOp op) const;  // UNSUPPORTED unless it can
  Result<void> check_op_on(SeqOp op, const Sequence& sequence, int64_t p0, int64_t p1,
                           Compat compat) const;  // if it has cells there
  Result<void> check_rm(const Sequence& sequence, int64_t p0, int64_t p1, Compat compat) const;
  Result<void> check_copy(const Sequence& from, int64_t p0, int64_t p1, Compat compat) const;
  Plan copy_plan(uint32_t from, uint32_t to, const Sequence& held) const;
  Result<PrefixIndex*> prefixes();
  LaneSnapshot describe(uint32_t lane) const;
  const char* broken_rule(const Slot& slot) const;  // null if none
  Result<void> check_lane(uint32_t lane) const;

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  const uint32_t cells_, generation_;
  const MoveCaps caps_;
  std::array<How, kSeqOps> hows_{};  // of `caps_`
  std::optional<PrefixIndex> prefixes_;
  std::array<uint32_t, kLaneStates> counts_{};  // of lanes by state
  std::atomic<uint32_t> available_{0}, poisoned_{0};
  LaneQueue free_;                     // those in state FREE: the least recently used first
  uint64_t earliest_ns_ = UINT64_MAX;  // no promise ends before
  uint64_t next_lease_ = 1, stale_ = 0;
  bool lost_ = false;
};

}  // namespace calrt::kv
