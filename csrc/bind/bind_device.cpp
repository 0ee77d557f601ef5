// SPDX-License-Identifier: Apache-2.0
// Device and Buffer; loading a package.
#include <cxxabi.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <cmath>
#include <exception>

#include "bind/arguments.h"
#include "bind/graph_objects.h"
#include "layout/convert.h"

namespace calrt::bind {
namespace {

std::shared_ptr<PyDevice> open_device(const std::string& spec,
                                      const std::map<std::string, std::string>& options) {
  const Device::Options pairs(options.begin(), options.end());
  return std::make_shared<PyDevice>(
      PyDevice{unwrap(without_gil([&] { return Device::open(spec, pairs); }), {spec, 0})});
}

py::dict device_info(const PyDevice& self) {
  const DeviceInfo info = unwrap(without_gil([&] { return self.device->info(); }), self.context());
  py::dict out;
  out["driver"] = info.driver;
  out["driver_version"] = info.driver_version;
  out["driver_path"] = info.driver_path;
  out["name"] = info.name;
  out["device_class"] = info.device_class;
  out["runtime"] = info.runtime;
  out["chips"] = info.chips;
  out["sessions"] = info.sessions;
  out["depth"] = info.depth;
  out["queue"] = info.queue;
  out["exclusive"] = info.exclusive;
  out["memory_bytes"] = info.memory_bytes;
  out["memory_free"] = info.memory_free;
  return out;
}

py::object measured(double value) {
  return std::isnan(value) ? py::object(py::none()) : py::float_(value);
}

py::dict device_health(const PyDevice& self) {
  const cald_health health =
      unwrap(without_gil([&] { return self.device->health(); }), self.context());
  py::dict out;
  out["state"] = health.state == CALD_HEALTH_OK         ? "ok"
                 : health.state == CALD_HEALTH_DEGRADED ? "degraded"
                                                        : "failed";
  out["temperature_c"] = measured(health.temperature_c);
  out["power_w"] = measured(health.power_w);
  out["clock_mhz"] = measured(health.clock_mhz);
  return out;
}

py::list device_caps(const PyDevice& self) {
  py::list all;
  for (const Capability& cap :
       unwrap(without_gil([&] { return self.device->caps(); }), self.context())) {
    py::dict entry;
    entry["name"] = cap.name;
    entry["level"] = cap.level;
    entry["value"] = cap.value;
    entry["source"] = cap.source;
    all.append(entry);
  }
  return all;
}

py::dict device_counters(const PyDevice& self) {
  py::dict out;
  for (const auto& [name, value] :
       unwrap(without_gil([&] { return self.device->counters(); }), self.context()))
    out[py::str(name)] = value;
  return out;
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

std::shared_ptr<PyModel> load(const PyDevice& self, const PyPackage& package,
                              const std::optional<uint32_t>& lanes,
                              const std::optional<uint32_t>& cells, const py::object& profiles,
                              const py::object& chunks, const std::string& compute,
                              const std::string& kv_dtype, const std::string& logits_dtype,
                              const std::string& parallel, const std::string& placement,
                              const py::object& progress) {
  LoadRequest request;
  request.lanes = lanes;
  request.cells = cells;
  request.profiles = uint_list("profiles", profiles);
  request.chunks = uint_list("chunks", chunks);
  request.compute = compute;
  request.kv_dtype = kv_dtype;
  request.logits_dtype = logits_dtype;
  request.parallel = parallel;
  request.placement = placement;
  Progress reporter{progress, nullptr};
  request.progress = [&reporter](uint64_t done, uint64_t total) { return reporter(done, total); };
  auto loaded = without_gil([&]() -> Result<std::shared_ptr<engine::GraphRunner>> {
    CALRT_TRY_ASSIGN(std::shared_ptr<Model> model,
                     Model::load(self.device, package.package, request));
    return engine::GraphRunner::make(std::move(model));
  });
  if (reporter.raised) std::rethrow_exception(reporter.raised);
  return std::make_shared<PyModel>(PyModel{unwrap(std::move(loaded), self.context())});
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("drivers", &DriverLibrary::available,
        "Short names of the drivers that open() finds, sorted: those in CALRT_DRIVER_PATH and "
        "calrt's own.");
  bind_buffer(m);
  py::classh<PyDevice>(
      m, "Device", py::is_final(), plain_type(),
      "An open device. Methods let go of the GIL around everything that may block.\n\n"
      "A closed device refuses new work; what was made from it stays valid.")
      .def_static(
          "open", &open_device, py::arg("spec"), py::arg("options"),
          "Opens 'cpu', 'mock:bare' (driver:configuration) or '/path/libcald_vendor.so[:index]'. "
          "options: the driver's own, as text, e.g. {'threads': '2'}.")
      .def_property_readonly(
          "spec", [](const PyDevice& self) { return self.device->spec(); },
          "What open() was given.")
      .def_property_readonly(
          "closed", [](const PyDevice& self) { return self.device->closed(); },
          "True once close() was called.")
      .def("info", &device_info,
           "driver, driver_version, driver_path, name, device_class, runtime, chips, sessions, "
           "depth, queue, "
           "exclusive, memory_bytes, memory_free (bytes, 0 = unknown).")
      .def("health", &device_health,
           "state (ok, degraded, failed), temperature_c, power_w, clock_mhz (None where unknown).")
      .def("caps", &device_caps, "Capabilities: name, level (0-4), value, source.")
      .def("counters", &device_counters, "The driver's counters by name.")
      .def(
          "alloc",
          [](const PyDevice& self, uint64_t nbytes, const std::string& domain, uint64_t align) {
            const uint32_t bit = domain_from_name(domain);
            return std::make_shared<PyBuffer>(
                PyBuffer{unwrap(without_gil([&] { return self.device->alloc(nbytes, bit, align); }),
                                self.context())});
          },
          py::arg("nbytes"), py::arg("domain") = "host", py::arg("align") = 64,
          "A buffer of at least `nbytes` in a memory domain, aligned to `align` (a power of two).")
      .def("load", &load, py::arg("package"), py::kw_only(), py::arg("lanes") = py::none(),
           py::arg("cells") = py::none(), py::arg("profiles") = py::tuple(),
           py::arg("chunks") = py::tuple(), py::arg("compute") = "", py::arg("kv_dtype") = "",
           py::arg("logits_dtype") = "", py::arg("parallel") = "", py::arg("placement") = "",
           py::arg("progress") = py::none(),
           "Loads a package; options left out take the package's default, none is ever clamped.\n\n"
           "progress(done_bytes, total_bytes) is called at 2 Hz or more; a false answer cancels "
           "(CancelledJobError), an exception cancels and comes out here.")
      .def(
          "close", [](const PyDevice& self) { without_gil([&] { self.device->close(); }); },
          "Refuses new work; the hardware is let go with the last model or buffer. Idempotent.");
}

}  // namespace calrt::bind
