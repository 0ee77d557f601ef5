// SPDX-License-Identifier: Apache-2.0
// KV operations as jobs: checked against what the model says of its KV, then the way of all jobs.
#include <algorithm>

#include "base/checked.h"
#include "calrt/job_start.h"

namespace calrt {
namespace {

constexpr struct {
  uint32_t op;
  const char *name, *capability;
} kOps[] = {{CALD_KV_CLEAR, "clear", "kv_clear"},
            {CALD_KV_LANE_COPY, "lane_copy", "lane_copy"},
            {CALD_KV_RANGE_COPY, "range_copy", "range_copy"},
            {CALD_KV_ROTATE, "rotate", "k_rotate"},
            {CALD_KV_READ, "read", "kv_read"},
            {CALD_KV_WRITE, "write", "kv_write"}};

std::string listed(uint32_t ops) {
  std::string names;
  for (const auto& known : kOps)
    if ((ops & known.op) != 0) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names.empty() ? "none" : names;
}

Result<void> check_lane(const char* field, uint32_t lane, const cald_kv_info& info) {
  if (lane < info.lanes) return {};
  return fail(Status::OUT_OF_RANGE, "kv: %s=%u, but the model has %u lanes", field, lane,
              info.lanes);
}

Result<void> check_cells(const char* field, uint64_t from, uint64_t n, const cald_kv_info& info) {
  uint64_t end = 0;
  if (checked_add(from, n, &end) && end <= info.cells) return {};
  return fail(Status::OUT_OF_RANGE, "kv: %s=%llu and n=%llu, but a lane has %u cells", field,
              (unsigned long long)from, (unsigned long long)n, info.cells);
}

Result<void> check_move(const KvMove& move, const cald_kv_info& info) {
  if (move.n == 0) return fail(Status::OUT_OF_RANGE, "kv: n=0 cells; give at least 1");
  CALRT_TRY(check_lane("lane", move.lane, info));
  CALRT_TRY(check_cells("cell", move.cell, move.n, info));
  if (move.op == CALD_KV_LANE_COPY && (move.cell != 0 || move.to_cell != 0))
    return fail(Status::INVALID_ARGUMENT,
                "kv: cell=%u, to_cell=%u: lane_copy copies cells from 0 on to the same place; use "
                "range_copy",
                move.cell, move.to_cell);
  if (move.op == CALD_KV_LANE_COPY && move.lane == move.to_lane)
    return fail(Status::INVALID_ARGUMENT, "kv: lane_copy from lane %u to itself", move.lane);
  if (move.op == CALD_KV_LANE_COPY || move.op == CALD_KV_RANGE_COPY) {
    CALRT_TRY(check_lane("to_lane", move.to_lane, info));
    CALRT_TRY(check_cells("to_cell", move.to_cell, move.n, info));
  }
  return {};
}

Result<void> check_span(const KvMove& move, const KvSpan& span, const cald_kv_info& info,
                        const Device& device) {
  const bool moves_out = move.op == CALD_KV_READ || move.op == CALD_KV_WRITE;
  if (moves_out != (span.buffer != nullptr))
    return fail(Status::INVALID_ARGUMENT, moves_out ? "kv: %s needs a buffer" : "kv: %s takes none",
                kv_op_name(move.op));
  if (!moves_out) return {};
  if (span.buffer->device().get() != &device)
    return fail(Status::INVALID_HANDLE, "kv: the buffer is of another device than '%s'",
                device.spec().c_str());
  uint64_t need = 0, end = 0;
  if (!checked_mul(move.n, info.bytes_per_cell, &need) || span.bytes != need)
    return fail(Status::SHAPE_MISMATCH, "kv: bytes=%llu, but %u cells of %llu bytes are %llu",
                (unsigned long long)span.bytes, move.n, (unsigned long long)info.bytes_per_cell,
                (unsigned long long)need);
  if (!checked_add(span.offset, span.bytes, &end) || end > span.buffer->bytes())
    return fail(Status::OUT_OF_RANGE, "kv: %llu bytes at %llu of a buffer of %llu",
                (unsigned long long)span.bytes, (unsigned long long)span.offset,
                (unsigned long long)span.buffer->bytes());
  return {};
}

// The operation is one of ours, and one that the model can do.
Result<void> check_op(uint32_t op, uint32_t can) {
  const bool known =
      std::any_of(std::begin(kOps), std::end(kOps), [op](const auto& one) { return one.op == op; });
  if (!known)
    return fail(Status::INVALID_ARGUMENT, "kv: op=%#x is not one of %s", op,
                listed(UINT32_MAX).c_str());
  if ((can & op) == 0)
    return fail(Status::UNSUPPORTED, "kv: this model cannot %s; it can: %s", kv_op_name(op),
                listed(can).c_str());
  return {};
}

}  // namespace

const char* kv_op_name(uint32_t op) {
  for (const auto& known : kOps)
    if (known.op == op) return known.name;
  return "?";
}

Result<std::shared_ptr<Job>> Job::submit_kv(const std::shared_ptr<Session>& session,
                                            std::shared_ptr<Model> model, const KvMove& move,
                                            KvSpan span, uint64_t deadline_ns,
                                            CompletionSink* sink) {
  CALRT_TRY(model->check_open());
  const std::shared_ptr<Device>& device = session->device();
  if (device != model->device())
    return fail(Status::INVALID_HANDLE, "kv: the session is of '%s', the model of another device",
                device->spec().c_str());
  const cald_driver_table& table = device->table();
  const auto entry = CALRT_DRIVER_ENTRY(table, kv_submit);
  if (entry == nullptr || CALRT_DRIVER_ENTRY(table, kv_info) == nullptr) {
    CALRT_TRY(check_op(move.op, UINT32_MAX));
    return fail(Status::UNSUPPORTED,
                "kv: driver %s moves no cells: it cannot %s, nor anything else", table.name,
                kv_op_name(move.op));
  }
  for (const auto& known : kOps)
    if (known.op == move.op) CALRT_TRY(model->check_granted(known.capability));
  CALRT_TRY_ASSIGN(const cald_kv_info info, model->kv_info());
  CALRT_TRY(check_op(move.op, info.ops));
  CALRT_TRY(check_move(move, info));
  CALRT_TRY(check_span(move, span, info, *device));
  CALRT_TRY_ASSIGN(const uint64_t now, check_deadline(*session, deadline_ns));

  JobTerms terms{next_job_seq(), now, std::min(deadline_ns, now + kHardTimeoutNs), {},
                 "kv_submit",    sink};
  (move.op == CALD_KV_READ ? terms.bound.out : terms.bound.in) = span.bytes;
  JobResources resources{session, std::move(model), nullptr, std::move(span.buffer),
                         nullptr, JobHandle()};
  if (resources.buffer != nullptr) {
    resources.use = std::make_shared<BindingUse>(terms.job_seq);
    resources.buffer->note_use(resources.use);
  }
  auto desc = described<cald_kv_desc>(terms, resources);
  desc.op = move.op;
  desc.lane = move.lane;
  desc.to_lane = move.to_lane;
  desc.cell = move.cell;
  desc.to_cell = move.to_cell;
  desc.n = move.n;
  desc.delta = move.delta;
  desc.buffer = resources.buffer != nullptr ? resources.buffer->handle() : nullptr;
  desc.offset = span.offset;
  desc.bytes = span.bytes;
  return start(terms, std::move(resources), [&](cald_job** out, cald_error* detail) {
    return entry(session->handle(), &desc, out, detail);
  });
}

}  // namespace calrt
