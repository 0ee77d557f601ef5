// SPDX-License-Identifier: Apache-2.0
// Parked lanes and hosted prefixes of Kv: what a prompt may begin with.
#include <pybind11/stl.h>

#include <array>

#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {
namespace {

void enable_prefixes_of(const PyKv& self, Arg<"every", std::optional<uint32_t>> every,
                        Arg<"host_bytes", uint64_t> host_bytes) {
  run_on(self, [&]() -> Result<void> {
    CALRT_TRY_ASSIGN(const auto made, self.runner->prefixes(*every, host_bytes));
    return {};
  });
}

void park_lane(const PyKv& self, Arg<"lane", Ref<PyLane>> lane, const py::object& tokens,
               Arg<"priority", int32_t> priority, Arg<"salt", std::string> salt) {
  std::vector<int32_t> ids = self.tokens("tokens", tokens);
  run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) -> Result<void> {
    CALRT_TRY_ASSIGN(const auto prefixes, self.runner->prefixes());
    CALRT_TRY(prefixes->park(ref, std::move(ids), *salt, priority));
    return (*lane)->lease->hand_over();
  });
}

py::dict prefix_counters_of(const PyKv& self) {
  py::dict out = describe_prefix_counters(self.table());
  // Asking does not begin what nobody has used yet.
  engine::HostTierCounters host;
  if (out["hits"].cast<uint64_t>() + out["misses"].cast<uint64_t>() +
          out["stored"].cast<uint64_t>() >
      0)
    host = unwrap(without_gil([&]() -> Result<engine::HostTierCounters> {
                    CALRT_TRY_ASSIGN(const auto prefixes, self.runner->prefixes());
                    return prefixes->host_counters();
                  }),
                  self.context());
  out["spilled"] = host.spilled;
  out["spill_failures"] = host.spill_failures;
  out["restored"] = host.restored;
  out["restore_failures"] = host.restore_failures;
  return out;
}

}  // namespace

py::dict describe_prefix_counters(const kv::LaneTable& table) {
  const kv::PrefixCounters counters = without_gil([&] { return table.prefix_counters(); });
  py::dict out;
  out["hits"] = counters.hits;
  out["misses"] = counters.misses;
  out["hit_tokens"] = counters.hit_tokens;
  out["stored"] = counters.stored;
  out["hosted"] = counters.hosted;
  out["removed"] = counters.removed;
  out["cleared"] = counters.cleared;
  out["evicted_lanes"] = counters.evicted_lanes;
  out["evicted_blobs"] = counters.evicted_blobs;
  out["host_refused"] = counters.host_refused;
  out["host_aborted"] = counters.host_aborted;
  out["events_lost"] = counters.events_lost;
  out["hosted_bytes"] = without_gil([&] { return table.hosted_bytes(); });
  return out;
}

// (number, kind, place, id, tokens, key)
py::list drain_prefix_events(kv::LaneTable& table) {
  py::list out;
  std::array<kv::PrefixEvent, 64> events;
  while (const size_t n = without_gil([&] { return table.drain_events(events); })) {
    for (const kv::PrefixEvent& event : std::span(events).first(n))
      out.append(py::make_tuple(
          event.number, kv::prefix_event_name(event.kind),
          kv::prefix_place_name(event.holder.place), event.holder.id, event.tokens,
          py::bytes(reinterpret_cast<const char*>(event.key.data()), event.key.size())));
  }
  return out;
}

void bind_kv_prefixes(py::classh<PyKv>& kv) {
  kv.def("enable_prefixes", &enable_prefixes_of, py::arg("every") = py::none(),
         py::arg("host_bytes") = 0, "See calrt.kv.Kv.enable_prefixes.")
      .def("park", &park_lane, py::arg("lane"), py::arg("tokens"), py::arg("priority") = 0,
           py::arg("salt") = "", "See calrt.kv.Kv.park.")
      .def(
          "clear_prefixes",
          [](const PyKv& self) {
            return run_on(self, [&]() -> Result<uint32_t> {
              CALRT_TRY_ASSIGN(const auto prefixes, self.runner->prefixes());
              return prefixes->clear();
            });
          },
          "See calrt.kv.Kv.clear_prefixes.")
      .def("prefix_counters", &prefix_counters_of, "See calrt.kv.Kv.prefix_counters.")
      .def(
          "prefix_events", [](const PyKv& self) { return drain_prefix_events(self.table()); },
          "See calrt.kv.Kv.prefix_events.");
}

}  // namespace calrt::bind
