// SPDX-License-Identifier: Apache-2.0
// A graph's right call, made wrong in one thing: submit is to refuse it. One thread.
#pragma once

#include "conformance/player.h"

namespace calrt::conformance {

// Submits what is wrong: it is refused by a status of the argument class, nothing is told, nothing
// written, and the next right job runs.
struct Refusal {
  Kit& kit;
  Player player{kit};
  GraphCall& call;
  Bytes before;

  Refusal(Kit& on, uint32_t graph) : kit(on), call(player.call(graph)) {
    player.fill(call);
    call.buffer(CALD_ROLE_LOGITS).fill(0x5A);
    before = call.buffer(CALD_ROLE_LOGITS).read();
  }

  void expect(const char* what, cald_job_desc desc, Told* told) {
    cald_session* session = kit.session();
    cald_job* made = nullptr;
    const cald_status status = kit.call(
        "submit", [&](cald_error* err) { return kit.table().submit(session, &desc, &made, err); });
    if (status == CALD_OK) {
      if (made != nullptr) Job(kit, made, told, desc.job_seq).wait();
      broken("%s: submit accepted %s", call.graph().name, what);
    }
    REQUIRE(made == nullptr, "%s: submit refused %s, and gave a job", call.graph().name, what);
    REQUIRE(status <= CALD_UNSUPPORTED || status == CALD_MODEL_UNLOADED,
            "%s: %s was answered %d: 1 to 7 are for wrong arguments", call.graph().name, what,
            status);
    REQUIRE(told->count() == 0, "%s: submit refused %s, and on_complete came", call.graph().name,
            what);
    REQUIRE(call.buffer(CALD_ROLE_LOGITS).read() == before,
            "%s: submit refused %s, and the output was written", call.graph().name, what);
    call.check_guards();
  }
  void expect(const char* what) {
    Told* told = Told::make();
    expect(what, call.desc({}, told), told);
  }
};

template <class Each>
void each_graph(Kit& kit, Each&& each) {
  const uint32_t count = kit.model_info().n_graphs;
  for (uint32_t g = 0; g < count; ++g) {
    Refusal refusal(kit, g);
    each(refusal);
  }
}

// Another device, opened beside the shared one; skips the check where that is not possible.
inline DeviceHandle second_device(Kit& kit) {
  (void)kit.device();
  cald_device* made = nullptr;
  if (kit.open_device(kit.device_options(), &made) != CALD_OK)
    skip("a second device cannot be opened beside the first");
  return kit.own_device(made);
}

}  // namespace calrt::conformance
