// SPDX-License-Identifier: Apache-2.0
#include "bind/arguments.h"

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "bind/errors.h"
#include "layout/layout.h"

namespace calrt::bind {
namespace {

constexpr double kNever = 100.0 * 365 * 86400;

constexpr size_t kAlone = SIZE_MAX;  // the number is the argument, not an item of it

std::string place(const char* field, size_t at) {
  return at == kAlone ? field : std::string(field) + "[" + std::to_string(at) + "]";
}

int64_t whole_number(const char* field, size_t at, const py::handle& value, int64_t low,
                     int64_t high) {
  const bool is_bool = PyBool_Check(value.ptr());
  if (is_bool || !PyIndex_Check(value.ptr()))
    raise(fail(Status::INVALID_ARGUMENT, "%s is a %s, not a whole number", place(field, at).c_str(),
               Py_TYPE(value.ptr())->tp_name));
  int overflow = 0;
  auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) throw py::error_already_set();
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || number < low || number > high)
    raise(fail(Status::OUT_OF_RANGE, "%s=%s is outside %lld..%lld", place(field, at).c_str(),
               std::string(py::str(index)).c_str(), static_cast<long long>(low),
               static_cast<long long>(high)));
  return number;
}

// The numbers of an int32 array of one dimension where they lie; no data if it is anything else.
std::span<const int32_t> as_it_lies(const py::handle& value) {
  if (!py::isinstance<py::array>(value)) return {};
  const auto array = py::reinterpret_borrow<py::array>(value);
  constexpr int kPlain = int{py::array::c_style} | int{py::detail::npy_api::NPY_ARRAY_ALIGNED_};
  if (array.ndim() != 1 || (array.flags() & kPlain) != kPlain) return {};
  const py::dtype dtype = array.dtype();
  if (dtype.num() != py::dtype::num_of<int32_t>() || dtype.byteorder() != '=') return {};
  return {static_cast<const int32_t*>(array.data()), static_cast<size_t>(array.size())};
}

template <class T>
std::vector<T> number_list(const char* field, const py::handle& value) {
  constexpr int64_t low = std::numeric_limits<T>::min();
  constexpr int64_t high = std::numeric_limits<T>::max();
  if (py::isinstance<py::array>(value)) {
    const auto array = py::reinterpret_borrow<py::array>(value);
    if (array.ndim() != 1)
      raise(fail(Status::SHAPE_MISMATCH, "%s has %zd dimensions: one is due", field, array.ndim()));
    if (array.dtype().kind() != 'i' && array.dtype().kind() != 'u')
      raise(fail(Status::DTYPE_MISMATCH, "%s has dtype %s: an integer dtype is due", field,
                 std::string(py::str(array.dtype())).c_str()));
  } else if (!PySequence_Check(value.ptr()) || py::isinstance<py::str>(value)) {
    raise(fail(Status::INVALID_ARGUMENT, "%s is a %s: a list or array of whole numbers is due",
               field, Py_TYPE(value.ptr())->tp_name));
  }
  std::vector<T> numbers;
  numbers.reserve(py::len(value));
  size_t at = 0;
  for (const py::handle& item : value) {
    numbers.push_back(static_cast<T>(whole_number(field, at, item, low, high)));
    ++at;
  }
  return numbers;
}

// ml_dtypes.bfloat16 as a numpy dtype, looked up once.
const py::dtype& bf16_dtype() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::dtype> storage;
  return storage
      .call_once_and_store_result(
          [] { return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16")); })
      .get_stored();
}

double real(const char* field, const py::handle& value) {
  if (PyBool_Check(value.ptr()) || !PyNumber_Check(value.ptr()))
    raise(fail(Status::INVALID_ARGUMENT, "%s is a %s, not a number", field,
               Py_TYPE(value.ptr())->tp_name));
  const double exact = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred()) throw py::error_already_set();
  return exact;
}

float number(const char* field, const py::handle& value) {
  return static_cast<float>(real(field, value));
}

template <class T>
T whole(const char* field, const py::handle& value) {
  return static_cast<T>(whole_number(field, kAlone, value, std::numeric_limits<T>::min(),
                                     std::numeric_limits<T>::max()));
}

}  // namespace

std::vector<int32_t> int_list(const char* field, const py::handle& value) {
  if (const auto lying = as_it_lies(value); lying.data() != nullptr)
    return {lying.begin(), lying.end()};
  return number_list<int32_t>(field, value);
}

std::vector<uint32_t> uint_list(const char* field, const py::handle& value) {
  return number_list<uint32_t>(field, value);
}

IntArgument::IntArgument(const char* field, const py::handle& value) : values_(as_it_lies(value)) {
  if (values_.data() != nullptr) return;
  converted_ = int_list(field, value);
  values_ = converted_;
}

std::optional<uint32_t> optional_count(const char* field, const py::handle& value) {
  if (value.is_none()) return std::nullopt;
  return whole<uint32_t>(field, value);
}

std::optional<double> optional_seconds(const char* field, const py::handle& value) {
  if (value.is_none()) return std::nullopt;
  if (PyFloat_CheckExact(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
  return real(field, value);
}

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

uint64_t deadline_in(const char* field, double seconds) {
  if (std::isnan(seconds) || seconds < 0)
    raise(fail(Status::OUT_OF_RANGE, "%s=%g: seconds >= 0 are due", field, seconds));
  if (seconds > kNever) return CALD_NO_DEADLINE;
  return now_ns() + static_cast<uint64_t>(seconds * 1e9);
}

SamplingParams sampling_params(const py::dict& values) {
  SamplingParams params;
  for (const auto& [key, value] : values) {
    const auto name = py::cast<std::string>(key);
    const char* field = name.c_str();
    if (name == "temperature")
      params.temperature = number(field, value);
    else if (name == "top_k")
      params.top_k = whole<int32_t>(field, value);
    else if (name == "top_p")
      params.top_p = number(field, value);
    else if (name == "min_p")
      params.min_p = number(field, value);
    else if (name == "repeat_penalty")
      params.repeat_penalty = number(field, value);
    else if (name == "presence_penalty")
      params.presence_penalty = number(field, value);
    else if (name == "frequency_penalty")
      params.frequency_penalty = number(field, value);
    else if (name == "repeat_last_n")
      params.repeat_last_n = whole<int32_t>(field, value);
    else if (name == "seed")
      params.seed = whole<uint32_t>(field, value);
    else if (name == "n_probs")
      params.n_probs = whole<uint32_t>(field, value);
    else if (name == "logit_bias") {
      for (const auto& [token, bias] : py::cast<py::dict>(value))
        params.logit_bias.emplace_back(whole<int32_t>("logit_bias", token),
                                       number("logit_bias", bias));
    } else {
      raise(fail(
          Status::INVALID_ARGUMENT,
          "there is no sampling option '%s': temperature, top_k, top_p, min_p, repeat_penalty, "
          "presence_penalty, frequency_penalty, repeat_last_n, seed, n_probs, logit_bias",
          field));
    }
  }
  return params;
}

py::dtype numpy_dtype(int32_t dtype) {
  switch (dtype) {
    case CALD_F32:
      return py::dtype::of<float>();
    case CALD_BF16:
      return bf16_dtype();
    case CALD_F16:
      return py::dtype("float16");
    case CALD_I8:
      return py::dtype::of<int8_t>();
    case CALD_U8:
      return py::dtype::of<uint8_t>();
    case CALD_I16:
      return py::dtype::of<int16_t>();
    case CALD_U16:
      return py::dtype::of<uint16_t>();
    case CALD_I32:
      return py::dtype::of<int32_t>();
    case CALD_U32:
      return py::dtype::of<uint32_t>();
    case CALD_I64:
      return py::dtype::of<int64_t>();
    default:
      raise(fail(Status::UNSUPPORTED, "numpy has no dtype for calrt dtype %d", dtype));
  }
}

int32_t dtype_of(const py::array& array) {
  const py::dtype dtype = array.dtype();
  if (dtype.byteorder() == '>' || dtype.byteorder() == '!') return 0;
  if (dtype.num() == bf16_dtype().num()) return CALD_BF16;
  for (int32_t candidate :
       {CALD_F32, CALD_F16, CALD_I8, CALD_U8, CALD_I16, CALD_U16, CALD_I32, CALD_U32, CALD_I64})
    if (dtype.equal(numpy_dtype(candidate))) return candidate;
  return 0;
}

}  // namespace calrt::bind
