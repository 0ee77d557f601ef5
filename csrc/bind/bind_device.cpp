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

const char* domain_name(uint32_t domain) {
  switch (domain) {
    case CALD_DOMAIN_HOST:
      return "host";
    case CALD_DOMAIN_HOST_PINNED:
      return "host_pinned";
    case CALD_DOMAIN_DEVICE:
      return "device";
    case CALD_DOMAIN_SHARED:
      return "shared";
    default:
      return "unknown";
  }
}

uint32_t domain_from_name(const std::string& name) {
  for (uint32_t domain :
       {CALD_DOMAIN_HOST, CALD_DOMAIN_HOST_PINNED, CALD_DOMAIN_DEVICE, CALD_DOMAIN_SHARED})
    if (name == domain_name(domain)) return domain;
  raise(fail(Status::INVALID_ARGUMENT, "domain '%s': host, host_pinned, device or shared is due",
             name.c_str()));
}

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

// A buffer's wrapper keeps its memory until the last memoryview is gone, closed or not.
struct PyBuffer {
  std::shared_ptr<Buffer> buffer;
  bool closed = false, exported = false;
  ~PyBuffer() { drop_without_gil(buffer); }

  Buffer& open() const {
    if (closed) raise(fail(Status::INVALID_STATE, "the buffer is closed"));
    return *buffer;
  }
};

// The bytes of a contiguous array or buffer; arrays go through numpy, as bf16 has no buffer code.
py::buffer_info bytes_of(const char* field, const py::object& data, bool writable) {
  py::object source = data;
  if (py::isinstance<py::array>(data)) {
    const auto array = py::reinterpret_borrow<py::array>(data);
    if (!(array.flags() & py::array::c_style))
      raise(fail(Status::INVALID_ARGUMENT,
                 "%s must be C-contiguous: pass numpy.ascontiguousarray(...)", field));
    source = array.attr("reshape")(-1).attr("view")("u1");
  }
  if (!PyObject_CheckBuffer(source.ptr()))
    raise(fail(Status::INVALID_ARGUMENT, "%s is a %s: an array or a buffer is due", field,
               Py_TYPE(data.ptr())->tp_name));
  auto info = py::reinterpret_borrow<py::buffer>(source).request(writable);
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0)
    raise(fail(Status::INVALID_ARGUMENT, "%s must be C-contiguous", field));
  return info;
}

uint64_t range_of(const char* field, const PyBuffer& self, const py::buffer_info& info,
                  uint64_t offset) {
  const auto bytes = static_cast<uint64_t>(info.size) * static_cast<uint64_t>(info.itemsize);
  const uint64_t room = self.open().bytes();
  if (offset > room || bytes > room - offset)
    raise(fail(Status::OUT_OF_RANGE, "%s: %llu bytes at offset %llu do not fit a buffer of %llu",
               field, static_cast<unsigned long long>(bytes),
               static_cast<unsigned long long>(offset), static_cast<unsigned long long>(room)));
  return bytes;
}

void bind_buffer(py::module_& m) {
  py::classh<PyBuffer>(m, "Buffer", py::buffer_protocol(), py::is_final(), plain_type(),
                       "Memory of a device. memoryview(buffer) where the host can address it.")
      .def_property_readonly(
          "nbytes", [](const PyBuffer& self) { return self.open().bytes(); }, "Size in bytes.")
      .def_property_readonly(
          "domain", [](const PyBuffer& self) { return domain_name(self.open().domain()); },
          "host, host_pinned, device or shared.")
      .def(
          "write",
          [](const PyBuffer& self, const py::object& data, uint64_t offset) {
            const py::buffer_info info = bytes_of("data", data, false);
            const uint64_t bytes = range_of("data", self, info, offset);
            unwrap(without_gil([&] { return self.buffer->write(offset, info.ptr, bytes); }));
          },
          py::arg("data"), py::arg("offset") = 0,
          "Copies a contiguous array or buffer to byte `offset` on. InvalidArgumentError if it "
          "does not fit.")
      .def(
          "read_into",
          [](const PyBuffer& self, const py::object& out, uint64_t offset) {
            const py::buffer_info info = bytes_of("out", out, true);
            const uint64_t bytes = range_of("out", self, info, offset);
            unwrap(without_gil([&] { return self.buffer->read(offset, info.ptr, bytes); }));
          },
          py::arg("out"), py::arg("offset") = 0,
          "Fills a writable contiguous array or buffer from byte `offset` on.")
      .def(
          "close",
          [](PyBuffer& self) {
            self.closed = true;
            if (!self.exported) drop_without_gil(self.buffer);
          },
          "Ends the buffer. Memory that a memoryview still shows goes with the last view. "
          "Idempotent.")
#if PY_VERSION_HEX < 0x030C0000  // later versions make it from the slot
      .def(
          "__buffer__", [](const py::object& self, int) { return py::memoryview(self); },
          py::arg("flags"), py::pos_only(), "memoryview(buffer).")
#endif
      .def_buffer([](PyBuffer& self) {
        Buffer& buffer = self.open();
        if (buffer.data() == nullptr)
          throw py::buffer_error("the host cannot address memory of domain " +
                                 std::string(domain_name(buffer.domain())));
        self.exported = true;
        return py::buffer_info(static_cast<uint8_t*>(buffer.data()),
                               static_cast<py::ssize_t>(buffer.bytes()));
      });
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
