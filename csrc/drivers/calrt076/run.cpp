// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/run.h"

#include "layout/roles.h"

namespace calrt::calrt076 {
namespace {

using ull = unsigned long long;

// The binding of a role: there, once, inside a buffer of this device, aligned and large enough.
Result<const cald_binding*> find(const cald_device& device, const cald_job_desc& desc,
                                 const ModelGraph& graph, const cald_io& io) {
  const cald_binding* found = nullptr;
  const char *name = graph.name.c_str(), *role = role_name(io.role);
  for (uint32_t i = 0; i < desc.n_bindings; ++i) {
    const cald_binding& binding = desc.bindings[i];
    if (binding.role != io.role) continue;
    if (found != nullptr)
      return fail(Status::INVALID_ARGUMENT, "%s: %s is bound twice", name, role);
    found = &binding;
  }
  if (found == nullptr) return fail(Status::INVALID_ARGUMENT, "%s: %s is not bound", name, role);
  CALRT_TRY(check_extent(found->buffer, found->offset, found->bytes));
  if (found->buffer->device != &device)
    return fail(Status::INVALID_HANDLE, "%s: the buffer of %s is another device's", name, role);
  if (reinterpret_cast<uintptr_t>(found->buffer->data + found->offset) % io.align != 0)
    return fail(Status::INVALID_ARGUMENT, "%s: %s at offset %llu is not aligned to %llu bytes",
                name, role, static_cast<ull>(found->offset), static_cast<ull>(io.align));
  if (found->bytes < io.layout.bytes)
    return fail(Status::SHAPE_MISMATCH, "%s: %s binds %llu bytes, %llu are needed", name, role,
                static_cast<ull>(found->bytes), static_cast<ull>(io.layout.bytes));
  return found;
}

Result<void> check_roles(const ModelGraph& graph, const cald_job_desc& desc) {
  if (desc.n_bindings != 0 && desc.bindings == nullptr)
    return fail(Status::INVALID_ARGUMENT, "%s: bindings is null", graph.name.c_str());
  for (uint32_t i = 0; i < desc.n_bindings; ++i) {
    const int32_t role = desc.bindings[i].role;
    if (std::none_of(graph.ios.begin(), graph.ios.end(),
                     [&](const cald_io& io) { return io.role == role; }))
      return fail(Status::INVALID_ARGUMENT, "%s has no role %s (%d)", graph.name.c_str(),
                  role_name(role), role);
  }
  return {};
}

// Copies what is bound, each input where the SDK wants it.
Result<void> copy_inputs(const cald_device& device, const cald_job_desc& desc, Run* run) {
  const std::vector<sdk::Io>& theirs = desc.model->facts.graphs[run->graph->index].io[0];
  uint64_t align = kLeastAlign, bytes = 0;
  std::vector<uint64_t> offsets;
  for (const sdk::Io& io : theirs) {
    align = std::max(align, io.align);
    const uint64_t step = std::max<uint64_t>(io.align, 1);
    bytes = (bytes + step - 1) / step * step;
    offsets.push_back(bytes);
    bytes += io.bytes;
  }
  const std::align_val_t aligned{align};
  run->copies = {static_cast<std::byte*>(::operator new[](bytes, aligned)), AlignedDelete{aligned}};
  for (size_t i = 0; i < theirs.size(); ++i) {
    CALRT_TRY_ASSIGN(const cald_binding* bound,
                     find(device, desc, *run->graph, *run->graph->inputs[i]));
    std::memcpy(&run->copies[offsets[i]], bound->buffer->data + bound->offset, theirs[i].bytes);
    run->inputs.push_back(&run->copies[offsets[i]]);
    run->bytes_in += bound->bytes;
  }
  return {};
}

Result<void> check_value(const Run& run, const char* name, uint32_t index, int64_t value,
                         int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return fail(Status::OUT_OF_RANGE, "%s: %s[%u]=%lld, %lld to %lld expected",
              run.graph->name.c_str(), name, index, static_cast<long long>(value),
              static_cast<long long>(low), static_cast<long long>(high));
}

// What the copies say; null for a role that the graph has not.
const int32_t* values(const Run& run, int32_t role) {
  for (size_t i = 0; i < run.inputs.size(); ++i)
    if (run.graph->inputs[i]->role == role) return static_cast<const int32_t*>(run.inputs[i]);
  return nullptr;
}

Result<void> check_values(Run* run) {
  const cald_model& model = *run->model;
  const cald_graph& graph = run->graph->graph;
  const int32_t *tokens = values(*run, CALD_ROLE_TOKENS),
                *positions = values(*run, CALD_ROLE_POSITIONS);
  run->rows = std::max(graph.chunk, 1u);
  if (const int32_t* n_valid = values(*run, CALD_ROLE_N_VALID); n_valid != nullptr) {
    CALRT_TRY(check_value(*run, "n_valid", 0, *n_valid, 1, run->rows));
    run->rows = static_cast<uint32_t>(*n_valid);
  }
  if (const int32_t* lane = values(*run, CALD_ROLE_LANES); lane != nullptr) {
    CALRT_TRY(check_value(*run, "lanes", 0, *lane, -1, int64_t{model.lanes} - 1));
    run->padding = *lane < 0;
    run->lane = static_cast<uint32_t>(std::max(*lane, 0));
  }
  if (run->padding) return {};
  for (uint32_t i = 0; i < run->rows; ++i) {
    CALRT_TRY(check_value(*run, "tokens", i, tokens[i], 0, int64_t{model.facts.vocab} - 1));
    CALRT_TRY(check_value(*run, "positions", i, positions[i], 0, int64_t{model.cells} - 1));
    if (positions[i] - positions[0] != static_cast<int32_t>(i))
      return fail(Status::INVALID_ARGUMENT,
                  "%s: positions[%u]=%d; those of a run are consecutive, from positions[0]=%d",
                  graph.name, i, positions[i], positions[0]);
  }
  run->first = static_cast<uint32_t>(positions[0]);
  return {};
}

}  // namespace

Result<Run> read_run(const cald_device& device, const cald_job_desc& desc) {
  CALRT_TRY(check_struct(&desc, "desc"));
  CALRT_TRY(check_handle(desc.model, "model"));
  if (desc.model->device != &device)
    return fail(Status::INVALID_HANDLE, "the model is another device's");
  if (desc.graph >= desc.model->graphs.size())
    return fail(Status::OUT_OF_RANGE, "graph=%u: the model has %zu", desc.graph,
                desc.model->graphs.size());
  Run run;
  run.model = desc.model;
  run.graph = desc.model->graphs[desc.graph].get();
  CALRT_TRY(check_roles(*run.graph, desc));
  CALRT_TRY(copy_inputs(device, desc, &run));
  CALRT_TRY(check_values(&run));
  CALRT_TRY_ASSIGN(const cald_binding* logits, find(device, desc, *run.graph, run.graph->logits()));
  run.output = logits->buffer;
  run.logits = logits->buffer->data + logits->offset;
  run.bytes_out = logits->bytes;
  return run;
}

}  // namespace calrt::calrt076
