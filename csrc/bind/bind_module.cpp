// SPDX-License-Identifier: Apache-2.0
// calrt._core: the native module. Bases are registered before what uses them.
#include "bind/gil.h"
#include "bind/module.h"

namespace {

namespace py = pybind11;

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  return PyErr_Format(PyExc_TypeError, "%s: calrt makes these, not its callers", type->tp_name);
}

// An object of a class with a constructor is whole from its __new__ on. The __init__ that Python
// calls after it is pybind11's, which leaves alone what is there already.
PyObject* whole_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  const auto made = py::reinterpret_steal<py::object>(py::detail::make_new_instance(type));
  if (!made) return nullptr;
  try {
    made.attr("__init__")(
        *py::reinterpret_borrow<py::args>(arguments),
        **(keywords != nullptr ? py::reinterpret_borrow<py::kwargs>(keywords) : py::kwargs()));
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
  return py::object(made).release().ptr();
}

// cls.__new__(cls) would give an object with nothing inside, which no method is made for.
void refuse_empty_objects(const py::module_& m) {
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(m.attr("__dict__"))) {
    if (!PyType_Check(value.ptr())) continue;
    // A constructor of ours is a function; what Python puts there by itself wraps a slot.
    const py::object init = value.attr("__dict__")["__init__"];
    reinterpret_cast<PyTypeObject*>(value.ptr())->tp_new =
        Py_TYPE(init.ptr()) == &PyWrapperDescr_Type ? &refuse_new : &whole_new;
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
