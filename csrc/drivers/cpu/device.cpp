// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/device.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "drivers/cpu/session.h"

uint64_t cald_driver::now_ns() const {
  if (host != nullptr && host->now_ns != nullptr) return host->now_ns(host->user);
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

namespace calrt::cpu {
namespace {

constexpr uint32_t kMostThreads = 256;

// Level 0: proven by this source.
const struct {
  const char* name;
  int64_t value;
} kCaps[] = {
    {"async_native", 1},
    {"cancel", 1},
    {"completion_callback", 1},
    {"explicit_positions", 1},
    {"logit_rows", 1},
    {"n_valid", 1},
    {"lane_map_any", 1},
    {"padding_rows", 1},
    {"binding_sets", 0},
    {"load_cancel", 1},
    {"footprint", 1},
    {"timing", 1},
    {"depth", kDepth},
    {"queue", kQueue},
    {"compute_f32", 1},
    {"compute_bf16", 1},
    {"trace", 1},
    {"kv_clear", 1},
    {"lane_copy", 1},
    {"range_copy", 1},
    {"k_rotate", 1},
    {"kv_read", 1},
    {"kv_write", 1},
    {"kv_f32", 1},
    {"kv_bf16", 1},
    {"logits_f32", 1},
    {"logits_bf16", 1},
};

Result<uint32_t> parse_threads(const char* text) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < 1 || value > static_cast<long>(kMostThreads))
    return fail(Status::INVALID_ARGUMENT, "option threads=%.40s: 1 to %u expected", text,
                kMostThreads);
  return static_cast<uint32_t>(value);
}

uint64_t memory_bytes() {  // of the machine, 0 if unknown
  const long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
  return page > 0 && pages > 0 ? static_cast<uint64_t>(page) * static_cast<uint64_t>(pages) : 0;
}

}  // namespace

uint32_t default_threads() {
  uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    std::set<std::string> distinct;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      std::ifstream siblings("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                             "/topology/thread_siblings_list");
      std::string list;
      std::getline(siblings, list);
      distinct.insert(list.empty() ? std::to_string(cpu) : list);
    }
    cores = std::max<uint32_t>(1, static_cast<uint32_t>(distinct.size()));
  }
#endif
  return std::min(cores, 8u);
}

Result<std::unique_ptr<cald_device>> open_device(cald_driver* driver,
                                                 const cald_device_options& options) {
  if (options.index != 0)
    return fail(Status::OUT_OF_RANGE, "device index %u: cpu has one device, 0", options.index);
  if (options.config != nullptr && *options.config != '\0')
    return fail(Status::INVALID_ARGUMENT, "cpu takes no configuration, got \"%.40s\"",
                options.config);
  auto device = std::make_unique<cald_device>();
  device->driver = driver;
  device->threads = 0;
  if (options.n_options != 0 && options.options == nullptr)
    return fail(Status::INVALID_ARGUMENT, "options is null");
  for (uint32_t i = 0; i < options.n_options; ++i) {
    const cald_option& option = options.options[i];
    const char* key = option.key == nullptr ? "" : option.key;
    if (std::strcmp(key, "threads") != 0)
      return fail(Status::INVALID_ARGUMENT, "unknown option \"%.40s\"; cpu knows: threads", key);
    CALRT_TRY_ASSIGN(device->threads, parse_threads(option.value == nullptr ? "" : option.value));
  }
  if (device->threads == 0) device->threads = default_threads();
  CALRT_TRY_ASSIGN(device->isa, select_isa());
  device->kernels = &kernels_of(device->isa);
  return device;
}

void describe_device(cald_device_info* out) {
  cald_device_info info{};
  info.chips = 1;
  info.name = "cpu";
  info.device_class = "cpu-ref";
  info.runtime = "";
  info.sessions = 1;
  info.depth = kDepth;
  info.queue = kQueue;
  info.exclusive = 0;
  info.memory_bytes = memory_bytes();
#ifdef _SC_AVPHYS_PAGES
  const long page = sysconf(_SC_PAGESIZE), free = sysconf(_SC_AVPHYS_PAGES);
  if (page > 0 && free > 0) info.memory_free = static_cast<uint64_t>(page) * free;
#endif
  info.id = "cpu:0";
  info.domains = CALD_DOMAIN_HOST;
  info.completion = CALD_COMPLETION_CALLBACK;
  info.clock = CALD_CLOCK_REAL;
  answer(out, info);
}

void describe_topology(cald_topology* out) {
  static const cald_chip chip{sizeof(cald_chip), 0, "cpu", memory_bytes()};
  static const cald_chip* const chips[] = {&chip};
  static const uint64_t session_chips[] = {1};
  static const char* const modes[] = {"none"};
  static const char* const placements[] = {"any", "chip:0"};
  cald_topology topology{};
  topology.n_chips = 1;
  topology.chips = chips;
  topology.n_sessions = 1;
  topology.session_chips = session_chips;
  topology.n_modes = std::size(modes);
  topology.modes = modes;
  topology.n_placements = std::size(placements);
  topology.placements = placements;
  answer(out, topology);
}

cald_status list_caps(cald_cap* out, uint32_t* count) {
  const auto all = static_cast<uint32_t>(std::size(kCaps));
  for (uint32_t i = 0; out != nullptr && i < std::min(*count, all); ++i) {
    out[i].level = 0;
    out[i].name = kCaps[i].name;
    out[i].source = "this driver's tests";
    out[i].value = kCaps[i].value;
  }
  *count = all;
  return CALD_OK;
}

cald_status list_counters(const cald_device& device, cald_counter* out, uint32_t* count) {
  const cald_counter all[] = {{"jobs", device.jobs.load()},
                              {"tokens", device.tokens.load()},
                              {"busy_ns", device.busy_ns.load()}};
  const auto n = static_cast<uint32_t>(std::size(all));
  for (uint32_t i = 0; out != nullptr && i < std::min(*count, n); ++i) out[i] = all[i];
  *count = n;
  return CALD_OK;
}

}  // namespace calrt::cpu
