// SPDX-License-Identifier: Apache-2.0
#include "kv/sequence.h"

#include <algorithm>
#include <cstdio>

#include "base/out_of_memory.h"

namespace calrt::kv {
namespace {

// Positions [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
};

// Cells [from, to) of a run, counted from its first.
struct Part {
  uint32_t from = 0, to = 0;
  uint32_t n() const { return to - from; }
};

Result<Range> range_of(int64_t p0, int64_t p1, Compat compat) {
  if (compat == Compat::STRICT) {
    if (p0 < -1)
      return fail(Status::INVALID_ARGUMENT,
                  "p0=%lld: give a position, or -1 for the beginning (compat=llama takes any "
                  "negative number)",
                  static_cast<long long>(p0));
    if (p1 < -1)
      return fail(Status::INVALID_ARGUMENT,
                  "p1=%lld: give the position behind the last, or -1 for the end (compat=llama "
                  "takes any negative number)",
                  static_cast<long long>(p1));
  }
  return Range{std::max<int64_t>(p0, 0), p1 < 0 ? INT64_MAX : p1};
}

int64_t last_pos(const Run& run) { return run.same ? run.pos : int64_t{run.pos} + run.n - 1; }

// Those whose position lies in `range`; `to` == `from` if none.
Part inside(const Run& run, const Range& range) {
  if (range.begin >= range.end) return {};
  if (run.same) {
    const bool all = run.pos >= range.begin && run.pos < range.end;
    return {0, all ? run.n : 0};
  }
  const int64_t n = run.n;
  const int64_t from = std::clamp<int64_t>(range.begin - run.pos, 0, n);
  const int64_t to = range.end == INT64_MAX ? n : std::clamp<int64_t>(range.end - run.pos, from, n);
  return {static_cast<uint32_t>(from), static_cast<uint32_t>(to)};
}

Run cut(const Run& run, Part part) {
  const auto by = static_cast<int32_t>(part.from);
  return {run.cell + part.from, part.n(), run.same ? run.pos : run.pos + by, run.coded + by,
          run.same};
}

// At the end of `runs`, as one with the last where it goes on like it.
void push(std::vector<Run>* runs, Run run) {
  if (run.n == 0) return;
  if (run.n == 1) run.same = false;
  if (!runs->empty()) {
    Run& last = runs->back();
    const bool goes_on =
        last.cell + last.n == run.cell && int64_t{last.coded} + last.n == run.coded;
    const bool rises = !last.same && !run.same && int64_t{last.pos} + last.n == run.pos;
    const bool equal =
        (last.same || last.n == 1) && (run.same || run.n == 1) && last.pos == run.pos;
    if (goes_on && (rises || equal)) {
      last.n += run.n;
      last.same = equal;
      return;
    }
  }
  runs->push_back(run);
}

// The runs with each cell of `range` as `change(run, out)` pushes it.
template <class Change>
std::vector<Run> changed(const std::vector<Run>& runs, const Range& range, Change&& change) {
  std::vector<Run> out;
  out.reserve(runs.size() + 2);  // a range cuts at most two runs
  for (const Run& run : runs) {
    const Part part = inside(run, range);
    if (part.n() == 0) {
      push(&out, run);
      continue;
    }
    push(&out, cut(run, {0, part.from}));
    change(cut(run, part), &out);
    push(&out, cut(run, {part.to, run.n}));
  }
  return out;
}

}  // namespace

uint32_t Sequence::cells() const {
  uint32_t n = 0;
  for (const Run& run : runs_) n += run.n;
  return n;
}

uint32_t Sequence::length() const {
  uint32_t length = 0;
  for (const Run& run : runs_) {
    const auto next = static_cast<int32_t>(length);
    if (run.cell != length || run.pos != next || run.coded != next) break;
    length += run.same ? 1 : run.n;
    if (run.same) break;
  }
  return length;
}

int32_t Sequence::pos_min() const {
  int32_t least = -1;
  for (const Run& run : runs_) least = least < 0 ? run.pos : std::min(least, run.pos);
  return least;
}

int32_t Sequence::pos_max() const {
  int64_t most = -1;
  for (const Run& run : runs_) most = std::max(most, last_pos(run));
  return static_cast<int32_t>(most);
}

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
        if (other.pos <= next && last_pos(other) >= next)
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

Result<uint32_t> Sequence::count(int64_t p0, int64_t p1, Compat compat) const {
  return or_out_of_memory([&]() -> Result<uint32_t> {
    CALRT_TRY_ASSIGN(const Range range, range_of(p0, p1, compat));
    uint32_t n = 0;
    for (const Run& run : runs_) n += inside(run, range).n();
    return n;
  });
}

Result<void> Sequence::rm(int64_t p0, int64_t p1, Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    CALRT_TRY_ASSIGN(const Range range, range_of(p0, p1, compat));
    runs_ = changed(runs_, range, [](const Run&, std::vector<Run>*) {});
    return {};
  });
}

Result<void> Sequence::add(int64_t p0, int64_t p1, int64_t d, Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    CALRT_TRY_ASSIGN(const Range range, range_of(p0, p1, compat));
    if (d == 0) return {};
    for (const Run& run : runs_) {
      const Part part = inside(run, range);
      if (part.n() == 0) continue;
      const int64_t last = last_pos(cut(run, part));
      if (d > int64_t{capacity_} - 1 - last)
        return fail(Status::OUT_OF_RANGE,
                    "d=%lld: position %lld would leave the lane of %u cells (0 to %lld)",
                    static_cast<long long>(d), static_cast<long long>(last), capacity_,
                    int64_t{capacity_} - 1LL);
    }
    runs_ = changed(runs_, range, [d](const Run& run, std::vector<Run>* out) {
      const int64_t first = run.pos + d;
      if (run.same ? first < 0 : first + run.n <= 0) return;
      const auto gone = static_cast<uint32_t>(run.same ? 0 : std::max<int64_t>(0, -first));
      Run stays = cut(run, {gone, run.n});
      stays.pos = static_cast<int32_t>(stays.pos + d);
      push(out, stays);
    });
    return {};
  });
}

Result<void> Sequence::div(int64_t p0, int64_t p1, int64_t d, Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    CALRT_TRY_ASSIGN(const Range range, range_of(p0, p1, compat));
    if (d <= 0)
      return fail(Status::INVALID_ARGUMENT, "d=%lld: positions are divided by 1 or more",
                  static_cast<long long>(d));
    if (d == 1) return {};
    runs_ = changed(runs_, range, [d](const Run& run, std::vector<Run>* out) {
      for (uint32_t i = 0; i < run.n;) {
        const int64_t pos = run.same ? run.pos : int64_t{run.pos} + i;
        const int64_t left = run.n - i;
        const auto n = static_cast<uint32_t>(run.same ? left : std::min(left, d - pos % d));
        push(out, {run.cell + i, n, static_cast<int32_t>(pos / d),
                   run.coded + static_cast<int32_t>(i), true});
        i += n;
      }
    });
    return {};
  });
}

Result<Sequence> Sequence::slice(int64_t p0, int64_t p1, Compat compat) const {
  return or_out_of_memory([&]() -> Result<Sequence> {
    CALRT_TRY_ASSIGN(const Range range, range_of(p0, p1, compat));
    Sequence out(capacity_);
    out.runs_.reserve(runs_.size());
    for (const Run& run : runs_) push(&out.runs_, cut(run, inside(run, range)));
    return out;
  });
}

Result<void> Sequence::prepare_append(uint32_t n) {
  return or_out_of_memory([&]() -> Result<void> {
    if (!canonical()) return fail(Status::INVALID_STATE, "%s", pending().c_str());
    if (n > capacity_ - length())
      return fail(Status::OUT_OF_RANGE, "%u cells filled + %u to write > %u cells", length(), n,
                  capacity_);
    runs_.reserve(1);
    return {};
  });
}

Result<void> Sequence::append(uint32_t n) {
  CALRT_TRY(prepare_append(n));
  if (n == 0) return {};
  if (runs_.empty()) runs_.push_back({});
  runs_.front().n += n;
  return {};
}

void Sequence::truncate(uint32_t length) {
  length = std::min(length, this->length());
  uint32_t runs = 0;
  for (uint32_t cells = 0; cells < length; ++runs) {
    Run& run = runs_[runs];
    run.n = std::min(run.n, length - cells);
    if (run.n == 1) run.same = false;
    cells += run.n;
  }
  runs_.erase(runs_.begin() + runs, runs_.end());
  if (runs > 1) applied();
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
