// SPDX-License-Identifier: Apache-2.0
// BIND: binding sets, buffers of a graph that are made known once.
#include "conformance/player.h"

namespace calrt::conformance {
namespace {

using SetHandle = BindingSetHandle;

cald_status make(Kit& kit, uint32_t graph, const std::vector<cald_binding>& bindings,
                 SetHandle* out) {
  cald_model* model = kit.model();
  cald_binding_set* made = nullptr;
  const cald_status status = kit.call("binding_set_make", [&](cald_error* err) {
    return kit.table().binding_set_make(model, graph, bindings.data(),
                                        static_cast<uint32_t>(bindings.size()), &made, err);
  });
  REQUIRE((status == CALD_OK) == (made != nullptr), "binding_set_make answered %d and gave %s",
          status, made == nullptr ? "no handle" : "a handle");
  *out = SetHandle({made, &kit.table()});
  return status;
}

SetHandle made_of(Kit& kit, uint32_t graph, const std::vector<cald_binding>& bindings) {
  SetHandle set;
  const cald_status status = make(kit, graph, bindings, &set);
  REQUIRE(status == CALD_OK, "binding_set_make answered %d: %s", status, kit.message().c_str());
  return set;
}

void run_with(Kit& kit, GraphCall& call, const SetHandle& set) {
  Told* told = Told::make();
  cald_job_desc desc = call.desc({9}, told);
  desc.set = set.get().pointer;
  cald_session* session = kit.session();
  cald_job* made = nullptr;
  kit.ok("submit", [&](cald_error* err) { return kit.table().submit(session, &desc, &made, err); });
  Job(kit, made, told, 9).expect(CALD_JOB_DONE, "a job with a binding set");
  call.check_guards();
}

CONFORMANCE_CHECK("BIND-01", "") {
  NEEDS_ENTRY(kit, binding_set_make);
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    player.fill(call);
    call.buffer(CALD_ROLE_LOGITS).fill(0);
    call.run();
    const Bytes without = call.buffer(CALD_ROLE_LOGITS).read();
    const SetHandle set = made_of(kit, graph, call.bindings());
    for (int round = 0; round < 2; ++round) {
      call.buffer(CALD_ROLE_LOGITS).fill(0);
      run_with(kit, call, set);
      REQUIRE(call.buffer(CALD_ROLE_LOGITS).read() == without,
              "%s gives other logits with a binding set", call.graph().name);
    }
  }
}

CONFORMANCE_CHECK("BIND-02", "") {
  NEEDS_ENTRY(kit, binding_set_make);
  Player player(kit);
  GraphCall& call = player.call(0);
  player.fill(call);
  std::vector<cald_binding> array = call.bindings();
  const SetHandle set = made_of(kit, 0, array);
  std::memset(static_cast<void*>(array.data()), 0x5A, array.size() * sizeof(cald_binding));
  run_with(kit, call, set);
}

CONFORMANCE_CHECK("BIND-03", "") {
  NEEDS_ENTRY(kit, binding_set_make);
  GraphCall call(kit, 0);
  SetHandle set;
  REQUIRE(make(kit, kit.model_info().n_graphs, call.bindings(), &set) != CALD_OK,
          "a set of a graph that there is not was made");
  for (const uint64_t offset : {uint64_t{1} << 40, UINT64_MAX - 4095}) {
    std::vector<cald_binding> outside = call.bindings();
    outside.front().offset = offset;
    REQUIRE(make(kit, 0, outside, &set) != CALD_OK,
            "a set with a binding outside of its buffer was made");
  }
}

CONFORMANCE_CHECK("BIND-04", "") {
  NEEDS_ENTRY(kit, binding_set_make);
  if (kit.model_info().n_graphs < 2) skip("the model has one graph");
  Player player(kit);
  GraphCall &call = player.call(0), &other = player.call(1);
  player.fill(call);
  const SetHandle set = made_of(kit, 1, other.bindings());
  Told* told = Told::make();
  cald_job_desc desc = call.desc({9}, told);
  desc.set = set.get().pointer;
  cald_session* session = kit.session();
  cald_job* made = nullptr;
  const cald_status status = kit.call(
      "submit", [&](cald_error* err) { return kit.table().submit(session, &desc, &made, err); });
  if (status == CALD_OK) Job(kit, made, told, 9).wait();
  REQUIRE(status != CALD_OK, "a job of graph 0 with a set of graph 1 was accepted");
  REQUIRE(told->count() == 0,
          "a job with a set of another graph was refused, and on_complete came");
}

}  // namespace
}  // namespace calrt::conformance
