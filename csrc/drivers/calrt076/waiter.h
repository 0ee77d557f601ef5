// SPDX-License-Identifier: Apache-2.0
// The thread that sits in the SDK's Wait, which has no time limit, so that nobody else has to.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "drivers/calrt076/device.h"

namespace calrt::calrt076 {

// Awaits one run at a time. An end that is told of another run (again, or after a cancel) is
// counted and dropped, by the run's number, which is never used twice.
class Waiter {
 public:
  // `ended` is called on the waiter's thread, once for each awaited run.
  Waiter(cald_device* device, std::function<void(const Error* why)> ended)
      : device_(device), ended_(std::move(ended)) {}
  Result<void> start();
  // No run is awaited any more: a Wait that does not return is not left either.
  ~Waiter();

  void await(calrt_model* model, uint64_t run);

 private:
  void loop();
  Result<void> outcome(calrt_model* model, uint64_t run);

  cald_device* const device_;
  const std::function<void(const Error* why)> ended_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  calrt_model* model_ = nullptr;
  uint64_t run_ = 0;  // 0 = none
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace calrt::calrt076
