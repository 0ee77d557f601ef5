// SPDX-License-Identifier: Apache-2.0
#include "calrt/model.h"

#include <algorithm>

namespace calrt {
namespace {

constexpr uint32_t kMaxGraphs = 4096;

}  // namespace

Result<void> Model::read_info(const ResolvedLoad& asked) {
  info_.struct_size = sizeof info_;
  CALRT_TRY(call_driver("model_info", [&](cald_error* detail) {
    return device_->table().model_info(handle(), &info_, detail);
  }));
  if (info_.n_graphs == 0 || info_.n_graphs > kMaxGraphs || info_.graphs == nullptr)
    return fail(Status::INTERNAL, "the driver describes a model of %u graphs", info_.n_graphs);
  if (info_.lanes != asked.lanes || info_.cells != asked.cells)
    return fail(Status::INTERNAL,
                "asked for lanes=%u, cells=%u; the driver loaded lanes=%u, cells=%u", asked.lanes,
                asked.cells, info_.lanes, info_.cells);
  for (uint32_t i = 0; i < info_.n_graphs; ++i) {
    const cald_graph* graph = info_.graphs[i];
    if (graph == nullptr || graph->name == nullptr || graph->struct_size < sizeof(cald_graph))
      return fail(Status::INTERNAL, "the driver describes graph %u incompletely", i);
    (graph->kind == CALD_GRAPH_DECODE ? decode_ : prefill_).push_back(i);
  }
  std::sort(decode_.begin(), decode_.end(), [this](uint32_t a, uint32_t b) {
    return info_.graphs[a]->batch < info_.graphs[b]->batch;
  });
  std::sort(prefill_.begin(), prefill_.end(), [this](uint32_t a, uint32_t b) {
    return info_.graphs[a]->chunk < info_.graphs[b]->chunk;
  });
  return {};
}

Result<uint32_t> Model::graph_index(const std::string& name) const {
  std::string known;
  for (uint32_t i = 0; i < info_.n_graphs; ++i) {
    if (name == info_.graphs[i]->name) return i;
    known += (known.empty() ? "" : ", ") + std::string(info_.graphs[i]->name);
  }
  return fail(Status::INVALID_ARGUMENT, "there is no graph '%.64s': this model has %s",
              name.c_str(), known.c_str());
}

Result<cald_kv_info> Model::kv_info() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(device_->table(), kv_info);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "kv_info: driver %s does not tell", device_->table().name);
  cald_kv_info info{};
  info.struct_size = sizeof info;
  CALRT_TRY(device_->call_alone(
      "kv_info", [&](cald_error* detail) { return entry(handle(), &info, detail); }));
  if (CALRT_DRIVER_ENTRY(device_->table(), kv_submit) == nullptr) info.ops = 0;
  return info;
}

Result<BindingSetHandle> Model::make_known(uint32_t graph,
                                           const std::vector<cald_binding>& bindings) {
  const cald_driver_table& table = device_->table();
  const auto make = CALRT_DRIVER_ENTRY(table, binding_set_make);
  if (make == nullptr || CALRT_DRIVER_ENTRY(table, binding_set_free) == nullptr ||
      !check_granted("binding_sets").ok())
    return BindingSetHandle();
  cald_binding_set* made = nullptr;
  CALRT_TRY(device_->call_alone("binding_set_make", [&](cald_error* detail) {
    return make(handle(), graph, bindings.data(), static_cast<uint32_t>(bindings.size()), &made,
                detail);
  }));
  if (made == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle",
                 "binding_set_make"};
  return BindingSetHandle({made, &table});
}

Result<void> Model::check_granted(const char* capability) const {
  const auto found = withheld_.find(capability);
  if (found == withheld_.end()) return {};
  return Error{Status::UNSUPPORTED, 0, found->second, capability};
}

void Model::close() { closed_.store(true); }

Result<void> Model::check_open() const {
  CALRT_TRY(device_->check_open());
  if (!closed()) return {};
  return fail(Status::MODEL_UNLOADED, "model '%s' (generation %llu) is closed: load it again",
              package_->typed().name, (unsigned long long)generation_);
}

Result<void> Model::check_alive() const {
  CALRT_TRY(check_open());
  if (device_->losses() == losses_) return {};
  return fail(Status::DEVICE_LOST,
              "device '%s' was lost, and with it what lay in its memory: open it again and load "
              "model '%s' anew",
              device_->spec().c_str(), package_->typed().name);
}

}  // namespace calrt
