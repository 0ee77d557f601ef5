// SPDX-License-Identifier: Apache-2.0
// INFO: what a driver tells of its devices.
#include <cmath>
#include <set>
#include <string>

#include "conformance/kit.h"

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

}  // namespace
}  // namespace calrt::conformance
