// SPDX-License-Identifier: Apache-2.0
// Whether the cells are where graphs look for them, and the moves that bring them there.
#include <algorithm>

#include "base/out_of_memory.h"
#include "kv/sequence.h"

namespace calrt::kv {

bool Sequence::canonical() const {
  if (runs_.empty()) return true;
  const Run& first = runs_.front();
  return runs_.size() == 1 && first.cell == 0 && first.pos == 0 && first.coded == 0 && !first.same;
}

Result<void> Sequence::check_order() const {
  int64_t next = 0;
  for (const Run& run : runs_) {
    if (run.pos < next || run.same) {
      return fail(Status::KV_INVALID_SEQUENCE,
                  "position %d is held by more than one cell: remove one of them", run.pos);
    }
    if (run.pos > next) {
      int64_t hole_end = run.pos;
      for (const Run& other : runs_) {
        if (other.pos <= next && other.last_pos() >= next)
          return fail(Status::KV_INVALID_SEQUENCE,
                      "cell %u holds position %d, but %lld comes in a later cell: positions must "
                      "rise with the cells",
                      run.cell, run.pos, static_cast<long long>(next));
        if (other.pos > next) hole_end = std::min<int64_t>(hole_end, other.pos);
      }
      return fail(Status::KV_INVALID_SEQUENCE,
                  "positions [%lld, %lld) are a hole: close it with seq_add(%lld, -1, -%lld)",
                  static_cast<long long>(next), static_cast<long long>(hole_end),
                  static_cast<long long>(hole_end), static_cast<long long>(hole_end - next));
    }
    next += run.n;
  }
  return {};
}

std::string Sequence::pending() const {
  if (canonical()) return {};
  if (auto order = check_order(); !order.ok()) return order.error().message;
  return "a shift of " + std::to_string(cells() - length()) + " cells is pending: apply it";
}

Result<Plan> Sequence::plan(uint32_t lane) const {
  return or_out_of_memory([&]() -> Result<Plan> {
    if (auto order = check_order(); !order.ok())
      return fail(order.error().code, "lane %u: %s", lane, order.error().message.c_str());
    // Cells only move down, so in their order none is overwritten before it was read.
    Plan plan, turns;
    for (const Run& run : runs_) {
      const auto to = static_cast<uint32_t>(run.pos);
      if (run.cell != to)
        append_move(&plan, {MoveOp::RANGE_COPY, lane, lane, run.cell, to, run.n, 0});
      if (run.coded != run.pos)
        append_move(&turns, {MoveOp::ROTATE, lane, lane, to, to, run.n, run.pos - run.coded});
    }
    plan.insert(plan.end(), turns.begin(), turns.end());
    return plan;
  });
}

void Sequence::applied() {
  if (runs_.empty()) return;
  const uint32_t n = cells();
  runs_.erase(runs_.begin() + 1, runs_.end());
  runs_.front() = {0, n, 0, 0, false};
}

}  // namespace calrt::kv
