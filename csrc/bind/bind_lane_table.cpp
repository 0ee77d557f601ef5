// SPDX-License-Identifier: Apache-2.0
// LaneTable, LaneRef and Reservation: KV bookkeeping without a device (calrt.kv.Allocator).
#include <pybind11/stl.h>

#include <atomic>

#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {
namespace {

// Allocators have numbers of their own, so that a lane of another one is stale here.
uint32_t next_generation() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

std::shared_ptr<PyTable> make_table(Arg<"lanes", uint32_t> lanes, Arg<"cells", uint32_t> cells,
                                    Arg<"compat", std::string> compat) {
  constexpr uint32_t kMostLanes = 65'536;
  if (lanes < 1 || lanes > kMostLanes)
    raise(fail(Status::OUT_OF_RANGE, "lanes=%u is outside 1..%u", *lanes, kMostLanes));
  if (cells < 1 || cells > INT32_MAX)
    raise(fail(Status::OUT_OF_RANGE, "cells=%u is outside 1..%d", *cells, INT32_MAX));
  if (*compat != "strict" && *compat != "llama")
    raise(
        fail(Status::INVALID_ARGUMENT, "compat='%s': 'strict' or 'llama' is due", compat->c_str()));
  auto made = std::make_shared<PyTable>();
  made->table = kv::LaneTable::make(lanes, cells, next_generation());
  made->compat = *compat == "llama" ? kv::Compat::LLAMA : kv::Compat::STRICT;
  return made;
}

std::shared_ptr<PyReservation> reserve_in_table(const PyTable& self, Arg<"tokens", uint32_t> tokens,
                                                Arg<"now_ns", uint64_t> now,
                                                Arg<"prefer", std::optional<uint32_t>> prefer,
                                                Arg<"only", bool> only, Arg<"ttl_ns", uint64_t> ttl,
                                                Arg<"prompt", std::optional<TokenIds>> prompt,
                                                Arg<"salt", std::string> salt) {
  kv::Need need;
  need.tokens = tokens;
  need.prefer = preferred_lane(*self.table, *prefer, *only);
  need.only = only;
  need.ttl_ns = ttl;
  auto made = std::make_shared<PyReservation>();
  made->reservation = unwrap(without_gil([&]() -> Result<kv::Reservation> {
    if (!*prompt) return self.table->try_reserve(need, now);
    CALRT_TRY_ASSIGN(const kv::Prefix wanted, self.prefix("prompt", **prompt, *salt));
    need.prompt = &wanted;
    return self.table->try_reserve(need, now);
  }));
  return made;
}

// (kind, tokens, id)
py::tuple describe_reuse(const kv::Reuse& reuse) {
  const char* kind = reuse.kind == kv::Reuse::Kind::IN_PLACE ? "in_place"
                     : reuse.kind == kv::Reuse::Kind::COPY   ? "copy"
                     : reuse.kind == kv::Reuse::Kind::HOSTED ? "hosted"
                                                             : "none";
  return py::make_tuple(kind, reuse.tokens, reuse.id);
}

void bind_lane_ref(py::module_& m) {
  const auto tuple = [](const kv::LaneRef& ref) {
    return py::make_tuple(ref.lane, ref.generation, ref.lease);
  };
  py::classh<kv::LaneRef>(m, "LaneRef", py::is_final(), plain_type(),
                          "Names one lease of one lane of an Allocator; stale once the lane was "
                          "released. Plain data: dropping it gives nothing back.")
      .def_readonly("lane", &kv::LaneRef::lane, "Number of the lane.")
      .def_readonly("generation", &kv::LaneRef::generation, "Number of the allocator.")
      .def_readonly("lease", &kv::LaneRef::lease, "Number of the lease, unique in the allocator.")
      .def(
          "__eq__",
          [tuple](const kv::LaneRef& self, const py::object& value) {
            return py::isinstance<kv::LaneRef>(value) &&
                   tuple(self).equal(tuple(py::cast<const kv::LaneRef&>(value)));
          },
          py::arg("value"), py::pos_only())
      .def("__hash__", [tuple](const kv::LaneRef& self) { return py::hash(tuple(self)); })
      .def("__repr__", [](const kv::LaneRef& self) {
        return "<calrt.kv.LaneRef " + std::to_string(self.lane) + ": lease " +
               std::to_string(self.lease) + ">";
      });
}

void bind_reservation(py::module_& m) {
  py::classh<PyReservation>(
      m, "Reservation", py::is_final(), plain_type(),
      "The promise of one lane; given back by release(), `with`, garbage collection, or when its "
      "time to live has passed, unless it was committed. Not thread-safe.")
      .def_property_readonly(
          "ref", [](const PyReservation& self) { return self.reservation.ref(); },
          "The lane, for commit() to make its own.")
      .def_property_readonly(
          "reuse",
          [](const PyReservation& self) { return describe_reuse(self.reservation.reuse()); },
          "(kind, tokens, id): what of the prompt is there. kind: 'none'; 'in_place': the cells "
          "are; 'copy': of the parked lane `id`, by begin_reuse(); 'hosted': blob `id`, to be "
          "written.")
      .def_property_readonly(
          "evicted",
          [](PyReservation& self) -> std::optional<std::vector<int32_t>> {
            auto& evicted = self.reservation.evicted();
            if (!evicted) return std::nullopt;
            return evicted->prefix.tokens;
          },
          "Token ids of the parked prefix that made room, whose cells can still be read by "
          "begin_spill(); None if none did.")
      .def(
          "commit",
          [](PyReservation& self) {
            return unwrap(without_gil([&] { return self.reservation.commit(); }));
          },
          "The lane is the caller's now, until release(); KvTimeoutError if its time has passed.")
      .def(
          "release", [](PyReservation& self) { without_gil([&] { self.reservation.release(); }); },
          "Gives the lane back. Idempotent.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def(
          "__exit__",
          [](PyReservation& self, const py::object&, const py::object&, const py::object&) {
            without_gil([&] { self.reservation.release(); });
          },
          py::arg("kind"), py::arg("value"), py::arg("tb"));
}

py::object snapshot_of(const PyTable& self, Arg<"lane", py::object> lane) {
  if (py::isinstance<kv::LaneRef>(*lane)) {
    const auto ref = py::cast<kv::LaneRef>(*lane);
    return describe_lane(unwrap(without_gil([&] { return self.table->snapshot(ref); })));
  }
  uint32_t number = 0;
  from_python("lane", *lane, &number);
  check_lane_number(*self.table, number);
  return describe_lane(without_gil([&] { return self.table->snapshot(number); }));
}

}  // namespace

PyReservation::~PyReservation() {
  if (!reservation) return;
  const GilReleased released;
  reservation.release();
}

Result<kv::Prefix> PyTable::prefix(const char* field, std::vector<int32_t> tokens,
                                   std::string salt) const {
  if (every == 0)
    return fail(Status::INVALID_STATE, "%s: call enable_prefixes() before prefixes are used",
                field);
  kv::PrefixScope scope;
  scope.salt = std::move(salt);
  return kv::make_prefix(std::move(scope), std::move(tokens), every);
}

void bind_lane_table(py::module_& m) {
  bind_lane_ref(m);
  bind_reservation(m);
  py::classh<PyTable> table(m, "LaneTable", py::is_final(), plain_type(),
                            "See calrt.kv.Allocator. Thread-safe.");
  table.def(py::init(&make_table), py::arg("lanes"), py::arg("cells"), py::arg("compat") = "strict")
      .def_property_readonly(
          "lanes", [](const PyTable& self) { return self.table->lanes(); },
          "See calrt.kv.Allocator.lanes.")
      .def_property_readonly(
          "cells", [](const PyTable& self) { return self.table->cells(); },
          "See calrt.kv.Allocator.cells.")
      .def(
          "free_lanes", [](const PyTable& self) { return self.table->free_lanes(); },
          "See calrt.kv.Allocator.free_lanes.")
      .def(
          "can_allocate",
          [](const PyTable& self, Arg<"tokens", uint32_t> tokens) {
            return describe_capacity(unwrap(self.table->can_allocate(tokens)));
          },
          py::arg("tokens"), "See calrt.kv.Allocator.can_allocate.")
      .def("try_reserve", &reserve_in_table, py::arg("tokens"), py::arg("now_ns"),
           py::arg("prefer") = py::none(), py::arg("only") = false,
           py::arg("ttl_ns") = kv::kReservationTtlNs, py::arg("prompt") = py::none(),
           py::arg("salt") = "", "See calrt.kv.Allocator.try_reserve.")
      .def(
          "expire",
          [](const PyTable& self, Arg<"now_ns", uint64_t> now) {
            return without_gil([&] { return self.table->expire(now); });
          },
          py::arg("now_ns"), "See calrt.kv.Allocator.expire.")
      .def(
          "release",
          [](const PyTable& self, Arg<"lane", Ref<kv::LaneRef>> lane) {
            unwrap(without_gil([&] { return self.table->release(**lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.release.")
      .def("snapshot", &snapshot_of, py::arg("lane"), "See calrt.kv.Allocator.snapshot.")
      .def(
          "stale_completions",
          [](const PyTable& self) {
            return without_gil([&] { return self.table->stale_completions(); });
          },
          "See calrt.kv.Allocator.stale_completions.")
      .def(
          "check_integrity",
          [](const PyTable& self) {
            unwrap(without_gil([&] { return self.table->check_integrity(); }));
          },
          "See calrt.kv.Allocator.check_integrity.");
  bind_lane_table_jobs(table);
  bind_lane_table_sequences(table);
}

}  // namespace calrt::bind
