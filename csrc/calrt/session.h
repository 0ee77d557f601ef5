// SPDX-License-Identifier: Apache-2.0
// An execution queue of a device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "calrt/driver_handle.h"
#include "calrt/slot.h"

namespace calrt {

class Device;
class Session;
class SessionPump;

// The driver's session, shared with the thread that works for it (session_pump.h): the last of the
// two closes it.
struct SessionCore {
  ~SessionCore();
  std::shared_ptr<Device> device;  // before handle: the parent goes last
  SessionHandle handle;
  RankedMutex serial{LockRank::SESSION, "session"};  // the driver sees one submit or poll at a time
  Slot<Session>* slot = nullptr;                     // of the device
};

// Thread-safe. The destructor waits for nothing, also when a driver hangs.
class Session {
 public:
  // `slot` was taken and is vacated when the driver has closed the session, or could not open it.
  static Result<std::shared_ptr<Session>> open(std::shared_ptr<Device> device, uint32_t index,
                                               Slot<Session>* slot);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  cald_session* handle() const { return core_->handle.get().pointer; }
  const std::shared_ptr<Device>& device() const { return core_->device; }
  uint32_t depth() const { return depth_; }
  RankedMutex& serial() const { return core_->serial; }
  // Makes jobs end on devices that do not call back; null where nothing is needed.
  SessionPump* pump() const { return pump_.get(); }

  // True: time here is what poll() says it is, and deadlines of jobs are in that time.
  bool virtual_clock() const { return virtual_; }
  // The clock of this session's deadlines, ns: CLOCK_MONOTONIC, or the latest time given to poll().
  uint64_t now_ns() const;
  // Advances a device of virtual time to `now_ns` (never back): jobs end, or are lost if their
  // deadline has come. The answer is when the device wants to be polled again, CALD_NO_DEADLINE if
  // nothing is pending. UNSUPPORTED on other devices: they are polled, if need be, by calrt.
  Result<uint64_t> poll(uint64_t now_ns);

 private:
  Session() = default;
  std::shared_ptr<SessionCore> core_;
  std::shared_ptr<SessionPump> pump_;
  uint32_t depth_ = 1;
  bool virtual_ = false;
  std::atomic<uint64_t> virtual_now_{0};
};

}  // namespace calrt
