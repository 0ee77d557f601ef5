// SPDX-License-Identifier: Apache-2.0
// Device and Session over the driver ABI. A child holds its parent; close() is idempotent.
// All methods are thread-safe and may block; none may be called with the GIL held for long.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "calrt/buffer.h"
#include "calrt/driver_handle.h"
#include "calrt/driver_library.h"
#include "calrt/slot.h"

namespace calrt {

class Device;

// An execution queue of a device.
class Session {
 public:
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  cald_session* handle() const { return handle_.get().pointer; }
  const std::shared_ptr<Device>& device() const { return device_; }
  uint32_t depth() const { return depth_; }

 private:
  friend class Device;
  friend class Job;
  Session() = default;
  std::shared_ptr<Device> device_;
  SessionHandle handle_;
  std::mutex submit_mutex_;  // a driver sees one submit at a time on a session
  Slot<Session>* slot_ = nullptr;
  uint32_t depth_ = 1;
};

struct DeviceInfo {
  std::string driver, driver_version, driver_path, name, device_class, runtime;
  uint32_t chips = 1, sessions = 1, depth = 1, queue = 0;
  bool exclusive = false;
  uint64_t memory_bytes = 0, memory_free = 0;  // 0 = unknown
};

struct Capability {
  std::string name, source;
  int32_t level = 3;
  int64_t value = 0;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  using Options = std::vector<std::pair<std::string, std::string>>;

  // `spec`: "cpu", "mock:bare" (driver:config) or "/path/libcald_vendor.so[:index]".
  static Result<std::shared_ptr<Device>> open(const std::string& spec, const Options& options);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& spec() const { return spec_; }
  const cald_driver_table& table() const { return library_->table(); }
  cald_device* handle() const { return handle_.get().pointer; }
  uint64_t now_ns() const;  // CLOCK_MONOTONIC

  Result<DeviceInfo> info();
  Result<cald_health> health();
  Result<std::vector<Capability>> caps();
  Result<std::vector<std::pair<std::string, uint64_t>>> counters();

  // The session of queue `index`, opened on first use and shared while anyone holds it.
  Result<std::shared_ptr<Session>> session(uint32_t index = 0);
  // domain: one cald domain bit. align: power of two. bytes: 1 to 2^48.
  Result<std::shared_ptr<Buffer>> alloc(uint64_t bytes, uint32_t domain, uint64_t align);

  // Closed devices refuse new work; the driver's handle goes with the last child.
  void close();
  bool closed() const { return closed_.load(); }
  Result<void> check_open() const;  // INVALID_STATE once closed, and in a fork's child
  // In a process forked after open(): nothing of the device lives here, nothing may wait for it.
  bool inherited() const { return handle_.get().inherited(); }

 private:
  friend class Model;
  Device() = default;
  // Runs `call(&error)` alone on the device's handle, as the ABI promises drivers. INVALID_STATE
  // from inside a load's progress callback, which would wait for itself.
  template <class Call>
  Result<void> call_alone(const char* where, Call&& call);

  std::string spec_;
  std::shared_ptr<DriverLibrary> library_;
  DeviceHandle handle_;
  uint32_t depth_ = 1;
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::atomic<std::thread::id> caller_{};  // who holds mutex_
  std::vector<std::unique_ptr<Slot<Session>>> sessions_;
};

template <class Call>
Result<void> Device::call_alone(const char* where, Call&& call) {
  if (caller_.load() == std::this_thread::get_id())
    return Error{Status::INVALID_STATE, 0,
                 "the device is in a call of this very thread: a load's progress callback may not "
                 "use the device",
                 where};
  const std::scoped_lock lock(mutex_);
  caller_.store(std::this_thread::get_id());
  auto answered = call_driver(where, std::forward<Call>(call));
  caller_.store(std::thread::id());
  return answered;
}

}  // namespace calrt
