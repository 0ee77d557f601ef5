// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/device.h"

namespace calrt::calrt076 {
namespace {

// What the adapter adds of its own. It rests on tests with a stand-in for the SDK: built, not
// accepted on the device.
constexpr sdk::Assumption kOwn[] = {
    {"cancel", 2, 1, "calrt076: of a job in the adapter's queue; a run is never stopped"},
    {"queue", 2, 1, "calrt076: the adapter's own queue"},
    {"timing", 2, 1, "calrt076: measured around the SDK's calls"},
    {"completion_callback", 2, 1, "calrt076: told by the adapter's thread"},
    {"padding_rows", 2, 1, "calrt076: a run of padding alone is not given to the SDK"},
    {"package_directory", 2, 1,
     "calrt076: of /proc/self/fd of the files, which lie in one directory"},
    {"load_cancel", 3, 0, "needs the vendor: a load that tells its progress, or can be stopped"},
    {"footprint", 3, 0, "needs the vendor: what a load will take"},
    {"binding_sets", 1, 0, "SDK header: ping and pong; not used while one run is outstanding"},
};

const char* runtime_version() {
  static const std::string version = sdk::version();
  return version.c_str();
}

}  // namespace

Result<std::unique_ptr<cald_device>> open_device(cald_driver* driver,
                                                 const cald_device_options& options) {
  uint32_t count = 0;
  CALRT_TRY(told(sdk::count(&count), "counting devices"));
  if (options.index >= count)
    return fail(Status::OUT_OF_RANGE, "device index %u: there are %u", options.index, count);
  if (options.config != nullptr && *options.config != '\0')
    return fail(Status::INVALID_ARGUMENT, "calrt076:%.64s: calrt076 takes no configuration",
                options.config);
  if (options.n_options != 0)
    return fail(Status::INVALID_ARGUMENT, "option %.64s: calrt076 takes none",
                options.options->key);
  calrt_vdev* handle = nullptr;
  CALRT_TRY(told(sdk::open(options.index, &handle), "opening the VirtualDevice"));
  auto device = std::make_unique<cald_device>(driver, handle);
  sdk::DeviceFacts facts;
  CALRT_TRY(told(sdk::describe(handle, &facts), "describing the VirtualDevice"));
  const auto chips = static_cast<uint32_t>(facts.chip_bytes.size());
  if (chips != kChips)
    return fail(Status::UNSUPPORTED,
                "device %s has %u chiplets: this adapter is made for the VirtualDevice of %u",
                facts.name.c_str(), chips, kChips);
  for (uint32_t i = 0; i < chips; ++i) device->chip_names.push_back("chiplet " + std::to_string(i));
  for (uint32_t i = 0; i < chips; ++i)
    device->chips.push_back(
        {sizeof(cald_chip), i, device->chip_names[i].c_str(), facts.chip_bytes[i]});
  for (const cald_chip& chip : device->chips) device->chip_list.push_back(&chip);
  return device;
}

Result<void> describe_device(cald_device* device, cald_device_info* out) {
  cald_device_info info{};
  info.chips = kChips;
  info.name = "calrt076";
  info.device_class = "vdev-2chip";
  info.runtime = runtime_version();
  info.sessions = 1;
  info.depth = kDepth;
  info.queue = kQueue;
  info.exclusive = 1;  // the SDK does not notice another process: calrt's own lock does
  info.id = "calrt076:0";
  info.domains = CALD_DOMAIN_HOST;
  info.completion = CALD_COMPLETION_CALLBACK;
  info.clock = CALD_CLOCK_REAL;
  if (device != nullptr) {
    sdk::DeviceFacts facts;
    std::lock_guard lock(device->vdev_mutex);
    CALRT_TRY(told(sdk::describe(device->vdev, &facts), "describing the VirtualDevice"));
    for (const uint64_t bytes : facts.chip_bytes) info.memory_bytes += bytes;
    for (const uint64_t bytes : facts.chip_free) info.memory_free += bytes;
  }
  answer(out, info);
  return {};
}

void describe_topology(const cald_device& device, cald_topology* out) {
  static constexpr cald_link links[] = {{0, 1, 0, 0}};  // rate and delay are not public
  static constexpr uint64_t session_chips[] = {(1u << kChips) - 1};
  static constexpr const char* modes[] = {"none", "tensor"};
  // No chiplet by itself: packages of one chiplet need the vendor (C3).
  static constexpr const char* placements[] = {"any", "chips:0+1"};
  cald_topology topology{};
  topology.n_chips = static_cast<uint32_t>(device.chip_list.size());
  topology.chips = device.chip_list.data();
  topology.n_links = std::size(links);
  topology.links = links;
  topology.n_sessions = std::size(session_chips);
  topology.session_chips = session_chips;
  topology.n_modes = std::size(modes);
  topology.modes = modes;
  topology.n_placements = std::size(placements);
  topology.placements = placements;
  answer(out, topology);
}

void list_caps(cald_cap* out, uint32_t* count) {
  std::vector<sdk::Assumption> all(std::begin(kOwn), std::end(kOwn));
  all.insert(all.end(), sdk::assumptions().begin(), sdk::assumptions().end());
  const uint32_t room = out != nullptr ? *count : 0;
  *count = static_cast<uint32_t>(all.size());
  for (uint32_t i = 0; i < *count && i < room; ++i) {
    cald_cap cap{};
    cap.level = all[i].level;
    cap.name = all[i].name;
    cap.source = all[i].source;
    cap.value = all[i].value;
    answer(&out[i], cap);
  }
}

void list_counters(const cald_device& device, cald_counter* out, uint32_t* count) {
  const cald_counter all[] = {{"jobs", device.jobs},
                              {"tokens", device.tokens},
                              {"stray_ends", device.stray_ends},
                              {"wait_errors", device.wait_errors},
                              {"reruns", device.reruns}};
  const uint32_t room = out != nullptr ? *count : 0;
  *count = std::size(all);
  for (uint32_t i = 0; i < *count && i < room; ++i) out[i] = all[i];
}

}  // namespace calrt::calrt076

// A model that could not be unloaded keeps the SDK's device open: closing it would be misuse, which
// may end the process.
cald_device::~cald_device() {
  if (models == 0) (void)calrt::calrt076::sdk::close(vdev);
}
