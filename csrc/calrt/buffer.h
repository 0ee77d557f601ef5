// SPDX-License-Identifier: Apache-2.0
// Memory of a device.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "calrt/driver_handle.h"

namespace calrt {

class Device;

// One allocation in one memory domain. Freed with the last owner (a view counts as an owner).
class Buffer {
 public:
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint64_t bytes() const { return bytes_; }
  uint32_t domain() const { return domain_; }
  // Address for the host, null when the domain is not addressable. Valid as long as the Buffer.
  void* data() const { return data_; }
  cald_buffer* handle() const { return handle_.get().pointer; }
  // OUT_OF_RANGE, with the numbers, when [offset, offset + bytes) is not inside. Thread-safe.
  Result<void> write(uint64_t offset, const void* src, uint64_t bytes);
  Result<void> read(uint64_t offset, void* dst, uint64_t bytes) const;

 private:
  friend class Device;
  Buffer() = default;
  std::shared_ptr<Device> device_;  // before handle_: the parent goes last
  BufferHandle handle_;
  mutable std::mutex mutex_;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  uint32_t domain_ = 0;
};

}  // namespace calrt
