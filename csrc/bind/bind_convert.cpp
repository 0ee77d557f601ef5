// SPDX-License-Identifier: Apache-2.0
// BF16 conversion on numpy arrays, instruction sets, file hashes.
#include <fcntl.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/sha256.h"
#include "bind/arguments.h"
#include "bind/errors.h"
#include "bind/module.h"
#include "layout/convert.h"

namespace calrt::bind {
namespace {

constexpr py::ssize_t kReleaseAt = 4096;  // elements from which letting go of the GIL pays

py::array target_of(const py::array& source, int32_t dtype, const py::object& out) {
  const std::vector<py::ssize_t> shape(source.shape(), source.shape() + source.ndim());
  if (out.is_none()) return py::array(numpy_dtype(dtype), shape);
  if (!py::isinstance<py::array>(out))
    raise(fail(Status::INVALID_ARGUMENT, "out is a %s: an array is due",
               Py_TYPE(out.ptr())->tp_name));
  auto array = py::reinterpret_borrow<py::array>(out);
  if (dtype_of(array) != dtype)
    raise(fail(Status::DTYPE_MISMATCH, "out has dtype %s: %s is due",
               std::string(py::str(array.dtype())).c_str(),
               dtype == CALD_F32 ? "float32" : "bfloat16"));
  if (array.ndim() != source.ndim() || !std::equal(shape.begin(), shape.end(), array.shape()))
    raise(fail(Status::SHAPE_MISMATCH, "out has shape %s: %s is due",
               std::string(py::str(out.attr("shape"))).c_str(),
               std::string(py::str(source.attr("shape"))).c_str()));
  if (!(array.flags() & py::array::c_style) || !array.writeable())
    raise(fail(Status::INVALID_ARGUMENT, "out must be C-contiguous and writable"));
  return array;
}

template <class Convert>
void run(py::ssize_t n, Convert&& convert) {
  if (n < kReleaseAt) return convert();
  without_gil(convert);
}

py::array contiguous(const py::array& array) {
  return py::module_::import("numpy").attr("ascontiguousarray")(array).attr("reshape")(
      array.attr("shape"));
}

py::array narrow(const py::object& a, const py::object& out) {
  py::array source;
  if (py::isinstance<py::array>(a))
    source = py::reinterpret_borrow<py::array>(a);
  else
    source = py::array(py::module_::import("numpy").attr("asarray")(a, py::arg("dtype") = "f4"));
  if (dtype_of(source) != CALD_F32)
    raise(fail(Status::DTYPE_MISMATCH, "a has dtype %s: float32 is due (a.astype(numpy.float32))",
               std::string(py::str(source.dtype())).c_str()));
  py::array result = target_of(source, CALD_BF16, out);
  source = contiguous(source);
  const auto* from = static_cast<const float*>(source.data());
  auto* to = static_cast<uint16_t*>(result.mutable_data());
  run(source.size(), [&] { bf16_from_f32(from, to, static_cast<size_t>(source.size())); });
  return result;
}

py::array widen(const py::array& b, const py::object& out) {
  if (dtype_of(b) != CALD_BF16)
    raise(fail(Status::DTYPE_MISMATCH,
               "b has dtype %s: bfloat16 is due (calrt.bf16.view() for uint16 bits)",
               std::string(py::str(b.dtype())).c_str()));
  py::array result = target_of(b, CALD_F32, out);
  const py::array source = contiguous(b);
  const auto* from = static_cast<const uint16_t*>(source.data());
  auto* to = static_cast<float*>(result.mutable_data());
  run(source.size(), [&] { f32_from_bf16(from, to, static_cast<size_t>(source.size())); });
  return result;
}

Result<std::string> sha256_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return fail(errno == ENOENT ? Status::PACKAGE_NOT_FOUND : Status::PACKAGE_CORRUPT, "%s: %s",
                path.c_str(), std::strerror(errno));
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

}  // namespace

void bind_convert(py::module_& m) {
  m.def("isas", &usable_isas, "Instruction sets compiled in and usable here, fastest first.");
  m.def(
      "isa", [] { return unwrap(selected_isa()); },
      "The instruction set in use: the first usable one, or CALRT_ISA. InvalidArgumentError if "
      "that is "
      "unknown or unusable.");
  m.def("bf16_from_f32", &narrow, py::arg("a"), py::arg("out") = py::none(),
        "float32 to bfloat16, round to nearest, ties to even; NaN stays NaN. See "
        "calrt.bf16.from_f32.");
  m.def("bf16_to_f32", &widen, py::arg("b"), py::arg("out") = py::none(),
        "bfloat16 to float32, exact. See calrt.bf16.to_f32.");
  m.def(
      "sha256_file",
      [](const std::string& path) {
        return unwrap(without_gil([&] { return sha256_file(path); }));
      },
      py::arg("path"),
      "SHA-256 of a file's content as 64 hex digits, read in pieces without the GIL.");
}

}  // namespace calrt::bind
