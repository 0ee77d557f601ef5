// SPDX-License-Identifier: Apache-2.0
// From a package and what is asked of it to a loaded model: what cannot be is refused by name
// before the driver is told to load.
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/log.h"
#include "calrt/model.h"

namespace calrt {
namespace {

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

// D25. calrt's own drivers are what a stand-in is made for; on another one it says nothing about
// the device, and looks as if it did.
Result<void> check_standin(const Manifest& manifest, const std::string& driver, bool allowed) {
  if (allowed || manifest.provenance_kind != "standin") return {};
  for (const char* own : {"mock", "cpu", "null"})
    if (driver == own) return {};
  return fail(
      Status::PACKAGE_REJECTED,
      "D25: package '%s' is a stand-in (provenance.kind), and %s is not one of calrt's "
      "drivers (mock, cpu, null): what it shows is not the device's; load a package made of "
      "a model, or allow it to test a driver of your own (calrt-server, calrt: "
      "--allow-unverified, Python: calrt.open(..., allow_unverified=True), C++: "
      "LoadRequest::allow_standin)",
      manifest.name.c_str(), driver.c_str());
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

// What a topology offers, for people.
std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Result<void> check_offered(const char* option, const std::string& asked,
                           const std::vector<std::string>& offered, const std::string& device) {
  if (offered.empty() || std::find(offered.begin(), offered.end(), asked) != offered.end())
    return {};
  return fail(Status::UNSUPPORTED, "%s=%s: device '%s' can do %s", option, asked.c_str(),
              device.c_str(), listed(offered).c_str());
}

Result<void> check_topology(Device& device, const ResolvedLoad& asked) {
  if (CALRT_DRIVER_ENTRY(device.table(), device_topology) == nullptr) return {};
  CALRT_TRY_ASSIGN(const Topology topology, device.topology());
  CALRT_TRY(check_offered("parallel", asked.parallel, topology.modes, device.spec()));
  auto offered = check_offered("placement", asked.placement, topology.placements, device.spec());
  const bool one_of_several = asked.placement.rfind("chip:", 0) == 0 && topology.chips.size() > 1;
  if (offered.ok() || !one_of_several) return offered;
  return fail(offered.error().code, "%s; one of its %zu chips alone is C3, it needs the vendor",
              offered.error().message.c_str(), topology.chips.size());
}

// The session for a placement ("chip:1", "chips:0+1"); 0 where the placement names no chip ("any"),
// or the device does not tell which sessions serve which chips.
Result<uint32_t> session_for(Device& device, const std::string& placement) {
  const size_t colon = placement.find(':');
  if (colon == std::string::npos || CALRT_DRIVER_ENTRY(device.table(), device_topology) == nullptr)
    return 0;
  const unsigned long chip = std::strtoul(placement.c_str() + colon + 1, nullptr, 10);
  CALRT_TRY_ASSIGN(const Topology topology, device.topology());
  const std::vector<uint64_t>& sessions = topology.session_chips;
  for (size_t i = 0; chip < 64 && i < sessions.size(); ++i)
    if ((sessions[i] >> chip & 1) != 0) return static_cast<uint32_t>(i);
  return 0;
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

// What a load asks the driver for. Points into itself and into the request: it stays where it is.
struct LoadCall {
  ResolvedLoad asked;
  cald_load_options options{};
};

Result<std::unique_ptr<LoadCall>> prepare(Device& device, const Package& package,
                                          const LoadRequest& request) {
  CALRT_TRY(device.check_open());
  if (package.verdict().rejected()) return package.verdict().error();
  CALRT_TRY_ASSIGN(ResolvedLoad asked, package.resolve(request));
  CALRT_TRY_ASSIGN(const DeviceInfo info, device.info());
  CALRT_TRY(check_target(package.manifest(), info));
  CALRT_TRY(check_versions(package.manifest(), info, device.table().abi_version));
  CALRT_TRY(check_standin(package.manifest(), info.driver, request.allow_standin));
  CALRT_TRY(check_topology(device, asked));

  auto call = std::make_unique<LoadCall>();
  call->asked = std::move(asked);
  cald_load_options& options = call->options;
  options.struct_size = sizeof options;
  options.lanes = call->asked.lanes;
  options.cells = call->asked.cells;
  options.compute = call->asked.compute;
  options.kv_dtype = call->asked.kv_dtype;
  options.logits_dtype = call->asked.logits_dtype;
  options.parallel = call->asked.parallel.c_str();
  options.placement = call->asked.placement.c_str();
  options.n_profiles = static_cast<uint32_t>(call->asked.profiles.size());
  options.n_chunks = static_cast<uint32_t>(call->asked.chunks.size());
  options.profiles = call->asked.profiles.data();
  options.chunks = call->asked.chunks.data();
  if (request.progress) {
    options.user = const_cast<std::function<bool(uint64_t, uint64_t)>*>(&request.progress);
    options.progress = report_progress;
  }
  return call;
}

}  // namespace

Result<cald_footprint> Device::ask_footprint(const Package& package,
                                             const cald_load_options& options) {
  const auto entry = CALRT_DRIVER_ENTRY(table(), model_footprint);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "footprint: driver %s cannot tell before a load",
                table().name);
  cald_footprint need{};
  need.struct_size = sizeof need;
  CALRT_TRY(call_alone("model_footprint", [&](cald_error* detail) {
    return entry(handle(), &package.typed(), &options, &need, detail);
  }));
  return need;
}

Result<cald_footprint> Device::footprint(const Package& package, const LoadRequest& request) {
  CALRT_TRY_ASSIGN(const auto call, prepare(*this, package, request));
  return ask_footprint(package, call->options);
}

Result<std::shared_ptr<Model>> Model::load(std::shared_ptr<Device> device,
                                           std::shared_ptr<const Package> package,
                                           const LoadRequest& request) {
  CALRT_TRY_ASSIGN(const auto call, prepare(*device, *package, request));
  const cald_driver_table& table = device->table();
  if (CALRT_DRIVER_ENTRY(table, model_footprint) != nullptr &&
      request.withheld.count("footprint") == 0) {
    CALRT_TRY_ASSIGN(const cald_footprint need, device->ask_footprint(*package, call->options));
    CALRT_TRY_ASSIGN(const DeviceInfo info, device->info());
    CALRT_TRY(check_room(need, info));
  }

  std::shared_ptr<Model> model(new Model);
  model->device_ = device;
  model->package_ = package;
  model->generation_ = ++last_generation;
  model->losses_ = device->losses();
  model->withheld_ = request.withheld;
  CALRT_TRY_ASSIGN(model->session_index_, session_for(*device, call->asked.placement));
  cald_model* handle = nullptr;
  CALRT_TRY(device->call_alone("model_load", [&](cald_error* detail) {
    return table.model_load(device->handle(), &package->typed(), &call->options, &handle, detail);
  }));
  if (handle == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", "model_load"};
  model->handle_ = ModelHandle({handle, &table});
  CALRT_TRY(model->read_info(call->asked));
  return model;
}

}  // namespace calrt
