// SPDX-License-Identifier: Apache-2.0
// Model: a loaded generation of a package.
#include <pybind11/stl.h>

#include "bind/graph_objects.h"
#include "bind/kv_objects.h"
#include "bind/named.h"
#include "bind/views.h"
#include "layout/layout.h"

namespace calrt::bind {
namespace {

constexpr uint64_t kDrainNs = 5'000'000'000;

const char* compute_name(int32_t compute) {
  switch (compute) {
    case CALD_COMPUTE_F32:
      return "f32";
    case CALD_COMPUTE_BF16:
      return "bf16";
    case CALD_COMPUTE_INT8:
      return "int8";
    default:
      return "package";
  }
}

py::dict info(const PyModel& self) {
  const cald_model_info& model = self.model()->info();
  py::dict out;
  out["lanes"] = model.lanes;
  out["cells"] = model.cells;
  out["vocab"] = model.vocab;
  out["compute"] = compute_name(model.compute);
  out["kv_dtype"] = dtype_name(model.kv_dtype);
  out["logits_dtype"] = dtype_name(model.logits_dtype);
  out["weight_bytes"] = model.weight_bytes;
  out["kv_bytes"] = model.kv_bytes;
  return out;
}

py::dict kv_info(const PyModel& self) {
  const cald_kv_info info =
      unwrap(without_gil([&] { return self.model()->kv_info(); }), self.context());
  constexpr std::pair<uint32_t, const char*> kOps[] = {{CALD_KV_CLEAR, "clear"},
                                                       {CALD_KV_LANE_COPY, "lane_copy"},
                                                       {CALD_KV_RANGE_COPY, "range_copy"},
                                                       {CALD_KV_ROTATE, "rotate"},
                                                       {CALD_KV_READ, "read"},
                                                       {CALD_KV_WRITE, "write"}};
  py::list ops;
  for (const auto& [bit, name] : kOps)
    if ((info.ops & bit) != 0) ops.append(name);
  py::dict out;
  out["ops"] = ops;
  out["lanes"] = info.lanes;
  out["cells"] = info.cells;
  out["dtype"] = dtype_name(info.dtype);
  out["layers"] = info.n_layers;
  out["bytes_per_cell"] = info.bytes_per_cell;
  return out;
}

py::dict graphs(const PyModel& self) {
  py::dict all;
  for (uint32_t i = 0; i < self.model()->info().n_graphs; ++i)
    all[self.model()->graph(i).name] = std::make_shared<PyGraph>(PyGraph{self.runner, i});
  return all;
}

}  // namespace

void bind_model(py::module_& m) {
  py::classh<PyModel>(
      m, "Model", py::is_final(), plain_type(),
      "A loaded generation of a package: its graphs and its KV lanes.\n\n"
      "It holds its device. Memory goes with the last of the model, its graphs, lanes, jobs "
      "and tensors.")
      .def_property_readonly(
          "closed", [](const PyModel& self) { return self.model()->closed(); },
          "True once close() was called.")
      .def_property_readonly(
          "info", &info,
          "lanes, cells (per lane), vocab, compute, kv_dtype, logits_dtype, weight_bytes, "
          "kv_bytes.")
      .def_property_readonly(
          "kv_info", &kv_info,
          "ops the device can do on KV, lanes, cells (per lane), dtype, layers, bytes_per_cell. "
          "UnsupportedError where the driver does not tell.")
      .def_property_readonly(
          "generation", [](const PyModel& self) { return self.model()->generation(); },
          "Number of this load, unique in the process; handles of another are stale.")
      .def_property_readonly(
          "package",
          [](const PyModel& self) {
            const Model& model = *self.model();
            return std::make_shared<PyPackage>(
                PyPackage{std::shared_ptr<const Package>(self.model(), &model.package())});
          },
          "The package this model was loaded from.")
      .def_property_readonly("graphs", &graphs, "Graphs by name, e.g. 'decode_b4', 'prefill_t64'.")
      .def_property_readonly(
          "kv", [](const PyModel& self) { return std::make_shared<PyKv>(PyKv{self.runner}); },
          "The model's KV lanes.")
      .def(
          "close",
          [](const PyModel& self, Arg<"force", bool> force) {
            if (!*force && !self.model()->closed())
              refuse_views("model", self.model()->device()->exports(self.model()->generation()));
            const uint64_t until = now_ns() + kDrainNs;
            unwrap(without_gil([&] { return self.runner->close(until); }), self.context());
          },
          py::arg("force") = false,
          "Refuses new jobs (MODEL_UNLOADED), cancels those in flight and waits up to 5 s for "
          "them. Tensors stay valid. Idempotent; WaitTimeoutError if a job did not end.\n\n"
          "BufferError while views of its memory live, and nothing changes; with `force` they keep "
          "the memory for themselves.");
  bind_graph(m);
}

}  // namespace calrt::bind
