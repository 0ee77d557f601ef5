// SPDX-License-Identifier: Apache-2.0
// What the cells of owned lanes hold.
#include "base/out_of_memory.h"
#include "kv/lane_change.h"

namespace calrt::kv {

bool LaneTable::can(SeqOp op) const {
  const How how = hows_[static_cast<size_t>(op)];
  return how == How::NATIVE || how == How::HOST;
}

Result<void> LaneTable::check_op(SeqOp op) const {
  if (can(op)) return {};
  return fail(Status::UNSUPPORTED, "%s: this model %s", seq_op_name(op),
              support_of(op, caps_).why.c_str());
}

Result<void> LaneTable::check_op_on(SeqOp op, const Sequence& sequence, int64_t p0, int64_t p1,
                                    Compat compat) const {
  if (can(op)) return {};
  CALRT_TRY_ASSIGN(const uint32_t n, sequence.count(p0, p1, compat));
  return n == 0 ? Result<void>() : check_op(op);
}

Result<void> LaneTable::check_rm(const Sequence& sequence, int64_t p0, int64_t p1,
                                 Compat compat) const {
  if (can(SeqOp::RM_MIDDLE) && can(SeqOp::RM_TAIL)) return {};
  CALRT_TRY_ASSIGN(const uint32_t n, sequence.count(p0, p1, compat));
  const bool behind = p1 >= 0 && sequence.pos_max() >= p1;
  return n == 0 ? Result<void>() : check_op(behind ? SeqOp::RM_MIDDLE : SeqOp::RM_TAIL);
}

Result<void> LaneTable::seq_rm(const LaneRef& ref, int64_t p0, int64_t p1, Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
    CALRT_TRY(check_rm(slot->sequence, p0, p1, compat));
    return slot->sequence.rm(p0, p1, compat);
  });
}

Result<void> LaneTable::seq_rm_all(int64_t p0, int64_t p1, Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    std::vector<std::pair<Slot*, Sequence>> after;
    after.reserve(lanes());
    Change change(*this);
    for (uint32_t lane = 0; lane < lanes(); ++lane) {
      Slot& slot = slots_[lane];
      if (!slot.committed || slot.state == LaneState::DRAINING || slot.state == LaneState::POISONED)
        continue;
      CALRT_TRY(find_idle({lane, generation_, slot.lease}));
      CALRT_TRY(check_rm(slot.sequence, p0, p1, compat));
      after.emplace_back(&slot, slot.sequence);
      CALRT_TRY(after.back().second.rm(p0, p1, compat));
    }
    if (after.empty()) CALRT_TRY(Sequence(cells_).count(p0, p1, compat));  // the arguments
    for (auto& [slot, sequence] : after) std::swap(slot->sequence, sequence);
    return {};
  });
}

Result<void> LaneTable::seq_keep(const LaneRef& ref) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY(find_idle(ref));
    return {};
  });
}

Result<void> LaneTable::seq_add(const LaneRef& ref, int64_t p0, int64_t p1, int64_t d,
                                Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
    if (d != 0) CALRT_TRY(check_op_on(SeqOp::ADD, slot->sequence, p0, p1, compat));
    return slot->sequence.add(p0, p1, d, compat);
  });
}

Result<void> LaneTable::seq_div(const LaneRef& ref, int64_t p0, int64_t p1, int64_t d,
                                Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
    if (d > 1) CALRT_TRY(check_op_on(SeqOp::DIV, slot->sequence, p0, p1, compat));
    return slot->sequence.div(p0, p1, d, compat);
  });
}

Result<void> LaneTable::check_copy(const Sequence& from, int64_t p0, int64_t p1,
                                   Compat compat) const {
  if (can(SeqOp::CP_FULL) && can(SeqOp::CP_PREFIX) && can(SeqOp::CP_RANGE)) return {};
  CALRT_TRY_ASSIGN(const uint32_t n, from.count(p0, p1, compat));
  if (n == 0) return {};
  const bool from_0 = p0 <= from.pos_min();
  const bool whole = n == from.cells();
  return check_op(whole ? SeqOp::CP_FULL : from_0 ? SeqOp::CP_PREFIX : SeqOp::CP_RANGE);
}

Result<void> LaneTable::seq_cp(const LaneRef& from, const LaneRef& to, int64_t p0, int64_t p1,
                               Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * source, find_idle(from));
    CALRT_TRY_ASSIGN(Slot * target, find_idle(to));
    CALRT_TRY(check_copy(source->sequence, p0, p1, compat));
    if (source != target) return target->sequence.copy(source->sequence, p0, p1, compat);
    CALRT_TRY(source->sequence.count(p0, p1, compat));  // the arguments
    return {};
  });
}

Result<void> LaneTable::clear(const LaneRef& ref) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
    slot->sequence.clear();
    return {};
  });
}

Result<Shift> LaneTable::shift(const LaneRef& ref, int64_t keep, int64_t discard) {
  return or_out_of_memory([&]() -> Result<Shift> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
    const auto n = static_cast<uint32_t>(slot->sequence.pos_max() + 1);
    const Shift shift = context_shift(n, cells_, keep, discard);
    if (shift.discard == 0) return shift;
    CALRT_TRY(check_op(SeqOp::SHIFT));
    const int64_t begin = shift.keep, end = begin + shift.discard;
    Sequence after = slot->sequence;
    CALRT_TRY(after.rm(begin, end));
    CALRT_TRY(after.add(end, -1, -int64_t{shift.discard}));
    std::swap(slot->sequence, after);
    return shift;
  });
}

Result<void> LaneTable::truncate(const LaneRef& ref, uint32_t length) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
    const uint32_t now = slot->sequence.length();
    if (length > now) {
      return fail(Status::OUT_OF_RANGE, "length=%u: lane %u holds only %u cells", length, ref.lane,
                  now);
    }
    slot->sequence.truncate(length);
    return {};
  });
}

Result<int32_t> LaneTable::pos_min(const LaneRef& ref) const {
  return or_out_of_memory([&]() -> Result<int32_t> {
    std::lock_guard lock(mutex_);
    CALRT_TRY_ASSIGN(const Slot* slot, find_whole(ref));
    return slot->sequence.pos_min();
  });
}

Result<int32_t> LaneTable::pos_max(const LaneRef& ref) const {
  return or_out_of_memory([&]() -> Result<int32_t> {
    std::lock_guard lock(mutex_);
    CALRT_TRY_ASSIGN(const Slot* slot, find_whole(ref));
    return slot->sequence.pos_max();
  });
}

Result<Sequence> LaneTable::sequence(const LaneRef& ref) const {
  return or_out_of_memory([&]() -> Result<Sequence> {
    std::lock_guard lock(mutex_);
    CALRT_TRY_ASSIGN(const Slot* slot, find_whole(ref));
    return slot->sequence;
  });
}

}  // namespace calrt::kv
