// SPDX-License-Identifier: Apache-2.0
// Defects of loads, models and binding sets.
#include <map>
#include <memory>

#include "drivers/mock/buffer.h"
#include "drivers/mock/model.h"
#include "tests/drivers/defective_hook.h"

namespace calrt::defective {
namespace {

// A model's graphs as this driver shows them, wrong. Kept as long as the process.
struct Shown {
  std::vector<cald_graph> graphs;
  std::vector<std::vector<cald_io>> ios;
  std::vector<std::vector<const cald_io*>> lists;
  std::vector<const cald_graph*> list;
};
std::map<const cald_model*, std::unique_ptr<Shown>> shown;
std::map<const cald_model*, std::vector<const char*>> package_names;
std::vector<cald_model*> loaded;

struct Made {
  const cald_binding* array;
  std::vector<cald_binding> as_made;
};
std::map<const cald_binding_set*, Made> sets;

struct Progress {
  const cald_load_options* asked;
  static int32_t tell(void* user, uint64_t done, uint64_t total) {
    auto* self = static_cast<Progress*>(user);
    if (is("no_progress") || self->asked->progress == nullptr) return 0;
    if (is("progress_beyond")) done = total + 1;
    const int32_t answer = self->asked->progress(self->asked->user, done, total);
    return is("cannot_cancel_load") ? 0 : answer;
  }
};

cald_status model_load(cald_device* device, const cald_package* package,
                       const cald_load_options* options, cald_model** out, cald_error* err) {
  cald_load_options asked = *options;
  Progress progress{options};
  asked.user = &progress;
  asked.progress = Progress::tell;
  if (is("places_anywhere") && std::strstr(asked.placement, "conformance") != nullptr)
    asked.placement = "any";
  if (is("places_anywhere") && std::strstr(asked.parallel, "conformance") != nullptr)
    asked.parallel = "none";
  const cald_status status = mock().model_load(device, package, &asked, out, err);
  if (status == CALD_OK) loaded.push_back(*out);
  if (status == CALD_OK && is("keeps_package")) {
    auto& names = package_names[*out];
    names.clear();
    for (uint32_t g = 0; g < package->n_graphs; ++g) names.push_back(package->graphs[g]->name);
  }
  return status;
}

void model_unload(cald_model* model) {
  if (model != nullptr && is("unload_keeps_memory")) model->device->memory_used += 4096;
  shown.erase(model);
  std::erase(loaded, model);
  mock().model_unload(model);
}

cald_status model_footprint(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_footprint* out,
                            cald_error* err) {
  const cald_status status = mock().model_footprint(device, package, options, out, err);
  if (is("footprint_0")) out->host_bytes = out->device_bytes = 0;
  return status;
}

void change(cald_io* io) {
  if (is("strides_in_elements"))
    for (uint32_t a = 0; a < io->layout.n_axes; ++a)
      io->layout.axes[a].stride = io->layout.axes[a].stride / 4;
  if (is("short_layout") && io->role == CALD_ROLE_LOGITS) io->layout.bytes -= 1;
}

const Shown& show(const cald_model* model, const cald_model_info& info) {
  std::unique_ptr<Shown>& made = shown[model];
  if (made != nullptr) return *made;
  made = std::make_unique<Shown>();
  made->graphs.reserve(info.n_graphs);
  made->ios.reserve(2 * info.n_graphs);
  made->lists.reserve(2 * info.n_graphs);
  for (uint32_t g = 0; g < info.n_graphs; ++g) {
    cald_graph& graph = made->graphs.emplace_back(*info.graphs[g]);
    const auto copied = [&](const cald_io* const* from, uint32_t count) {
      std::vector<cald_io>& ios = made->ios.emplace_back();
      std::vector<const cald_io*>& list = made->lists.emplace_back();
      ios.reserve(count);
      for (uint32_t i = 0; i < count; ++i) {
        change(&ios.emplace_back(*from[i]));
        list.push_back(&ios.back());
      }
      return list.data();
    };
    graph.inputs = copied(graph.inputs, graph.n_inputs);
    graph.outputs = copied(graph.outputs, graph.n_outputs);
    if (is("keeps_package")) graph.name = package_names[model][g];
    made->list.push_back(&graph);
  }
  return *made;
}

cald_status model_info(cald_model* model, cald_model_info* out, cald_error* err) {
  const cald_status status = mock().model_info(model, out, err);
  if (status != CALD_OK) return status;
  if (is("one_lane_more")) out->lanes += 1;
  if (is("loses_a_graph")) out->n_graphs -= 1;
  if (is("strides_in_elements") || is("short_layout") || is("keeps_package"))
    out->graphs = show(model, *out).list.data();
  return status;
}

cald_status kv_info(cald_model* model, cald_kv_info* out, cald_error* err) {
  const cald_status status = mock().kv_info(model, out, err);
  if (is("kv_one_cell_more")) out->cells += 1;
  return status;
}

cald_status binding_set_make(cald_model* model, uint32_t graph, const cald_binding* bindings,
                             uint32_t n_bindings, cald_binding_set** out, cald_error* err) {
  if (is("set_of_any_graph") && graph >= model->graphs.size()) graph = 0;
  std::vector<cald_binding> taken(bindings, bindings + n_bindings);
  if (is("set_of_foreign_buffer"))
    std::erase_if(taken, [model](const cald_binding& binding) {
      return binding.buffer->device != model->device;
    });
  const cald_status status = mock().binding_set_make(model, graph, taken.data(),
                                                     static_cast<uint32_t>(taken.size()), out, err);
  if (status == CALD_OK) sets[*out] = {bindings, {bindings, bindings + n_bindings}};
  return status;
}

}  // namespace

cald_model* some_model(const cald_device* device) {
  for (cald_model* model : loaded)
    if (model->device == device) return model;
  return nullptr;
}

bool set_is_as_made(const cald_binding_set* set) {
  const Made& made = sets[set];
  return std::memcmp(made.array, made.as_made.data(), made.as_made.size() * sizeof(cald_binding)) ==
         0;
}

void wrap_models(cald_driver_table* table) {
  table->model_load = model_load;
  table->model_unload = model_unload;
  table->model_footprint = model_footprint;
  table->model_info = model_info;
  table->kv_info = kv_info;
  table->binding_set_make = binding_set_make;
}

}  // namespace calrt::defective
