// SPDX-License-Identifier: Apache-2.0
#include "bind/fast_call.h"

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace calrt::bind {

Parameters::Parameters(const char* method, const char* const* names, size_t n, size_t required,
                       size_t positional)
    : method_(method), n_(n), required_(required), positional_(positional) {
  for (size_t i = 0; i < n; ++i) {
    names_[i] = PyUnicode_InternFromString(names[i]);
    if (names_[i] == nullptr) throw py::error_already_set();
  }
}

// Names are given in order as a rule, and interned by the compiler of the calling code.
size_t Parameters::index_of(PyObject* name, size_t likely) const {
  for (size_t i = likely; i < n_; ++i)
    if (names_[i] == name) return i;
  for (size_t i = 0; i < n_; ++i) {
    const int equal = PyObject_RichCompareBool(names_[i], name, Py_EQ);
    if (equal < 0) throw py::error_already_set();
    if (equal > 0) return i;
  }
  PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%S'", method_, name);
  throw py::error_already_set();
}

void Parameters::read(const Given& given, py::handle* values, const py::handle* defaults) const {
  const auto n = static_cast<size_t>(given.n);
  if (n > positional_) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu positional arguments (%zu given)",
                 method_, positional_, n);
    throw py::error_already_set();
  }
  for (size_t i = 0; i < n; ++i) values[i] = given.args[i];
  const Py_ssize_t named = given.names != nullptr ? PyTuple_GET_SIZE(given.names) : 0;
  size_t likely = n;
  for (Py_ssize_t i = 0; i < named; ++i) {
    const size_t at = index_of(PyTuple_GET_ITEM(given.names, i), likely);
    if (values[at]) {
      PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", method_,
                   names_[at]);
      throw py::error_already_set();
    }
    values[at] = given.args[given.n + i];
    likely = at + 1;
  }
  for (size_t i = 0; i < n_; ++i) {
    if (values[i]) continue;
    if (i < required_) {
      PyErr_Format(PyExc_TypeError, "%s() missing required argument '%U'", method_, names_[i]);
      throw py::error_already_set();
    }
    values[i] = defaults[i] ? defaults[i] : py::handle(Py_None);
  }
}

void restore_exception() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
#ifdef __GLIBCXX__
  } catch (abi::__forced_unwind&) {
    throw;  // the thread is being ended
#endif
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
}

namespace detail {
namespace {

void set(py::handle type, const char* name, PyObject* made) {
  const auto owned = py::reinterpret_steal<py::object>(made);
  if (!owned) throw py::error_already_set();
  type.attr(name) = owned;
}

}  // namespace

void add_function(py::module_& m, PyMethodDef* function) {
  const py::object module_name = m.attr("__name__");
  set(m, function->ml_name, PyCFunction_NewEx(function, nullptr, module_name.ptr()));
}

void add_method(py::handle type, PyMethodDef* method) {
  set(type, method->ml_name,
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), method));
}

void add_getter(py::handle type, PyGetSetDef* getter) {
  set(type, getter->name, PyDescr_NewGetSet(reinterpret_cast<PyTypeObject*>(type.ptr()), getter));
}

}  // namespace detail
}  // namespace calrt::bind
