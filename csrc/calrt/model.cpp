// SPDX-License-Identifier: Apache-2.0
#include "calrt/model.h"

#include <algorithm>
#include <fstream>

#include "base/log.h"

namespace calrt {
namespace {

constexpr uint32_t kMaxGraphs = 4096;

std::atomic<uint64_t> last_generation{0};

double gib(uint64_t bytes) { return static_cast<double>(bytes) / double(1u << 30); }

// Driver and device class of the package against the device's. A refusal says what, the package's
// value, the device's value; then what to do.
Result<void> check_target(const Manifest& manifest, const DeviceInfo& device) {
  if (manifest.driver != device.driver)
    return fail(Status::VERSION_MISMATCH,
                "driver: package '%s' is made for driver '%s', this device has driver '%s'\n"
                "open a '%s' device, or take a package made for '%s'",
                manifest.name.c_str(), manifest.driver.c_str(), device.driver.c_str(),
                manifest.driver.c_str(), device.driver.c_str());
  const bool known = !manifest.device_class.empty() && !device.device_class.empty();
  if (known && manifest.device_class != device.device_class)
    return fail(Status::VERSION_MISMATCH,
                "device_class: package '%s' is made for '%s', this device is '%s'\n"
                "take a package made for '%s'",
                manifest.name.c_str(), manifest.device_class.c_str(), device.device_class.c_str(),
                device.device_class.c_str());
  return {};
}

std::vector<uint64_t> dotted(const std::string& text) {
  std::vector<uint64_t> numbers(1, 0);
  for (const char c : text) {
    if (c == '.')
      numbers.push_back(0);
    else if (c >= '0' && c <= '9')
      numbers.back() = numbers.back() * 10 + static_cast<uint64_t>(c - '0');
    else
      return {};  // not made of dotted integers: matches no range
  }
  return numbers;
}

std::string dotted(const std::vector<uint64_t>& numbers) {
  std::string text;
  for (const uint64_t number : numbers) {
    if (!text.empty()) text += '.';
    text += std::to_string(number);
  }
  return text;
}

bool matches(const ManifestVersionRange& range, const std::string& have) {
  if (!range.exact.empty()) return range.exact == have;
  const std::vector<uint64_t> version = dotted(have);
  return !version.empty() && range.min <= version && version < range.below;
}

// Only what the ABI lets a device tell: its driver ABI and its runtime.
Result<void> check_versions(const Manifest& manifest, const DeviceInfo& device, uint32_t abi) {
  for (const auto& [what, range] : manifest.versions) {
    std::string have;
    if (what == "driver_abi")
      have = std::to_string(abi >> 16) + "." + std::to_string(abi & 0xffff);
    else if (what == "runtime")
      have = device.runtime;
    else
      continue;
    if (range.exact.empty() && range.min.empty()) continue;  // the package does not know
    if (matches(range, have)) continue;
    const std::string need =
        !range.exact.empty() ? range.exact
                             : "at least " + dotted(range.min) + ", below " + dotted(range.below);
    return fail(Status::VERSION_MISMATCH,
                "%s: package '%s' needs %s, this device has %s\n"
                "install that version, or take a package made for this one",
                what.c_str(), manifest.name.c_str(), need.c_str(),
                have.empty() ? "an unknown one" : have.c_str());
  }
  return {};
}

// What the host could give without swapping; 0 if it cannot be told.
uint64_t host_bytes_available() {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  uint64_t kib = 0;
  while (meminfo >> word)
    if (word == "MemAvailable:" && meminfo >> kib) return kib * 1024;
  return 0;
}

Result<void> check_room(const cald_footprint& need, const DeviceInfo& device) {
  if (device.memory_free != 0 && need.device_bytes > device.memory_free)
    return fail(
        Status::OUT_OF_DEVICE_MEMORY,
        "the model needs %.3f GiB of device memory, %.3f GiB are free: fewer lanes or cells, "
        "or unload another model",
        gib(need.device_bytes), gib(device.memory_free));
  const uint64_t host = host_bytes_available();
  if (host != 0 && need.host_bytes > host)
    return fail(Status::OUT_OF_HOST_MEMORY,
                "the model needs %.3f GiB of host memory, %.3f GiB are available: fewer lanes or "
                "cells, or end another program",
                gib(need.host_bytes), gib(host));
  return {};
}

int32_t report_progress(void* user, uint64_t done, uint64_t total) {
  try {
    return (*static_cast<const std::function<bool(uint64_t, uint64_t)>*>(user))(done, total) ? 0
                                                                                             : 1;
  } catch (...) {  // may not cross the driver: the load is cancelled instead
    log_text(LOG_WARNING, "calrt", "the load's progress callback threw; the load is cancelled");
    return 1;
  }
}

}  // namespace

Result<std::shared_ptr<Model>> Model::load(std::shared_ptr<Device> device,
                                           std::shared_ptr<const Package> package,
                                           const LoadRequest& request) {
  CALRT_TRY(device->check_open());
  if (package->verdict().rejected()) return package->verdict().error();
  CALRT_TRY_ASSIGN(const ResolvedLoad asked, package->resolve(request));
  CALRT_TRY_ASSIGN(const DeviceInfo info, device->info());
  CALRT_TRY(check_target(package->manifest(), info));
  CALRT_TRY(check_versions(package->manifest(), info, device->table().abi_version));

  cald_load_options options{};
  options.struct_size = sizeof options;
  options.lanes = asked.lanes;
  options.cells = asked.cells;
  options.compute = asked.compute;
  options.kv_dtype = asked.kv_dtype;
  options.logits_dtype = asked.logits_dtype;
  options.parallel = asked.parallel.c_str();
  options.placement = asked.placement.c_str();
  options.n_profiles = static_cast<uint32_t>(asked.profiles.size());
  options.n_chunks = static_cast<uint32_t>(asked.chunks.size());
  options.profiles = asked.profiles.data();
  options.chunks = asked.chunks.data();
  if (request.progress) {
    options.user = const_cast<std::function<bool(uint64_t, uint64_t)>*>(&request.progress);
    options.progress = report_progress;
  }

  const cald_driver_table& table = device->table();
  if (const auto footprint = CALRT_DRIVER_ENTRY(table, model_footprint)) {
    cald_footprint need{};
    need.struct_size = sizeof need;
    CALRT_TRY(device->call_alone("model_footprint", [&](cald_error* detail) {
      return footprint(device->handle(), &package->typed(), &options, &need, detail);
    }));
    CALRT_TRY(check_room(need, info));
  }

  std::shared_ptr<Model> model(new Model);
  model->device_ = device;
  model->package_ = package;
  model->generation_ = ++last_generation;
  cald_model* handle = nullptr;
  CALRT_TRY(device->call_alone("model_load", [&](cald_error* detail) {
    return table.model_load(device->handle(), &package->typed(), &options, &handle, detail);
  }));
  if (handle == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", "model_load"};
  model->handle_ = ModelHandle({handle, &table});
  CALRT_TRY(model->read_info(asked));
  return model;
}

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

void Model::close() { closed_.store(true); }

Result<void> Model::check_open() const {
  CALRT_TRY(device_->check_open());
  if (!closed()) return {};
  return fail(Status::MODEL_UNLOADED, "model '%s' (generation %llu) is closed: load it again",
              package_->typed().name, (unsigned long long)generation_);
}

}  // namespace calrt
