// SPDX-License-Identifier: Apache-2.0
// Functions, methods and properties as CPython's own are, for what is called once per job or view.
// pybind11 makes a bound method and looks its classes up at each call, and searches every keyword
// by a string that it interns anew: a call with three keywords costs several times what it does
// here, and as much as the submit itself. All other methods stay pybind11's.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>

namespace calrt::bind {

namespace py = pybind11;

// The class of T in Python, registered before.
template <class T>
PyTypeObject* type_of() {
  static auto* const type = reinterpret_cast<PyTypeObject*>(py::type::of<T>().ptr());
  return type;
}

// What an object of T's class holds; null for every other object, and for one that __init__ has not
// seen. T's class is final: no subclass can come.
template <class T>
T* held(py::handle object) {
  if (Py_TYPE(object.ptr()) != type_of<T>()) return nullptr;
  auto* instance = reinterpret_cast<py::detail::instance*>(object.ptr());
  return static_cast<T*>(instance->get_value_and_holder().value_ptr());
}

// What a method was called with. Borrowed: the caller holds them until the call has returned.
struct Given {
  PyObject* const* args;
  Py_ssize_t n;     // by position
  PyObject* names;  // of those after them, a tuple; may be null
};

// The parameters of one method, in order. `required`: the first so many must be given; the others
// have a default. `positional`: the first so many may be given by position.
class Parameters {
 public:
  template <size_t N>
  Parameters(const char* method, const std::array<const char*, N>& names, size_t required,
             size_t positional)
      : Parameters(method, names.data(), N, required, positional) {
    static_assert(N <= kMost);
  }

  // Each argument in its place, or TypeError as Python words it. `defaults`: in place of None,
  // those that are not null.
  template <size_t N>
  std::array<py::handle, N> read(const Given& given,
                                 const std::array<py::handle, N>& defaults = {}) const {
    std::array<py::handle, N> values{};
    read(given, values.data(), defaults.data());
    return values;
  }

 private:
  static constexpr size_t kMost = 8;
  Parameters(const char* method, const char* const* names, size_t n, size_t required,
             size_t positional);
  void read(const Given& given, py::handle* values, const py::handle* defaults) const;
  size_t index_of(PyObject* name, size_t likely) const;

  const char* method_;
  size_t n_, required_, positional_;
  PyObject* names_[kMost] = {};  // interned, for the life of the process
};

// The exception that is being handled, as Python's own. To be called in a catch block.
void restore_exception();

namespace detail {

using FastMethod = py::object (*)(py::handle self, const Given& given);
using FastGetter = py::object (*)(py::handle self);

template <FastMethod method>
PyObject* enter_method(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  try {
    return method(self, {args, n, names}).release().ptr();
  } catch (...) {
    restore_exception();
    return nullptr;
  }
}

template <FastGetter getter>
PyObject* enter_getter(PyObject* self, void*) {
  try {
    return getter(self).release().ptr();
  } catch (...) {
    restore_exception();
    return nullptr;
  }
}

void add_function(py::module_& m, PyMethodDef* function);
void add_method(py::handle type, PyMethodDef* method);
void add_getter(py::handle type, PyGetSetDef* getter);

}  // namespace detail

// Adds `function`, whose `self` is null, to a module. `doc` as add_method()'s, without $self.
template <detail::FastMethod function>
void add_function(py::module_& m, const char* name, const char* doc) {
  static PyMethodDef definition;
  const auto entry = reinterpret_cast<void (*)()>(&detail::enter_method<function>);
  definition = {name, reinterpret_cast<PyCFunction>(entry), METH_FASTCALL | METH_KEYWORDS, doc};
  detail::add_function(m, &definition);
}

// Adds `method` to a class of ours. `doc` begins with its signature, "name($self, ...)\n--\n\n";
// both texts are literals. `self` is of that class whenever it is called.
template <detail::FastMethod method>
void add_method(py::handle type, const char* name, const char* doc) {
  static PyMethodDef definition;
  const auto entry = reinterpret_cast<void (*)()>(&detail::enter_method<method>);
  definition = {name, reinterpret_cast<PyCFunction>(entry), METH_FASTCALL | METH_KEYWORDS, doc};
  detail::add_method(type, &definition);
}

// Adds a property that is only read.
template <detail::FastGetter getter>
void add_getter(py::handle type, const char* name, const char* doc) {
  static PyGetSetDef definition;
  definition = {name, &detail::enter_getter<getter>, nullptr, doc, nullptr};
  detail::add_getter(type, &definition);
}

}  // namespace calrt::bind
