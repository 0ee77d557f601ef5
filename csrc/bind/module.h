// SPDX-License-Identifier: Apache-2.0
// The parts of the native module. Each bind_*.cpp registers its own classes.
#pragma once

#include <pybind11/pybind11.h>

#ifdef Py_GIL_DISABLED
#error "calrt needs a CPython with the GIL: free-threaded builds are not supported yet"
#endif

namespace calrt::bind {

namespace py = pybind11;

// The metaclass of all our classes: Python's own `type`, as the stub says. pybind11's would only
// check subclasses, and there are none.
inline py::metaclass plain_type() {
  return py::metaclass(reinterpret_cast<PyObject*>(&PyType_Type));
}

void bind_log();
void bind_errors(py::module_& m);
void bind_convert(py::module_& m);
void bind_tensor(py::module_& m);
void bind_package(py::module_& m);
void bind_kv(py::module_& m);
void bind_job(py::module_& m);
void bind_model(py::module_& m);
void bind_buffer(py::module_& m);
void bind_buffer_pool(py::module_& m);
void bind_device(py::module_& m);
void bind_engine(py::module_& m);

}  // namespace calrt::bind
