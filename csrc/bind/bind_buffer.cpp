// SPDX-License-Identifier: Apache-2.0
// Buffer: memory of a device.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bind/arguments.h"
#include "bind/objects.h"

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

}  // namespace

uint32_t domain_from_name(const std::string& name) {
  for (uint32_t domain :
       {CALD_DOMAIN_HOST, CALD_DOMAIN_HOST_PINNED, CALD_DOMAIN_DEVICE, CALD_DOMAIN_SHARED})
    if (name == domain_name(domain)) return domain;
  raise(fail(Status::INVALID_ARGUMENT, "domain '%s': host, host_pinned, device or shared is due",
             name.c_str()));
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

}  // namespace calrt::bind
