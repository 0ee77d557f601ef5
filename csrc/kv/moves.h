// SPDX-License-Identifier: Apache-2.0
// What has to happen to the data when the bookkeeping has changed, and what a device can do of it.
// Plain data: csrc/engine runs the moves as jobs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace calrt::kv {

enum class MoveOp : uint8_t { CLEAR, LANE_COPY, RANGE_COPY, ROTATE, READ, WRITE };
const char* move_op_name(MoveOp op);  // "lane_copy"

// Cells [cell, cell + n) of `lane`; copies go to `to_cell` of `to_lane`, where the ranges may
// overlap; ROTATE turns their K on by `delta` positions.
struct Move {
  MoveOp op = MoveOp::CLEAR;
  uint32_t lane = 0, to_lane = 0;
  uint32_t cell = 0, to_cell = 0;
  uint32_t n = 0;
  int32_t delta = 0;
  bool operator==(const Move&) const = default;
};

// In this order, each after the end of the one before.
using Plan = std::vector<Move>;
// At the end; as a part of the last move if it goes on where that one ends.
void append_move(Plan* plan, const Move& move);

// What a device can do with cells. READ and WRITE let the host stand in for copies.
struct MoveCaps {
  bool clear = false, lane_copy = false, range_copy = false, rotate = false;
  bool read = false, write = false;
  bool host_rotate = false;  // the host knows how K lies and is turned, and may with read and write
  // The bookkeeping alone: nothing is refused.
  static MoveCaps all() { return {true, true, true, true, true, true, true}; }
};

// How an operation is done: by the device; by READ, the host and WRITE; not at all, but a new
// prefill gives the same; not at all.
enum class How : uint8_t { NATIVE, HOST, RECOMPUTE, UNSUPPORTED };
const char* how_name(How how);  // "native"

enum class SeqOp : uint8_t {
  RM_TAIL,    // [p, end)
  RM_MIDDLE,  // leaves cells behind the range
  CP_FULL,
  CP_PREFIX,  // [0, p)
  CP_RANGE,   // not from 0
  KEEP,
  ADD,
  DIV,
  SHIFT,  // context shift: RM_MIDDLE, then ADD
  CLEAR,
  SAVE,
  LOAD,
};
inline constexpr int kSeqOps = 12;
const char* seq_op_name(SeqOp op);  // "seq_rm_tail"

struct OpSupport {
  How how = How::UNSUPPORTED;
  std::string why;  // what it is done with, or the capability that is missing
};
OpSupport support_of(SeqOp op, const MoveCaps& caps);

}  // namespace calrt::kv
