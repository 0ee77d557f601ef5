// SPDX-License-Identifier: Apache-2.0
// What a device can be asked: facts, lists, topology, buffer rules, trace. All that a driver gives
// is copied, cleaned and bounded here.
#include <algorithm>

#include "base/utf8.h"
#include "calrt/device.h"

namespace calrt {
namespace {

constexpr uint32_t kMaxListed = 4096;  // caps or counters; more is a driver's mistake

std::string text_of(const char* text) {
  return text != nullptr ? clean_utf8(text, 1024) : std::string();
}

constexpr uint32_t kMaxChips = 64;  // bits of a session's mask
constexpr uint32_t kTraceBatch = 4096;
constexpr size_t kMaxDrained = size_t{1} << 20;  // events of one drain; the rest waits for the next

// The two-step protocol of the driver's lists: ask for the number, then for the entries.
template <class T, class Ask>
Result<std::vector<T>> list_of(const char* where, const T& blank, Ask&& ask) {
  uint32_t count = 0;
  CALRT_TRY(ask(nullptr, &count));
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (count > kMaxListed)
      return Error{Status::INTERNAL, 0, "the driver lists " + std::to_string(count) + " entries",
                   where};
    std::vector<T> list(count, blank);
    const uint32_t room = count;
    CALRT_TRY(ask(list.data(), &count));
    if (count <= room) {
      list.resize(count);
      return list;
    }
  }
  return Error{Status::INTERNAL, 0, "the driver's list grows each time it is asked for", where};
}

// A list that a driver gives by pointer and number.
Result<void> check_list(const char* what, uint32_t n, uint32_t most, const void* list) {
  if (n > most || (n != 0 && list == nullptr))
    return Error{
        Status::INTERNAL, 0,
        "the driver lists " + std::to_string(n) + " " + what +
            (n > most ? ", at most " + std::to_string(most) + " make sense" : " and gives no list"),
        "device_topology"};
  return {};
}

std::vector<std::string> texts_of(const char* const* list, uint32_t n) {
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < n; ++i) texts.push_back(text_of(list[i]));
  return texts;
}

Result<Topology> copy_topology(const cald_topology& raw) {
  CALRT_TRY(check_list("chips", raw.n_chips, kMaxChips, raw.chips));
  CALRT_TRY(check_list("links", raw.n_links, kMaxListed, raw.links));
  CALRT_TRY(check_list("sessions", raw.n_sessions, kMaxListed, raw.session_chips));
  CALRT_TRY(check_list("modes", raw.n_modes, kMaxListed, raw.modes));
  CALRT_TRY(check_list("placements", raw.n_placements, kMaxListed, raw.placements));
  Topology topology;
  for (uint32_t i = 0; i < raw.n_chips; ++i) {
    const cald_chip* chip = raw.chips[i];
    if (chip == nullptr || chip->struct_size < sizeof(cald_chip))
      return Error{Status::INTERNAL, 0,
                   "the driver describes chip " + std::to_string(i) + " incompletely",
                   "device_topology"};
    topology.chips.push_back({chip->index, text_of(chip->name), chip->memory_bytes});
  }
  const auto is_end = [&](uint32_t end) { return end < raw.n_chips || end == CALD_HOST_CHIP; };
  for (uint32_t i = 0; i < raw.n_links; ++i) {
    const cald_link& link = raw.links[i];
    if (!is_end(link.from) || !is_end(link.to))
      return Error{Status::INTERNAL, 0,
                   "the driver links chip " + std::to_string(link.from) + " with " +
                       std::to_string(link.to) + " and has " + std::to_string(raw.n_chips),
                   "device_topology"};
    topology.links.push_back(link);
  }
  topology.session_chips.assign(raw.session_chips, raw.session_chips + raw.n_sessions);
  topology.modes = texts_of(raw.modes, raw.n_modes);
  topology.placements = texts_of(raw.placements, raw.n_placements);
  return topology;
}

}  // namespace

Result<DeviceInfo> Device::info() {
  CALRT_TRY(check_open());
  cald_device_info raw{};
  raw.struct_size = sizeof raw;
  CALRT_TRY(call_alone("device_info", [&](cald_error* detail) {
    return table().device_info(handle(), &raw, detail);
  }));
  DeviceInfo info;
  info.driver = text_of(table().name);
  info.driver_version = text_of(table().version);
  info.driver_path = library_->path();
  info.name = text_of(raw.name);
  info.device_class = text_of(raw.device_class);
  info.runtime = text_of(raw.runtime);
  info.chips = std::max(raw.chips, 1u);
  info.sessions = std::max(raw.sessions, 1u);
  info.depth = std::max(raw.depth, 1u);
  info.queue = raw.queue;
  info.exclusive = raw.exclusive != 0;
  info.memory_bytes = raw.memory_bytes;
  info.memory_free = raw.memory_free;
  info.id = text_of(raw.id);
  info.domains = raw.domains;
  info.completion = raw.completion;
  info.clock = raw.clock;
  return info;
}

Result<cald_health> Device::health() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), device_health);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "health: driver %s cannot tell", table().name);
  cald_health health{};
  health.struct_size = sizeof health;
  CALRT_TRY(call_alone("device_health",
                       [&](cald_error* detail) { return entry(handle(), &health, detail); }));
  return health;
}

Result<std::vector<Capability>> Device::caps() {
  CALRT_TRY(check_open());
  cald_cap blank{};
  blank.struct_size = sizeof blank;
  CALRT_TRY_ASSIGN(const std::vector<cald_cap> raw,
                   list_of("device_caps", blank, [&](cald_cap* out, uint32_t* count) {
                     return call_alone("device_caps", [&](cald_error* detail) {
                       return table().device_caps(handle(), out, count, detail);
                     });
                   }));
  std::vector<Capability> caps;
  for (const cald_cap& cap : raw)
    caps.push_back({text_of(cap.name), text_of(cap.source), cap.level, cap.value});
  return caps;
}

Result<std::vector<std::pair<std::string, uint64_t>>> Device::counters() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), device_counters);
  std::vector<std::pair<std::string, uint64_t>> counters;
  if (entry != nullptr) {
    CALRT_TRY_ASSIGN(
        const std::vector<cald_counter> raw,
        list_of("device_counters", cald_counter{}, [&](cald_counter* out, uint32_t* count) {
          return call_alone("device_counters", [&](cald_error* detail) {
            return entry(handle(), out, count, detail);
          });
        }));
    for (const cald_counter& counter : raw)
      counters.emplace_back(text_of(counter.name), counter.value);
  }
  for (const auto& layer : library_->layers())
    for (const auto& [name, value] : layer->counters())
      counters.emplace_back(std::string(layer->name()) + "." + name, value);
  return counters;
}

Result<Topology> Device::topology() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), device_topology);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "topology: driver %s does not tell it", table().name);
  cald_topology raw{};
  raw.struct_size = sizeof raw;
  CALRT_TRY(call_alone("device_topology",
                       [&](cald_error* detail) { return entry(handle(), &raw, detail); }));
  return copy_topology(raw);
}

Result<BufferRules> Device::buffer_rules(uint32_t domain) {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), buffer_rules);
  if (entry == nullptr) return BufferRules{};
  cald_buffer_rules raw{};
  raw.struct_size = sizeof raw;
  raw.domain = domain;
  CALRT_TRY(call_alone("buffer_rules",
                       [&](cald_error* detail) { return entry(handle(), domain, &raw, detail); }));
  if (raw.align == 0 || (raw.align & (raw.align - 1)) != 0 || raw.padding == 0)
    return Error{Status::INTERNAL, 0,
                 "the driver's rules for domain " + std::to_string(domain) + " are align " +
                     std::to_string(raw.align) + ", padding " + std::to_string(raw.padding) +
                     ": a power of two and at least 1 are due",
                 "buffer_rules"};
  return BufferRules{raw.align, raw.padding, raw.max_bytes};
}

Result<void> Device::trace_start(uint32_t capacity) {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), trace_start);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "trace: driver %s records none", table().name);
  if (capacity == 0 || capacity > kMaxDrained)
    return fail(Status::OUT_OF_RANGE, "trace: capacity=%u is outside 1 to %zu events", capacity,
                kMaxDrained);
  return call_alone("trace_start",
                    [&](cald_error* detail) { return entry(handle(), capacity, detail); });
}

Result<DeviceTrace> Device::trace_drain() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), trace_drain);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "trace: driver %s records none", table().name);
  DeviceTrace trace;
  cald_trace_info info{};
  info.struct_size = sizeof info;
  std::vector<cald_trace_event> batch(kTraceBatch);
  while (trace.events.size() < kMaxDrained) {
    uint32_t count = kTraceBatch;
    CALRT_TRY(call_alone("trace_drain", [&](cald_error* detail) {
      return entry(handle(), batch.data(), &count, &info, detail);
    }));
    if (count > kTraceBatch)
      return Error{Status::INTERNAL, 0,
                   "the driver wrote " + std::to_string(count) + " events where " +
                       std::to_string(kTraceBatch) + " had room",
                   "trace_drain"};
    for (uint32_t i = 0; i < count; ++i) {
      const cald_trace_event& event = batch[i];
      trace.events.push_back(
          {event.t_ns, event.id, text_of(event.name), event.phase, event.track, event.value});
    }
    if (count < kTraceBatch) break;
  }
  trace.dropped = info.dropped;
  trace.device_clock_ns = info.device_ns;
  trace.host_clock_ns = info.host_ns;
  trace.residual_ns = info.residual_ns;
  return trace;
}

Result<void> Device::trace_stop() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), trace_stop);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "trace: driver %s records none", table().name);
  return call_alone("trace_stop", [&](cald_error* detail) { return entry(handle(), detail); });
}

}  // namespace calrt
