// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/work.h"

namespace calrt::mock {
namespace {

constexpr struct {
  uint32_t op;
  const char* name;
} kOps[] = {{CALD_KV_CLEAR, "kv clear"},
            {CALD_KV_LANE_COPY, "kv lane_copy"},
            {CALD_KV_RANGE_COPY, "kv range_copy"},
            {CALD_KV_ROTATE, "kv rotate"},
            {CALD_KV_READ, "kv read"},
            {CALD_KV_WRITE, "kv write"}};

// HANDLE of the driver; null for what is not exactly one operation.
const char* op_name(uint32_t op) {
  for (const auto& known : kOps)
    if (known.op == op) return known.name;
  return nullptr;
}

class KvWork final : public Work {
 public:
  explicit KvWork(const cald_kv_desc& desc) : Work(desc.model, op_name(desc.op)), desc_(desc) {
    if (desc_.op == CALD_KV_LANE_COPY) desc_.cell = desc_.to_cell = 0;
    const uint64_t bytes = desc.n * kCellBytes;
    if (desc.op == CALD_KV_READ) count_out(desc.buffer, bytes);
    if (desc.op == CALD_KV_WRITE) count_in(*desc.buffer, bytes);
    const bool copies = desc.op == CALD_KV_LANE_COPY || desc.op == CALD_KV_RANGE_COPY;
    const bool moves = desc.op == CALD_KV_READ || desc.op == CALD_KV_WRITE;
    const Link& inside = model_->device->preset->timing.on_device;
    set_stages(moves ? 0 : inside.ns(copies ? 2 * bytes : bytes));
  }

  Result<void> begin() override { return {}; }

  void finish() override {
    Cells& cells = model_->cells;
    const cald_kv_desc& d = desc_;
    unsigned char* data = d.buffer != nullptr ? d.buffer->data + d.offset : nullptr;
    switch (d.op) {
      case CALD_KV_CLEAR:
        cells.clear(d.lane, d.cell, d.n);
        break;
      case CALD_KV_LANE_COPY:
      case CALD_KV_RANGE_COPY:
        cells.copy(d.lane, d.cell, d.to_lane, d.to_cell, d.n);
        break;
      case CALD_KV_ROTATE:
        cells.rotate(d.lane, d.cell, d.n, d.delta);
        break;
      case CALD_KV_READ:
        cells.read(d.lane, d.cell, d.n, data);
        break;
      default:
        cells.write(d.lane, d.cell, d.n, data);
    }
    model_->device->counters.cells_moved += d.n;
  }

 private:
  cald_kv_desc desc_;
};

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

Result<void> check_span(const char* name, const cald_kv_desc& desc, const cald_device& device) {
  CALRT_TRY(check_handle(desc.buffer, "buffer"));
  if (desc.buffer->device != &device)
    return fail(Status::INVALID_HANDLE, "%s: the buffer is another device's", name);
  const uint64_t need = desc.n * kCellBytes;
  if (desc.bytes != need)
    return fail(Status::SHAPE_MISMATCH, "%s: bytes=%llu, %u cells of %llu bytes are %llu", name,
                static_cast<ull>(desc.bytes), desc.n, static_cast<ull>(kCellBytes),
                static_cast<ull>(need));
  if (!desc.buffer->holds(desc.offset, desc.bytes))
    return fail(Status::OUT_OF_RANGE, "%s: %llu bytes at %llu of a buffer of %llu", name,
                static_cast<ull>(desc.bytes), static_cast<ull>(desc.offset),
                static_cast<ull>(desc.buffer->bytes));
  return {};
}

}  // namespace

Result<std::unique_ptr<Work>> make_kv_work(const cald_device& device, const cald_kv_desc& desc) {
  CALRT_TRY(check_handle(desc.model, "model"));
  if (desc.model->device != &device)
    return fail(Status::INVALID_HANDLE, "the model is another device's");
  const char* name = op_name(desc.op);
  if (name == nullptr)
    return fail(Status::INVALID_ARGUMENT, "op=%#x: exactly one KV operation expected", desc.op);
  if ((device.preset->kv_ops & desc.op) == 0)
    return fail(Status::UNSUPPORTED, "%s: %s cannot; it has the operations %#x", name,
                device.preset->device_class, device.preset->kv_ops);
  const LoadPlan& plan = desc.model->plan;
  const bool lane_copy = desc.op == CALD_KV_LANE_COPY;
  CALRT_TRY(check_cells(name, "lane", desc.lane, "cell", lane_copy ? 0 : desc.cell, desc.n, plan));
  if (lane_copy || desc.op == CALD_KV_RANGE_COPY)
    CALRT_TRY(check_cells(name, "to_lane", desc.to_lane, "to_cell", lane_copy ? 0 : desc.to_cell,
                          desc.n, plan));
  if (desc.op == CALD_KV_READ || desc.op == CALD_KV_WRITE)
    CALRT_TRY(check_span(name, desc, device));
  return std::unique_ptr<Work>(std::make_unique<KvWork>(desc));
}

}  // namespace calrt::mock
