// SPDX-License-Identifier: Apache-2.0
// What stands behind the Python classes. Each owns its native object by shared_ptr, so no order of
// deletion in Python can hurt; destructors that may call into a driver let go of the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "bind/errors.h"
#include "bind/module.h"
#include "calrt/device.h"
#include "calrt/model.h"
#include "calrt/package.h"
#include "engine/graph_runner.h"
#include "engine/lane_lease.h"

namespace calrt::bind {

struct PyPackage {  // "Package"
  std::shared_ptr<const Package> package;
};

struct PyDevice {  // "Device"
  std::shared_ptr<Device> device;
  ~PyDevice() { drop_without_gil(device); }
  ErrorContext context() const { return {device->spec(), 0}; }
};

struct PyModel {  // "Model"
  std::shared_ptr<engine::GraphRunner> runner;
  ~PyModel() { drop_without_gil(runner); }
  const std::shared_ptr<Model>& model() const { return runner->model(); }
  ErrorContext context() const { return {model()->device()->spec(), 0}; }
};

struct PyLane {  // "Lane"
  std::shared_ptr<engine::LaneLease> lease;
};

// A buffer's wrapper keeps its memory until the last memoryview is gone, closed or not.
struct PyBuffer {  // "Buffer"
  std::shared_ptr<Buffer> buffer;
  bool closed = false, exported = false;
  ~PyBuffer() { drop_without_gil(buffer); }

  Buffer& open() const {
    if (closed) raise(fail(Status::INVALID_STATE, "the buffer is closed"));
    return *buffer;
  }
};

// Memory somebody keeps alive, read as a tensor.
struct PyTensor {                     // "Tensor"
  std::shared_ptr<const void> owner;  // of the memory; a view of the tensor owns it too
  std::shared_ptr<Buffer> buffer;
  uint64_t offset = 0;  // bytes from the start of the buffer to element 0
  int32_t dtype = 0;
  std::vector<uint64_t> shape;
  cald_layout layout{};
  bool writable = false;

  // Address of element 0, or UNSUPPORTED where the host cannot address the buffer.
  Result<char*> data() const;
  // Row i of the first dimension, as a tensor of one rank less. `i` is in range.
  PyTensor row(uint64_t i) const;
};

// The tensor of one role of a graph in a binding set; `rows` replaces the first dimension if > 0.
PyTensor tensor_of(const std::shared_ptr<BindingSet>& set, const cald_io& io, uint64_t rows,
                   bool writable);

// The bit of a domain's name, or InvalidArgumentError with the names there are.
uint32_t domain_from_name(const std::string& name);

py::dict describe_io(const cald_io& io);
py::list describe_layout(const cald_layout& layout);

}  // namespace calrt::bind
