// SPDX-License-Identifier: Apache-2.0
// One shared instance at a time. A weak_ptr alone is not enough: between the last owner's release
// and the end of the destructor the old instance still holds the driver's handle, and a driver
// need not allow a second one. A Slot makes the next opener wait for that end.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "base/ranked_mutex.h"

namespace calrt {

template <class T>
class Slot {
 public:
  // The living instance, or null: then the caller makes one and calls set() or vacate(). Null with
  // *timed_out when an old instance did not go away in time. One caller makes at a time.
  std::shared_ptr<T> take(std::chrono::milliseconds patience, bool* timed_out) {
    std::unique_lock lock(mutex_);
    *timed_out = false;
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      if (!occupied_) {
        occupied_ = true;
        return nullptr;
      }
      if (auto living = instance_.lock()) return living;
      if (changed_.wait_until(lock, until) == std::cv_status::timeout) {
        *timed_out = true;
        return nullptr;
      }
    }
  }
  void set(const std::shared_ptr<T>& instance) {
    const std::scoped_lock lock(mutex_);
    instance_ = instance;
    changed_.notify_all();
  }
  // The instance has let go of the driver's handle, or could not be made.
  void vacate() {
    const std::scoped_lock lock(mutex_);
    instance_.reset();
    occupied_ = false;
    changed_.notify_all();
  }

 private:
  RankedMutex mutex_{LockRank::LEAF, "slot"};
  RankedCondition changed_;
  std::weak_ptr<T> instance_;
  bool occupied_ = false;
};

}  // namespace calrt
