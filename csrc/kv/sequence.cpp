// SPDX-License-Identifier: Apache-2.0
// Which positions the cells hold, and the operations on them.
#include "kv/sequence.h"

#include <algorithm>

#include "base/out_of_memory.h"

namespace calrt::kv {
namespace {

// Positions [begin, end), begin <= end.
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
  const int64_t begin = std::max<int64_t>(p0, 0);
  return Range{begin, p1 < 0 ? INT64_MAX : std::max(p1, begin)};
}

// Those whose position lies in `range`; `to` == `from` if none.
Part inside(const Run& run, const Range& range) {
  const int64_t first = run.pos, last = run.last_pos();
  if (last < range.begin || first >= range.end) return {};
  if (first >= range.begin && last < range.end) return {0, run.n};
  const int64_t n = run.n;  // of rising positions: equal ones are all in or all out
  return {static_cast<uint32_t>(std::max<int64_t>(range.begin - first, 0)),
          static_cast<uint32_t>(std::min(range.end - first, n))};
}

// At the end of `runs`, as one with the last where it goes on like it. By fields: a run that is
// handed over by memory is read back before it has arrived there.
inline void push(std::vector<Run>* runs, uint32_t cell, uint32_t n, int32_t pos, int32_t coded,
                 bool same) {
  if (n == 0) return;
  same = same && n > 1;
  if (!runs->empty()) {
    Run& last = runs->back();
    if (last.cell + last.n == cell && int64_t{last.coded} + last.n == coded) {
      const bool stays = last.pos == pos && (last.same || last.n == 1) && (same || n == 1);
      if (stays || (!last.same && !same && int64_t{last.pos} + last.n == pos)) {
        last.n += n;
        last.same = stays;
        return;
      }
    }
  }
  runs->push_back({cell, n, pos, coded, same});
}

// The part of `run`, its positions changed by `d`.
inline void push(std::vector<Run>* runs, const Run& run, Part part, int32_t d = 0) {
  const auto by = static_cast<int32_t>(part.from);
  push(runs, run.cell + part.from, part.n(), run.pos + (run.same ? 0 : by) + d, run.coded + by,
       run.same);
}

// `runs` into `out`, but of `range` what `change(out, run, part)` pushes.
template <class Change>
void rebuild(const std::vector<Run>& runs, const Range& range, std::vector<Run>* out,
             Change&& change) {
  out->clear();
  out->reserve(runs.size() + 2);  // a range cuts two runs at most, unless positions are doubled
  for (const Run& run : runs) {
    const Part part = inside(run, range);
    push(out, run, {0, part.from});
    if (part.n() > 0) change(out, run, part);
    push(out, run, {part.to, run.n});
  }
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
  for (const Run& run : runs_) most = std::max(most, run.last_pos());
  return static_cast<int32_t>(most);
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
    rebuild(runs_, range, &draft_.runs, [](std::vector<Run>*, const Run&, Part) {});
    runs_.swap(draft_.runs);
    return {};
  });
}

Result<void> Sequence::add(int64_t p0, int64_t p1, int64_t d, Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    CALRT_TRY_ASSIGN(const Range range, range_of(p0, p1, compat));
    if (d == 0) return {};
    const int64_t most = int64_t{capacity_} - 1;
    int64_t outside = -1;  // the first position that does not stay in the lane
    rebuild(runs_, range, &draft_.runs, [=, &outside](auto* out, const Run& run, Part part) {
      const int64_t first = run.same ? run.pos : int64_t{run.pos} + part.from;
      const int64_t last = run.same ? run.pos : int64_t{run.pos} + part.to - 1;
      if (outside < 0 && d > most - last) outside = last;
      if (outside >= 0 || d < -last) return;  // refused, or all of it is gone
      if (d < -first) part.from += static_cast<uint32_t>(-d - first);
      push(out, run, part, static_cast<int32_t>(d));
    });
    if (outside >= 0)
      return fail(Status::OUT_OF_RANGE,
                  "d=%lld: position %lld would leave the lane of %u cells (0 to %lld)",
                  static_cast<long long>(d), static_cast<long long>(outside), capacity_,
                  static_cast<long long>(most));
    runs_.swap(draft_.runs);
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
    rebuild(runs_, range, &draft_.runs, [d](auto* out, const Run& run, Part part) {
      while (part.n() > 0) {
        const int64_t pos = run.same ? run.pos : int64_t{run.pos} + part.from;
        const int64_t left = part.n();
        const auto n = static_cast<uint32_t>(run.same ? left : std::min(left, d - pos % d));
        push(out, run.cell + part.from, n, static_cast<int32_t>(pos / d),
             run.coded + static_cast<int32_t>(part.from), true);
        part.from += n;
      }
    });
    runs_.swap(draft_.runs);
    return {};
  });
}

Result<void> Sequence::copy(const Sequence& from, int64_t p0, int64_t p1, Compat compat) {
  return or_out_of_memory([&]() -> Result<void> {
    CALRT_TRY_ASSIGN(const Range range, range_of(p0, p1, compat));
    draft_.runs.clear();
    draft_.runs.reserve(from.runs_.size());
    for (const Run& run : from.runs_) push(&draft_.runs, run, inside(run, range));
    runs_.swap(draft_.runs);
    return {};
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

}  // namespace calrt::kv
