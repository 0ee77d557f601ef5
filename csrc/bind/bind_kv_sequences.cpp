// SPDX-License-Identifier: Apache-2.0
// The sequence operations of Kv.
#include <pybind11/stl.h>

#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {
namespace {

using LaneArg = Arg<"lane", Ref<PyLane>>;
using P0 = Arg<"p0", int64_t>;
using P1 = Arg<"p1", int64_t>;
using Seconds = Arg<"timeout", std::optional<double>>;

// op -> (how, why)
py::dict kv_caps(const PyKv& self) {
  py::dict out;
  for (int i = 0; i < kv::kSeqOps; ++i) {
    const auto op = static_cast<kv::SeqOp>(i);
    const kv::OpSupport support = kv::support_of(op, self.table().caps());
    out[kv::seq_op_name(op)] = py::make_tuple(kv::how_name(support.how), support.why);
  }
  return out;
}

void kv_seq_cp(const PyKv& self, Arg<"source", Ref<PyLane>> source,
               Arg<"target", Ref<PyLane>> target, P0 p0, P1 p1, Seconds timeout) {
  const engine::MoveCall call = self.move_call(*timeout);
  run_on(self, "source", **source, [&](const kv::LaneRef& from) -> Result<void> {
    CALRT_TRY_ASSIGN(const kv::LaneRef to, self.ref("target", **target));
    return self.runner->mover()->copy(from, to, p0, p1, call);
  });
}

std::pair<uint32_t, uint32_t> kv_shift(const PyKv& self, LaneArg lane, Arg<"keep", int64_t> keep,
                                       Arg<"discard", int64_t> discard, Seconds timeout) {
  const engine::MoveCall call = self.move_call(*timeout);
  const auto shift = run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) -> Result<kv::Shift> {
    // What apply() would refuse afterwards is refused while nothing is discarded yet.
    CALRT_TRY_ASSIGN(const kv::Sequence held, self.table().sequence(ref));
    CALRT_TRY(held.plan(ref.lane));
    CALRT_TRY_ASSIGN(const kv::Shift shift, self.table().shift(ref, keep, discard));
    CALRT_TRY(self.runner->mover()->apply(ref, call));
    return shift;
  });
  return {shift.keep, shift.discard};
}

// Chunks as (source, target, n).
py::list chunks_of(const PyKv& self, const py::object& held, const py::object& wanted,
                   Arg<"least", uint32_t> least) {
  py::list out;
  const std::vector<int32_t> have = self.tokens("held", held), want = self.tokens("wanted", wanted);
  const auto chunks = unwrap(without_gil([&] { return kv::matching_chunks(have, want, *least); }));
  for (const kv::Chunk& chunk : chunks) out.append(py::make_tuple(chunk.from, chunk.to, chunk.n));
  return out;
}

}  // namespace

py::list describe_runs(const kv::Sequence& sequence) {
  py::list out;
  for (const kv::Run& run : sequence.runs())
    out.append(py::make_tuple(run.cell, run.n, run.pos, run.coded, run.same));
  return out;
}

void bind_kv_sequences(py::classh<PyKv>& kv) {
  kv.def("caps", &kv_caps, "See calrt.kv.Kv.caps.")
      .def(
          "seq_rm",
          [](const PyKv& self, LaneArg lane, P0 p0, P1 p1) {
            run_on(self, "lane", **lane,
                   [&](const kv::LaneRef& ref) { return self.table().seq_rm(ref, p0, p1); });
          },
          py::arg("lane"), py::arg("p0") = -1, py::arg("p1") = -1, "See calrt.kv.Kv.seq_rm.")
      .def("seq_cp", &kv_seq_cp, py::arg("source"), py::arg("target"), py::arg("p0") = -1,
           py::arg("p1") = -1, py::arg("timeout") = py::none(), "See calrt.kv.Kv.seq_cp.")
      .def(
          "seq_keep",
          [](const PyKv& self, LaneArg lane) {
            run_on(self, "lane", **lane,
                   [&](const kv::LaneRef& ref) { return self.table().seq_keep(ref); });
          },
          py::arg("lane"), "See calrt.kv.Kv.seq_keep.")
      .def(
          "seq_add",
          [](const PyKv& self, LaneArg lane, P0 p0, P1 p1, Arg<"d", int64_t> d) {
            run_on(self, "lane", **lane,
                   [&](const kv::LaneRef& ref) { return self.table().seq_add(ref, p0, p1, d); });
          },
          py::arg("lane"), py::arg("p0"), py::arg("p1"), py::arg("d"), "See calrt.kv.Kv.seq_add.")
      .def(
          "seq_div",
          [](const PyKv& self, LaneArg lane, P0 p0, P1 p1, Arg<"d", int64_t> d) {
            run_on(self, "lane", **lane,
                   [&](const kv::LaneRef& ref) { return self.table().seq_div(ref, p0, p1, d); });
          },
          py::arg("lane"), py::arg("p0"), py::arg("p1"), py::arg("d"), "See calrt.kv.Kv.seq_div.")
      .def(
          "seq_pos_min",
          [](const PyKv& self, LaneArg lane) {
            return run_on(self, "lane", **lane,
                          [&](const kv::LaneRef& ref) { return self.table().pos_min(ref); });
          },
          py::arg("lane"), "See calrt.kv.Kv.seq_pos_min.")
      .def(
          "seq_pos_max",
          [](const PyKv& self, LaneArg lane) {
            return run_on(self, "lane", **lane,
                          [&](const kv::LaneRef& ref) { return self.table().pos_max(ref); });
          },
          py::arg("lane"), "See calrt.kv.Kv.seq_pos_max.")
      .def(
          "clear",
          [](const PyKv& self, LaneArg lane) {
            run_on(self, "lane", **lane,
                   [&](const kv::LaneRef& ref) { return self.table().clear(ref); });
          },
          py::arg("lane"), "See calrt.kv.Kv.clear.")
      .def(
          "runs",
          [](const PyKv& self, LaneArg lane) {
            return describe_runs(run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) {
              return self.table().sequence(ref);
            }));
          },
          py::arg("lane"), "See calrt.kv.Kv.runs.")
      .def("shift", &kv_shift, py::arg("lane"), py::arg("keep"), py::arg("discard") = 0,
           py::arg("timeout") = py::none(), "See calrt.kv.Kv.shift.")
      .def(
          "apply",
          [](const PyKv& self, LaneArg lane, Seconds timeout) {
            const engine::MoveCall call = self.move_call(*timeout);
            run_on(self, "lane", **lane,
                   [&](const kv::LaneRef& ref) { return self.runner->mover()->apply(ref, call); });
          },
          py::arg("lane"), py::arg("timeout") = py::none(), "See calrt.kv.Kv.apply.")
      .def("matching_chunks", &chunks_of, py::arg("held"), py::arg("wanted"), py::arg("least"),
           "(source, target, n) of equal chunks: see calrt.kv.Kv.reuse_chunks.");
}

}  // namespace calrt::bind
