// SPDX-License-Identifier: Apache-2.0
// Which job may write or read which lane, and what is true when it has ended.
#include <algorithm>

#include "base/out_of_memory.h"
#include "kv/lane_change.h"

namespace calrt::kv {
namespace {

unsigned long long number(uint64_t value) { return value; }

Result<Sequence> filled(uint32_t capacity, uint32_t n) {
  Sequence sequence(capacity);
  CALRT_TRY(sequence.append(n));
  return sequence;
}

}  // namespace

Result<const LaneTable::Slot*> LaneTable::find_whole(const LaneRef& ref) const {
  CALRT_TRY_ASSIGN(const Slot* slot, find(ref));
  if (slot->state == LaneState::POISONED) return poisoned_lane(ref.lane);
  return slot;
}

Result<LaneTable::Slot*> LaneTable::find_idle(const LaneRef& ref) {
  CALRT_TRY_ASSIGN(const Slot* slot, find_whole(ref));
  if (!slot->committed) {
    return fail(Status::INVALID_STATE, "lane %u is only reserved: commit it first", ref.lane);
  }
  if (slot->job_seq != 0) {
    return fail(Status::INVALID_STATE, "lane %u is busy with job %llu: wait until it has ended",
                ref.lane, number(slot->job_seq));
  }
  return const_cast<Slot*>(slot);
}

Result<LaneTable::Slot*> LaneTable::find_ready(const LaneRef& ref, uint64_t job_seq) {
  CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
  if (job_seq <= slot->last_seq) {
    return fail(Status::INVALID_ARGUMENT, "job_seq=%llu on lane %u: must rise above %llu",
                number(job_seq), ref.lane, number(slot->last_seq));
  }
  return slot;
}

void LaneTable::begin(Slot& slot, Job job, uint64_t job_seq) {
  slot.job = job;
  slot.job_seq = slot.last_seq = job_seq;
  if (writes(job)) slot.spillable = 0;
}

Result<void> LaneTable::begin_job(const LaneRef& ref, uint64_t job_seq, uint32_t n, bool prefill) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_ready(ref, job_seq));
    if (n == 0) return fail(Status::INVALID_ARGUMENT, "a job writes at least 1 cell, got 0");
    if (auto room = slot->sequence.prepare_append(n); !room.ok())
      return fail(room.error().code, "lane %u: %s", ref.lane, room.error().message.c_str());
    const uint32_t length = slot->sequence.length();
    if (n > slot->reserved - std::min(slot->reserved, length))
      return fail(Status::OUT_OF_RANGE,
                  "lane %u: %u cells filled + %u to write > %u reserved: reserve as many as the "
                  "prompt and all that follows it need",
                  ref.lane, length, n, slot->reserved);
    let_go(*slot);
    begin(*slot, Job::GRAPH, job_seq);
    slot->job_cells = n;
    set_state(*slot, prefill ? LaneState::PREFILLING : LaneState::DECODING);
    return {};
  });
}

bool LaneTable::end_job(const LaneRef& ref, uint64_t job_seq, bool ok, bool written) {
  Change change(*this);
  Slot* slot = ref.lane < lanes() ? &slots_[ref.lane] : nullptr;
  if (slot == nullptr || ref.generation != generation_ || job_seq == 0 ||
      slot->lease != ref.lease || slot->job_seq != job_seq || slot->job == Job::SOURCE) {
    ++stale_;
    return false;
  }
  if (slot->from != kAnyLane) end(slots_[slot->from], ok, false);
  end(*slot, ok, written);
  return true;
}

void LaneTable::end(Slot& slot, bool ok, bool written) {
  if (slot.job == Job::GRAPH && ok) (void)slot.sequence.append(slot.job_cells);  // was prepared
  if (slot.job == Job::MOVE && ok) std::swap(slot.sequence, slot.next);
  const bool poisoned = !ok && written && writes(slot.job);
  if (poisoned || (slot.job == Job::MOVE && ok)) let_go(slot);
  slot.next.clear();
  slot.job = Job::NONE;
  slot.job_seq = 0;
  slot.job_cells = 0;
  slot.from = kAnyLane;
  const bool draining = slot.state == LaneState::DRAINING;
  if (poisoned) {
    set_state(slot, LaneState::POISONED);
    if (draining) forget_owner(slot);
  } else if (draining) {
    make_free(slot);
  }
}

// ---- data moves -------------------------------------------------------------------------------

Result<Plan> LaneTable::begin_apply(const LaneRef& ref, uint64_t job_seq) {
  return or_out_of_memory([&]() -> Result<Plan> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_ready(ref, job_seq));
    CALRT_TRY_ASSIGN(Plan plan, slot->sequence.plan(ref.lane));
    if (plan.empty()) return plan;
    slot->next = slot->sequence;
    slot->next.applied();
    begin(*slot, Job::MOVE, job_seq);
    return plan;
  });
}

Plan LaneTable::copy_plan(uint32_t from, uint32_t to, const Sequence& held) const {
  Plan plan;
  for (const Run& run : held.runs())
    append_move(&plan, {MoveOp::RANGE_COPY, from, to, run.cell, run.cell, run.n, 0});
  if (plan.empty() || !caps_.lane_copy) return plan;
  // What lies between is copied too where the device knows no ranges: nobody looks at it.
  const Move& last = plan.back();
  if ((plan.size() == 1 && last.cell == 0) || !caps_.range_copy)
    plan = {{MoveOp::LANE_COPY, from, to, 0, 0, last.cell + last.n, 0}};
  return plan;
}

Result<Plan> LaneTable::begin_copy(const LaneRef& from, const LaneRef& to, int64_t p0, int64_t p1,
                                   uint64_t job_seq, Compat compat) {
  return or_out_of_memory([&]() -> Result<Plan> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * source, find_ready(from, job_seq));
    CALRT_TRY_ASSIGN(Slot * target, find_ready(to, job_seq));
    CALRT_TRY(check_copy(source->sequence, p0, p1, compat));
    Sequence copy(cells_);
    CALRT_TRY(copy.copy(source->sequence, p0, p1, compat));
    if (source == target) return Plan{};
    Plan plan = copy_plan(from.lane, to.lane, copy);
    if (plan.empty()) {
      target->sequence.clear();
      return plan;
    }
    target->next = std::move(copy);
    target->from = from.lane;
    begin(*source, Job::SOURCE, job_seq);
    begin(*target, Job::MOVE, job_seq);
    return plan;
  });
}

Result<Plan> LaneTable::begin_write(const LaneRef& ref, uint64_t job_seq, uint32_t n) {
  return or_out_of_memory([&]() -> Result<Plan> {
    CALRT_TRY(check_op(SeqOp::LOAD));
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_ready(ref, job_seq));
    if (n > cells_)
      return fail(Status::OUT_OF_RANGE, "n=%u cells do not fit lane %u of %u cells", n, ref.lane,
                  cells_);
    CALRT_TRY_ASSIGN(Sequence whole, filled(cells_, n));
    if (n == 0) {
      slot->sequence.clear();
      return Plan{};
    }
    Plan plan{{MoveOp::WRITE, ref.lane, ref.lane, 0, 0, n, 0}};
    slot->next = std::move(whole);
    begin(*slot, Job::MOVE, job_seq);
    return plan;
  });
}

Result<Plan> LaneTable::begin_read(const LaneRef& ref, uint64_t job_seq) {
  return or_out_of_memory([&]() -> Result<Plan> {
    CALRT_TRY(check_op(SeqOp::SAVE));
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_ready(ref, job_seq));
    if (!slot->sequence.canonical())
      return fail(Status::INVALID_STATE, "lane %u: %s", ref.lane, slot->sequence.pending().c_str());
    const uint32_t n = slot->sequence.length();
    if (n == 0) return Plan{};
    Plan plan{{MoveOp::READ, ref.lane, ref.lane, 0, 0, n, 0}};
    begin(*slot, Job::READ, job_seq);
    return plan;
  });
}

Result<Plan> LaneTable::begin_reuse(const LaneRef& ref, uint64_t job_seq) {
  return or_out_of_memory([&]() -> Result<Plan> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_ready(ref, job_seq));
    if (slot->reuse.kind != Reuse::Kind::COPY)
      return fail(Status::INVALID_STATE, "lane %u has no parked lane to copy from", ref.lane);
    CALRT_TRY_ASSIGN(Sequence whole, filled(cells_, slot->reuse.tokens));
    Plan plan = copy_plan(static_cast<uint32_t>(slot->reuse.id), ref.lane, whole);
    slot->next = std::move(whole);
    begin(*slot, Job::MOVE, job_seq);
    return plan;
  });
}

Result<Plan> LaneTable::begin_spill(const LaneRef& ref, uint64_t job_seq) {
  return or_out_of_memory([&]() -> Result<Plan> {
    CALRT_TRY(check_op(SeqOp::SAVE));
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_ready(ref, job_seq));
    if (slot->spillable == 0)
      return fail(Status::INVALID_STATE, "lane %u holds no evicted prefix any more", ref.lane);
    Plan plan{{MoveOp::READ, ref.lane, ref.lane, 0, 0, slot->spillable, 0}};
    begin(*slot, Job::READ, job_seq);
    return plan;
  });
}

}  // namespace calrt::kv
