// SPDX-License-Identifier: Apache-2.0
// Jobs, data moves, and poison of LaneTable.
#include <pybind11/stl.h>

#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {
namespace {

using TableLane = Arg<"lane", Ref<kv::LaneRef>>;
using JobSeq = Arg<"job_seq", uint64_t>;

// (op, lane, to_lane, cell, to_cell, n, delta)
py::list describe_plan(const kv::Plan& plan) {
  py::list out;
  for (const kv::Move& move : plan)
    out.append(py::make_tuple(kv::move_op_name(move.op), move.lane, move.to_lane, move.cell,
                              move.to_cell, move.n, move.delta));
  return out;
}

// The plan of a begin_...(lane, job_seq).
template <auto kBegin>
py::list begin_move_of(const PyTable& self, TableLane lane, JobSeq job_seq) {
  return describe_plan(
      unwrap(without_gil([&] { return ((*self.table).*kBegin)(**lane, job_seq); })));
}

}  // namespace

void bind_lane_table_jobs(py::classh<PyTable>& table) {
  using kv::LaneTable;
  table
      .def(
          "begin_job",
          [](const PyTable& self, TableLane lane, JobSeq job_seq, Arg<"n", uint32_t> n,
             Arg<"prefill", bool> prefill) {
            unwrap(without_gil([&] { return self.table->begin_job(**lane, job_seq, n, prefill); }));
          },
          py::arg("lane"), py::arg("job_seq"), py::arg("n"), py::arg("prefill") = false,
          "See calrt.kv.Allocator.begin_job.")
      .def(
          "end_job",
          [](const PyTable& self, TableLane lane, JobSeq job_seq, Arg<"ok", bool> ok,
             Arg<"written", bool> written) {
            return without_gil([&] { return self.table->end_job(**lane, job_seq, ok, written); });
          },
          py::arg("lane"), py::arg("job_seq"), py::arg("ok") = true, py::arg("written") = true,
          "See calrt.kv.Allocator.end_job.")
      .def("begin_apply", &begin_move_of<&LaneTable::begin_apply>, py::arg("lane"),
           py::arg("job_seq"), "See calrt.kv.Allocator.begin_apply.")
      .def("begin_read", &begin_move_of<&LaneTable::begin_read>, py::arg("lane"),
           py::arg("job_seq"), "See calrt.kv.Allocator.begin_read.")
      .def("begin_reuse", &begin_move_of<&LaneTable::begin_reuse>, py::arg("lane"),
           py::arg("job_seq"), "See calrt.kv.Allocator.begin_reuse.")
      .def("begin_spill", &begin_move_of<&LaneTable::begin_spill>, py::arg("lane"),
           py::arg("job_seq"), "See calrt.kv.Allocator.begin_spill.")
      .def(
          "begin_copy",
          [](const PyTable& self, Arg<"source", Ref<kv::LaneRef>> from,
             Arg<"target", Ref<kv::LaneRef>> to, JobSeq job_seq, Arg<"p0", int64_t> p0,
             Arg<"p1", int64_t> p1) {
            return describe_plan(unwrap(without_gil([&] {
              return self.table->begin_copy(**from, **to, p0, p1, job_seq, self.compat);
            })));
          },
          py::arg("source"), py::arg("target"), py::arg("job_seq"), py::arg("p0") = -1,
          py::arg("p1") = -1, "See calrt.kv.Allocator.begin_copy.")
      .def(
          "begin_write",
          [](const PyTable& self, TableLane lane, JobSeq job_seq, Arg<"n", uint32_t> n) {
            return describe_plan(
                unwrap(without_gil([&] { return self.table->begin_write(**lane, job_seq, n); })));
          },
          py::arg("lane"), py::arg("job_seq"), py::arg("n"), "See calrt.kv.Allocator.begin_write.")
      .def(
          "poisoned",
          [](const PyTable& self, JobSeq job_seq, Arg<"unowned", bool> unowned) {
            return without_gil([&] { return self.table->poisoned(job_seq, unowned); });
          },
          py::arg("job_seq") = 0, py::arg("unowned") = false, "See calrt.kv.Allocator.poisoned.")
      .def(
          "begin_scrub",
          [](const PyTable& self, Arg<"lane", uint32_t> lane) {
            check_lane_number(*self.table, lane);
            unwrap(without_gil([&] { return self.table->begin_scrub(lane); }));
          },
          py::arg("lane"), "See calrt.kv.Allocator.begin_scrub.")
      .def(
          "end_scrub",
          [](const PyTable& self, Arg<"lane", uint32_t> lane, Arg<"works", bool> works) {
            check_lane_number(*self.table, lane);
            return kv::lane_state_name(
                unwrap(without_gil([&] { return self.table->end_scrub(lane, works); })));
          },
          py::arg("lane"), py::arg("works"), "See calrt.kv.Allocator.end_scrub.")
      .def(
          "take_offline",
          [](const PyTable& self) { without_gil([&] { self.table->take_offline(); }); },
          "See calrt.kv.Allocator.take_offline.");
}

}  // namespace calrt::bind
