// SPDX-License-Identifier: Apache-2.0
// Which devices this process has open. A driver need not open one twice, and a closed one is let go
// only with the last thing made from it, which may be a moment later: who opens it again waits for
// that moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace calrt {

// One device that is open, from enter() to the end of this object, which is to outlive the driver's
// handle. Thread-safe.
class DevicePresence {
 public:
  DevicePresence() = default;
  ~DevicePresence();
  DevicePresence(const DevicePresence&) = delete;
  DevicePresence& operator=(const DevicePresence&) = delete;

  void enter(const std::string& driver, const std::string& id);
  void close() noexcept;  // it is closed, and its handle to go soon

  enum class Closed { NONE, WENT, STAYS };
  // Waits while this process has that device only in closed form, for `patience` at most. NONE: it
  // has not, or has it open as well.
  static Closed await(const std::string& driver, const std::string& id,
                      std::chrono::milliseconds patience);

 private:
  std::string name_;  // "" until enter()
  bool closed_ = false;
  uint32_t process_ = 0;  // in a fork's child nothing is here
};

}  // namespace calrt
