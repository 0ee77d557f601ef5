// SPDX-License-Identifier: Apache-2.0
// Sequence operations and prefixes of LaneTable.
#include <pybind11/stl.h>

#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {
namespace {

using TableLane = Arg<"lane", Ref<kv::LaneRef>>;
using P0 = Arg<"p0", int64_t>;
using P1 = Arg<"p1", int64_t>;
using D = Arg<"d", int64_t>;
using Ids = Arg<"tokens", TokenIds>;
using Salt = Arg<"salt", std::string>;
using Blob = Arg<"blob", uint64_t>;

void rm_in_table(const PyTable& self, Arg<"lane", std::optional<Ref<kv::LaneRef>>> lane, P0 p0,
                 P1 p1) {
  unwrap(without_gil([&] {
    return *lane ? self.table->seq_rm(***lane, p0, p1, self.compat)
                 : self.table->seq_rm_all(p0, p1, self.compat);
  }));
}

void cp_in_table(const PyTable& self, Arg<"source", Ref<kv::LaneRef>> from,
                 Arg<"target", Ref<kv::LaneRef>> to, P0 p0, P1 p1) {
  unwrap(without_gil([&] { return self.table->seq_cp(**from, **to, p0, p1, self.compat); }));
}

void enable_table_prefixes(PyTable& self, Arg<"every", uint32_t> every,
                           Arg<"host_bytes", uint64_t> bytes, Arg<"host_blobs", uint32_t> blobs) {
  unwrap(without_gil([&] { return self.table->enable_prefixes(every, {*bytes, *blobs}); }));
  self.every = every;
}

void park_in_table(const PyTable& self, TableLane lane, Ids tokens,
                   Arg<"priority", int32_t> priority, Salt salt) {
  unwrap(without_gil([&]() -> Result<void> {
    CALRT_TRY_ASSIGN(kv::Prefix prefix, self.prefix("tokens", *tokens, *salt));
    return self.table->park(**lane, std::move(prefix), priority);
  }));
}

// (place, id, tokens, held, pins), or None.
py::object find_in_table(const PyTable& self, Ids tokens, Salt salt) {
  const kv::PrefixMatch match = unwrap(without_gil([&]() -> Result<kv::PrefixMatch> {
    CALRT_TRY_ASSIGN(const kv::Prefix wanted, self.prefix("tokens", *tokens, *salt));
    return self.table->find_prefix(wanted);
  }));
  if (!match) return py::none();
  return py::make_tuple(kv::prefix_place_name(match.holder.place), match.holder.id, match.tokens,
                        match.held, match.pins);
}

// (blob, evicted blobs)
py::tuple host_in_table(const PyTable& self, Ids tokens, Arg<"nbytes", uint64_t> bytes,
                        Arg<"priority", int32_t> priority, Salt salt) {
  std::vector<uint64_t> evicted;
  const uint64_t blob = unwrap(without_gil([&]() -> Result<uint64_t> {
    CALRT_TRY_ASSIGN(kv::Prefix prefix, self.prefix("tokens", *tokens, *salt));
    return self.table->begin_hosted(std::move(prefix), bytes, priority, &evicted);
  }));
  return py::make_tuple(blob, evicted);
}

}  // namespace

void bind_lane_table_sequences(py::classh<PyTable>& table) {
  table
      .def("seq_rm", &rm_in_table, py::arg("lane"), py::arg("p0") = -1, py::arg("p1") = -1,
           "See calrt.kv.Allocator.seq_rm.")
      .def("seq_cp", &cp_in_table, py::arg("source"), py::arg("target"), py::arg("p0") = -1,
           py::arg("p1") = -1, "See calrt.kv.Allocator.seq_cp.")
      .def(
          "seq_keep",
          [](const PyTable& self, TableLane lane) {
            unwrap(without_gil([&] { return self.table->seq_keep(**lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.seq_keep.")
      .def(
          "seq_add",
          [](const PyTable& self, TableLane lane, P0 p0, P1 p1, D d) {
            unwrap(
                without_gil([&] { return self.table->seq_add(**lane, p0, p1, d, self.compat); }));
          },
          py::arg("lane"), py::arg("p0"), py::arg("p1"), py::arg("d"),
          "See calrt.kv.Allocator.seq_add.")
      .def(
          "seq_div",
          [](const PyTable& self, TableLane lane, P0 p0, P1 p1, D d) {
            unwrap(
                without_gil([&] { return self.table->seq_div(**lane, p0, p1, d, self.compat); }));
          },
          py::arg("lane"), py::arg("p0"), py::arg("p1"), py::arg("d"),
          "See calrt.kv.Allocator.seq_div.")
      .def(
          "clear",
          [](const PyTable& self, TableLane lane) {
            unwrap(without_gil([&] { return self.table->clear(**lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.clear.")
      .def(
          "shift",
          [](const PyTable& self, TableLane lane, Arg<"keep", int64_t> keep,
             Arg<"discard", int64_t> discard) {
            const auto shift =
                unwrap(without_gil([&] { return self.table->shift(**lane, keep, discard); }));
            return std::pair{shift.keep, shift.discard};
          },
          py::arg("lane"), py::arg("keep"), py::arg("discard") = 0, "See calrt.kv.Allocator.shift.")
      .def(
          "truncate",
          [](const PyTable& self, TableLane lane, Arg<"length", uint32_t> length) {
            unwrap(without_gil([&] { return self.table->truncate(**lane, length); }));
          },
          py::arg("lane"), py::arg("length"), "See calrt.kv.Allocator.truncate.")
      .def(
          "seq_pos_min",
          [](const PyTable& self, TableLane lane) {
            return unwrap(without_gil([&] { return self.table->pos_min(**lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.seq_pos_min.")
      .def(
          "seq_pos_max",
          [](const PyTable& self, TableLane lane) {
            return unwrap(without_gil([&] { return self.table->pos_max(**lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.seq_pos_max.")
      .def(
          "runs",
          [](const PyTable& self, TableLane lane) {
            return describe_runs(unwrap(without_gil([&] { return self.table->sequence(**lane); })));
          },
          py::arg("lane"), "See calrt.kv.Allocator.runs.")
      .def("enable_prefixes", &enable_table_prefixes, py::arg("every"), py::arg("host_bytes") = 0,
           py::arg("host_blobs") = 4096, "See calrt.kv.Allocator.enable_prefixes.")
      .def("park", &park_in_table, py::arg("lane"), py::arg("tokens"), py::arg("priority") = 0,
           py::arg("salt") = "", "See calrt.kv.Allocator.park.")
      .def(
          "drop_reuse",
          [](const PyTable& self, TableLane lane) {
            unwrap(without_gil([&] { return self.table->drop_reuse(**lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.drop_reuse.")
      .def(
          "unpark",
          [](const PyTable& self, Arg<"lane", uint32_t> lane) {
            check_lane_number(*self.table, lane);
            unwrap(without_gil([&] { return self.table->unpark(lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.unpark.")
      .def(
          "clear_prefixes",
          [](const PyTable& self) {
            return unwrap(without_gil([&] { return self.table->clear_prefixes(); }));
          },
          "See calrt.kv.Allocator.clear_prefixes.")
      .def("find_prefix", &find_in_table, py::arg("tokens"), py::arg("salt") = "",
           "See calrt.kv.Allocator.find_prefix.")
      .def("begin_hosted", &host_in_table, py::arg("tokens"), py::arg("nbytes"),
           py::arg("priority") = 0, py::arg("salt") = "", "See calrt.kv.Allocator.begin_hosted.")
      .def(
          "end_hosted",
          [](const PyTable& self, Blob blob, Arg<"ok", bool> ok) {
            unwrap(without_gil([&] { return self.table->end_hosted(blob, ok); }));
          },
          py::arg("blob"), py::arg("ok") = true, "See calrt.kv.Allocator.end_hosted.")
      .def(
          "drop_hosted",
          [](const PyTable& self, Blob blob) {
            unwrap(without_gil([&] { return self.table->drop_hosted(blob); }));
          },
          py::arg("blob"), "See calrt.kv.Allocator.drop_hosted.")
      .def(
          "prefix_counters",
          [](const PyTable& self) { return describe_prefix_counters(*self.table); },
          "See calrt.kv.Allocator.prefix_counters.")
      .def(
          "prefix_events", [](const PyTable& self) { return drain_prefix_events(*self.table); },
          "See calrt.kv.Allocator.prefix_events.");
}

}  // namespace calrt::bind
