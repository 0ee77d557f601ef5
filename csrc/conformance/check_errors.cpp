// SPDX-License-Identifier: Apache-2.0
// ERR: refusals. Each entry's answers are looked at whenever the kit calls it; here are some of
// every kind that a driver has to refuse.
#include "conformance/player.h"

namespace calrt::conformance {
namespace {

// Calls that are to be refused: `each(entry, call)`, where call(err) makes the call.
template <class Each>
void provoke(Kit& kit, Each&& each) {
  const cald_driver_table& table = kit.table();
  cald_driver* driver = kit.driver();
  cald_device* device = kit.device();
  cald_device_info info{};
  info.struct_size = sizeof info;
  each("device_enumerate",
       [&](cald_error* err) { return table.device_enumerate(driver, 1u << 30, &info, err); });
  cald_buffer* buffer = nullptr;
  each("buffer_alloc",
       [&](cald_error* err) { return table.buffer_alloc(device, 64, 64, 64, &buffer, err); });
  cald_session* none = nullptr;
  each("session_open", [&](cald_error* err) {
    return table.session_open(device, kit.info().sessions, &none, err);
  });
  const GuardedBuffer small(kit, kit.any_domain(), 64, 64);
  uint8_t host[16] = {};
  each("buffer_h2d", [&](cald_error* err) {
    return table.buffer_h2d(small.handle(), small.whole_bytes(), host, sizeof host, err);
  });
  each("buffer_d2h", [&](cald_error* err) {
    return table.buffer_d2h(small.handle(), small.whole_bytes(), host, sizeof host, err);
  });
  if (CONFORMANCE_HAS(kit, buffer_transfer)) {
    cald_transfer what{sizeof what, 9, small.handle(), 0, host, sizeof host, 0};
    each("buffer_transfer", [&](cald_error* err) { return table.buffer_transfer(&what, err); });
  }
  if (kit.subject().package == nullptr) return;
  Player player(kit);
  GraphCall& call = player.call(0);
  player.fill(call);
  cald_job_desc desc = call.desc({}, Told::make());
  desc.graph = UINT32_MAX;
  cald_session* session = kit.session();
  cald_job* job = nullptr;
  each("submit", [&](cald_error* err) { return table.submit(session, &desc, &job, err); });
  if (!CONFORMANCE_HAS(kit, kv_submit)) return;
  cald_kv_desc kv{};
  kv.struct_size = sizeof kv;
  kv.model = kit.model();
  kv.op = 3;
  kv.n = 1;
  each("kv_submit", [&](cald_error* err) { return table.kv_submit(session, &kv, &job, err); });
}

void all_refused(Kit& kit) {
  provoke(kit, [&](const char* entry, auto&& call) {
    REQUIRE(kit.call(entry, call) != CALD_OK, "%s accepted what cannot be", entry);
  });
}

CONFORMANCE_CHECK("ERR-01", "") { all_refused(kit); }
CONFORMANCE_CHECK("ERR-01", "completion") {
  Player player(kit);
  if (!kit.calls_back()) skip("the device tells nothing: completion is WAIT");
  GraphCall& call = player.call(0);
  player.fill(call);
  (void)kit.session();
  if (kit.virtual_clock()) kit.poll(kit.now_ns() + 1000);
  for (const uint64_t deadline : {uint64_t{1}, CALD_NO_DEADLINE}) {
    Job job = call.submit({5, deadline});
    job.wait();
    const cald_status status = job.told().last().status;
    REQUIRE(status >= 0 && status <= 29, "a completion has the status %d", status);
  }
}

CONFORMANCE_CHECK("ERR-02", "") { all_refused(kit); }
CONFORMANCE_CHECK("ERR-03", "") { all_refused(kit); }

CONFORMANCE_CHECK("ERR-04", "") {
  provoke(kit, [&](const char* entry, auto&& call) {
    const cald_status with = kit.call(entry, call), without = call(nullptr);
    REQUIRE(with == without, "%s answers %d, and %d when the error is NULL", entry, with, without);
  });
}

}  // namespace
}  // namespace calrt::conformance
