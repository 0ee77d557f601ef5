// SPDX-License-Identifier: Apache-2.0
// Kv and Lane: reservations of a model's lanes.
#include <pybind11/stl.h>

#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {
namespace {

constexpr double kReserveS = 60;  // wait of reserve() without a timeout

// Asked on the waiting thread: the device was closed, or Python has a signal to handle, whose error
// stays set for the caller to raise.
bool interrupted(void* model) {
  if (!static_cast<const Model*>(model)->check_open().ok()) return true;
  const GilTaken gil;
  return !gil || PyErr_CheckSignals() != 0;
}

std::shared_ptr<PyLane> commit(const PyKv& self, Result<kv::Reservation> reservation) {
  if (PyErr_Occurred()) throw py::error_already_set();
  kv::Reservation reserved = unwrap(std::move(reservation), self.context());
  const kv::LaneRef ref = unwrap(reserved.commit(), self.context());
  return std::make_shared<PyLane>(
      PyLane{std::make_shared<engine::LaneLease>(self.runner->queue(), ref)});
}

std::shared_ptr<PyLane> reserve(const PyKv& self, Arg<"tokens", uint32_t> tokens,
                                Arg<"timeout", std::optional<double>> timeout) {
  const uint64_t until = deadline_in("timeout", timeout->value_or(kReserveS));
  unwrap(self.runner->model()->check_open(), self.context());
  Model& model = *self.runner->model();
  return commit(self, without_gil([&]() -> Result<kv::Reservation> {
                  self.runner->sweep();
                  auto got = self.runner->queue()->reserve(tokens, until, {&interrupted, &model});
                  if (!got.ok() && got.error().code == Status::CANCELLED)
                    CALRT_TRY(model.check_open());
                  return got;
                }));
}

std::shared_ptr<PyLane> try_reserve(const PyKv& self, Arg<"tokens", uint32_t> tokens,
                                    Arg<"prefer", std::optional<uint32_t>> preferred,
                                    Arg<"only", bool> only) {
  const std::optional<uint32_t>& prefer = preferred;
  unwrap(self.runner->model()->check_open(), self.context());
  if (*only && !prefer) raise(fail(Status::INVALID_ARGUMENT, "only=True needs prefer=LANE"));
  if (prefer && *prefer >= self.table().lanes())
    raise(fail(Status::OUT_OF_RANGE, "prefer=%u is outside 0..%u (the lanes)", *prefer,
               self.table().lanes() - 1));
  return commit(self,
                self.table().try_reserve(tokens, now_ns(), prefer.value_or(kv::kAnyLane), only));
}

py::dict describe(const kv::LaneSnapshot& lane) {
  py::dict out;
  out["state"] = kv::lane_state_name(lane.state);
  out["length"] = lane.length;
  out["reserved"] = lane.reserved;
  out["job_seq"] = lane.job_seq;
  return out;
}

}  // namespace

void bind_kv(py::module_& m) {
  py::classh<PyKv>(
      m, "Kv", py::is_final(), plain_type(),
      "The KV lanes of a model: who owns which, and how far it is filled. Thread-safe.")
      .def_property_readonly(
          "lanes", [](const PyKv& self) { return self.table().lanes(); }, "Number of lanes.")
      .def_property_readonly(
          "cells", [](const PyKv& self) { return self.table().cells(); },
          "Cells (token positions) per lane.")
      .def(
          "can_allocate",
          [](const PyKv& self, Arg<"tokens", uint32_t> tokens) {
            const kv::Capacity capacity = unwrap(self.table().can_allocate(tokens), self.context());
            py::dict out;
            out["now"] = capacity.now;
            out["free"] = capacity.free;
            out["lanes"] = capacity.lanes;
            out["cells"] = capacity.cells;
            return out;
          },
          py::arg("tokens"),
          "Advice: now (bool), free, lanes, cells. True when asked, no promise. "
          "InvalidArgumentError if "
          "`tokens` can never fit a lane.")
      .def("reserve", &reserve, py::arg("tokens"), py::arg("timeout") = py::none(),
           "A lane with room for `tokens` cells; waits in order of arrival.\n\ntimeout: seconds, "
           "None = 60; "
           "KvTimeoutError then. InvalidArgumentError if it can never fit, CapacityError if 64 "
           "already wait. "
           "The GIL is free meanwhile; Ctrl-C is seen.")
      .def(
          "try_reserve", &try_reserve, py::arg("tokens"), py::arg("prefer") = py::none(),
          py::arg("only") = false,
          "A lane with room for `tokens` cells, at once; `prefer` is tried first, alone if `only`. "
          "KvCapacityError if none is free.")
      .def(
          "free_lanes", [](const PyKv& self) { return self.table().free_lanes(); },
          "Lanes nobody owns.")
      .def(
          "snapshot",
          [](const PyKv& self, Arg<"lane", uint32_t> of) {
            const uint32_t lane = of;
            if (lane >= self.table().lanes())
              raise(fail(Status::OUT_OF_RANGE, "lane=%u is outside 0..%u", lane,
                         self.table().lanes() - 1));
            return describe(self.table().snapshot(lane));
          },
          py::arg("lane"), "state, length, reserved (cells), job_seq (0 = no job) of one lane.")
      .def(
          "scrub",
          [](const PyKv& self, Arg<"job_seq", uint64_t> job_seq) {
            self.runner->sweep();
            const std::vector<uint32_t> lanes = self.table().scrub(job_seq);
            self.runner->queue()->lane_freed();
            return lanes;
          },
          py::arg("job_seq") = 0,
          "Empties poisoned lanes, all or those that job `job_seq` left unknown; returns their "
          "numbers. A lane that somebody holds stays theirs, with length 0.")
      .def(
          "check_integrity",
          [](const PyKv& self) { unwrap(self.table().check_integrity(), self.context()); },
          "Checks every invariant of the table; CalrtError names the first that is broken.")
      .def("__repr__", [](const PyKv& self) {
        const kv::LaneTable& table = self.table();
        return "<calrt.Kv: " + std::to_string(table.free_lanes()) + " of " +
               std::to_string(table.lanes()) + " lanes free, " + std::to_string(table.cells()) +
               " cells each>";
      });

  py::classh<PyLane>(m, "Lane", py::is_final(), plain_type(),
                     "One leased lane; given back by release(), `with` or garbage collection.")
      .def_property_readonly(
          "index", [](const PyLane& self) { return self.lease->lane(); }, "Number of the lane.")
      .def_property_readonly(
          "length", [](const PyLane& self) { return unwrap(self.lease->snapshot()).length; },
          "Cells that hold a token.")
      .def_property_readonly(
          "reserved", [](const PyLane& self) { return unwrap(self.lease->snapshot()).reserved; },
          "Cells promised to this lease.")
      .def(
          "truncate",
          [](const PyLane& self, Arg<"length", uint32_t> length) {
            unwrap(self.lease->truncate(length));
          },
          py::arg("length"),
          "Forgets the cells from `length` on; StateError while a job runs on the lane.")
      .def(
          "release", [](const PyLane& self) { self.lease->release(); },
          "Gives the lane back, once its job (if any) has ended. Idempotent.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def(
          "__exit__",
          [](const PyLane& self, const py::object&, const py::object&, const py::object&) {
            self.lease->release();
          },
          py::arg("kind"), py::arg("value"), py::arg("tb"))
      .def("__repr__", [](const PyLane& self) {
        const auto now = self.lease->snapshot();
        const std::string cells = now.ok() ? std::to_string(now->length) + " of " +
                                                 std::to_string(now->reserved) + " cells"
                                           : "released";
        return "<calrt.Lane " + std::to_string(self.lease->lane()) + ": " + cells + ">";
      });
}

}  // namespace calrt::bind
