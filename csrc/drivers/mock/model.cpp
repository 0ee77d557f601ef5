// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/model.h"

#include <bit>

namespace calrt::mock {
namespace {

Result<void> in_range(const char* name, uint64_t value, uint64_t most, const Preset& preset) {
  if (value >= 1 && value <= most) return {};
  return fail(Status::OUT_OF_RANGE, "%s=%llu: %s has 1 to %llu", name, static_cast<ull>(value),
              preset.device_class, static_cast<ull>(most));
}

// The session that runs what lies on these chips: the one of the first of them.
Result<uint32_t> session_of(const Preset& preset, const cald_load_options& options) {
  const char* parallel = options.parallel == nullptr ? "none" : options.parallel;
  const char* placement = options.placement == nullptr ? "any" : options.placement;
  const auto is_mode = [&](const char* mode) { return std::strcmp(mode, parallel) == 0; };
  if (std::none_of(preset.modes.begin(), preset.modes.end(), is_mode))
    return fail(Status::UNSUPPORTED, "parallel=%.40s: not a mode of %s", parallel,
                preset.device_class);
  for (const Placement& known : preset.placements) {
    if (std::strcmp(known.name, placement) != 0) continue;
    const bool many = std::popcount(known.chips) > 1;
    if (many != is_mode("tensor"))
      return fail(Status::UNSUPPORTED,
                  "placement=%s and parallel=%s: one chip runs with none, "
                  "several with tensor",
                  placement, parallel);
    const uint64_t first = known.chips & -known.chips;
    for (uint32_t s = 0; s < preset.session_chips.size(); ++s)
      if ((preset.session_chips[s] & first) != 0) return s;
  }
  return fail(Status::UNSUPPORTED, "placement=%.40s: not one of %s", placement,
              preset.device_class);
}

bool chosen(uint32_t value, const uint32_t* list, uint32_t count) {
  return std::find(list, list + count, value) != list + count;
}

bool wanted(const cald_graph& graph, const cald_load_options& options) {
  return graph.kind == CALD_GRAPH_DECODE ? chosen(graph.batch, options.profiles, options.n_profiles)
                                         : chosen(graph.chunk, options.chunks, options.n_chunks);
}

Result<void> tell(const cald_load_options& options, uint64_t done, uint64_t total) {
  if (options.progress == nullptr || options.progress(options.user, done, total) == 0) return {};
  return fail(Status::CANCELLED, "the load was cancelled");
}

}  // namespace

Result<LoadPlan> plan_load(const cald_device& device, const cald_package* package,
                           const cald_load_options* options) {
  CALRT_TRY(check_struct(package, "package"));
  CALRT_TRY(check_struct(options, "options"));
  const Preset& preset = *device.preset;
  LoadPlan plan{};
  plan.lanes = options->lanes;
  plan.cells = options->cells;
  plan.vocab = package->arch->vocab;
  plan.compute = options->compute;
  plan.kv_dtype = options->kv_dtype;
  plan.logits_dtype = options->logits_dtype;
  CALRT_TRY(in_range("lanes", plan.lanes, preset.most_lanes, preset));
  CALRT_TRY(in_range("cells", plan.cells, preset.most_cells, preset));
  CALRT_TRY_ASSIGN(plan.session, session_of(preset, *options));
  for (uint32_t g = 0; g < package->n_graphs; ++g)
    if (wanted(*package->graphs[g], *options)) plan.graphs.push_back(package->graphs[g]);
  if (plan.graphs.empty())
    return fail(Status::INVALID_ARGUMENT,
                "none of the package's %u graphs is among the %u profiles and %u chunks asked for",
                package->n_graphs, options->n_profiles, options->n_chunks);
  plan.weight_bytes = preset.weight_bytes;
  if (plan.weight_bytes == 0)
    for (uint32_t t = 0; t < package->n_tensors; ++t)
      plan.weight_bytes += package->tensors[t]->bytes;
  plan.kv_bytes = uint64_t{plan.lanes} * plan.cells *
                  (preset.kv_bytes_per_cell != 0 ? preset.kv_bytes_per_cell : kCellBytes);
  return plan;
}

}  // namespace calrt::mock

using namespace calrt::mock;
using calrt::Result;

Result<std::unique_ptr<cald_model>> cald_model::load(cald_device* device,
                                                     const cald_package* package,
                                                     const cald_load_options* options) {
  CALRT_TRY_ASSIGN(LoadPlan plan, plan_load(*device, package, options));
  const uint64_t total = plan.weight_bytes;
  CALRT_TRY(tell(*options, 0, total));
  auto model = std::make_unique<cald_model>(device, std::move(plan));
  CALRT_TRY(device->charge(model->plan.device_bytes(), "the model"));
  model->charged_ = model->plan.device_bytes();
  for (const cald_graph* graph : model->plan.graphs) {
    CALRT_TRY_ASSIGN(auto made, make_graph(*graph, *device->preset, model->plan.logits_dtype,
                                           model->plan.vocab));
    model->graph_list.push_back(&made->described);
    model->graphs.push_back(std::move(made));
  }
  model->plan.graphs.clear();  // they were the package's
  CALRT_TRY(tell(*options, total, total));
  return model;
}

uint64_t cald_model::host_bytes() const {
  uint64_t bytes = sizeof *this + cells.bytes() + noise.bytes();
  for (const auto& graph : graphs)
    bytes += sizeof *graph + graph->ios.size() * (sizeof(cald_io) + 2 * sizeof(void*));
  return bytes;
}

cald_model_info cald_model::describe() const {
  cald_model_info info{};
  info.struct_size = sizeof info;
  info.n_graphs = static_cast<uint32_t>(graph_list.size());
  info.graphs = graph_list.data();
  info.lanes = plan.lanes;
  info.cells = plan.cells;
  info.vocab = plan.vocab;
  info.compute = plan.compute;
  info.kv_dtype = plan.kv_dtype;
  info.logits_dtype = plan.logits_dtype;
  info.weight_bytes = plan.weight_bytes;
  info.kv_bytes = plan.kv_bytes;
  return info;
}

cald_kv_info cald_model::describe_kv() const {
  cald_kv_info info{};
  info.struct_size = sizeof info;
  info.ops = device->preset->kv_ops;
  info.lanes = plan.lanes;
  info.cells = plan.cells;
  info.dtype = CALD_I32;  // what K and V of a cell truly are, whatever kv_dtype was asked for
  info.n_layers = 1;
  info.bytes_per_cell = kCellBytes;
  return info;
}
