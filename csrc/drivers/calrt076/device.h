// SPDX-License-Identifier: Apache-2.0
// The VirtualDevice. Its two chiplets are parts of the one device.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/calrt076/border.h"
#include "drivers/calrt076/runtime.h"

struct cald_driver {
  const cald_host* host;
  calrt::calrt076::Runtime runtime;

  uint64_t now_ns() const { return host->now_ns(host->user); }
};

// Thread-safe.
struct cald_device {
  cald_device(cald_driver* owner, calrt_vdev* handle) : driver(owner), vdev(handle) {}
  ~cald_device();
  cald_device(const cald_device&) = delete;

  cald_driver* const driver;
  calrt_vdev* const vdev;
  std::mutex vdev_mutex;  // calls on the SDK's handle are one at a time
  uint32_t models = 0;    // loaded; under vdev_mutex. The SDK's device is not closed under a model
  std::vector<cald_chip> chips;
  std::vector<const cald_chip*> chip_list;
  std::vector<std::string> chip_names;

  std::atomic<bool> session_open{false};
  std::atomic<uint64_t> jobs{0}, tokens{0};
  std::atomic<uint64_t> stray_ends{0};  // told by the SDK and of no run that is awaited
  std::atomic<uint64_t> wait_errors{0};
  std::atomic<uint64_t> reruns{0};  // since an output was lost
};

namespace calrt::calrt076 {

inline constexpr uint32_t kChips = 2;
inline constexpr uint32_t kDepth = 1;  // runs that are the SDK's at once
inline constexpr uint32_t kQueue = 8;  // jobs that may wait behind

Result<std::unique_ptr<cald_device>> open_device(cald_driver* driver,
                                                 const cald_device_options& options);
// Without opening anything: memory is then unknown. `device` may be null.
Result<void> describe_device(cald_device* device, cald_device_info* out);
void describe_topology(const cald_device& device, cald_topology* out);
void list_caps(cald_cap* out, uint32_t* count);
void list_counters(const cald_device& device, cald_counter* out, uint32_t* count);

}  // namespace calrt::calrt076
