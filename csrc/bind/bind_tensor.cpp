// SPDX-License-Identifier: Apache-2.0
// Tensor: device results in numpy's clothes, without a copy where strides can express the layout.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "base/copied_bytes.h"
#include "bind/fast_call.h"
#include "bind/named.h"
#include "bind/objects.h"
#include "bind/views.h"
#include "layout/layout.h"
#include "layout/pack.h"
#include "layout/roles.h"

namespace calrt::bind {
namespace {

using DlVersion = std::optional<std::pair<int, int>>;

// Its elements at plain strides, or why there are none.
Result<StridedMemory> strided(const PyTensor& tensor) {
  CALRT_TRY_ASSIGN(char* data, tensor.data());
  const auto rank = static_cast<uint32_t>(tensor.shape.size());
  const auto strides = plain_strides(tensor.layout, rank);
  if (!strides)
    return fail(
        Status::UNSUPPORTED,
        "this layout has %u physical axes for %u dimensions, which strides cannot express: use "
        ".to_f32() for values in order, .raw() for the bytes as they lie",
        tensor.layout.n_axes, rank);
  StridedMemory memory;
  memory.data = data;
  memory.dtype = tensor.dtype;
  memory.rank = static_cast<int32_t>(rank);
  std::copy(tensor.shape.begin(), tensor.shape.end(), memory.shape);
  std::copy(strides->begin(), strides->end(), memory.strides);
  memory.writable = tensor.writable;
  memory.owner = tensor.owner;
  memory.buffer = tensor.buffer;
  return memory;
}

// The same, worked out once for each tensor.
const StridedMemory& plain(const PyTensor& tensor) {
  if (!tensor.plain) tensor.plain = std::make_shared<const StridedMemory>(unwrap(strided(tensor)));
  return *tensor.plain;
}

// For consumers whose one exception is BufferError.
const StridedMemory& exported(const PyTensor& tensor) {
  if (!tensor.plain) {
    Result<StridedMemory> memory = strided(tensor);
    if (!memory.ok()) raise_buffer_error(memory.error().message);
    tensor.plain = std::make_shared<const StridedMemory>(*std::move(memory));
  }
  return *tensor.plain;
}

py::object as_numpy(py::handle object, const Given& given) {
  static const Parameters parameters("numpy", std::array<const char*, 0>{}, 0, 0);
  (void)parameters.read<0>(given);
  return numpy_array(plain(*held<PyTensor>(object)));
}

// The bytes as they lie, read-only.
py::object raw_view(const PyTensor& tensor) {
  StridedMemory memory;
  memory.data = unwrap(tensor.data());
  memory.owner = tensor.owner;
  memory.buffer = tensor.buffer;
  if (tensor.layout.undetermined != 0) {
    memory.dtype = CALD_U8;
    memory.rank = 1;
    memory.shape[0] = static_cast<py::ssize_t>(tensor.layout.bytes);
    memory.strides[0] = 1;
    return numpy_array(memory);
  }
  memory.dtype = tensor.dtype;
  memory.rank = static_cast<int32_t>(tensor.layout.n_axes);
  for (uint32_t i = 0; i < tensor.layout.n_axes; ++i) {
    memory.shape[i] = static_cast<py::ssize_t>(tensor.layout.axes[i].extent);
    memory.strides[i] = static_cast<py::ssize_t>(tensor.layout.axes[i].stride);
  }
  return numpy_array(memory);
}

py::array_t<float> to_f32(const PyTensor& tensor, Arg<"out", std::optional<py::array>> given) {
  const std::optional<py::array>& out = given;
  std::vector<py::ssize_t> shape(tensor.shape.begin(), tensor.shape.end());
  py::array result;
  if (out) {
    if (dtype_of(*out) != CALD_F32)
      raise(fail(Status::DTYPE_MISMATCH, "out has dtype %s: float32 is due",
                 std::string(py::str(out->dtype())).c_str()));
    if (!std::equal(shape.begin(), shape.end(), out->shape(), out->shape() + out->ndim()))
      raise(fail(Status::SHAPE_MISMATCH, "out has another shape than the tensor"));
    if (!(out->flags() & py::array::c_style) || !out->writeable())
      raise(fail(Status::INVALID_ARGUMENT, "out must be C-contiguous and writable"));
    result = *out;
  } else {
    result = py::array_t<float>(shape);
  }
  auto* target = static_cast<float*>(result.mutable_data());
  const char* data = unwrap(tensor.data());
  unwrap(without_gil([&] {
    return unpack_f32(tensor.layout, tensor.dtype, tensor.shape.data(),
                      static_cast<uint32_t>(tensor.shape.size()), data, target);
  }));
  return result;
}

}  // namespace

Result<char*> PyTensor::data() const {
  if (buffer->data() == nullptr)
    return fail(Status::UNSUPPORTED, "the host cannot address this tensor's memory domain");
  return static_cast<char*>(buffer->data()) + offset;
}

PyTensor PyTensor::row(uint64_t i) const {
  PyTensor out = *this;
  out.plain.reset();
  const LayoutRow row = layout_row(layout, i);
  out.layout = row.layout;
  out.offset += row.offset;
  out.shape.erase(out.shape.begin());
  return out;
}

PyTensor tensor_of(const std::shared_ptr<BindingSet>& set, const cald_io& io, uint64_t rows,
                   bool writable) {
  PyTensor tensor;
  tensor.owner = set;
  tensor.buffer = set->share(io.role);
  tensor.dtype = io.dtype;
  tensor.shape.assign(io.shape, io.shape + io.rank);
  tensor.layout = io.layout;
  tensor.writable = writable;
  for (const cald_binding& binding : set->bindings())
    if (binding.role == io.role) tensor.offset = binding.offset;
  if (rows > 0 && io.rank > 0 && rows < tensor.shape[0]) {
    tensor.shape[0] = rows;
    // Only a plain first axis can be cut; a tiled one keeps its padded extent.
    for (uint32_t a = 0; a < tensor.layout.n_axes; ++a) {
      cald_axis& axis = tensor.layout.axes[a];
      if (axis.dim == 0 && axis.divisor <= 1 && axis.modulus == 0) axis.extent = rows;
    }
  }
  return tensor;
}

py::list describe_layout(const cald_layout& layout) {
  py::list axes;
  for (uint32_t i = 0; i < layout.n_axes; ++i) {
    const cald_axis& axis = layout.axes[i];
    py::dict entry;
    entry["dim"] = axis.dim;
    entry["divisor"] = axis.divisor;
    entry["modulus"] = axis.modulus;
    entry["extent"] = axis.extent;
    entry["stride"] = axis.stride;
    axes.append(entry);
  }
  return axes;
}

py::dict describe_io(const cald_io& io) {
  py::tuple shape(io.rank);
  for (uint32_t i = 0; i < io.rank; ++i) shape[i] = io.shape[i];
  py::dict entry;
  entry["dtype"] = dtype_name(io.dtype);
  entry["shape"] = shape;
  entry["layout"] = describe_layout(io.layout);
  entry["optional"] = io.optional != 0;
  return entry;
}

void bind_tensor(py::module_& m) {
  m.def("copied_bytes", &copied_bytes,
        "Bytes the runtime has copied or converted for callers since the process began: transfers "
        "of buffers, to_f32(), copies for DLPack. A view adds nothing.");
  py::classh<PyTensor> tensor(
      m, "Tensor", py::buffer_protocol(), py::is_final(), plain_type(),
      "Memory of the runtime read as a tensor: a graph's input or output.\n\n"
      "A view (numpy(), raw(), memoryview(tensor), DLPack) keeps the memory alive by itself; it "
      "stays valid and unchanged whatever is closed with force or deleted, and while it lives the "
      "buffers are not used for another job. Views of outputs are read-only.");
  tensor
      .def_property_readonly(
          "dtype", [](const PyTensor& self) { return dtype_name(self.dtype); },
          "Name of the element type, e.g. 'bf16'.")
      .def_property_readonly(
          "shape", [](const PyTensor& self) { return py::tuple(py::cast(self.shape)); },
          "Logical shape, in elements.")
      .def_property_readonly(
          "layout", [](const PyTensor& self) { return describe_layout(self.layout); },
          "Physical axes, slowest first: dim, divisor, modulus, extent, stride (bytes).")
      .def("raw", &raw_view,
           "The physical axes as a read-only numpy array without a copy, padding included; uint8 "
           "where "
           "the layout is not known.")
      .def("to_f32", &to_f32, py::arg("out") = py::none(),
           "The values as float32, row-major, copied into `out` (float32, same shape, "
           "C-contiguous, writable) or a new array of the caller's. From bf16 that is exact.\n\n"
           "InvalidArgumentError naming what is wrong with `out`; UnsupportedError where the "
           "layout is not known or the host cannot address the memory.")
      .def(
          "row",
          [](const PyTensor& self, Arg<"index", int64_t> which) {
            const int64_t index = which;
            if (self.shape.empty())
              raise(fail(Status::SHAPE_MISMATCH, "a tensor without dimensions has no rows"));
            const auto rows = static_cast<int64_t>(self.shape[0]);
            const int64_t at = index < 0 ? index + rows : index;
            if (at < 0 || at >= rows)
              raise(fail(Status::OUT_OF_RANGE, "index=%lld is outside %lld..%lld",
                         static_cast<long long>(index), static_cast<long long>(-rows),
                         static_cast<long long>(rows - 1)));
            if (self.layout.undetermined)
              raise(fail(Status::UNSUPPORTED, "the layout of this tensor is not known"));
            return self.row(static_cast<uint64_t>(at));
          },
          py::arg("index"),
          "Row `index` of the first dimension as a Tensor, without a copy; negative from the "
          "end.\n\n"
          "InvalidArgumentError where there is no such row; UnsupportedError where the layout is "
          "not known.")
      .def(
          "__dlpack__",
          [](const PyTensor& self, const py::object& stream,
             Arg<"max_version", DlVersion> max_version, Arg<"dl_device", DlVersion> dl_device,
             Arg<"copy", std::optional<bool>> copy) {
            return dlpack_capsule(exported(self), stream, max_version, dl_device, copy);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
          "A DLPack capsule: host memory, bf16 as kDLBfloat. Outputs are read-only, which needs "
          "max_version=(1, 0) or later, or copy=True. BufferError where the layout has no plain "
          "strides (use to_f32()), for another dl_device than (1, 0), and for a stream.")
      .def(
          "__dlpack_device__", [](const PyTensor&) { return dlpack_device(); }, "(1, 0): the host.")
      .def("__repr__",
           [](const PyTensor& self) {
             const std::string shape = py::repr(py::tuple(py::cast(self.shape)));
             return std::string("<calrt.Tensor ") + dtype_name(self.dtype) + " " + shape +
                    (self.writable ? ">" : ", read-only>");
           })
#if PY_VERSION_HEX < 0x030C0000  // later versions make it from the slot
      .def(
          "__buffer__", [](const py::object& self, int) { return py::memoryview(self); },
          py::arg("flags"), py::pos_only(), "memoryview(tensor).")
#endif
      ;
  add_method<&as_numpy>(
      tensor, "numpy",
      "numpy($self, /)\n--\n\n"
      "The values as a numpy array without a copy, read-only for outputs; bf16 has dtype "
      "ml_dtypes.bfloat16.\n\n"
      "UnsupportedError where plain strides cannot express the layout, or the host cannot address "
      "the memory.");
  export_buffers(tensor, [](py::handle self) { return exported(py::cast<const PyTensor&>(self)); });
}

}  // namespace calrt::bind
