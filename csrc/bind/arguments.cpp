// SPDX-License-Identifier: Apache-2.0
#include "bind/arguments.h"

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <type_traits>

#include "bind/errors.h"
#include "bind/named.h"
#include "layout/layout.h"

namespace calrt::bind {
namespace {

constexpr double kNever = 100.0 * 365 * 86400;

constexpr size_t kAlone = SIZE_MAX;  // the number is the argument, not an item of it

std::string place(const char* field, size_t at) {
  return at == kAlone ? field : std::string(field) + "[" + std::to_string(at) + "]";
}

// "=3.7" of what is short and has a text of Python's own; "" of the rest.
std::string shown(const py::handle& value) {
  const bool plain = PyFloat_CheckExact(value.ptr()) || PyBool_Check(value.ptr()) ||
                     (PyUnicode_CheckExact(value.ptr()) && PyUnicode_GetLength(value.ptr()) <= 40);
  return plain ? "=" + std::string(py::repr(value)) : "";
}

[[noreturn]] void refuse_item(const char* field, size_t at, const py::handle& value,
                              const std::string& due) {
  raise(fail(Status::INVALID_ARGUMENT, "%s is a %s%s%s", place(field, at).c_str(),
             Py_TYPE(value.ptr())->tp_name, due.c_str(),
             shown(value).empty() ? "" : (": " + place(field, at) + shown(value)).c_str()));
}

// After a conversion of Python's failed: its own refusals become ours, all else stays.
void forgive_refusal() {
  for (PyObject* kind : {PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError})
    if (PyErr_ExceptionMatches(kind) != 0) return PyErr_Clear();
  throw py::error_already_set();
}

std::string number_text(const py::handle& number) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(number.ptr()));
  if (text) return std::string(py::str(text));
  forgive_refusal();  // Python writes no number of more than some thousand digits
  return "a number too long to write";
}

template <class T>
T whole(const char* field, size_t at, const py::handle& value) {
  const auto index = py::reinterpret_steal<py::object>(
      PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr()) ? nullptr
                                                               : PyNumber_Index(value.ptr()));
  if (!index) {
    if (PyErr_Occurred() != nullptr) forgive_refusal();
    refuse_item(field, at, value, ", not a whole number");
  }
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow == 0 && std::in_range<T>(number)) return static_cast<T>(number);
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (overflow > 0) {
      const unsigned long long large = PyLong_AsUnsignedLongLong(index.ptr());
      if (PyErr_Occurred() == nullptr) return large;
      forgive_refusal();
    }
  }
  const char* range = std::is_same_v<T, uint64_t>   ? "0..2^64-1"
                      : std::is_same_v<T, int64_t>  ? "-2^63..2^63-1"
                      : std::is_same_v<T, uint32_t> ? "0..2^32-1"
                                                    : "-2^31..2^31-1";
  raise(fail(Status::OUT_OF_RANGE, "%s=%s is outside %s", place(field, at).c_str(),
             number_text(index).c_str(), range));
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

// Text and bytes are sequences to Python, but nobody means numbers by them.
bool is_list(const py::handle& value) {
  PyObject* const given = value.ptr();
  return PySequence_Check(given) != 0 && !PyUnicode_Check(given) && !PyBytes_Check(given) &&
         !PyByteArray_Check(given) && !PyMemoryView_Check(given);
}

template <class T>
std::vector<T> number_list(const char* field, const py::handle& value) {
  if (py::isinstance<py::array>(value)) {
    const auto array = py::reinterpret_borrow<py::array>(value);
    if (array.ndim() != 1)
      raise(fail(Status::SHAPE_MISMATCH, "%s has %zd dimensions: one is due", field, array.ndim()));
    if (array.dtype().kind() != 'i' && array.dtype().kind() != 'u')
      raise(fail(Status::DTYPE_MISMATCH, "%s has dtype %s: an integer dtype is due", field,
                 std::string(py::str(array.dtype())).c_str()));
  } else if (!is_list(value)) {
    raise(fail(Status::INVALID_ARGUMENT, "%s is a %s: a list or array of whole numbers is due",
               field, Py_TYPE(value.ptr())->tp_name));
  }
  std::vector<T> numbers;
  numbers.reserve(py::len(value));
  size_t at = 0;
  for (const py::handle& item : value) {
    numbers.push_back(whole<T>(field, at, item));
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
  const bool number = PyNumber_Check(value.ptr()) != 0 && !PyBool_Check(value.ptr()) &&
                      !py::isinstance<py::array>(value);
  const double exact = number ? PyFloat_AsDouble(value.ptr()) : -1;
  if (number && PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
    PyErr_Clear();
    raise(fail(Status::OUT_OF_RANGE, "%s=%s is too large", field, number_text(value).c_str()));
  }
  if (!number || PyErr_Occurred() != nullptr) {
    if (PyErr_Occurred() != nullptr) forgive_refusal();
    refuse_item(field, kAlone, value, ", not a number");
  }
  return exact;
}

float number(const char* field, const py::handle& value) {
  const double given = real(field, value);
  const auto taken = static_cast<float>(given);
  if (std::isfinite(given) && !std::isfinite(taken))
    raise(fail(Status::OUT_OF_RANGE, "%s=%g: no more than %g can be taken", field, given,
               double{std::numeric_limits<float>::max()}));
  return taken;
}

template <class T>
T whole(const char* field, const py::handle& value) {
  return whole<T>(field, kAlone, value);
}

[[noreturn]] void refuse_seconds(const char* field, double seconds) {
  raise(fail(Status::OUT_OF_RANGE, "%s=%g: seconds >= 0 are due", field, seconds));
}

// The pairs of a mapping, whatever kind of mapping it is, or a list or tuple of pairs.
py::list items_of(const char* field, const py::handle& value) {
  if (PyMapping_Check(value.ptr()) != 0 && py::hasattr(value, "items")) {
    auto items = py::reinterpret_steal<py::list>(PyMapping_Items(value.ptr()));
    if (items) return items;
    forgive_refusal();
  }
  if (!PyTuple_Check(value.ptr()) && !PyList_Check(value.ptr()))
    refuse_type(field, value, ": a dict is due, or pairs");
  py::list pairs;
  for (const py::handle& pair : value) {
    if (!PyTuple_Check(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2)
      refuse_item(field, pairs.size(), pair, ": a pair is due");
    pairs.append(pair);
  }
  return pairs;
}

}  // namespace

void refuse_type(const char* field, const py::handle& value, const std::string& due) {
  refuse_item(field, kAlone, value, due);
}

std::string text(const char* field, const py::handle& value) {
  if (!PyUnicode_Check(value.ptr())) refuse_type(field, value, ": a text is due");
  Py_ssize_t length = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
  if (utf8 == nullptr) {
    forgive_refusal();
    raise(fail(Status::INVALID_ARGUMENT, "%s=%s is no valid text: it has a lone surrogate", field,
               std::string(py::repr(value)).c_str()));
  }
  std::string copy(utf8, static_cast<size_t>(length));
  if (copy.find('\0') != std::string::npos)
    raise(fail(Status::INVALID_ARGUMENT, "%s=%s has a NUL character: none may be", field,
               std::string(py::repr(value)).c_str()));
  return copy;
}

std::vector<int32_t> int_list(const char* field, const py::handle& value) {
  if (const auto lying = as_it_lies(value); lying.data() != nullptr)
    return {lying.begin(), lying.end()};
  return number_list<int32_t>(field, value);
}

std::vector<uint32_t> uint_list(const char* field, const py::handle& value) {
  return number_list<uint32_t>(field, value);
}

std::vector<int32_t> token_ids(const char* field, const py::handle& value, uint32_t vocab) {
  const auto refuse = [&](const std::string& given) {
    raise(fail(Status::OUT_OF_RANGE, "%s: %s is no token id; 0..%u are due", field, given.c_str(),
               vocab - 1));
  };
  const auto fits = [&](int32_t token) { return token >= 0 && uint32_t(token) < vocab; };
  std::vector<int32_t> ids;
  if (const auto lying = as_it_lies(value); lying.data() != nullptr) {
    ids.assign(lying.begin(), lying.end());
  } else if (py::isinstance<py::array>(value)) {
    ids = int_list(field, value);
  } else {
    if (!is_list(value)) refuse_type(field, value, ": a list of token ids is due");
    ids.reserve(py::len(value));
    for (const py::handle& item : value) {
      const auto index = py::reinterpret_steal<py::object>(
          PyBool_Check(item.ptr()) || !PyIndex_Check(item.ptr()) ? nullptr
                                                                 : PyNumber_Index(item.ptr()));
      if (!index) {
        if (PyErr_Occurred() != nullptr) forgive_refusal();
        refuse(shown(item).empty() ? std::string("a ") + Py_TYPE(item.ptr())->tp_name
                                   : shown(item).substr(1));
      }
      int overflow = 0;
      const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
      if (overflow != 0 || !std::in_range<int32_t>(number)) refuse(number_text(index));
      ids.push_back(static_cast<int32_t>(number));
    }
  }
  for (const int32_t id : ids)
    if (!fits(id)) refuse(std::to_string(id));
  return ids;
}

IntArgument::IntArgument(const char* field, const py::handle& value) : values_(as_it_lies(value)) {
  if (values_.data() != nullptr) return;
  converted_ = int_list(field, value);
  values_ = converted_;
}

std::optional<uint32_t> optional_count(const char* field, const py::handle& value, uint32_t low,
                                       uint32_t high) {
  if (value.is_none()) return std::nullopt;
  const auto count = whole<int64_t>(field, value);
  if (count < int64_t{low} || count > int64_t{high})
    raise(fail(Status::OUT_OF_RANGE, "%s=%lld is outside %u..%u", field,
               static_cast<long long>(count), low, high));
  return static_cast<uint32_t>(count);
}

std::optional<double> optional_seconds(const char* field, const py::handle& value) {
  if (value.is_none()) return std::nullopt;
  const double seconds =
      PyFloat_CheckExact(value.ptr()) ? PyFloat_AS_DOUBLE(value.ptr()) : real(field, value);
  if (!(seconds >= 0)) refuse_seconds(field, seconds);
  return seconds;
}

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

uint64_t deadline_in(const char* field, double seconds) {
  if (std::isnan(seconds) || seconds < 0) refuse_seconds(field, seconds);
  if (seconds > kNever) return CALD_NO_DEADLINE;
  return now_ns() + static_cast<uint64_t>(seconds * 1e9);
}

SamplingParams sampling_params(const char* what, const py::handle& values) {
  SamplingParams params;
  for (const py::handle& item : items_of(what, values)) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    const py::object value = pair[1];
    const std::string name = text(what, pair[0]);
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
      for (const py::handle& each : items_of(field, value)) {
        const auto bias = py::reinterpret_borrow<py::tuple>(each);
        params.logit_bias.emplace_back(whole<int32_t>(field, bias[0]), number(field, bias[1]));
      }
    } else {
      raise(fail(
          Status::INVALID_ARGUMENT,
          "%s: there is no sampling option '%s': temperature, top_k, top_p, min_p, repeat_penalty, "
          "presence_penalty, frequency_penalty, repeat_last_n, seed, n_probs, logit_bias",
          what, field));
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

// ---- from_python: one for each type that a bound function may ask for ---------------------------

void from_python(const char* field, const py::handle& value, int32_t* out) {
  *out = whole<int32_t>(field, value);
}
void from_python(const char* field, const py::handle& value, uint32_t* out) {
  *out = whole<uint32_t>(field, value);
}
void from_python(const char* field, const py::handle& value, int64_t* out) {
  *out = whole<int64_t>(field, value);
}
void from_python(const char* field, const py::handle& value, uint64_t* out) {
  *out = whole<uint64_t>(field, value);
}
void from_python(const char* field, const py::handle& value, double* out) {
  *out = real(field, value);
}
void from_python(const char* field, const py::handle& value, bool* out) {
  if (!PyBool_Check(value.ptr())) refuse_type(field, value, ": True or False is due");
  *out = value.ptr() == Py_True;
}
void from_python(const char* field, const py::handle& value, std::string* out) {
  *out = text(field, value);
}
void from_python(const char* field, const py::handle& value, TextMap* out) {
  for (const py::handle& item : items_of(field, value)) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    std::string name = text(field, pair[0]);
    std::string of = std::string(field) + "[" + name + "]";
    out->insert_or_assign(std::move(name), text(of.c_str(), pair[1]));
  }
}
void from_python(const char* field, const py::handle& value, std::pair<int, int>* out) {
  if (!PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != 2)
    refuse_type(field, value, ": a pair of whole numbers is due");
  const auto pair = py::reinterpret_borrow<py::tuple>(value);
  *out = {whole<int32_t>(field, 0, pair[0]), whole<int32_t>(field, 1, pair[1])};
}
void from_python(const char* field, const py::handle& value, std::vector<int32_t>* out) {
  *out = int_list(field, value);
}
void from_python(const char* field, const py::handle& value, std::vector<uint32_t>* out) {
  *out = uint_list(field, value);
}
void from_python(const char* field, const py::handle& value, TokenIds* out) {
  static_cast<std::vector<int32_t>&>(*out) = token_ids(field, value, kAnyVocab);
}
void from_python(const char* field, const py::handle& value, py::array* out) {
  if (!py::isinstance<py::array>(value)) refuse_type(field, value, ": an array is due");
  *out = py::reinterpret_borrow<py::array>(value);
}
void from_python(const char* field, const py::handle& value, py::sequence* out) {
  if (!PySequence_Check(value.ptr()) || PyUnicode_Check(value.ptr()))
    refuse_type(field, value, ": a list is due");
  *out = py::reinterpret_borrow<py::sequence>(value);
}
void from_python(const char* field, const py::handle& value, SamplingParams* out) {
  *out = sampling_params(field, value);
}

}  // namespace calrt::bind
