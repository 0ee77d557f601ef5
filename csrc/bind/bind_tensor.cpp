// SPDX-License-Identifier: Apache-2.0
// Tensor: device results in numpy's clothes, without a copy where strides can express the layout.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bind/arguments.h"
#include "bind/objects.h"
#include "layout/convert.h"
#include "layout/layout.h"
#include "layout/roles.h"

namespace calrt::bind {
namespace {

// What a numpy array keeps alive instead of the Python wrapper: closing cannot free it.
py::capsule keep_alive(const PyTensor& tensor) {
  using Owner = std::pair<std::shared_ptr<const void>, std::shared_ptr<Buffer>>;
  auto owner = std::make_unique<Owner>(tensor.owner, tensor.buffer);
  py::capsule capsule(owner.get(), [](void* pointer) {
    std::unique_ptr<Owner> dropped(static_cast<Owner*>(pointer));
    drop_without_gil(dropped);
  });
  owner.release();
  return capsule;
}

py::array finish(py::array array, bool writable) {
  if (!writable) array.attr("setflags")(py::arg("write") = false);
  return array;
}

py::array numpy_view(const PyTensor& tensor) {
  char* data = unwrap(tensor.data());
  const auto rank = static_cast<uint32_t>(tensor.shape.size());
  const auto strides = plain_strides(tensor.layout, rank);
  if (!strides)
    raise(fail(
        Status::UNSUPPORTED,
        "this layout has %u physical axes for %u dimensions, which strides cannot express: use "
        ".to_f32() for values in order, .raw() for the bytes as they lie",
        tensor.layout.n_axes, rank));
  std::vector<py::ssize_t> shape(tensor.shape.begin(), tensor.shape.end());
  std::vector<py::ssize_t> steps(strides->begin(), strides->end());
  return finish(py::array(numpy_dtype(tensor.dtype), shape, steps, data, keep_alive(tensor)),
                tensor.writable);
}

py::array raw_view(const PyTensor& tensor) {
  char* data = unwrap(tensor.data());
  if (tensor.layout.undetermined)
    return finish(py::array(py::dtype::of<uint8_t>(),
                            std::vector<py::ssize_t>{static_cast<py::ssize_t>(tensor.layout.bytes)},
                            {}, data, keep_alive(tensor)),
                  false);
  std::vector<py::ssize_t> shape, strides;
  for (uint32_t i = 0; i < tensor.layout.n_axes; ++i) {
    shape.push_back(static_cast<py::ssize_t>(tensor.layout.axes[i].extent));
    strides.push_back(static_cast<py::ssize_t>(tensor.layout.axes[i].stride));
  }
  return finish(py::array(numpy_dtype(tensor.dtype), shape, strides, data, keep_alive(tensor)),
                false);
}

py::array_t<float> to_f32(const PyTensor& tensor, const std::optional<py::array>& out) {
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
  std::vector<uint64_t> index(shape.size(), 0);
  index[0] = i;
  // The offset is a sum over dimensions, so fixing one moves the origin and drops its axes.
  out.offset += layout_offset(layout, index.data());
  out.shape.erase(out.shape.begin());
  out.layout.n_axes = 0;
  for (uint32_t a = 0; a < layout.n_axes; ++a) {
    if (layout.axes[a].dim == 0) continue;
    cald_axis axis = layout.axes[a];
    --axis.dim;
    out.layout.axes[out.layout.n_axes++] = axis;
  }
  out.layout.bytes = layout.bytes - (out.offset - offset);
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
  py::classh<PyTensor>(
      m, "Tensor", py::is_final(), plain_type(),
      "Memory of the runtime read as a tensor: a graph's input or output.\n\n"
      "A view (numpy(), raw()) keeps the memory alive by itself; it stays valid and "
      "unchanged whatever is closed or deleted, and while it lives the buffers are "
      "not used for another job.")
      .def_property_readonly(
          "dtype", [](const PyTensor& self) { return dtype_name(self.dtype); },
          "Name of the element type, e.g. 'bf16'.")
      .def_property_readonly(
          "shape", [](const PyTensor& self) { return py::tuple(py::cast(self.shape)); },
          "Logical shape.")
      .def_property_readonly(
          "layout", [](const PyTensor& self) { return describe_layout(self.layout); },
          "Physical axes, slowest first: dim, divisor, modulus, extent, stride (bytes).")
      .def("numpy", &numpy_view,
           "The values as a numpy array without a copy, read-only for outputs; bf16 has dtype "
           "ml_dtypes.bfloat16.\n\nUnsupportedError where plain strides cannot express the layout.")
      .def("raw", &raw_view,
           "The physical axes as a read-only numpy array without a copy, padding included; uint8 "
           "where "
           "the layout is not known.")
      .def(
          "to_f32", &to_f32, py::arg("out").none(true) = py::none(),
          "The values as float32, row-major, copied into `out` (float32, same shape, C-contiguous, "
          "writable) or a new array.")
      .def(
          "row",
          [](const PyTensor& self, int64_t index) {
            if (self.shape.empty())
              raise(fail(Status::SHAPE_MISMATCH, "a tensor without dimensions has no rows"));
            const auto rows = static_cast<int64_t>(self.shape[0]);
            const int64_t at = index < 0 ? index + rows : index;
            if (at < 0 || at >= rows)
              raise(fail(Status::OUT_OF_RANGE, "row %lld is outside 0..%lld",
                         static_cast<long long>(index), static_cast<long long>(rows - 1)));
            if (self.layout.undetermined)
              raise(fail(Status::UNSUPPORTED, "the layout of this tensor is not known"));
            return self.row(static_cast<uint64_t>(at));
          },
          py::arg("index"),
          "Row `index` of the first dimension, without a copy; negative from the end.");
}

}  // namespace calrt::bind
