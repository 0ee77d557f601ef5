// SPDX-License-Identifier: Apache-2.0
// The runtime's memory as Python's consumers take it, without a copy: numpy, the buffer protocol,
// DLPack. Each view owns its memory and is counted, so that close() can tell who still looks.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "calrt/buffer.h"

namespace calrt::bind {

namespace py = pybind11;

// Elements at strides in memory that the host can address.
struct StridedMemory {
  void* data = nullptr;
  int32_t dtype = 0;
  int32_t rank = 0;
  py::ssize_t shape[CALD_MAX_RANK] = {};
  py::ssize_t strides[CALD_MAX_RANK] = {};  // bytes
  bool writable = false;
  std::shared_ptr<const void> owner;  // what keeps the buffer from being used again; may be null
  std::shared_ptr<Buffer> buffer;

  uint64_t elements() const;
  bool c_contiguous() const;
  bool f_contiguous() const;
};

py::object numpy_array(const StridedMemory& memory);

// Makes `type` an exporter of the buffer protocol: memory(self) is asked each time and may throw.
void export_buffers(py::handle type, StridedMemory (*memory)(py::handle self));

// DLPack, versions 0 (legacy) and 1.0. BufferError for what it cannot say or was asked to refuse.
py::object dlpack_capsule(const StridedMemory& memory, const py::object& stream,
                          const std::optional<std::pair<int, int>>& max_version,
                          const std::optional<std::pair<int, int>>& dl_device,
                          std::optional<bool> copy);
// (kDLCPU, 0)
py::tuple dlpack_device();

// BufferError when views of what is to be closed live: nothing is closed then.
void refuse_views(const char* what, const ExportCensus& census);

// A buffer protocol's, numpy's and DLPack's BufferError.
[[noreturn]] void raise_buffer_error(const std::string& text);

}  // namespace calrt::bind
