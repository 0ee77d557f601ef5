// SPDX-License-Identifier: Apache-2.0
// INFO: what a driver tells of its devices.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "conformance/player.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;

CONFORMANCE_CHECK("INFO-01", "") {
  cald_driver* driver = kit.driver();
  uint32_t count = 0;
  kit.ok("device_count",
         [&](cald_error* err) { return kit.table().device_count(driver, &count, err); });
  REQUIRE(count > 0, "there are 0 devices");
  cald_device_info info{};
  info.struct_size = sizeof info;
  for (uint32_t i = 0; i < count; ++i)
    kit.ok("device_enumerate",
           [&](cald_error* err) { return kit.table().device_enumerate(driver, i, &info, err); });
  const cald_status status = kit.refused(
      "one device too many", "device_enumerate",
      [&](cald_error* err) { return kit.table().device_enumerate(driver, count, &info, err); });
  REQUIRE(status == CALD_OUT_OF_RANGE, "device %u of %u was answered %d, not OUT_OF_RANGE (%d)",
          count, count, status, CALD_OUT_OF_RANGE);
}

CONFORMANCE_CHECK("INFO-03", "") {
  const cald_device_info& info = kit.info();
  REQUIRE(info.name != nullptr && *info.name != '\0', "the device has no name");
  REQUIRE(info.device_class != nullptr && *info.device_class != '\0',
          "device_class is empty: no package can be made for it");
  REQUIRE(info.runtime != nullptr, "runtime is NULL; \"\" is for unknown");
  REQUIRE(info.chips > 0, "the device has 0 chips");
  REQUIRE(info.sessions > 0, "the device has 0 sessions");
  REQUIRE(info.depth > 0, "depth 0: no job could run");
  REQUIRE(info.exclusive <= 1, "exclusive is %u", info.exclusive);
  REQUIRE(info.memory_bytes == 0 || info.memory_free <= info.memory_bytes,
          "%llu bytes of %llu are free", static_cast<ull>(info.memory_free),
          static_cast<ull>(info.memory_bytes));
  REQUIRE(info.domains < 16, "domains %#x: 1, 2, 4 and 8 are known", info.domains);
  REQUIRE(info.completion >= CALD_COMPLETION_CALLBACK && info.completion <= CALD_COMPLETION_POLL,
          "completion is %d", info.completion);
  REQUIRE(info.clock <= CALD_CLOCK_VIRTUAL, "clock is %u", info.clock);
  REQUIRE(info.clock == CALD_CLOCK_REAL || info.completion == CALD_COMPLETION_POLL,
          "a virtual clock moves by poll, and completion is %d", info.completion);
  REQUIRE(info.completion != CALD_COMPLETION_POLL || CONFORMANCE_HAS(kit, poll),
          "completion is POLL and there is no poll");
}

CONFORMANCE_CHECK("INFO-04", "option") {
  kit.close_device();
  cald_device_options options = kit.device_options();
  const cald_option unknown = {"conformance_no_such_option", "1"};
  options.n_options = 1;
  options.options = &unknown;
  cald_device* made = nullptr;
  const cald_status status = kit.open_device(options, &made);
  if (status == CALD_OK) kit.table().device_close(made);
  REQUIRE(status == CALD_INVALID_ARGUMENT, "an unknown option was answered %d", status);
  REQUIRE(made == nullptr, "an unknown option was refused, and a handle given");
}

CONFORMANCE_CHECK("INFO-04", "config") {
  kit.close_device();
  cald_device_options options = kit.device_options();
  options.config = "conformance-no-such-configuration";
  cald_device* made = nullptr;
  const cald_status status = kit.open_device(options, &made);
  if (status == CALD_OK) kit.table().device_close(made);
  REQUIRE(status != CALD_OK, "an unknown configuration was accepted");
  REQUIRE(made == nullptr, "an unknown configuration was refused, and a handle given");
}

CONFORMANCE_CHECK("INFO-04", "index") {
  kit.close_device();
  cald_device_options options = kit.device_options();
  options.index = 1u << 30;
  cald_device* made = nullptr;
  const cald_status status = kit.open_device(options, &made);
  if (status == CALD_OK) kit.table().device_close(made);
  REQUIRE(status == CALD_OUT_OF_RANGE, "device %u was answered %d, not OUT_OF_RANGE (%d)",
          options.index, status, CALD_OUT_OF_RANGE);
  REQUIRE(made == nullptr, "device %u was refused, and a handle given", options.index);
}

CONFORMANCE_CHECK("INFO-02", "") {
  if (!kit.subject().config.empty()) skip("what a configuration opens is not what is enumerated");
  cald_driver* driver = kit.driver();
  cald_device_info listed{};
  listed.struct_size = sizeof listed;
  kit.ok("device_enumerate", [&](cald_error* err) {
    return kit.table().device_enumerate(driver, kit.subject().index, &listed, err);
  });
  const cald_device_info& opened = kit.info();
  const auto same = [](const char* what, const char* a, const char* b) {
    REQUIRE(std::string(a != nullptr ? a : "") == (b != nullptr ? b : ""),
            "%s is \"%s\" when enumerated, \"%s\" when opened", what, a, b);
  };
  same("name", listed.name, opened.name);
  same("device_class", listed.device_class, opened.device_class);
  same("runtime", listed.runtime, opened.runtime);
  same("id", listed.id, opened.id);
  REQUIRE(listed.chips == opened.chips && listed.sessions == opened.sessions &&
              listed.depth == opened.depth && listed.queue == opened.queue &&
              listed.domains == opened.domains,
          "chips, sessions, depth, queue or domains are others when enumerated");
}

// A list by the protocol of device_caps and device_counters; `blank` is what an entry is before.
template <class T, class Fetch>
std::vector<T> fetch_list(Kit& kit, const char* entry, const T& blank, Fetch&& fetch) {
  uint32_t all = 0xA7A7;
  kit.ok(entry, [&](cald_error* err) { return fetch(nullptr, &(all = 0), err); });
  REQUIRE(all < 100'000, "%s: %u entries", entry, all);
  for (const uint32_t room : {all / 2, all, all + 3}) {
    std::vector<T> list(all + 8, blank);
    uint32_t count = room;
    kit.ok(entry, [&](cald_error* err) { return fetch(list.data(), &count, err); });
    REQUIRE(count == all, "%s: %u entries with room for %u, %u with none", entry, count, room, all);
    for (uint32_t i = std::min(room, all); i < list.size(); ++i)
      REQUIRE(std::memcmp(&list[i], &blank, sizeof blank) == 0,
              "%s wrote entry %u with room for %u of %u", entry, i, room, all);
  }
  std::vector<T> list(all, blank);
  kit.ok(entry, [&](cald_error* err) { return fetch(list.data(), &all, err); });
  return list;
}

std::vector<cald_cap> caps_of(Kit& kit) {
  cald_device* device = kit.device();
  cald_cap blank;
  std::memset(static_cast<void*>(&blank), 0x5A, sizeof blank);
  blank.struct_size = sizeof blank;
  return fetch_list(kit, "device_caps", blank,
                    [&](cald_cap* out, uint32_t* count, cald_error* err) {
                      return kit.table().device_caps(device, out, count, err);
                    });
}

std::vector<cald_counter> counters_of(Kit& kit) {
  cald_device* device = kit.device();
  cald_counter blank;
  std::memset(static_cast<void*>(&blank), 0x5A, sizeof blank);
  return fetch_list(kit, "device_counters", blank,
                    [&](cald_counter* out, uint32_t* count, cald_error* err) {
                      return kit.table().device_counters(device, out, count, err);
                    });
}

CONFORMANCE_CHECK("INFO-05", "caps") { caps_of(kit); }
CONFORMANCE_CHECK("INFO-05", "counters") {
  NEEDS_ENTRY(kit, device_counters);
  counters_of(kit);
}

CONFORMANCE_CHECK("INFO-06", "") {
  std::set<std::string> names;
  for (const cald_cap& cap : caps_of(kit)) {
    REQUIRE(cap.struct_size == sizeof cap, "a cap's struct_size became %u", cap.struct_size);
    REQUIRE(cap.name != nullptr && *cap.name != '\0', "a capability has no name");
    REQUIRE(names.insert(cap.name).second, "capability \"%s\" stands twice", cap.name);
    REQUIRE(cap.level >= 0 && cap.level <= 4, "capability \"%s\": level %d", cap.name, cap.level);
    REQUIRE(cap.source != nullptr && *cap.source != '\0',
            "capability \"%s\" does not say why its level is %d", cap.name, cap.level);
  }
}

CONFORMANCE_CHECK("INFO-07", "") {
  NEEDS_ENTRY(kit, device_counters);
  std::map<std::string, uint64_t> before;
  for (const cald_counter& counter : counters_of(kit)) {
    REQUIRE(counter.name != nullptr && *counter.name != '\0', "a counter has no name");
    REQUIRE(before.emplace(counter.name, counter.value).second, "counter \"%s\" stands twice",
            counter.name);
  }
  for (int round = 0; round < 3; ++round) {
    if (kit.subject().package != nullptr) {
      Player player(kit);
      player.fill(player.call(0));
      player.call(0).run();
    }
    const std::vector<cald_counter> now = counters_of(kit);
    REQUIRE(now.size() == before.size(), "there were %zu counters, now there are %zu",
            before.size(), now.size());
    for (const cald_counter& counter : now) {
      uint64_t& last = before[counter.name];
      REQUIRE(counter.value >= last, "counter \"%s\" went from %llu down to %llu", counter.name,
              static_cast<ull>(last), static_cast<ull>(counter.value));
      last = counter.value;
    }
  }
}

CONFORMANCE_CHECK("INFO-08", "") {
  NEEDS_ENTRY(kit, device_topology);
  cald_device* device = kit.device();
  const cald_device_info& info = kit.info();
  cald_topology is{};
  is.struct_size = sizeof is;
  kit.ok("device_topology",
         [&](cald_error* err) { return kit.table().device_topology(device, &is, err); });
  REQUIRE(is.n_chips == info.chips, "%u chips, the device has %u", is.n_chips, info.chips);
  REQUIRE(is.n_sessions == info.sessions, "%u sessions, the device has %u", is.n_sessions,
          info.sessions);
  REQUIRE(is.n_chips <= 64 && is.chips != nullptr && is.session_chips != nullptr,
          "%u chips, or a list that is NULL", is.n_chips);
  for (uint32_t i = 0; i < is.n_chips; ++i)
    REQUIRE(is.chips[i] != nullptr && is.chips[i]->index == i && is.chips[i]->name != nullptr,
            "chip %u has another index, or no name", i);
  const uint64_t all = is.n_chips == 64 ? UINT64_MAX : (uint64_t{1} << is.n_chips) - 1;
  for (uint32_t s = 0; s < is.n_sessions; ++s)
    REQUIRE(is.session_chips[s] != 0 && (is.session_chips[s] & ~all) == 0,
            "session %u runs on chips %#llx of %u", s, static_cast<ull>(is.session_chips[s]),
            is.n_chips);
  for (uint32_t l = 0; l < is.n_links; ++l)
    for (const uint32_t end : {is.links[l].from, is.links[l].to})
      REQUIRE(end < is.n_chips || end == CALD_HOST_CHIP, "link %u leads to chip %u of %u", l, end,
              is.n_chips);
  REQUIRE(is.n_modes > 0 && is.n_placements > 0,
          "no mode, or no placement: nothing could be loaded");
  for (uint32_t m = 0; m < is.n_modes; ++m)
    REQUIRE(is.modes[m] != nullptr && *is.modes[m] != '\0', "mode %u has no name", m);
  for (uint32_t p = 0; p < is.n_placements; ++p)
    REQUIRE(is.placements[p] != nullptr && *is.placements[p] != '\0', "placement %u has no name",
            p);
}

CONFORMANCE_CHECK("INFO-09", "") {
  NEEDS_ENTRY(kit, device_health);
  cald_device* device = kit.device();
  cald_health is{sizeof is, -1, -1e9, -1e9, -1e9};
  kit.ok("device_health",
         [&](cald_error* err) { return kit.table().device_health(device, &is, err); });
  REQUIRE(is.state >= CALD_HEALTH_OK && is.state <= CALD_HEALTH_FAILED, "state %d", is.state);
  const auto can_be = [](const char* what, double value, double low, double high) {
    REQUIRE(std::isnan(value) || (value >= low && value <= high), "%s is %g", what, value);
  };
  can_be("temperature_c", is.temperature_c, -273.15, 300);
  can_be("power_w", is.power_w, 0, 100'000);
  can_be("clock_mhz", is.clock_mhz, 0, 1'000'000);
}

CONFORMANCE_CHECK("INFO-10", "") {
  const cald_device_info info = kit.info();
  const std::string name = info.name, device_class = info.device_class;
  const std::vector<cald_cap> caps = caps_of(kit);
  std::vector<std::string> names;
  for (const cald_cap& cap : caps) names.emplace_back(cap.name != nullptr ? cap.name : "");
  kit.close_device();
  REQUIRE(name == info.name && device_class == info.device_class,
          "the device is closed, and its name has changed");
  for (size_t i = 0; i < caps.size(); ++i)
    REQUIRE(caps[i].name == nullptr || names[i] == caps[i].name,
            "the device is closed, and the name of a capability has changed");
}

CONFORMANCE_CHECK("INFO-11", "") {
  cald_device* device = kit.device();
  kit.close_session();
  cald_session* made = nullptr;
  const cald_status status =
      kit.refused("a session too many", "session_open", [&](cald_error* err) {
        return kit.table().session_open(device, kit.info().sessions, &made, err);
      });
  REQUIRE(made == nullptr, "session %u of %u was refused (%d), and a handle given",
          kit.info().sessions, kit.info().sessions, status);
}

CONFORMANCE_CHECK("INFO-13", "") {
  cald_device* device = kit.device();
  cald_session* const open = kit.session();
  cald_session* made = nullptr;
  const cald_status status = kit.call("session_open", [&](cald_error* err) {
    return kit.table().session_open(device, 0, &made, err);
  });
  if (status == CALD_OK && made != open) kit.table().session_close(made);
  REQUIRE(status == CALD_INVALID_STATE,
          "session 0 is open, and to open it again was answered %d, not INVALID_STATE (%d)", status,
          CALD_INVALID_STATE);
  REQUIRE(made == nullptr, "session 0 was refused as it is open, and a handle given");
  const auto runs = [&] {
    if (kit.subject().package == nullptr) return;
    Player player(kit);
    player.fill(player.call(0));
    player.call(0).run();
  };
  runs();  // the refusal changes nothing
  kit.close_session();
  (void)kit.session();  // and what is closed can be opened
  runs();
}

CONFORMANCE_CHECK("INFO-12", "") {
  const bool kv = CONFORMANCE_HAS(kit, kv_info) && CONFORMANCE_HAS(kit, kv_submit);
  const std::map<std::string, bool> there = {
      {"cancel", CONFORMANCE_HAS(kit, job_cancel)},
      {"timing", CONFORMANCE_HAS(kit, job_timing)},
      {"footprint", CONFORMANCE_HAS(kit, model_footprint)},
      {"binding_sets",
       CONFORMANCE_HAS(kit, binding_set_make) && CONFORMANCE_HAS(kit, binding_set_free)},
      {"trace", CONFORMANCE_HAS(kit, trace_start) && CONFORMANCE_HAS(kit, trace_drain)},
      {"kv_clear", kv},
      {"lane_copy", kv},
      {"range_copy", kv},
      {"k_rotate", kv},
      {"kv_read", kv},
      {"kv_write", kv},
  };
  for (const cald_cap& cap : caps_of(kit)) {
    const auto known = there.find(cap.name);
    REQUIRE(known == there.end() || known->second || cap.value == 0 || cap.level > 2,
            "capability \"%s\" is claimed, and its entry is NULL", cap.name);
  }
}

}  // namespace
}  // namespace calrt::conformance
