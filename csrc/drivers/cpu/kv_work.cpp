// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kv_work.h"

#include "base/checked.h"
#include "drivers/cpu/kv_ops.h"

namespace calrt::cpu {
namespace {

constexpr struct {
  uint32_t op;
  const char* name;
} kNames[] = {{CALD_KV_CLEAR, "kv clear"},
              {CALD_KV_LANE_COPY, "kv lane_copy"},
              {CALD_KV_RANGE_COPY, "kv range_copy"},
              {CALD_KV_ROTATE, "kv rotate"},
              {CALD_KV_READ, "kv read"},
              {CALD_KV_WRITE, "kv write"}};

// Null for what is not exactly one operation.
const char* op_name(uint32_t op) {
  for (const auto& known : kNames)
    if (known.op == op) return known.name;
  return nullptr;
}

Result<void> check_cells(const char* name, const char* lane_field, uint32_t lane,
                         const char* cell_field, uint32_t cell, uint32_t n, const LoadPlan& plan) {
  if (lane >= plan.lanes)
    return fail(Status::OUT_OF_RANGE, "%s: %s=%u, the model has %u lanes", name, lane_field, lane,
                plan.lanes);
  if (n == 0 || uint64_t{cell} + n > plan.cells)
    return fail(Status::OUT_OF_RANGE, "%s: %u cells from %s=%u on, a lane has %u", name, n,
                cell_field, cell, plan.cells);
  return {};
}

Result<void> check_span(const char* name, const cald_kv_desc& desc) {
  CALRT_TRY(check_handle(desc.buffer, "buffer"));
  if (desc.buffer->device != desc.model->device)
    return fail(Status::INVALID_HANDLE, "%s: the buffer is another device's", name);
  const uint64_t cell = kv_bytes_per_cell(desc.model->plan), need = desc.n * cell;
  if (desc.bytes != need)
    return fail(Status::SHAPE_MISMATCH, "%s: bytes=%llu, %u cells of %llu bytes are %llu", name,
                static_cast<unsigned long long>(desc.bytes), desc.n,
                static_cast<unsigned long long>(cell), static_cast<unsigned long long>(need));
  uint64_t end = 0;
  if (!checked_add(desc.offset, desc.bytes, &end) || end > desc.buffer->bytes)
    return fail(Status::OUT_OF_RANGE, "%s: %llu bytes at %llu of a buffer of %llu", name,
                static_cast<unsigned long long>(desc.bytes),
                static_cast<unsigned long long>(desc.offset),
                static_cast<unsigned long long>(desc.buffer->bytes));
  return {};
}

}  // namespace

uint64_t kv_bytes_per_cell(const LoadPlan& plan) {
  return uint64_t{2} * plan.shape.layers * plan.shape.kv_heads * plan.shape.head_dim *
         (plan.kv_bf16 ? 2 : 4);
}

Result<KvWork> read_kv(const cald_kv_desc& asked) {
  KvWork work{asked, op_name(asked.op)};
  cald_kv_desc& desc = work.desc;
  CALRT_TRY(check_handle(desc.model, "model"));
  if (work.name == nullptr)
    return fail(Status::INVALID_ARGUMENT, "op=%#x: exactly one KV operation expected", desc.op);
  if (desc.op == CALD_KV_LANE_COPY) desc.cell = desc.to_cell = 0;
  const LoadPlan& plan = desc.model->plan;
  CALRT_TRY(check_cells(work.name, "lane", desc.lane, "cell", desc.cell, desc.n, plan));
  if (desc.op == CALD_KV_LANE_COPY || desc.op == CALD_KV_RANGE_COPY)
    CALRT_TRY(
        check_cells(work.name, "to_lane", desc.to_lane, "to_cell", desc.to_cell, desc.n, plan));
  if (desc.op == CALD_KV_READ || desc.op == CALD_KV_WRITE)
    CALRT_TRY(check_span(work.name, desc));
  else
    desc.buffer = nullptr;
  return work;
}

bool KvWork::run(Pool& pool, const std::atomic<bool>& cancel) const {
  cald_model& model = *desc.model;
  KvOps ops(*model.kv, model.plan.shape, model.device->kernels->cells, pool, cancel);
  const CellRange range{desc.lane, desc.cell, desc.n};
  switch (desc.op) {
    case CALD_KV_CLEAR:
      return ops.clear(range);
    case CALD_KV_LANE_COPY:
    case CALD_KV_RANGE_COPY:
      return ops.copy(range, desc.to_lane, desc.to_cell);
    case CALD_KV_ROTATE:
      return ops.rotate(range, desc.delta);
    case CALD_KV_READ:
      return ops.read(range, desc.buffer->data + desc.offset);
    default:
      return ops.write(range, desc.buffer->data + desc.offset);
  }
}

}  // namespace calrt::cpu
