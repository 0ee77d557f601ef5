// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/device.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>

uint64_t cald_driver::now_ns() const {
  if (host != nullptr && host->now_ns != nullptr) return host->now_ns(host->user);
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

calrt::Result<void> cald_device::charge(uint64_t bytes, const char* what) {
  uint64_t used = memory_used.load();
  do {
    if (bytes > settings.memory_bytes - used)
      return calrt::fail(calrt::Status::OUT_OF_DEVICE_MEMORY,
                         "%s needs %llu bytes of device memory: %llu of %llu are free", what,
                         static_cast<unsigned long long>(bytes),
                         static_cast<unsigned long long>(settings.memory_bytes - used),
                         static_cast<unsigned long long>(settings.memory_bytes));
  } while (!memory_used.compare_exchange_weak(used, used + bytes));
  return {};
}

uint64_t cald_device::scaled(uint64_t ns) const {
  if (settings.virtual_clock || settings.speed == 1) return ns;
  if (settings.speed == 0) return 0;
  return static_cast<uint64_t>(static_cast<double>(ns) / settings.speed);
}

namespace calrt::mock {
namespace {

constexpr double kLeastSpeed = 1e-3, kMostSpeed = 1e6;
constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Word {
  const char* text;
  int32_t value;
};
constexpr Word kClocks[] = {{"real", 0}, {"virtual", 1}};
constexpr Word kCompletions[] = {{"callback", CALD_COMPLETION_CALLBACK},
                                 {"wait", CALD_COMPLETION_WAIT},
                                 {"poll", CALD_COMPLETION_POLL}};
constexpr Word kFlags[] = {{"0", 0}, {"1", 1}};

template <size_t N>
Result<int32_t> read_word(const char* key, const char* text, const Word (&words)[N]) {
  std::string names;
  for (const Word& word : words) {
    if (std::strcmp(text, word.text) == 0) return word.value;
    names += (names.empty() ? "" : ", ") + std::string(word.text);
  }
  return fail(Status::INVALID_ARGUMENT, "option %s=%.40s: one of %s expected", key, text,
              names.c_str());
}

Result<double> read_speed(const char* text) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value == 0 || (value >= kLeastSpeed && value <= kMostSpeed)))
    return fail(Status::INVALID_ARGUMENT,
                "option speed=%.40s: 0 (nothing takes time) or %g to %g expected", text,
                kLeastSpeed, kMostSpeed);
  return value;
}

Result<uint64_t> read_memory(const char* text) {
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || value < 1 || value > (1 << 24))
    return fail(Status::INVALID_ARGUMENT, "option memory_mb=%.40s: 1 to %d MiB expected", text,
                1 << 24);
  return static_cast<uint64_t>(value) * kMiB;
}

// `said`: what was asked for by name, since two settings may exclude each other.
Result<void> read_option(const char* key, const char* value, Settings* settings, bool* said_mode,
                         bool* said_speed) {
  const auto is = [key](const char* name) { return std::strcmp(key, name) == 0; };
  if (is("clock")) {
    CALRT_TRY_ASSIGN(const int32_t clock, read_word(key, value, kClocks));
    settings->virtual_clock = clock == 1;
  } else if (is("completion")) {
    CALRT_TRY_ASSIGN(settings->completion, read_word(key, value, kCompletions));
    *said_mode = true;
  } else if (is("speed")) {
    CALRT_TRY_ASSIGN(settings->speed, read_speed(value));
    *said_speed = true;
  } else if (is("exclusive")) {
    CALRT_TRY_ASSIGN(const int32_t exclusive, read_word(key, value, kFlags));
    settings->exclusive = exclusive == 1;
  } else if (is("memory_mb")) {
    CALRT_TRY_ASSIGN(settings->memory_bytes, read_memory(value));
  } else {
    return fail(Status::INVALID_ARGUMENT,
                "unknown option \"%.40s\"; mock knows: clock, completion, speed, exclusive, "
                "memory_mb",
                key);
  }
  return {};
}

Result<Settings> read_settings(const Preset& preset, const cald_device_options& options) {
  Settings settings;
  settings.completion = preset.completion;
  settings.memory_bytes = preset.memory_bytes;
  bool said_mode = false, said_speed = false;
  if (options.n_options != 0 && options.options == nullptr)
    return fail(Status::INVALID_ARGUMENT, "options is null");
  for (uint32_t i = 0; i < options.n_options; ++i) {
    const cald_option& option = options.options[i];
    CALRT_TRY(read_option(option.key == nullptr ? "" : option.key,
                          option.value == nullptr ? "" : option.value, &settings, &said_mode,
                          &said_speed));
  }
  if (!settings.virtual_clock) return settings;
  if (said_mode && settings.completion != CALD_COMPLETION_POLL)
    return fail(Status::INVALID_ARGUMENT,
                "completion=%s and clock=virtual: virtual time moves by polling only; leave "
                "completion out",
                kCompletions[settings.completion].text);
  if (said_speed)
    return fail(Status::INVALID_ARGUMENT,
                "speed and clock=virtual: the caller decides how fast virtual time goes; leave "
                "speed out");
  settings.completion = CALD_COMPLETION_POLL;
  return settings;
}

}  // namespace

Result<std::unique_ptr<cald_device>> open_device(cald_driver* driver,
                                                 const cald_device_options& options) {
  if (options.index != 0)
    return fail(Status::OUT_OF_RANGE, "device index %u: mock has one device a preset, 0",
                options.index);
  auto device = std::make_unique<cald_device>();
  device->driver = driver;
  CALRT_TRY_ASSIGN(device->preset, find_preset(options.config));
  CALRT_TRY_ASSIGN(device->settings, read_settings(*device->preset, options));
  CALRT_TRY_ASSIGN(const Isa isa, select_isa());
  device->fold = fold_for(isa);
  device->opened_ns = driver->now_ns();
  return device;
}

cald_device_info describe_device(const cald_device* device, const Preset& preset) {
  cald_device_info info{};
  info.struct_size = sizeof info;
  info.chips = static_cast<uint32_t>(preset.chips.size());
  info.name = "mock";
  info.device_class = preset.device_class;
  info.runtime = "";
  info.sessions = static_cast<uint32_t>(preset.session_chips.size());
  info.depth = 1;
  info.queue = preset.queue;
  info.memory_bytes = info.memory_free = preset.memory_bytes;
  info.id = preset.id;
  info.domains = preset.domains;
  info.completion = preset.completion;
  info.clock = CALD_CLOCK_REAL;
  if (device == nullptr) return info;
  const Settings& settings = device->settings;
  info.exclusive = settings.exclusive ? 1 : 0;
  info.memory_bytes = settings.memory_bytes;
  info.memory_free = settings.memory_bytes - device->memory_used.load();
  info.completion = settings.completion;
  info.clock = settings.virtual_clock ? CALD_CLOCK_VIRTUAL : CALD_CLOCK_REAL;
  return info;
}

cald_topology describe_topology(const Preset& preset) {
  cald_topology topology{};
  topology.struct_size = sizeof topology;
  topology.n_chips = static_cast<uint32_t>(preset.chips.size());
  topology.chips = preset.chips.data();
  topology.n_links = static_cast<uint32_t>(preset.links.size());
  topology.links = preset.links.data();
  topology.n_sessions = static_cast<uint32_t>(preset.session_chips.size());
  topology.session_chips = preset.session_chips.data();
  topology.n_modes = static_cast<uint32_t>(preset.modes.size());
  topology.modes = preset.modes.data();
  topology.n_placements = static_cast<uint32_t>(preset.placement_names.size());
  topology.placements = preset.placement_names.data();
  return topology;
}

void list_caps(const cald_device& device, cald_cap* out, uint32_t* count) {
  const Preset& preset = *device.preset;
  const auto op = [&](uint32_t bit) { return (preset.kv_ops & bit) != 0 ? 1 : 0; };
  const auto map = [&](int32_t which) { return (preset.lane_maps >> which) & 1; };
  const int32_t completion = device.settings.completion;
  const struct {
    const char* name;
    int64_t value;
  } all[] = {
      {"async_native", 1},
      {"cancel", preset.cancel ? 1 : 0},
      {"completion_callback", completion == CALD_COMPLETION_CALLBACK ? 1 : 0},
      {"completion_wait", completion == CALD_COMPLETION_WAIT ? 1 : 0},
      {"completion_poll", completion == CALD_COMPLETION_POLL ? 1 : 0},
      {"virtual_clock", device.settings.virtual_clock ? 1 : 0},
      {"explicit_positions", 1},
      {"logit_rows", 1},
      {"n_valid", 1},
      {"padding_rows", 1},
      {"lane_map_none", map(CALD_LANE_MAP_NONE)},
      {"lane_map_identity", map(CALD_LANE_MAP_IDENTITY)},
      {"lane_map_any", map(CALD_LANE_MAP_ANY)},
      {"lanes", preset.most_lanes},
      {"batch", preset.most_batch},
      {"kv_clear", op(CALD_KV_CLEAR)},
      {"lane_copy", op(CALD_KV_LANE_COPY)},
      {"range_copy", op(CALD_KV_RANGE_COPY)},
      {"k_rotate", op(CALD_KV_ROTATE)},
      {"kv_read", op(CALD_KV_READ)},
      {"kv_write", op(CALD_KV_WRITE)},
      {"binding_sets", 1},
      {"load_cancel", 1},
      {"footprint", 1},
      {"timing", 1},
      {"trace", 1},
      {"depth", 1},
      {"queue", preset.queue},
  };
  const auto have = static_cast<uint32_t>(std::size(all));
  const uint32_t room = out != nullptr ? std::min(*count, have) : 0;
  for (uint32_t i = 0; i < room; ++i) {
    cald_cap cap{};
    cap.level = 0;
    cap.name = all[i].name;
    cap.source = all[i].value != 0 ? preset.source : preset.absent;
    cap.value = all[i].value;
    answer(&out[i], cap);
  }
  *count = have;
}

void list_counters(const cald_device& device, cald_counter* out, uint32_t* count) {
#define CALD_MOCK_COUNTER(name) {#name, device.counters.name.load()},
  const cald_counter all[] = {CALD_MOCK_COUNTERS(CALD_MOCK_COUNTER)};
#undef CALD_MOCK_COUNTER
  const auto have = static_cast<uint32_t>(std::size(all));
  for (uint32_t i = 0; out != nullptr && i < std::min(*count, have); ++i) out[i] = all[i];
  *count = have;
}

cald_trace_info read_clocks(cald_device& device) {
  cald_trace_info info{};
  info.struct_size = sizeof info;
  info.dropped = device.trace.dropped();
  if (device.settings.virtual_clock) {  // the host's time is the device's
    info.device_ns = info.host_ns = device.virtual_ns.load();
    return info;
  }
  // The device's clock is read between two readings of the host's, as one would on hardware.
  const uint64_t before = device.driver->now_ns();
  info.device_ns = device.device_time(device.driver->now_ns());
  const uint64_t after = device.driver->now_ns();
  info.host_ns = before + (after - before) / 2;
  info.residual_ns = (after - before + 1) / 2;
  return info;
}

}  // namespace calrt::mock
