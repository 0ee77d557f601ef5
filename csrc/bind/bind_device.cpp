// SPDX-License-Identifier: Apache-2.0
// Device: open and close, memory, loading a package.
#include <cxxabi.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <exception>

#include "bind/graph_objects.h"
#include "bind/named.h"
#include "bind/views.h"
#include "layout/convert.h"

namespace calrt::bind {
namespace {

std::shared_ptr<PyDevice> open_device(Arg<"spec", std::string> spec,
                                      Arg<"options", TextMap> options,
                                      Arg<"layers", std::optional<std::string>> layers,
                                      Arg<"exclusive", std::optional<bool>> exclusive,
                                      Arg<"isolate", std::optional<bool>> isolate) {
  const Device::Options pairs(options->begin(), options->end());
  const OpenSettings settings{*layers, *exclusive, *isolate};
  return std::make_shared<PyDevice>(PyDevice{
      unwrap(without_gil([&] { return Device::open(*spec, pairs, settings); }), {*spec, 0})});
}

// Calls the user's progress on the loading thread; what it raises cancels the load and is kept.
struct Progress {
  py::object function;
  std::exception_ptr raised;

  bool operator()(uint64_t done, uint64_t total) {
    const GilTaken gil;
    if (!gil) return false;
    try {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      return function.is_none() || py::cast<bool>(py::bool_(function(done, total)));
    } catch (const abi::__forced_unwind&) {  // Python ended this thread in the callback: too late
      while (true) ::pause();                // to go on, and the driver's frames cannot be unwound
    } catch (...) {
      raised = std::current_exception();
      return false;
    }
  }
};

using Counts = std::vector<uint32_t>;
using MaybeCount = std::optional<uint32_t>;

LoadRequest load_request(const MaybeCount& lanes, const MaybeCount& cells, const Counts& profiles,
                         const Counts& chunks, const std::string& compute,
                         const std::string& kv_dtype, const std::string& logits_dtype,
                         const std::string& parallel, const std::string& placement) {
  LoadRequest request;
  request.lanes = lanes;
  request.cells = cells;
  request.profiles = profiles;
  request.chunks = chunks;
  request.compute = compute;
  request.kv_dtype = kv_dtype;
  request.logits_dtype = logits_dtype;
  request.parallel = parallel;
  request.placement = placement;
  return request;
}

std::shared_ptr<PyModel> load(
    const PyDevice& self, Arg<"package", Ref<PyPackage>> package, Arg<"lanes", MaybeCount> lanes,
    Arg<"cells", MaybeCount> cells, Arg<"profiles", Counts> profiles, Arg<"chunks", Counts> chunks,
    Arg<"compute", std::string> compute, Arg<"kv_dtype", std::string> kv_dtype,
    Arg<"logits_dtype", std::string> logits_dtype, Arg<"parallel", std::string> parallel,
    Arg<"placement", std::string> placement, const py::object& progress,
    Arg<"withheld", TextMap> withheld, Arg<"allow_standin", bool> allow_standin) {
  if (!progress.is_none() && PyCallable_Check(progress.ptr()) == 0)
    refuse_type("progress", progress, ": a callable or None is due");
  LoadRequest request = load_request(lanes, cells, profiles, chunks, compute, kv_dtype,
                                     logits_dtype, parallel, placement);
  request.withheld.insert(withheld->begin(), withheld->end());
  request.allow_standin = *allow_standin;
  Progress reporter{progress, nullptr};
  request.progress = [&reporter](uint64_t done, uint64_t total) { return reporter(done, total); };
  auto loaded = without_gil([&]() -> Result<std::shared_ptr<engine::GraphRunner>> {
    CALRT_TRY_ASSIGN(std::shared_ptr<Model> model,
                     Model::load(self.device, (*package)->package, request));
    return engine::GraphRunner::make(std::move(model));
  });
  if (reporter.raised) std::rethrow_exception(reporter.raised);
  return std::make_shared<PyModel>(PyModel{unwrap(std::move(loaded), self.context())});
}

py::dict footprint(const PyDevice& self, Arg<"package", Ref<PyPackage>> package,
                   Arg<"lanes", MaybeCount> lanes, Arg<"cells", MaybeCount> cells,
                   Arg<"profiles", Counts> profiles, Arg<"chunks", Counts> chunks,
                   Arg<"compute", std::string> compute, Arg<"kv_dtype", std::string> kv_dtype,
                   Arg<"logits_dtype", std::string> logits_dtype,
                   Arg<"parallel", std::string> parallel, Arg<"placement", std::string> placement) {
  const LoadRequest request = load_request(lanes, cells, profiles, chunks, compute, kv_dtype,
                                           logits_dtype, parallel, placement);
  const cald_footprint need =
      unwrap(without_gil([&] { return self.device->footprint(*(*package)->package, request); }),
             self.context());
  py::dict out;
  out["host_bytes"] = need.host_bytes;
  out["device_bytes"] = need.device_bytes;
  return out;
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("drivers", &DriverLibrary::available,
        "Short names of the drivers that open() finds, sorted: those in CALRT_DRIVER_PATH and "
        "calrt's own.");
  bind_buffer(m);
  py::classh<PyDevice> device(
      m, "Device", py::is_final(), plain_type(),
      "An open device. Methods let go of the GIL around everything that may block.\n\n"
      "A closed device refuses new work; what was made from it stays valid.");
  bind_device_queries(device);
  device
      .def_static("open", &open_device, py::arg("spec"), py::arg("options"), py::kw_only(),
                  py::arg("layers") = py::none(), py::arg("exclusive") = py::none(),
                  py::arg("isolate") = py::none(),
                  "Opens 'cpu' or '/opt/vendor/libcald_vendor.so', each perhaps with ':' and an "
                  "index or a configuration. options: the driver's own, as text, e.g. {'threads': "
                  "'2'}. layers: 'fault:RULES'; None: the environment's CALRT_LAYERS. exclusive: "
                  "locked against other processes; None: as the device says.")
      .def_property_readonly(
          "spec", [](const PyDevice& self) { return self.device->spec(); },
          "What open() was given.")
      .def_property_readonly(
          "serial", [](const PyDevice& self) { return self.device->serial(); },
          "Number of this open(), unique in the process.")
      .def_property_readonly(
          "closed", [](const PyDevice& self) { return self.device->closed(); },
          "True once close() was called.")
      .def(
          "alloc",
          [](const PyDevice& self, Arg<"nbytes", uint64_t> nbytes,
             Arg<"domain", std::string> domain, Arg<"align", uint64_t> align) {
            const uint32_t bit = domain_from_name(domain);
            return std::make_shared<PyBuffer>(
                PyBuffer{unwrap(without_gil([&] { return self.device->alloc(nbytes, bit, align); }),
                                self.context())});
          },
          py::arg("nbytes"), py::arg("domain") = "host", py::arg("align") = 64,
          "A buffer of at least `nbytes` in a memory domain, aligned to `align` (a power of two).")
      .def(
          "pool",
          [](const PyDevice& self, Arg<"nbytes", uint64_t> nbytes, Arg<"count", uint32_t> count,
             Arg<"domain", std::string> domain, Arg<"align", uint64_t> align) {
            const uint32_t bit = domain_from_name(domain);
            return std::make_shared<PyBufferPool>(PyBufferPool{unwrap(
                without_gil([&] { return self.device->make_pool(nbytes, count, bit, align); }),
                self.context())});
          },
          py::arg("nbytes"), py::arg("count"), py::arg("domain") = "host", py::arg("align") = 1,
          "A BufferPool of at most `count` such buffers, 1 to 65,536.")
      .def("load", &load, py::arg("package"), py::kw_only(), py::arg("lanes") = py::none(),
           py::arg("cells") = py::none(), py::arg("profiles") = py::tuple(),
           py::arg("chunks") = py::tuple(), py::arg("compute") = "", py::arg("kv_dtype") = "",
           py::arg("logits_dtype") = "", py::arg("parallel") = "", py::arg("placement") = "",
           py::arg("progress") = py::none(), py::arg("withheld") = py::dict(),
           py::arg("allow_standin") = false,
           "Loads a package; options left out take the package's default, none is ever clamped.\n\n"
           "progress(done_bytes, total_bytes) is called at 2 Hz or more; a false answer cancels "
           "(CancelledJobError), an exception cancels and comes out here. withheld: capabilities "
           "that are not to be used of the model, each with the reason that a refusal gives. "
           "allow_standin: a stand-in may be loaded on a driver that is none of calrt's own (D25).")
      .def("footprint", &footprint, py::arg("package"), py::kw_only(),
           py::arg("lanes") = py::none(), py::arg("cells") = py::none(),
           py::arg("profiles") = py::tuple(), py::arg("chunks") = py::tuple(),
           py::arg("compute") = "", py::arg("kv_dtype") = "", py::arg("logits_dtype") = "",
           py::arg("parallel") = "", py::arg("placement") = "",
           "host_bytes and device_bytes that such a load would take. Loads nothing.")
      .def(
          "close",
          [](const PyDevice& self, Arg<"force", bool> force) {
            if (!*force && !self.device->closed()) refuse_views("device", self.device->exports());
            without_gil([&] { self.device->close(); });
          },
          py::arg("force") = false,
          "Refuses new work; the hardware is let go with the last model or buffer. Idempotent.\n\n"
          "BufferError while views of its memory live, and nothing changes; with `force` they keep "
          "the memory for themselves.");
}

}  // namespace calrt::bind
