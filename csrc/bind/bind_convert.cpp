// SPDX-License-Identifier: Apache-2.0
// BF16 conversion on numpy arrays, instruction sets, file hashes.
#include <fcntl.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "bind/arguments.h"
#include "bind/errors.h"
#include "bind/fast_call.h"
#include "bind/module.h"
#include "bind/named.h"
#include "layout/convert.h"
#include "layout/pack.h"

namespace calrt::bind {
namespace {

constexpr py::ssize_t kReleaseAt = 16384;  // elements from which letting go of the GIL pays

// An array as its fields, which numpy's own calls would take longer to tell than a short
// conversion.
const py::detail::PyArray_Proxy& fields(const py::array& array) {
  return *py::detail::array_proxy(array.ptr());
}

bool has_dtype(const py::array& array, int32_t dtype, const py::dtype& expected) {
  return fields(array).descr == expected.ptr() || dtype_of(array) == dtype;
}

bool is_dense(const py::array& array) { return (fields(array).flags & py::array::c_style) != 0; }

std::string text(const py::handle& value) { return std::string(py::str(value)); }

// First byte of an array and the one after its last; strides may be negative.
std::pair<const char*, const char*> reach(const py::array& array) {
  const auto& f = fields(array);
  const char *low = f.data, *high = f.data + array.itemsize();
  for (int d = 0; d < f.nd; ++d) {
    if (f.dimensions[d] == 0) return {f.data, f.data};
    const py::ssize_t last = (f.dimensions[d] - 1) * f.strides[d];
    (last < 0 ? low : high) += last;
  }
  return {low, high};
}

py::array target_of(const char* name, const py::array& source, int32_t dtype, py::handle out) {
  const auto& from = fields(source);
  const py::dtype expected = numpy_dtype(dtype);
  if (out.is_none()) {
    // By hand: py::array makes vectors of shape and strides first.
    auto& numpy = py::detail::npy_api::get();
    auto made = py::reinterpret_steal<py::array>(numpy.PyArray_NewFromDescr_(
        numpy.PyArray_Type_, py::dtype(expected).release().ptr(), from.nd,
        reinterpret_cast<const Py_intptr_t*>(from.dimensions), nullptr, nullptr, 0, nullptr));
    if (!made) throw py::error_already_set();
    return made;
  }
  if (!py::isinstance<py::array>(out))
    raise(fail(Status::INVALID_ARGUMENT, "out is a %s: an array is due",
               Py_TYPE(out.ptr())->tp_name));
  auto array = py::reinterpret_borrow<py::array>(out);
  const auto& to = fields(array);
  if (!has_dtype(array, dtype, expected))
    raise(fail(Status::DTYPE_MISMATCH, "out has dtype %s: %s is due", text(array.dtype()).c_str(),
               dtype == CALD_F32 ? "float32" : "bfloat16"));
  if (to.nd != from.nd || !std::equal(from.dimensions, from.dimensions + from.nd, to.dimensions))
    raise(fail(Status::SHAPE_MISMATCH, "out has shape %s: %s is due",
               text(out.attr("shape")).c_str(), text(source.attr("shape")).c_str()));
  if (!is_dense(array) || !array.writeable())
    raise(fail(Status::INVALID_ARGUMENT, "out must be C-contiguous and writable"));
  const auto [from_low, from_high] = reach(source);
  const auto [to_low, to_high] = reach(array);
  if (from_low < to_high && to_low < from_high)
    raise(fail(Status::INVALID_ARGUMENT,
               "out and %s share memory: their elements differ in size, so none can be converted "
               "in place",
               name));
  return array;
}

// Converts an array of any strides, dense as a whole, or row by row: a row whose elements are
// apart goes through a buffer that fits the first-level cache. Nothing is allocated per element.
template <class From, class To>
void convert(const py::array& source, py::array& target, void (*kernel)(const From*, To*, size_t)) {
  const auto& from = fields(source);
  auto* to = reinterpret_cast<To*>(py::detail::array_proxy(target.ptr())->data);
  const py::ssize_t n = source.size();
  const auto all = [&] {
    if (n == 0) return;
    if (is_dense(source))
      return kernel(reinterpret_cast<const From*>(from.data), to, static_cast<size_t>(n));
    const int last = from.nd - 1;  // an array that is not dense has a dimension
    const py::ssize_t columns = from.dimensions[last], step = from.strides[last];
    std::vector<py::ssize_t> index(static_cast<size_t>(from.nd), 0);
    const char* row = from.data;
    for (py::ssize_t done = 0; done < n; done += columns, to += columns) {
      if (step == static_cast<py::ssize_t>(sizeof(From))) {
        kernel(reinterpret_cast<const From*>(row), to, static_cast<size_t>(columns));
      } else {
        constexpr py::ssize_t kPiece = 512;
        From piece[kPiece];
        for (py::ssize_t c = 0; c < columns; c += kPiece) {
          const py::ssize_t count = std::min(kPiece, columns - c);
          for (py::ssize_t i = 0; i < count; ++i)
            std::memcpy(piece + i, row + (c + i) * step, sizeof *piece);
          kernel(piece, to + c, static_cast<size_t>(count));
        }
      }
      for (int d = last; d-- > 0;) {
        auto& at = index[static_cast<size_t>(d)];
        row += from.strides[d];
        if (++at < from.dimensions[d]) break;
        row -= at * from.strides[d];
        at = 0;
      }
    }
  };
  if (n < kReleaseAt) return all();
  without_gil(all);
}

// A list of numbers as float32. numpy itself would take None and text for numbers, too.
py::array numbers_of(py::handle a) {
  py::object made;
  try {
    made = py::module_::import("numpy").attr("asarray")(a);
    const char kind = py::reinterpret_borrow<py::array>(made).dtype().kind();
    if (kind == 'f' || kind == 'i' || kind == 'u') return made.attr("astype")("f4");
  } catch (py::error_already_set& error) {  // rows of different lengths
    if (!error.matches(PyExc_ValueError)) throw;
  }
  refuse_type("a", a, ": a float32 array or an even list of numbers is due");
}

py::object narrow(py::handle, const Given& given) {
  static const Parameters parameters("bf16_from_f32", std::array{"a", "out"}, 1, 2);
  const auto [a, out] = parameters.read<2>(given);
  const py::array source =
      py::isinstance<py::array>(a) ? py::reinterpret_borrow<py::array>(a) : numbers_of(a);
  if (!has_dtype(source, CALD_F32, numpy_dtype(CALD_F32)))
    raise(fail(Status::DTYPE_MISMATCH, "a has dtype %s: float32 is due (a.astype(numpy.float32))",
               text(source.dtype()).c_str()));
  py::array result = target_of("a", source, CALD_BF16, out);
  convert<float, uint16_t>(source, result, bf16_from_f32);
  return result;
}

py::object widen(py::handle, const Given& given) {
  static const Parameters parameters("bf16_to_f32", std::array{"b", "out"}, 1, 2);
  const auto [b, out] = parameters.read<2>(given);
  if (!py::isinstance<py::array>(b))
    raise(fail(Status::INVALID_ARGUMENT, "b is a %s: an array of bfloat16 is due",
               Py_TYPE(b.ptr())->tp_name));
  const auto source = py::reinterpret_borrow<py::array>(b);
  if (!has_dtype(source, CALD_BF16, numpy_dtype(CALD_BF16)))
    raise(fail(Status::DTYPE_MISMATCH,
               "b has dtype %s: bfloat16 is due (calrt.bf16.view() for uint16 bits)",
               text(source.dtype()).c_str()));
  py::array result = target_of("b", source, CALD_F32, out);
  convert<uint16_t, float>(source, result, f32_from_bf16);
  return result;
}

// A whole number that fits 31 bits, without the checks of others.
template <class Number>
bool is_small(PyObject* value, Number* out) {
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(value, &overflow);
  if (overflow != 0 || number < 0 || number > INT32_MAX) return false;
  *out = static_cast<Number>(number);
  return true;
}

// Interned once, so that a look-up compares addresses; they live as long as the process.
struct AxisKeys {
  PyObject* dim = PyUnicode_InternFromString("dim");
  PyObject* divisor = PyUnicode_InternFromString("divisor");
  PyObject* modulus = PyUnicode_InternFromString("modulus");
  PyObject* extent = PyUnicode_InternFromString("extent");
  PyObject* stride = PyUnicode_InternFromString("stride");
};

// The keys of Tensor.layout, back into a layout of `bytes`.
cald_layout layout_of(const py::sequence& axes, uint64_t bytes) {
  if (py::len(axes) > CALD_MAX_AXES)
    raise(fail(Status::SHAPE_MISMATCH, "layout has %zu axes: %d are the most", py::len(axes),
               CALD_MAX_AXES));
  static const AxisKeys keys;
  cald_layout layout{};
  layout.bytes = bytes;
  for (const py::handle& axis : axes) {
    cald_axis& to = layout.axes[layout.n_axes];
    const auto name = [&] { return "layout[" + std::to_string(layout.n_axes) + "]"; };
    if (!PyDict_Check(axis.ptr())) refuse_type(name().c_str(), axis, ": a dict is due");
    const auto number = [&](PyObject* key, auto* out) {
      const py::handle value = PyDict_GetItemWithError(axis.ptr(), key);
      // Names are made where one is needed: they would take longer than a short row.
      if (value && PyLong_CheckExact(value.ptr()) && is_small(value.ptr(), out)) return;
      const std::string field = name() + "['" + PyUnicode_AsUTF8(key) + "']";
      if (!value) raise(fail(Status::INVALID_ARGUMENT, "%s is missing", field.c_str()));
      from_python(field.c_str(), value, out);
    };
    number(keys.dim, &to.dim);
    number(keys.divisor, &to.divisor);
    number(keys.modulus, &to.modulus);
    number(keys.extent, &to.extent);
    number(keys.stride, &to.stride);
    ++layout.n_axes;
  }
  return layout;
}

py::array unpack(Arg<"memory", py::array> bytes, Arg<"layout", py::sequence> layout,
                 Arg<"out", py::array> target) {
  const py::array& memory = bytes;
  py::array out = target;
  if (!has_dtype(out, CALD_F32, numpy_dtype(CALD_F32)))
    raise(fail(Status::DTYPE_MISMATCH, "out has dtype %s: float32 is due",
               text(out.dtype()).c_str()));
  if (!is_dense(memory) || !is_dense(out) || !out.writeable())
    raise(fail(Status::INVALID_ARGUMENT, "memory and out must be C-contiguous, out writable"));
  const cald_layout axes = layout_of(layout, static_cast<uint64_t>(memory.nbytes()));
  const bool bf16 = has_dtype(memory, CALD_BF16, numpy_dtype(CALD_BF16));
  const int32_t dtype = bf16 ? CALD_BF16 : dtype_of(memory);
  if (dtype == 0)
    raise(fail(Status::DTYPE_MISMATCH, "memory has dtype %s, which calrt does not know",
               text(memory.dtype()).c_str()));
  const std::vector<uint64_t> shape(out.shape(), out.shape() + out.ndim());
  const void* from = memory.data();
  auto* to = static_cast<float*>(out.mutable_data());
  unwrap(without_gil([&] {
    return unpack_f32(axes, dtype, shape.data(), static_cast<uint32_t>(shape.size()), from, to);
  }));
  return out;
}

Result<std::string> sha256_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return fail(errno == ENOENT                      ? Status::PACKAGE_NOT_FOUND
                : errno == EMFILE || errno == ENFILE ? Status::OUT_OF_HOST_MEMORY
                                                     : Status::PACKAGE_CORRUPT,
                "%s: %s", path.c_str(), std::strerror(errno));
  Sha256 hash;
  std::vector<char> piece(1 << 20);
  ssize_t n = 0;
  while ((n = read(fd, piece.data(), piece.size())) > 0)
    hash.update(piece.data(), static_cast<size_t>(n));
  const int failed = n < 0 ? errno : 0;
  close(fd);
  if (failed != 0)
    return fail(Status::PACKAGE_CORRUPT, "%s: %s", path.c_str(), std::strerror(failed));
  return hex(hash.digest());
}

constexpr const char* kFromF32 = R"(bf16_from_f32(a, out=None)
--

float32 to the nearest bfloat16, any shape, ties to even.

`a` is a float32 array of any strides in the machine's byte order, or a list of numbers, which is
made float32 first. The result has its shape and is a new C-contiguous array of the caller's, or
`out`: a C-contiguous, writable bfloat16 array of the same shape that shares no memory with `a`,
filled and returned.

Raises `InvalidArgumentError` where `a` or `out` is not so: float64 would be rounded twice, so
convert it yourself. `MemoryError` where the result cannot be had.)";

constexpr const char* kToF32 = R"(bf16_to_f32(b, out=None)
--

bfloat16 to float32, any shape, exact.

`b` is a bfloat16 array of any strides in the machine's byte order; `view()` makes one of uint16
bits. The result has its shape and is a new C-contiguous array of the caller's, or `out`: a
C-contiguous, writable float32 array of the same shape that shares no memory with `b`, filled and
returned.

Raises `InvalidArgumentError` where `b` or `out` is not so, float16 among them: its bits are
another format's. `MemoryError` where the result cannot be had.)";

}  // namespace

void bind_convert(py::module_& m) {
  m.def("isas", &usable_isas, "Instruction sets compiled in and usable here, fastest first.");
  m.def(
      "isa", [] { return unwrap(selected_isa()); },
      "The instruction set in use: the first usable one, or CALRT_ISA. InvalidArgumentError if "
      "that is "
      "unknown or unusable.");
  add_function<&narrow>(m, "bf16_from_f32", kFromF32);
  add_function<&widen>(m, "bf16_to_f32", kToF32);
  m.def("unpack_f32", &unpack, py::arg("memory"), py::arg("layout"), py::arg("out"),
        "A tensor of float32 or bfloat16 that lies in `memory` by the axes of `layout` (as "
        "Tensor.layout), copied into `out` (float32, of the tensor's shape, C-contiguous, "
        "writable), which is returned.\n\nCalrtError where the axes reach beyond `memory` or "
        "make no layout.");
  m.def(
      "sha256_file",
      [](Arg<"path", std::string> path) {
        return unwrap(without_gil([&] { return sha256_file(path); }));
      },
      py::arg("path"),
      "SHA-256 of a file's content as 64 hex digits, read in pieces without the GIL.");
}

}  // namespace calrt::bind
