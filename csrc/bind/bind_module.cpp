// SPDX-License-Identifier: Apache-2.0
// calrt._core: the native module. Bases are registered before what uses them.
#include "bind/gil.h"
#include "bind/module.h"

namespace {

namespace py = pybind11;

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  return PyErr_Format(PyExc_TypeError, "%s: calrt makes these, not its callers", type->tp_name);
}

// Classes without a constructor would still come to be by cls.__new__(cls), and have nothing
// inside.
void refuse_empty_objects(const py::module_& m) {
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(m.attr("__dict__"))) {
    if (!PyType_Check(value.ptr())) continue;
    // A constructor of ours is a function; what Python puts there by itself wraps a slot.
    const py::object init = value.attr("__dict__")["__init__"];
    if (Py_TYPE(init.ptr()) == &PyWrapperDescr_Type)
      reinterpret_cast<PyTypeObject*>(value.ptr())->tp_new = &refuse_new;
  }
}

}  // namespace

PYBIND11_MODULE(_core, m, pybind11::multiple_interpreters::not_supported()) {
  using namespace calrt::bind;
  m.doc() = "calrt's native module. Use it through the package calrt.";
  m.attr("__version__") = CALRT_VERSION;
  bind_log();
  bind_errors(m);
  bind_convert(m);
  bind_tensor(m);
  bind_package(m);
  bind_kv(m);
  bind_job(m);
  bind_model(m);
  bind_device(m);
  bind_engine(m);
  refuse_empty_objects(m);
  m.def(
      "begin_exit", &begin_exit,
      "To be called as the interpreter ends: no other thread comes back from native code, as none "
      "may that could meet a Python that is gone.");
}
