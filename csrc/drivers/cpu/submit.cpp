// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/submit.h"

#include "base/checked.h"
#include "layout/roles.h"

namespace calrt::cpu {
namespace {

struct Bound {
  cald_buffer* buffer = nullptr;
  unsigned char* data = nullptr;
  uint64_t bytes = 0;
  const int32_t* ints() const { return reinterpret_cast<const int32_t*>(data); }
};

Result<void> check_binding(const cald_graph& graph, const cald_binding& binding,
                           const cald_device* device) {
  const char* role = role_name(binding.role);
  if (binding.buffer == nullptr)
    return fail(Status::INVALID_HANDLE, "%s: binding of %s has no buffer", graph.name, role);
  if (binding.buffer->device != device)
    return fail(Status::INVALID_HANDLE, "%s: the buffer of %s is another device's", graph.name,
                role);
  uint64_t end = 0;
  if (!checked_add(binding.offset, binding.bytes, &end) || end > binding.buffer->bytes)
    return fail(Status::OUT_OF_RANGE, "%s: %s binds %llu bytes at %llu of a buffer of %llu",
                graph.name, role, static_cast<unsigned long long>(binding.bytes),
                static_cast<unsigned long long>(binding.offset),
                static_cast<unsigned long long>(binding.buffer->bytes));
  return {};
}

// Finds the binding of one role; a null Bound if an optional one is absent.
Result<Bound> bound(const cald_graph& graph, const cald_job_desc& desc, const cald_io& io) {
  Bound found;
  for (uint32_t b = 0; b < desc.n_bindings; ++b) {
    const cald_binding& binding = desc.bindings[b];
    if (binding.role != io.role) continue;
    if (found.data != nullptr)
      return fail(Status::INVALID_ARGUMENT, "%s: %s is bound twice", graph.name,
                  role_name(io.role));
    CALRT_TRY(check_binding(graph, binding, desc.model->device));
    found.buffer = binding.buffer;
    found.data = binding.buffer->data + binding.offset;
    found.bytes = binding.bytes;
    if (reinterpret_cast<uintptr_t>(found.data) % io.align != 0)
      return fail(Status::INVALID_ARGUMENT, "%s: %s must be aligned to %llu bytes, offset is %llu",
                  graph.name, role_name(io.role), static_cast<unsigned long long>(io.align),
                  static_cast<unsigned long long>(binding.offset));
  }
  const bool sized_by_binding = io.role == CALD_ROLE_LOGIT_ROWS || io.role == CALD_ROLE_LOGITS;
  if (found.data == nullptr && io.optional == 0)
    return fail(Status::INVALID_ARGUMENT, "%s: %s is not bound", graph.name, role_name(io.role));
  if (found.data != nullptr && !sized_by_binding && found.bytes < io.layout.bytes)
    return fail(Status::SHAPE_MISMATCH, "%s: %s binds %llu bytes, %llu are needed", graph.name,
                role_name(io.role), static_cast<unsigned long long>(found.bytes),
                static_cast<unsigned long long>(io.layout.bytes));
  return found;
}

Result<void> check_roles(const cald_graph& graph, const cald_job_desc& desc) {
  for (uint32_t b = 0; b < desc.n_bindings; ++b) {
    const int32_t role = desc.bindings[b].role;
    bool known = role == graph.outputs[0]->role;
    for (uint32_t i = 0; i < graph.n_inputs; ++i) known = known || role == graph.inputs[i]->role;
    if (!known)
      return fail(Status::INVALID_ARGUMENT, "%s has no role %s (%d)", graph.name, role_name(role),
                  role);
  }
  return {};
}

Result<void> check_value(const cald_graph& graph, const char* name, uint32_t index, int64_t value,
                         int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return fail(Status::OUT_OF_RANGE, "%s: %s[%u]=%lld, %lld to %lld expected", graph.name, name,
              index, static_cast<long long>(value), static_cast<long long>(low),
              static_cast<long long>(high));
}

Result<void> check_token(const cald_graph& graph, const LoadPlan& plan, uint32_t index,
                         int32_t token, int32_t position) {
  CALRT_TRY(check_value(graph, "tokens", index, token, 0, int64_t{plan.shape.vocab} - 1));
  return check_value(graph, "positions", index, position, 0, int64_t{plan.cells} - 1);
}

Result<void> read_decode(const cald_graph& graph, const LoadPlan& plan, const Bound* in,
                         GraphWork* work) {
  std::vector<int32_t> row_of_lane(plan.lanes, -1);
  for (uint32_t i = 0; i < graph.batch; ++i) {
    const int32_t token = in[0].ints()[i], position = in[1].ints()[i], lane = in[2].ints()[i];
    CALRT_TRY(check_value(graph, "lanes", i, lane, -1, int64_t{plan.lanes} - 1));
    if (lane < 0) continue;
    CALRT_TRY(check_token(graph, plan, i, token, position));
    int32_t& other = row_of_lane[static_cast<uint32_t>(lane)];
    if (other >= 0)
      return fail(Status::INVALID_ARGUMENT, "%s: rows %d and %u are both on lane %d", graph.name,
                  other, i, lane);
    other = static_cast<int32_t>(i);
    work->wanted.push_back({static_cast<uint32_t>(work->rows.size()), i});
    work->rows.push_back({static_cast<uint32_t>(token), static_cast<uint32_t>(lane),
                          static_cast<uint32_t>(position)});
  }
  return {};
}

Result<void> read_prefill(const cald_graph& graph, const LoadPlan& plan, const Bound* in,
                          GraphWork* work) {
  const int32_t lane = in[2].ints()[0], n_valid = in[3].ints()[0];
  CALRT_TRY(check_value(graph, "lanes", 0, lane, -1, int64_t{plan.lanes} - 1));
  CALRT_TRY(check_value(graph, "n_valid", 0, n_valid, 1, graph.chunk));
  const int32_t first = in[1].ints()[0];
  for (uint32_t i = 0; i < static_cast<uint32_t>(n_valid); ++i) {
    const int32_t token = in[0].ints()[i], position = in[1].ints()[i];
    CALRT_TRY(check_token(graph, plan, i, token, position));
    if (position - first != static_cast<int32_t>(i))
      return fail(Status::INVALID_ARGUMENT,
                  "%s: positions[%u]=%d; a chunk's positions are consecutive, from positions[0]=%d",
                  graph.name, i, position, first);
    work->rows.push_back({static_cast<uint32_t>(token), static_cast<uint32_t>(lane),
                          static_cast<uint32_t>(position)});
  }
  if (in[4].data == nullptr) {
    work->wanted.push_back({static_cast<uint32_t>(n_valid) - 1, 0});
  } else {
    const uint64_t count = in[4].bytes / 4;
    if (count < 1 || count > graph.chunk || in[4].bytes % 4 != 0)
      return fail(Status::SHAPE_MISMATCH, "%s: logit_rows binds %llu bytes; 1 to %u i32 expected",
                  graph.name, static_cast<unsigned long long>(in[4].bytes), graph.chunk);
    for (uint32_t r = 0; r < count; ++r) {
      const int32_t row = in[4].ints()[r];
      CALRT_TRY(check_value(graph, "logit_rows", r, row, 0, n_valid - 1));
      work->wanted.push_back({static_cast<uint32_t>(row), r});
    }
  }
  if (lane < 0) {  // the whole chunk is padding
    work->rows.clear();
    work->wanted.clear();
  }
  return {};
}

}  // namespace

Result<Work> read_job(const cald_job_desc& desc) {
  CALRT_TRY(check_handle(desc.model, "model"));
  const cald_model& model = *desc.model;
  if (desc.graph >= model.graphs.size())
    return fail(Status::OUT_OF_RANGE, "graph=%u: the model has %zu", desc.graph,
                model.graphs.size());
  const cald_graph& graph = *model.graph_list[desc.graph];
  if (desc.n_bindings != 0 && desc.bindings == nullptr)
    return fail(Status::INVALID_ARGUMENT, "%s: bindings is null", graph.name);
  CALRT_TRY(check_roles(graph, desc));
  Bound in[5];
  for (uint32_t i = 0; i < graph.n_inputs; ++i) {
    CALRT_TRY_ASSIGN(in[i], bound(graph, desc, *graph.inputs[i]));
  }
  CALRT_TRY_ASSIGN(const Bound logits, bound(graph, desc, *graph.outputs[0]));

  Work work;
  GraphWork run;
  run.logits = logits.data;
  work.output = logits.buffer;
  for (const Bound& input : in) work.bytes_in += input.bytes;
  work.bytes_out = logits.bytes;
  const bool decode = graph.kind == CALD_GRAPH_DECODE;
  CALRT_TRY(decode ? read_decode(graph, model.plan, in, &run)
                   : read_prefill(graph, model.plan, in, &run));
  const uint64_t rows = decode ? graph.batch : in[4].data == nullptr ? 1 : in[4].bytes / 4;
  const uint64_t needed = rows * model.plan.shape.vocab * (model.plan.logits_bf16 ? 2 : 4);
  if (logits.bytes < needed)
    return fail(Status::SHAPE_MISMATCH, "%s: logits binds %llu bytes, %llu rows need %llu",
                graph.name, static_cast<unsigned long long>(logits.bytes),
                static_cast<unsigned long long>(rows), static_cast<unsigned long long>(needed));
  work.what = std::move(run);
  return work;
}

Result<Work> read_job(const cald_kv_desc& desc) {
  Work work;
  CALRT_TRY_ASSIGN(work.what, read_kv(desc));
  if (desc.op == CALD_KV_READ) {
    work.output = desc.buffer;
    work.bytes_out = desc.bytes;
  }
  if (desc.op == CALD_KV_WRITE) work.bytes_in = desc.bytes;
  return work;
}

const char* Work::name() const {
  const auto* kv = std::get_if<KvWork>(&what);
  return kv != nullptr ? kv->name : "job";
}

uint64_t Work::tokens() const {
  const auto* graph = std::get_if<GraphWork>(&what);
  return graph != nullptr ? graph->rows.size() : 0;
}

uint64_t cald_timing::* Work::stage() const {
  const auto* kv = std::get_if<KvWork>(&what);
  if (kv != nullptr && kv->desc.op == CALD_KV_READ) return &cald_timing::d2h_ns;
  if (kv != nullptr && kv->desc.op == CALD_KV_WRITE) return &cald_timing::h2d_ns;
  return &cald_timing::infer_ns;
}

bool Work::run(cald_model& model, Pool& pool, const std::atomic<bool>& cancel) const {
  if (const auto* kv = std::get_if<KvWork>(&what)) return kv->run(pool, cancel);
  const auto& graph = std::get<GraphWork>(what);
  return model.forward->run(pool, graph.rows, graph.wanted, graph.logits, cancel);
}

}  // namespace calrt::cpu
