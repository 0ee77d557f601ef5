// SPDX-License-Identifier: Apache-2.0
// A parameter of a bound function that knows its name: what cannot be converted is refused by a
// calrt error that names it, never by pybind11's list of signatures.
//
//   .def("row", [](const PyTensor& self, Arg<"index", int64_t> index) {...}, py::arg("index"))
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bind/arguments.h"

namespace calrt::bind {

// A parameter's name as a template argument.
template <size_t N>
struct ParameterName {
  char text[N] = {};
  consteval ParameterName(const char (&name)[N]) {  // NOLINT: a literal is meant to become one
    for (size_t i = 0; i < N; ++i) text[i] = name[i];
  }
};

// What Python gave for the parameter `kName`, as a T. It lives as long as the call.
template <ParameterName kName, class T>
class Arg {
 public:
  Arg() = default;
  explicit Arg(T value) : value_(std::move(value)) {}
  operator const T&() const { return value_; }  // NOLINT: it stands for the value
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }

 private:
  T value_{};
};

// An object of one of our classes, which the call's arguments keep alive.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(const T* object) : object_(object) {}
  const T* operator->() const { return object_; }
  const T& operator*() const { return *object_; }

 private:
  const T* object_ = nullptr;
};

void from_python(const char* field, const py::handle& value, int32_t* out);
void from_python(const char* field, const py::handle& value, uint32_t* out);
void from_python(const char* field, const py::handle& value, int64_t* out);
void from_python(const char* field, const py::handle& value, uint64_t* out);
void from_python(const char* field, const py::handle& value, double* out);
void from_python(const char* field, const py::handle& value, bool* out);
void from_python(const char* field, const py::handle& value, std::string* out);
void from_python(const char* field, const py::handle& value, TextMap* out);
void from_python(const char* field, const py::handle& value, std::pair<int, int>* out);
void from_python(const char* field, const py::handle& value, std::vector<int32_t>* out);
void from_python(const char* field, const py::handle& value, std::vector<uint32_t>* out);
void from_python(const char* field, const py::handle& value, SamplingParams* out);
// Of any vocabulary: where a model is at hand, PyKv::tokens.
struct TokenIds : std::vector<int32_t> {};
void from_python(const char* field, const py::handle& value, TokenIds* out);
void from_python(const char* field, const py::handle& value, py::array* out);
void from_python(const char* field, const py::handle& value, py::sequence* out);
inline void from_python(const char*, const py::handle& value, py::object* out) {
  *out = py::reinterpret_borrow<py::object>(value);
}

// Refuses what is no object of T's class.
template <class T>
void check_is_a(const char* field, const py::handle& value) {
  if (!py::isinstance<T>(value))
    refuse_type(field, value,
                std::string(": a ") +
                    py::type::of<T>().attr("__name__").template cast<std::string>() + " is due");
}

template <class T>
void from_python(const char* field, const py::handle& value, Ref<T>* out) {
  check_is_a<T>(field, value);
  *out = Ref<T>(py::cast<const T*>(value));
}

// One that lives longer than the call.
template <class T>
void from_python(const char* field, const py::handle& value, std::shared_ptr<T>* out) {
  check_is_a<T>(field, value);
  *out = py::cast<std::shared_ptr<T>>(value);
}

template <class T>
void from_python(const char* field, const py::handle& value, std::optional<T>* out) {
  if (value.is_none())
    out->reset();
  else
    from_python(field, value, &out->emplace());
}

}  // namespace calrt::bind

template <calrt::bind::ParameterName kName, class T>
struct pybind11::detail::type_caster<calrt::bind::Arg<kName, T>> {
  using Value = calrt::bind::Arg<kName, T>;
  PYBIND11_TYPE_CASTER(Value, const_name("object"));
  bool load(handle source, bool) {
    T converted{};
    calrt::bind::from_python(kName.text, source, &converted);
    value = Value(std::move(converted));
    return true;
  }
};
