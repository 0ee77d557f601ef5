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
#include "calrt/buffer_pool.h"
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
  ErrorContext context() const { return ErrorContext(*device); }
};

struct PyModel {  // "Model"
  std::shared_ptr<engine::GraphRunner> runner;
  ~PyModel() { drop_without_gil(runner); }
  const std::shared_ptr<Model>& model() const { return runner->model(); }
  ErrorContext context() const { return ErrorContext(*model()); }
};

struct PyLane {  // "Lane"
  std::shared_ptr<engine::LaneLease> lease;
  const Model* model = nullptr;  // lives as long as the lease's queue
  ~PyLane() { drop_without_gil(lease); }
  ErrorContext context() const { return ErrorContext(*model); }
};

// A device's memory, or a pool's loan of it. Closed, it has let go; its views own it themselves.
struct PyBuffer {                  // "Buffer"
  std::shared_ptr<Buffer> buffer;  // null once closed
  ~PyBuffer() { drop_without_gil(buffer); }
  const std::shared_ptr<Buffer>& open() const {
    if (!buffer) raise(fail(Status::INVALID_STATE, "the buffer is closed"));
    return buffer;
  }
};

struct PyBufferPool {  // "BufferPool"
  std::shared_ptr<BufferPool> pool;
  bool closed = false;
  ~PyBufferPool() { drop_without_gil(pool); }
  ErrorContext context() const { return ErrorContext(*pool->device()); }
};

struct StridedMemory;

// Memory somebody keeps alive, read as a tensor.
struct PyTensor {                     // "Tensor"
  std::shared_ptr<const void> owner;  // of the memory; a view of the tensor owns it too
  std::shared_ptr<Buffer> buffer;
  uint64_t offset = 0;  // bytes from the start of the buffer to element 0
  int32_t dtype = 0;
  std::vector<uint64_t> shape;
  cald_layout layout{};
  bool writable = false;
  mutable std::shared_ptr<const StridedMemory> plain;  // of its views, once there was one

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

// Adds to the class Device what only asks.
void bind_device_queries(py::classh<PyDevice>& device);

py::dict describe_io(const cald_io& io);
py::list describe_layout(const cald_layout& layout);

}  // namespace calrt::bind
