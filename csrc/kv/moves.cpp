// SPDX-License-Identifier: Apache-2.0
#include "kv/moves.h"

#include <iterator>

namespace calrt::kv {
namespace {

constexpr const char* kMoveOps[] = {"clear", "lane_copy", "range_copy", "rotate", "read", "write"};
constexpr const char* kHows[] = {"native", "host", "recompute", "unsupported"};
constexpr const char* kSeqOpNames[] = {
    "seq_rm_tail", "seq_rm_middle", "seq_cp_full", "seq_cp_prefix", "seq_cp_range", "seq_keep",
    "seq_add",     "seq_div",       "seq_shift",   "seq_clear",     "seq_save",     "seq_load"};
static_assert(std::size(kSeqOpNames) == kSeqOps);

template <size_t N, class Value>
const char* name_in(const char* const (&names)[N], Value value) {
  const auto index = static_cast<size_t>(value);
  return index < N ? names[index] : "?";
}

OpSupport copied_within(const MoveCaps& caps) {
  if (caps.range_copy) return {How::NATIVE, "range_copy"};
  if (caps.read && caps.write) return {How::HOST, "read and write"};
  return {How::UNSUPPORTED, "needs range_copy, or read and write"};
}

// Cells move up against those before them, and their K is turned.
OpSupport compacted(const MoveCaps& caps) {
  const OpSupport copy = copied_within(caps);
  if (copy.how == How::UNSUPPORTED) return copy;
  const bool host_turns = caps.read && caps.write && caps.host_rotate;
  if (!caps.rotate && !host_turns)
    return {How::UNSUPPORTED, "needs k_rotate, or read, write and a K that the host can turn"};
  if (copy.how == How::NATIVE && caps.rotate) return {How::NATIVE, "range_copy and k_rotate"};
  return {How::HOST, caps.rotate ? "read, write and k_rotate" : "read, the host's turning, write"};
}

OpSupport copied_from_0(const MoveCaps& caps) {
  if (caps.lane_copy) return {How::NATIVE, "lane_copy"};
  OpSupport copy = copied_within(caps);
  if (copy.how != How::UNSUPPORTED) return copy;
  return {How::RECOMPUTE,
          "needs lane_copy, range_copy, or read and write; a prefill of the same tokens gives the "
          "same"};
}

}  // namespace

const char* move_op_name(MoveOp op) { return name_in(kMoveOps, op); }
const char* how_name(How how) { return name_in(kHows, how); }
const char* seq_op_name(SeqOp op) { return name_in(kSeqOpNames, op); }

void append_move(Plan* plan, const Move& move) {
  if (!plan->empty()) {
    Move& last = plan->back();
    if (last.op == move.op && last.lane == move.lane && last.to_lane == move.to_lane &&
        last.cell + last.n == move.cell && last.to_cell + last.n == move.to_cell &&
        last.delta == move.delta) {
      last.n += move.n;
      return;
    }
  }
  plan->push_back(move);
}

OpSupport support_of(SeqOp op, const MoveCaps& caps) {
  switch (op) {
    case SeqOp::RM_TAIL:
    case SeqOp::KEEP:
    case SeqOp::CLEAR:
      return {How::NATIVE, "bookkeeping alone"};
    case SeqOp::CP_FULL:
    case SeqOp::CP_PREFIX:
      return copied_from_0(caps);
    case SeqOp::CP_RANGE:
      return copied_within(caps);
    // A prefill without the removed tokens is no substitute: what stays has attended to them.
    case SeqOp::RM_MIDDLE:
    case SeqOp::ADD:
    case SeqOp::DIV:
    case SeqOp::SHIFT:
      return compacted(caps);
    case SeqOp::SAVE:
      return caps.read ? OpSupport{How::NATIVE, "read"}
                       : OpSupport{How::UNSUPPORTED, "needs kv_read"};
    case SeqOp::LOAD:
      return caps.write ? OpSupport{How::NATIVE, "write"}
                        : OpSupport{How::UNSUPPORTED, "needs kv_write"};
  }
  return {How::UNSUPPORTED, "no such operation"};
}

}  // namespace calrt::kv
