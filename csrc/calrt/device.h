// SPDX-License-Identifier: Apache-2.0
// A device over the driver ABI. Its children (sessions, models, buffers, pools) hold it.
// All methods are thread-safe and may block; none may be called with the GIL held for long.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "calrt/buffer.h"
#include "calrt/device_facts.h"
#include "calrt/device_lock.h"
#include "calrt/device_presence.h"
#include "calrt/driver_handle.h"
#include "calrt/driver_library.h"
#include "calrt/session.h"
#include "calrt/slot.h"

namespace calrt {

class BufferPool;
class Device;
class Package;
struct LoadRequest;

// How a device is opened, apart from the driver's own options.
struct OpenSettings {
  // Around the driver, as layers::make_layers takes them, "" = none; unset: environment
  // CALRT_LAYERS.
  std::optional<std::string> layers;
  // Locked against other processes; unset: if the device says that it is exclusive.
  std::optional<bool> exclusive;
  // The driver runs in a process of its own; unset: if the spec says so, or the driver is one that
  // needs it.
  std::optional<bool> isolate;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  using Options = std::vector<std::pair<std::string, std::string>>;

  // `spec`: as DeviceSpec: "cpu", "mock:bare" (driver:config), "/path/libcald_vendor.so[:index]",
  // "isolate:mock".
  // DEVICE_UNHEALTHY, naming the holder, when it is exclusive and another process has it. A driver
  // that will not open a device twice is asked again once the one that this process has closed is
  // let go of, within a second.
  static Result<std::shared_ptr<Device>> open(const std::string& spec, const Options& options,
                                              const OpenSettings& settings = {});
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& spec() const { return spec_; }
  uint64_t serial() const { return serial_; }  // of this open(), unique in the process
  const cald_driver_table& table() const { return library_->table(); }
  cald_device* handle() const { return handle_.get().pointer; }
  uint64_t now_ns() const;  // CLOCK_MONOTONIC

  Result<DeviceInfo> info();
  Result<cald_health> health();
  Result<std::vector<Capability>> caps();
  Result<std::vector<std::pair<std::string, uint64_t>>> counters();
  Result<Topology> topology();  // UNSUPPORTED when the driver does not tell
  // UNSUPPORTED for a domain the device has not; the least of rules when the driver tells none.
  Result<BufferRules> buffer_rules(uint32_t domain);
  // What a load of these options would need. Checks them as the load does; loads nothing.
  Result<cald_footprint> footprint(const Package& package, const LoadRequest& request);

  // The device's own trace: at most `capacity` events are kept between two drains. start() begins
  // anew. drain() takes all there are, before and after stop(). UNSUPPORTED when it has none.
  Result<void> trace_start(uint32_t capacity);
  Result<DeviceTrace> trace_drain();
  Result<void> trace_stop();

  // The session of queue `index`, opened on first use and shared while anyone holds it.
  Result<std::shared_ptr<Session>> session(uint32_t index = 0);
  // domain: one cald domain bit. align: power of two. bytes: 1 to 2^48. The driver's rules raise
  // the alignment and pad the size.
  Result<std::shared_ptr<Buffer>> alloc(uint64_t bytes, uint32_t domain, uint64_t align,
                                        BufferPurpose purpose = {});
  // A pool of at most `count` (1 to 65,536) such buffers, each made when it is first needed.
  Result<std::shared_ptr<BufferPool>> make_pool(uint64_t bytes, uint32_t count, uint32_t domain,
                                                uint64_t align);
  // The views that live of this device's memory; of one model's if `generation` is not 0.
  ExportCensus exports(uint64_t generation = 0) const;

  // Idempotent. Closed devices refuse new work; the driver's handle goes with the last child.
  void close();
  bool closed() const { return closed_.load(); }
  Result<void> check_open() const;  // INVALID_STATE once closed, and in a fork's child
  // In a process forked after open(): nothing of the device lives here, nothing may wait for it.
  bool inherited() const { return handle_.get().inherited(); }
  // How often the driver has said DEVICE_LOST, as the end of a job or as the answer of any entry
  // but those about one job. What was there before is gone: Model::check_alive.
  uint64_t losses() const { return losses_.load(std::memory_order_acquire); }
  // Counts an answer of the driver if it is DEVICE_LOST. Locks nothing.
  void heed(Status answer) noexcept {
    if (answer == Status::DEVICE_LOST) losses_.fetch_add(1, std::memory_order_acq_rel);
  }
  Result<void> heeded(Result<void> answer) {
    if (!answer.ok()) heed(answer.error().code);
    return answer;
  }

 private:
  friend class Buffer;
  friend class Model;
  friend class Session;
  Device() = default;
  Result<BufferPlan> plan_buffer(uint64_t bytes, uint32_t domain, uint64_t align);
  Result<std::unique_ptr<Buffer>> make_buffer(const BufferPlan& plan, BufferPurpose purpose);
  static uint64_t next_serial();
  // Runs `call(&error)` alone on the device's handle, as the ABI promises drivers. INVALID_STATE
  // from inside a load's progress callback, which would wait for itself.
  template <class Call>
  Result<void> call_alone(const char* where, Call&& call);
  Result<cald_footprint> ask_footprint(const Package& package, const cald_load_options& options);

  std::string spec_;
  const uint64_t serial_ = next_serial();
  std::shared_ptr<DriverLibrary> library_;
  DevicePresence presence_;  // before handle_, as the next: freed once the driver has closed it
  DeviceLock lock_;
  DeviceHandle handle_;
  uint32_t depth_ = 1;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> losses_{0};
  RankedMutex mutex_{LockRank::DEVICE, "device"};
  std::atomic<std::thread::id> caller_{};  // who holds mutex_
  std::vector<std::unique_ptr<Slot<Session>>> sessions_;
  mutable RankedMutex buffers_mutex_{LockRank::LEAF, "device.buffers"};
  std::unordered_set<const Buffer*> buffers_;              // all that live
  std::vector<std::weak_ptr<BoundedPool<Buffer>>> pools_;  // all that may live; none once closed
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
  auto answered = heeded(call_driver(where, std::forward<Call>(call)));
  caller_.store(std::thread::id());
  return answered;
}

}  // namespace calrt
