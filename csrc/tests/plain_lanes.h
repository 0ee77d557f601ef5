// SPDX-License-Identifier: Apache-2.0
// What LaneTable has to do, said again with an array of cells for each lane: no runs, no counters,
// no numbers of leases or jobs. Two lanes of four cells.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>

#include "kv/lanes.h"

namespace calrt::testing {

using kv::LaneState;
inline constexpr int kLanes = 2;
inline constexpr int kCells = 4;
inline constexpr int8_t kNone = -1;

struct Cell {
  int8_t pos = kNone, coded = kNone;  // kNone: holds no token
  auto operator<=>(const Cell&) const = default;
};
using Cells = std::array<Cell, kCells>;

inline int tokens(const Cells& cells) {
  return static_cast<int>(
      std::count_if(cells.begin(), cells.end(), [](const Cell& c) { return c.pos >= 0; }));
}
inline int whole(const Cells& cells) {  // from the beginning
  int n = 0;
  while (n < kCells && cells[n].pos == n && cells[n].coded == n) ++n;
  return n;
}
inline bool canonical(const Cells& cells) { return whole(cells) == tokens(cells); }
inline Cells filled(int n) {
  Cells cells;
  for (int i = 0; i < n; ++i) cells[i] = {static_cast<int8_t>(i), static_cast<int8_t>(i)};
  return cells;
}
inline int pos_max(const Cells& cells) {
  int most = -1;
  for (const Cell& cell : cells) most = std::max<int>(most, cell.pos);
  return most;
}

enum class PlainJob : uint8_t { NONE, GRAPH, READ, SOURCE, MOVE };  // SOURCE: ends with the target

struct PlainLane {
  LaneState state = LaneState::FREE;
  bool leased = false;  // somebody's, also while it drains
  bool committed = false;
  bool held = false;  // the caller has its Reservation, perhaps expired
  bool scrubbing = false;
  bool lost = false;  // with the device
  PlainJob job = PlainJob::NONE;
  int8_t reserved = 0, job_cells = 0, failed = 0;
  int8_t freed = 0;  // 0: never; else which was first
  Cells cells, next;
  auto operator<=>(const PlainLane&) const = default;
};

enum class Do : uint8_t {
  RESERVE,  // a: tokens, b: preferred lane or -1, c: only that
  RESERVE_LATE,
  EXPIRE,
  OFFLINE,
  COMMIT,
  DROP,
  RELEASE,
  BEGIN_JOB,  // a: cells, b: prefill
  END,        // a: ok, b: written
  RM,         // a, b: range; so for those below
  RM_ALL,
  KEEP,
  ADD,  // c: delta
  DIV,  // c: divisor
  CP,   // of the lane to the other, c: by a job
  CLEAR,
  SHIFT,     // a: keep, b: discard
  TRUNCATE,  // a: length
  APPLY,
  WRITE,  // a: cells
  READ,
  REUSE,
  SPILL,
  BEGIN_SCRUB,
  END_SCRUB,  // a: works
};

struct Op {
  Do what;
  int lane = 0;
  int64_t a = 0, b = 0, c = 0;
};

struct PlainTable {
  std::array<PlainLane, kLanes> lanes;
  auto operator<=>(const PlainTable&) const = default;

  int count(LaneState state) const {
    return static_cast<int>(std::count_if(lanes.begin(), lanes.end(),
                                          [=](const PlainLane& l) { return l.state == state; }));
  }

  // Does what `op` says, or says why not and changes nothing.
  Status apply(const Op& op) {
    PlainTable after = *this;
    const Status code = after.change(op);
    if (code == Status::OK) *this = after;
    // A promise that had expired is known to be gone afterwards.
    if (op.what == Do::COMMIT && (code == Status::KV_TIMEOUT || code == Status::DEVICE_LOST))
      lanes[op.lane].held = false;
    return code;
  }

 private:
  void forget_owner(PlainLane& lane) {
    lane.leased = lane.committed = false;
    lane.reserved = 0;
    lane.cells = {};
  }
  void free(PlainLane& lane) {
    forget_owner(lane);
    lane.state = LaneState::FREE;
    if (lane.freed != 0)
      for (PlainLane& other : lanes)
        if (other.freed > lane.freed) --other.freed;
    lane.freed = 0;
    lane.freed = static_cast<int8_t>(std::max(lanes[0].freed, lanes[1].freed) + 1);
  }
  void end(PlainLane& lane, bool ok, bool written) {
    const bool writes = lane.job == PlainJob::GRAPH || lane.job == PlainJob::MOVE;
    if (ok && lane.job == PlainJob::GRAPH) lane.cells = filled(whole(lane.cells) + lane.job_cells);
    if (ok && lane.job == PlainJob::MOVE) lane.cells = lane.next;
    lane.next = {};
    lane.job = PlainJob::NONE;
    lane.job_cells = 0;
    const bool drains = lane.state == LaneState::DRAINING;
    if (!ok && written && writes) {
      lane.state = LaneState::POISONED;
      if (drains) forget_owner(lane);
    } else if (drains) {
      free(lane);
    }
  }
  void expire() {
    for (PlainLane& lane : lanes)
      if (lane.state == LaneState::RESERVED && !lane.committed) free(lane);
  }
  Status reserve(const Op& op) {
    if (op.a < 1 || op.a > kCells || op.b >= kLanes) return Status::OUT_OF_RANGE;
    if (lanes[0].lost) return Status::DEVICE_LOST;
    if (op.what == Do::RESERVE_LATE) expire();
    int chosen = -1;
    for (int i = 0; i < kLanes; ++i) {
      if (lanes[i].state != LaneState::FREE || (op.c != 0 && i != op.b)) continue;
      if (chosen < 0 || i == op.b || (chosen != op.b && lanes[i].freed <= lanes[chosen].freed))
        chosen = i;
    }
    if (chosen < 0) {
      const bool dead = op.c == 0 && count(LaneState::OFFLINE) == kLanes;
      return dead ? Status::DEVICE_LOST : Status::KV_NO_CAPACITY;
    }
    PlainLane& lane = lanes[chosen];
    lane.state = LaneState::RESERVED;
    lane.leased = lane.held = true;
    lane.reserved = static_cast<int8_t>(op.a);
    return Status::OK;
  }

  static Status owned(const PlainLane& lane) {
    if (lane.lost) return Status::DEVICE_LOST;
    return lane.leased && lane.state != LaneState::DRAINING ? Status::OK : Status::INVALID_HANDLE;
  }
  static Status idle(const PlainLane& lane) {
    if (owned(lane) != Status::OK) return owned(lane);
    if (lane.state == LaneState::POISONED) return Status::KV_POISONED;
    const bool ready = lane.committed && lane.job == PlainJob::NONE;
    return ready ? Status::OK : Status::INVALID_STATE;
  }
  static bool in(const Cell& cell, const Op& op) {
    return cell.pos >= 0 && cell.pos >= op.a && (op.b < 0 || cell.pos < op.b);
  }
  static Status remove(Cells& cells, const Op& op) {
    if (op.a < -1 || op.b < -1) return Status::INVALID_ARGUMENT;
    for (Cell& cell : cells)
      if (in(cell, op)) cell = {};
    return Status::OK;
  }
  static Status add(Cells& cells, const Op& op) {
    if (op.a < -1 || op.b < -1) return Status::INVALID_ARGUMENT;
    for (Cell& cell : cells) {
      if (!in(cell, op)) continue;
      const int64_t pos = cell.pos + op.c;
      if (pos >= kCells) return Status::OUT_OF_RANGE;
      cell = pos < 0 ? Cell{} : Cell{static_cast<int8_t>(pos), cell.coded};
    }
    return Status::OK;
  }
  static Status shift(Cells& cells, const Op& op) {
    const int64_t n = pos_max(cells) + 1, keep = 0;  // at most capacity - 4
    const int64_t discard =
        std::min(op.b != 0 ? op.b : (n - keep) / 2, std::max<int64_t>(n - keep - 1, 0));
    if (discard <= 0) return Status::OK;
    (void)remove(cells, {Do::RM, 0, keep, keep + discard});
    return add(cells, {Do::ADD, 0, keep + discard, -1, -discard});
  }
  // Of a job that moves data: empty plans are done at once.
  static void begin(PlainLane& lane, const Cells& next, bool nothing) {
    lane.job = nothing ? PlainJob::NONE : PlainJob::MOVE;
    (nothing ? lane.cells : lane.next) = next;
  }
  static Status apply_pending(PlainLane& lane) {
    int n = 0;
    for (const Cell& cell : lane.cells)
      if (cell.pos >= 0 && cell.pos != n++) return Status::KV_INVALID_SEQUENCE;
    begin(lane, filled(n), canonical(lane.cells));
    return Status::OK;
  }
  static Status copy(PlainLane& from, PlainLane& to, const Op& op) {
    if (idle(to) != Status::OK) return idle(to);
    if (op.a < -1 || op.b < -1) return Status::INVALID_ARGUMENT;
    Cells held;
    for (int i = 0; i < kCells; ++i)
      if (in(from.cells[i], op)) held[i] = from.cells[i];
    const bool now = op.c == 0 || tokens(held) == 0;
    begin(to, held, now);
    if (!now) from.job = PlainJob::SOURCE;
    return Status::OK;
  }

  Status change(const Op& op) {
    PlainLane& lane = lanes[op.lane];
    PlainLane& other = lanes[1 - op.lane];
    switch (op.what) {
      case Do::RESERVE:
      case Do::RESERVE_LATE:
        return reserve(op);
      case Do::EXPIRE:
        expire();
        return Status::OK;
      case Do::OFFLINE:
        for (PlainLane& each : lanes) {
          each.lost = true;
          forget_owner(each);
          each.next = {};
          each.job = PlainJob::NONE;
          each.job_cells = 0;
          each.state = LaneState::OFFLINE;
        }
        return Status::OK;
      case Do::COMMIT:
        if (!lane.held) return Status::INVALID_STATE;
        if (lane.lost) return Status::DEVICE_LOST;
        if (!lane.leased) return Status::KV_TIMEOUT;
        lane.committed = true;
        lane.held = false;
        return Status::OK;
      case Do::DROP:
        if (lane.held && lane.leased) free(lane);
        lane.held = false;
        return Status::OK;
      case Do::RELEASE:
        if (owned(lane) != Status::OK) return owned(lane);
        if (lane.job != PlainJob::NONE)
          lane.state = LaneState::DRAINING;
        else if (lane.state == LaneState::POISONED)
          forget_owner(lane);
        else
          free(lane);
        return Status::OK;
      case Do::END:
        if (lane.job == PlainJob::NONE || lane.job == PlainJob::SOURCE)
          return Status::INVALID_HANDLE;  // stale
        if (other.job == PlainJob::SOURCE) end(other, op.a != 0, false);
        end(lane, op.a != 0, op.b != 0);
        return Status::OK;
      case Do::BEGIN_SCRUB:
        if (lane.state != LaneState::POISONED || lane.scrubbing) return Status::INVALID_STATE;
        lane.scrubbing = true;
        return Status::OK;
      case Do::END_SCRUB:
        if (!lane.scrubbing) return Status::INVALID_STATE;
        lane.scrubbing = false;
        if (lane.state != LaneState::POISONED) return Status::OK;
        if (op.a == 0) {
          if (++lane.failed < 2) return Status::OK;
          forget_owner(lane);
          lane.state = LaneState::OFFLINE;
          return Status::OK;
        }
        lane.failed = 0;
        lane.cells = {};
        if (lane.leased)
          lane.state = LaneState::RESERVED;
        else
          free(lane);
        return Status::OK;
      case Do::TRUNCATE: {
        if (idle(lane) != Status::OK) return idle(lane);
        if (op.a > whole(lane.cells)) return Status::OUT_OF_RANGE;
        lane.cells = filled(static_cast<int>(op.a));
        return Status::OK;
      }
      case Do::RM_ALL: {
        if (op.a < -1 || op.b < -1) {
          // Which of two errors is told depends on the lanes' order alone.
          for (const PlainLane& each : lanes)
            if (taking_part(each))
              return idle(each) != Status::OK ? idle(each) : Status::INVALID_ARGUMENT;
          return Status::INVALID_ARGUMENT;
        }
        for (PlainLane& each : lanes) {
          if (!taking_part(each)) continue;
          if (idle(each) != Status::OK) return idle(each);
          (void)remove(each.cells, op);
        }
        return Status::OK;
      }
      default:
        return idle(lane) != Status::OK ? idle(lane) : change_idle(lane, other, op);
    }
  }

  static bool taking_part(const PlainLane& lane) {
    return lane.committed && lane.state != LaneState::DRAINING && lane.state != LaneState::POISONED;
  }

  static Status change_idle(PlainLane& lane, PlainLane& other, const Op& op) {
    switch (op.what) {
      case Do::RM:
        return remove(lane.cells, op);
      case Do::ADD:
        return add(lane.cells, op);
      case Do::DIV:
        if (op.a < -1 || op.b < -1 || op.c < 1) return Status::INVALID_ARGUMENT;
        for (Cell& cell : lane.cells)
          if (in(cell, op)) cell.pos = static_cast<int8_t>(cell.pos / op.c);
        return Status::OK;
      case Do::KEEP:
        return Status::OK;
      case Do::CLEAR:
        lane.cells = {};
        return Status::OK;
      case Do::SHIFT:
        return shift(lane.cells, op);
      case Do::CP:
        return copy(lane, other, op);
      case Do::BEGIN_JOB:
        if (op.a == 0) return Status::INVALID_ARGUMENT;
        if (!canonical(lane.cells)) return Status::INVALID_STATE;
        if (whole(lane.cells) + op.a > lane.reserved) return Status::OUT_OF_RANGE;
        lane.job = PlainJob::GRAPH;
        lane.job_cells = static_cast<int8_t>(op.a);
        lane.state = op.b != 0 ? LaneState::PREFILLING : LaneState::DECODING;
        return Status::OK;
      case Do::APPLY:
        return apply_pending(lane);
      case Do::WRITE:
        if (op.a > kCells) return Status::OUT_OF_RANGE;
        begin(lane, filled(static_cast<int>(op.a)), op.a == 0);
        return Status::OK;
      case Do::READ:
        if (!canonical(lane.cells)) return Status::INVALID_STATE;
        if (tokens(lane.cells) != 0) lane.job = PlainJob::READ;
        return Status::OK;
      default:
        return Status::INVALID_STATE;  // REUSE, SPILL: there are no prefixes
    }
  }
};

}  // namespace calrt::testing
