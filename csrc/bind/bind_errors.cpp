// SPDX-License-Identifier: Apache-2.0
// Exceptions are Python classes (calrt/errors.py); this file makes instances of them.
#include <pybind11/gil_safe_call_once.h>

#include "base/status.h"
#include "bind/errors.h"
#include "bind/module.h"
#include "calrt/device.h"
#include "calrt/model.h"

namespace calrt::bind {
namespace {

py::object text_of(std::string_view text) {
  auto made = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  if (!made) throw py::error_already_set();
  return made;
}

// calrt.errors.from_native, looked up once.
const py::object& from_native() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> storage;
  return storage
      .call_once_and_store_result(
          [] { return py::object(py::module_::import("calrt.errors").attr("from_native")); })
      .get_stored();
}

void set_python_error(const Error& error, const ErrorContext& context) {
  const Device* device = context.model != nullptr ? context.model->device().get() : context.device;
  const uint64_t generation = context.model != nullptr ? context.model->generation() : 0;
  py::object instance = from_native()(
      static_cast<int32_t>(error.code), error.native_code, text_of(error.message),
      text_of(error.where), text_of(device != nullptr ? device->spec() : context.spec),
      context.job_seq, error.unmapped, error.status_class != nullptr ? error.status_class : "",
      device != nullptr ? device->serial() : 0, generation,
      context.subject ? py::reinterpret_borrow<py::object>(context.subject) : py::none());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
}

py::list status_rows() {
  py::list rows;
  for (int32_t i = 0; i < kStatusCount; ++i) {
    const StatusRow& row = status_row_at(i);
    rows.append(py::make_tuple(row.number, row.name, row.status_class, row.retry, row.damage,
                               row.recovery, row.exception, row.sentence));
  }
  return rows;
}

}  // namespace

void raise(const Error& error, const ErrorContext& context) {
  set_python_error(error, context);
  throw py::error_already_set();
}

void bind_errors(py::module_& m) {
  m.def("status_rows", &status_rows,
        "(number, name, class, retry, damage, recovery, exception, sentence) for 0-29, in order.");
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Exception& exception) {
      set_python_error(exception.error, {});
    }
  });
}

}  // namespace calrt::bind
