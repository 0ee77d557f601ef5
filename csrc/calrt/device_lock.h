// SPDX-License-Identifier: Apache-2.0
// One process at a time on an exclusive device: a record lock (fcntl F_SETLK) on a file that all
// processes of the machine find by the same name. The kernel frees it with the process, however
// that ends, a fork's child does not get it, and it names the holder. Within a process the lock is
// shared by all who take it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace calrt {

// Move-only; the last one of a device in this process frees it. Thread-safe.
class DeviceLock {
 public:
  // `id`: the device's id, or its index where it has none. The file lies in CALRT_LOCK_DIR, else in
  // the system's folder for temporary files. DEVICE_UNHEALTHY with the holder's pid when another
  // process has it; INVALID_ARGUMENT when the file cannot be used.
  static Result<DeviceLock> take(const std::string& driver, const std::string& id);

  DeviceLock() = default;
  ~DeviceLock() { release(); }
  DeviceLock(DeviceLock&& other) noexcept
      : path_(std::exchange(other.path_, {})), process_(other.process_) {}
  DeviceLock& operator=(DeviceLock&& other) noexcept {
    if (this == &other) return *this;
    release();
    path_ = std::exchange(other.path_, {});
    process_ = other.process_;
    return *this;
  }

  bool held() const { return !path_.empty(); }
  const std::string& path() const { return path_; }  // "" when not held

 private:
  void release() noexcept;
  std::string path_;
  uint32_t process_ = 0;  // generation that took it; in a fork's child nothing is held
};

}  // namespace calrt
