// SPDX-License-Identifier: Apache-2.0
// Buffer: memory of a device.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bind/named.h"
#include "bind/objects.h"
#include "bind/views.h"

namespace calrt::bind {
namespace {

// The bytes of a contiguous array or buffer; arrays go through numpy, as bf16 has no buffer code.
py::buffer_info contiguous_bytes(const char* field, const py::object& data, bool writable) {
  py::object source = data;
  if (py::isinstance<py::array>(data)) {
    const auto array = py::reinterpret_borrow<py::array>(data);
    if (!(array.flags() & py::array::c_style))
      raise(fail(Status::INVALID_ARGUMENT,
                 "%s must be C-contiguous: pass numpy.ascontiguousarray(...)", field));
    if (py::cast<bool>(array.dtype().attr("hasobject")))
      raise(fail(Status::DTYPE_MISMATCH, "%s has dtype %s: Python objects have no bytes to copy",
                 field, std::string(py::str(array.dtype())).c_str()));
    source = array.attr("reshape")(-1).attr("view")("u1");
  }
  if (!PyObject_CheckBuffer(source.ptr()))
    refuse_type(field, data, ": an array or a buffer is due");
  auto info = py::reinterpret_borrow<py::buffer>(source).request();
  if (writable && info.readonly)
    raise(fail(Status::INVALID_ARGUMENT, "%s is read-only: a writable array or buffer is due",
               field));
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0)
    raise(fail(Status::INVALID_ARGUMENT, "%s must be C-contiguous", field));
  return info;
}

py::buffer_info bytes_of(const char* field, const py::object& data, bool writable) {
  try {
    return contiguous_bytes(field, data, writable);
  } catch (py::error_already_set& error) {  // of numpy, or of whose buffer it is
    for (PyObject* kind : {PyExc_BufferError, PyExc_TypeError, PyExc_ValueError})
      if (error.matches(kind))
        raise(fail(Status::INVALID_ARGUMENT, "%s has no bytes to copy: %s", field,
                   std::string(py::str(error.value())).c_str()));
    throw;
  }
}

uint64_t range_of(const char* field, const Buffer& buffer, const py::buffer_info& info,
                  uint64_t offset) {
  const auto bytes = static_cast<uint64_t>(info.size) * static_cast<uint64_t>(info.itemsize);
  const uint64_t room = buffer.bytes();
  if (offset > room || bytes > room - offset)
    raise(fail(Status::OUT_OF_RANGE, "%s: %llu bytes at offset %llu do not fit a buffer of %llu",
               field, static_cast<unsigned long long>(bytes),
               static_cast<unsigned long long>(offset), static_cast<unsigned long long>(room)));
  return bytes;
}

StridedMemory bytes_in(const PyBuffer& self) {
  const std::shared_ptr<Buffer>& buffer = self.open();
  if (buffer->data() == nullptr)
    raise_buffer_error("the host cannot address memory of domain " +
                       std::string(domain_name(buffer->domain())));
  StridedMemory memory;
  memory.data = buffer->data();
  memory.dtype = CALD_U8;
  memory.rank = 1;
  memory.shape[0] = static_cast<py::ssize_t>(buffer->bytes());
  memory.strides[0] = 1;
  memory.writable = true;
  memory.buffer = buffer;
  return memory;
}

void close_buffer(PyBuffer& self, Arg<"force", bool> force) {
  if (!self.buffer) return;
  if (!*force) {
    ExportCensus census;
    census.add(*self.buffer);
    refuse_views("buffer", census);
  }
  drop_without_gil(self.buffer);
}

std::string buffer_repr(const PyBuffer& self) {
  if (!self.buffer) return "<calrt.Buffer closed>";
  return "<calrt.Buffer " + std::to_string(self.buffer->bytes()) + " bytes " +
         domain_name(self.buffer->domain()) + ">";
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
  using DlVersion = std::optional<std::pair<int, int>>;
  py::classh<PyBuffer> buffer(
      m, "Buffer", py::buffer_protocol(), py::is_final(), plain_type(),
      "Memory of a device, or a pool's loan of it. Close it, or use it in `with`; garbage "
      "collection lets go of it too.\n\n"
      "memoryview(buffer) and DLPack give its bytes, writable and without a copy, where the host "
      "can address them. A view owns the memory by itself: as long as it lives the memory is "
      "neither freed nor lent again.");
  buffer
      .def_property_readonly(
          "nbytes", [](const PyBuffer& self) { return self.open()->bytes(); },
          "Size in bytes, as asked for.")
      .def_property_readonly(
          "allocated_nbytes", [](const PyBuffer& self) { return self.open()->allocated_bytes(); },
          "What it takes in bytes, with the driver's padding.")
      .def_property_readonly(
          "domain", [](const PyBuffer& self) { return domain_name(self.open()->domain()); },
          "host, host_pinned, device or shared.")
      .def_property_readonly(
          "views", [](const PyBuffer& self) { return self.open()->exports(); },
          "How many views of the memory live: memoryviews, arrays, DLPack capsules.")
      .def_property_readonly(
          "closed", [](const PyBuffer& self) { return self.buffer == nullptr; },
          "True once close() was called.")
      .def(
          "write",
          [](const PyBuffer& self, const py::object& data, Arg<"offset", uint64_t> offset) {
            const std::shared_ptr<Buffer> to = self.open();  // whoever closes it meanwhile
            const py::buffer_info info = bytes_of("data", data, false);
            const uint64_t bytes = range_of("data", *to, info, offset);
            unwrap(without_gil([&] { return to->write(offset, info.ptr, bytes); }),
                   ErrorContext(*to->device()));
          },
          py::arg("data"), py::arg("offset") = 0,
          "Copies the bytes of a contiguous array or buffer to byte `offset` on; returns when they "
          "are there, and keeps nothing of `data`.\n\n"
          "InvalidArgumentError if it does not fit or is not contiguous; StateError once closed; "
          "ExecutionError (TRANSFER_FAULT) if the device moved only a part: then the buffer's "
          "content is unknown.")
      .def(
          "read_into",
          [](const PyBuffer& self, const py::object& out, Arg<"offset", uint64_t> offset) {
            const std::shared_ptr<Buffer> from = self.open();
            const py::buffer_info info = bytes_of("out", out, true);
            const uint64_t bytes = range_of("out", *from, info, offset);
            unwrap(without_gil([&] { return from->read(offset, info.ptr, bytes); }),
                   ErrorContext(*from->device()));
          },
          py::arg("out"), py::arg("offset") = 0,
          "Fills a writable contiguous array or buffer from byte `offset` on. Errors as write().")
      .def("close", &close_buffer, py::arg("force") = false,
           "Lets go of the memory; a pool's loan goes back. Idempotent.\n\nBufferError while views "
           "of it live, and nothing changes; with `force` they keep the memory for themselves.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def(
          "__exit__",
          [](PyBuffer& self, const py::object&, const py::object&, const py::object&) {
            close_buffer(self, Arg<"force", bool>(true));
          },
          py::arg("kind"), py::arg("value"), py::arg("tb"))
      .def(
          "__dlpack__",
          [](const PyBuffer& self, const py::object& stream,
             Arg<"max_version", DlVersion> max_version, Arg<"dl_device", DlVersion> dl_device,
             Arg<"copy", std::optional<bool>> copy) {
            return dlpack_capsule(bytes_in(self), stream, max_version, dl_device, copy);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
          "A DLPack capsule of its bytes (uint8, host memory). BufferError for another dl_device "
          "than (1, 0) and for a stream.")
      .def(
          "__dlpack_device__",
          [](const PyBuffer& self) {
            (void)bytes_in(self);
            return dlpack_device();
          },
          "(1, 0): the host. BufferError if the host cannot address the memory.")
#if PY_VERSION_HEX < 0x030C0000  // later versions make it from the slot
      .def(
          "__buffer__", [](const py::object& self, int) { return py::memoryview(self); },
          py::arg("flags"), py::pos_only(), "memoryview(buffer).")
#endif
      .def("__repr__", &buffer_repr);
  export_buffers(buffer, [](py::handle self) { return bytes_in(py::cast<const PyBuffer&>(self)); });
  bind_buffer_pool(m);
}

}  // namespace calrt::bind
